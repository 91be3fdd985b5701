/* What run folders tell: their histories and their jobs. */
#include <stdlib.h>
#include <string.h>

#include "cmd/report/report.h"
#include "core/base/file.h"

/* Keys of a job as they are found. */
struct keys {
    struct dpt_page_key *at;
    size_t n, capacity;
    struct dpt_arena *arena;
    bool failed;
};

static void add_key(struct keys *keys, const char *path, const char *value)
{
    if (keys->n == keys->capacity) {
        const size_t capacity = keys->capacity == 0 ? 64 : 2 * keys->capacity;
        struct dpt_page_key *at = dpt_arena_alloc(keys->arena, capacity * sizeof *at);

        if (at == NULL) {
            keys->failed = true;
            return;
        }
        if (keys->n > 0)
            memcpy(at, keys->at, keys->n * sizeof *at);
        keys->at = at;
        keys->capacity = capacity;
    }
    keys->at[keys->n++] = (struct dpt_page_key){path, value};
    keys->failed = keys->failed || path == NULL || value == NULL;
}

static bool all_scalars(const struct dpt_conf_node *list)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->items[i]->kind != DPT_NODE_SCALAR)
            return false;
    return true;
}

/* "[3, 3]" */
static const char *joined(const struct dpt_conf_node *list, struct dpt_arena *arena)
{
    const char *text = "";

    for (size_t i = 0; i < list->n && text != NULL; i++)
        text = dpt_arena_printf(arena, "%s%s%s", text, i == 0 ? "" : ", ", list->items[i]->text);
    return text == NULL ? NULL : dpt_arena_printf(arena, "[%s]", text);
}

/* The parser allows no more than DPT_YAML_DEPTH levels. */
static void flatten(struct keys *keys, const struct dpt_conf_node *node, const char *path)
{
    if (path == NULL || keys->failed) {
        keys->failed = true;
        return;
    }
    if (node->kind == DPT_NODE_SCALAR) {
        add_key(keys, path, dpt_arena_strdup(keys->arena, node->text));
    } else if (node->kind == DPT_NODE_LIST && all_scalars(node)) {
        add_key(keys, path, joined(node, keys->arena));
    } else {
        for (size_t i = 0; i < node->n; i++)
            flatten(keys, node->items[i],
                    node->kind == DPT_NODE_LIST
                        ? dpt_arena_printf(keys->arena, "%s[%zu]", path, i)
                        : dpt_arena_printf(keys->arena, "%s%s%s", path, *path != '\0' ? "." : "",
                                           node->keys[i]));
    }
}

static enum dpt_status read_job(struct dpt_page *r, struct dpt_page_run *run, struct dpt_error *err)
{
    struct keys keys = {.arena = &r->arena};
    struct dpt_error why = {0};
    char *text = NULL;
    size_t length = 0;
    const char *path = dpt_arena_printf(&r->arena, "%s/job.yaml", run->history.folder);

    if (path == NULL)
        return dpt_fail_memory(err, "the report", 0);
    if (dpt_conf_load(&run->conf, path, &why) != DPT_OK ||
        dpt_file_read(path, DPT_YAML_BYTES, DPT_BAD_JOB, &text, &length, &why) != DPT_OK) {
        run->no_job = dpt_arena_strdup(&r->arena, why.text);
        return run->no_job != NULL ? DPT_OK : dpt_fail_memory(err, "the report", 0);
    }
    run->job_text = dpt_arena_strndup(&r->arena, text, length);
    free(text);
    flatten(&keys, run->conf.root, "");
    run->keys = keys.at;
    run->n_keys = keys.n;
    if (keys.failed || run->job_text == NULL)
        return dpt_fail_memory(err, "the report", 0);
    return DPT_OK;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

/* The folders' names, or where two are alike their paths. */
static void name_runs(struct dpt_page *r)
{
    bool alike = false;

    for (size_t i = 0; i < r->n; i++)
        for (size_t k = 0; k < i; k++)
            alike = alike || strcmp(last_part(r->runs[i].history.folder),
                                    last_part(r->runs[k].history.folder)) == 0;
    for (size_t i = 0; i < r->n; i++) {
        const char *folder = r->runs[i].history.folder;

        r->runs[i].label = alike ? folder : last_part(folder);
    }
}

enum dpt_status dpt_page_read(struct dpt_page *r, const char *const *folders, size_t n,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    r->runs = calloc(n, sizeof *r->runs);
    if (r->runs == NULL)
        return dpt_fail_memory(err, "the runs", 0);
    for (size_t i = 0; i < n; i++) {
        struct dpt_page_run *run = &r->runs[i];

        run->path = folders[i];
        r->n = i + 1;
        DPT_TRY(dpt_history_open(&run->history, folders[i], err));
        DPT_TRY(read_job(r, run, err));
    }
    name_runs(r);
out:
    return status;
}

const char *dpt_page_value(const struct dpt_page_run *run, const char *path)
{
    for (size_t i = 0; i < run->n_keys; i++)
        if (strcmp(run->keys[i].path, path) == 0)
            return run->keys[i].value;
    return NULL;
}

void dpt_page_close(struct dpt_page *r)
{
    for (size_t i = 0; i < r->n; i++) {
        dpt_history_close(&r->runs[i].history);
        dpt_conf_release(&r->runs[i].conf);
    }
    free(r->runs);
    dpt_arena_release(&r->arena);
    dpt_str_release(&r->out);
}
