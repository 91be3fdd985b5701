#include "core/state/jobs.h"

#include <stdlib.h>
#include <string.h>

#include "core/conf/settings.h"

/* One job's keys, as they are found. */
struct collector {
    struct dpt_job_keys *keys;
    const size_t *sorted; /* numbers of the keys that earlier jobs have, by path */
    size_t n_sorted, job;
};

static struct dpt_job_key *find_key(const struct collector *c, const char *path)
{
    size_t low = 0, high = c->n_sorted;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        struct dpt_job_key *key = &c->keys->keys[c->sorted[middle]];
        const int order = strcmp(path, key->path);

        if (order == 0)
            return key;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

static struct dpt_job_key *add_key(struct dpt_job_keys *keys, const char *path)
{
    struct dpt_job_key *key;

    if (keys->n_keys == keys->capacity) {
        const size_t capacity = 2 * keys->capacity + 64;
        struct dpt_job_key *larger = reallocarray(keys->keys, capacity, sizeof *larger);

        if (larger == NULL)
            return NULL;
        keys->keys = larger;
        keys->capacity = capacity;
    }
    key = &keys->keys[keys->n_keys];
    *key =
        (struct dpt_job_key){.path = dpt_region_strdup(&keys->arena, path),
                             .value = dpt_region_alloc(&keys->arena, keys->n * sizeof *key->value)};
    if (key->path == NULL || key->value == NULL)
        return NULL;
    keys->n_keys++;
    return key;
}

static void collect(void *arg, const char *path, const struct dpt_conf_node *leaf,
                    enum dpt_effect effect)
{
    struct collector *c = arg;
    struct dpt_job_key *key = find_key(c, path);
    const struct dpt_option *row = leaf->row;
    struct dpt_str text = {0};

    if (key == NULL)
        key = add_key(c->keys, path);
    dpt_conf_setting_text(leaf, &text);
    if (key != NULL) {
        key->value[c->job] = dpt_region_strdup(&c->keys->arena, text.text != NULL ? text.text : "");
        key->effect = effect;
        key->words |= row != NULL && (row->type == DPT_OPT_TEXT || row->type == DPT_OPT_TEXTS);
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

static int by_path(const void *a, const void *b, void *arg)
{
    const struct dpt_job_key *keys = arg;

    return strcmp(keys[*(const size_t *)a].path, keys[*(const size_t *)b].path);
}

bool dpt_job_keys_open(struct dpt_job_keys *keys, const struct dpt_conf_node *const *jobs, size_t n)
{
    size_t *sorted = NULL;

    *keys = (struct dpt_job_keys){.n = n};
    for (size_t i = 0; i < n && !keys->failed; i++) {
        struct collector c = {keys, sorted, sorted == NULL ? 0 : keys->n_keys, i};
        size_t *larger;

        if (jobs[i] != NULL && !dpt_conf_settings(jobs[i], collect, &c))
            keys->failed = true;
        larger = reallocarray(sorted, keys->n_keys + 1, sizeof *sorted);
        keys->failed |= larger == NULL;
        sorted = larger != NULL ? larger : sorted;
        for (size_t k = 0; !keys->failed && k < keys->n_keys; k++)
            sorted[k] = k;
        if (!keys->failed)
            qsort_r(sorted, keys->n_keys, sizeof *sorted, by_path, keys->keys);
    }
    free(sorted);
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

/* With defaults in place of what is absent. That the text of another version has mistakes does not
 * matter: what is not understood counts as it stands. */
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
    changes->failed |= job == NULL || conf->failed;
    free(job);
    return good;
}

/* Adds the differing keys. Whether a run may go on with them. */
static bool tell(const struct dpt_job_keys *keys, struct dpt_str *changes)
{
    bool same = true;

    for (size_t k = 0; k < keys->n_keys; k++) {
        const struct dpt_job_key *key = &keys->keys[k];
        const char *before = key->value[0], *now = key->value[1];

        if (!key->differs)
            continue;
        dpt_str_printf(changes, "%s", changes->length > 0 ? "\n" : "");
        dpt_str_printable(changes, key->path, strlen(key->path), false);
        dpt_str_printf(changes, ": %s -> %s", before != NULL ? before : "nothing",
                       now != NULL ? now : "nothing");
        same &= key->effect >= DPT_EFFECT_LENGTH;
    }
    return same;
}

bool dpt_jobs_compare(const char *old_job, const char *new_job, const struct dpt_option *table,
                      size_t size, struct dpt_str *changes)
{
    struct dpt_conf before = {0}, now = {0};
    struct dpt_job_keys keys = {0};
    bool same = parse(&before, "checkpoint", old_job, table, size, changes) &&
                parse(&now, "job", new_job, table, size, changes);

    if (same &&
        dpt_job_keys_open(&keys, (const struct dpt_conf_node *const[]){before.root, now.root}, 2))
        same = tell(&keys, changes);
    changes->failed |= keys.failed;
    dpt_job_keys_close(&keys);
    dpt_conf_release(&before);
    dpt_conf_release(&now);
    return same;
}
