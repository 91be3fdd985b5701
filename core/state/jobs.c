#include "core/state/jobs.h"

#include <stdlib.h>
#include <string.h>

#include "core/conf/option.h"

/* One job's keys, as they are found. */
struct collector {
    struct dpt_job_keys *keys;
    size_t job;
    size_t next; /* key that is expected now: jobs have most of them, in one order */
};

/* The key of a path, which is added where earlier jobs do not have it. NULL: memory ran out. */
static struct dpt_job_key *key_of(struct collector *c, const char *path)
{
    struct dpt_job_keys *keys = c->keys;
    struct dpt_job_key *key;

    for (size_t i = 0; i < keys->n_keys; i++) {
        const size_t at = (c->next + i) % keys->n_keys;

        if (strcmp(keys->keys[at].path, path) != 0)
            continue;
        c->next = at + 1;
        return &keys->keys[at];
    }
    key = dpt_grow(keys->keys, &keys->capacity, keys->n_keys + 1, sizeof *key);
    if (key == NULL)
        return NULL;
    keys->keys = key;
    key += keys->n_keys;
    *key =
        (struct dpt_job_key){.path = dpt_region_strdup(&keys->arena, path),
                             .value = dpt_region_alloc(&keys->arena, keys->n * sizeof *key->value)};
    if (key->path == NULL || key->value == NULL)
        return NULL;
    keys->n_keys++;
    return key;
}

static void collect(void *arg, const char *path, const struct dpt_conf_node *setting,
                    enum dpt_effect effect)
{
    struct collector *c = arg;
    struct dpt_job_key *key = key_of(c, path);
    const struct dpt_option *row = setting->row;
    struct dpt_str text = {0};

    dpt_conf_setting_text(setting, &text);
    if (key != NULL) {
        key->value[c->job] = dpt_region_strdup(&c->keys->arena, text.text != NULL ? text.text : "");
        key->effect = effect;
        key->words |= row != NULL && (row->type == DPT_OPT_TEXT || row->type == DPT_OPT_NAME ||
                                      row->type == DPT_OPT_TEXTS);
    }
    c->keys->failed |= key == NULL || text.failed || key->value[c->job] == NULL;
    dpt_str_release(&text);
}

static bool same_value(const char *a, const char *b, bool words)
{
    double x, y;

    if (a == NULL || b == NULL)
        return a == b;
    return strcmp(a, b) == 0 ||
           (!words && dpt_parse_real(a, &x) && dpt_parse_real(b, &y) && x == y);
}

static void find_difference(struct dpt_job_key *key, const struct dpt_conf_node *const *jobs,
                            size_t n)
{
    size_t first = 0;

    while (first < n && jobs[first] == NULL)
        first++;
    for (size_t i = first + 1; i < n && strcmp(key->path, "output") != 0; i++)
        if (jobs[i] != NULL && !same_value(key->value[first], key->value[i], key->words))
            key->differs = true;
}

bool dpt_job_keys_open(struct dpt_job_keys *keys, const struct dpt_conf_node *const *jobs, size_t n)
{
    *keys = (struct dpt_job_keys){.n = n};
    for (size_t i = 0; i < n && !keys->failed; i++)
        if (jobs[i] != NULL &&
            !dpt_conf_settings(jobs[i], collect, &(struct collector){keys, i, 0}))
            keys->failed = true;
    for (size_t k = 0; !keys->failed && k < keys->n_keys; k++)
        find_difference(&keys->keys[k], jobs, n);
    return !keys->failed;
}

void dpt_job_keys_close(struct dpt_job_keys *keys)
{
    free(keys->keys);
    dpt_region_release(&keys->arena);
    *keys = (struct dpt_job_keys){0};
}

/* Reads a job's text, with defaults in place of what is absent. That the text of another version
 * has errors does not matter: what is not understood counts as it stands. */
static bool parse(struct dpt_conf *conf, const char *name, const char *text,
                  const struct dpt_option *table, size_t size, struct dpt_str *changes)
{
    struct dpt_error err;
    void *job = calloc(size + 1, 1);
    bool good = job != NULL;

    if (dpt_conf_parse(conf, name, text, strlen(text), &err) != DPT_OK) {
        dpt_str_printf(changes, "%s", err.text);
        good = false;
    }
    if (good && table != NULL)
        good = dpt_options_read(conf, conf->root, "", table, job);
    changes->failed |= job == NULL || conf->region.failed;
    free(job);
    return good;
}

/* Adds the differing keys. Tells whether a run may resume with them. */
static bool tell(const struct dpt_job_keys *keys, const char *settled, bool all,
                 struct dpt_str *changes)
{
    bool same = true;

    for (size_t k = 0; k < keys->n_keys; k++)
        same &= !keys->keys[k].differs || keys->keys[k].effect >= DPT_EFFECT_LENGTH ||
                (settled != NULL && strcmp(keys->keys[k].path, settled) == 0);
    for (size_t k = 0; k < keys->n_keys; k++) {
        const struct dpt_job_key *key = &keys->keys[k];
        const char *before = key->value[0], *now = key->value[1];

        if (!key->differs || (!all && key->effect >= DPT_EFFECT_NONE))
            continue;
        dpt_str_printf(changes, "%s", changes->length > 0 ? "\n" : "");
        dpt_str_printable(changes, key->path, strlen(key->path), false);
        dpt_str_printf(changes, ": %s -> %s", before != NULL ? before : "nothing",
                       now != NULL ? now : "nothing");
    }
    return same;
}

bool dpt_jobs_compare(const char *old_job, const char *new_job, const struct dpt_option *table,
                      size_t size, const char *settled, bool all, struct dpt_str *changes)
{
    struct dpt_conf before = {0}, now = {0};
    struct dpt_job_keys keys = {0};
    bool same = parse(&before, "checkpoint", old_job, table, size, changes) &&
                parse(&now, "job", new_job, table, size, changes);

    if (same &&
        dpt_job_keys_open(&keys, (const struct dpt_conf_node *const[]){before.root, now.root}, 2))
        same = tell(&keys, settled, all, changes);
    changes->failed |= keys.failed;
    dpt_job_keys_close(&keys);
    dpt_conf_release(&before);
    dpt_conf_release(&now);
    return same;
}
