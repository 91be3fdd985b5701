/*
 * Fuzzer for the job file: any bytes are either a job, or refused with a reason.
 *
 * The input is the file; after the first byte 0xFF, which is in no UTF-8 text, come assignments as
 * --set takes them, with 0xFF between them. A job that is accepted must survive being written and
 * read again, as must any tree that the parser makes, and must build models whose tensors lie side
 * by side.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/tests/demand.h"
#include "core/state/jobs.h"
#include "core/train/job/job.h"
#include "models/model.h"

enum { MOST_SETS = 8, END = 0xFF };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A refusal has a reason, one that a terminal can show, and a status that says whose fault it is.
 */
static void demand_reason(enum dpt_status status, const struct dpt_error *err)
{
    DEMAND(err->status == status && (status == DPT_BAD_JOB || status == DPT_USAGE), "%d: %s",
           (int)status, err->text);
    DEMAND(err->text[0] != '\0', "status %d", (int)status);
    for (const char *c = err->text; *c != '\0'; c++)
        DEMAND((unsigned char)*c >= 0x20 || *c == '\n', "byte %d in: %s", *c, err->text);
}

/* A number has another spelling where not every reader of YAML takes the one that it had. */
static bool same_text(const char *a, const char *b)
{
    double x, y;

    return strcmp(a, b) == 0 || (dpt_parse_real(a, &x) && dpt_parse_real(b, &y) && x == y);
}

/* A text that plain YAML cannot say comes back in quotes, which is fine unless it says nothing. */
static void demand_same(const struct dpt_conf_node *a, const struct dpt_conf_node *b)
{
    DEMAND(a->kind == b->kind, "kinds %d and %d", (int)a->kind, (int)b->kind);
    if (a->kind == DPT_NODE_SCALAR) {
        DEMAND(dpt_conf_is_null(a) == dpt_conf_is_null(b), "'%s', '%s'", a->text, b->text);
        if (dpt_conf_is_null(a))
            return;
        DEMAND(same_text(a->text, b->text), "'%s', '%s'", a->text, b->text);
        DEMAND(a->quoted <= b->quoted, "'%s'", a->text);
        return;
    }
    DEMAND(a->n == b->n, "%zu and %zu entries", a->n, b->n);
    for (size_t i = 0; i < a->n; i++) {
        if (a->kind == DPT_NODE_MAP)
            DEMAND(strcmp(a->keys[i], b->keys[i]) == 0, "'%s', '%s'", a->keys[i], b->keys[i]);
        demand_same(a->items[i], b->items[i]);
    }
}

/* Written and read again, a tree is the same, and the second writing is as the first. A tree may be
 * longer when written than a file may be. */
static void demand_survives(const struct dpt_conf_node *root)
{
    struct dpt_str text = {0}, second = {0};
    struct dpt_error err = {0};
    struct dpt_conf again;

    dpt_conf_write(root, &text);
    DEMAND(!text.failed, "no memory");
    if (text.length < DPT_YAML_BYTES) {
        DEMAND(dpt_conf_parse(&again, "again", text.text, text.length, &err) == DPT_OK, "%s\n%s",
               err.text, text.text);
        DEMAND(dpt_conf_validation_result(&again, &err) == DPT_OK, "%s\n%s", err.text, text.text);
        demand_same(root, again.root);
        dpt_conf_write(again.root, &second);
        DEMAND(strcmp(text.text, second.text) == 0, "%s\n%s", text.text, second.text);
        dpt_conf_release(&again);
    }
    dpt_str_release(&text);
    dpt_str_release(&second);
}

/* Tries any tree that the parser has no mistake in, whatever a job may hold. */
static void try_parser(const uint8_t *text, size_t size)
{
    struct dpt_error err = {0};
    struct dpt_conf conf;
    enum dpt_status status = dpt_conf_parse(&conf, "job.yaml", (const char *)text, size, &err);

    if (status == DPT_OK)
        status = dpt_conf_validation_result(&conf, &err);
    if (status == DPT_OK)
        demand_survives(conf.root);
    else
        demand_reason(status, &err);
    dpt_conf_release(&conf);
}

static void demand_whole(const struct dpt_graph *graph)
{
    int64_t ends[] = {0, graph->floats}, parameters = 0; /* of what is learned, and of the state */

    for (int32_t i = 0; i < graph->n_tensors; i++) {
        const struct dpt_tensor *t = &graph->tensors[i];
        int64_t count = 1;

        for (int d = 0; d < t->n_dims; d++)
            count *= t->dims[d];
        DEMAND(count > 0 && count == t->count, "%s: %lld", t->name, (long long)count);
        DEMAND(t->offset >= ends[t->state] && t->offset % DPT_TENSOR_ALIGN == 0, "%s", t->name);
        ends[t->state] = t->offset + count;
        parameters += t->state ? 0 : count;
    }
    DEMAND(graph->floats >= ends[0] && graph->arena >= ends[1] && graph->parameters == parameters,
           "%lld", (long long)graph->floats);
    for (int32_t i = 0; i < graph->n_nodes; i++) {
        const struct dpt_graph_node *n = &graph->nodes[i];

        DEMAND(dpt_shape_size(&n->out) > 0 && n->weight < graph->n_tensors &&
                   n->bias < graph->n_tensors && n->mean < graph->n_tensors &&
                   n->variance < graph->n_tensors,
               "%s", n->name);
        for (int32_t k = 0; k < n->n_inputs; k++)
            DEMAND(n->inputs[k] >= 0 && n->inputs[k] < i, "%s", n->name);
    }
}

static void try_models(const struct dpt_job *job)
{
    static const struct dpt_shape shapes[] = {
        {1, 28, 28, false}, {3, 5, 7, false}, {10, 1, 1, true}};
    struct dpt_error err = {0};

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct dpt_graph graph = {0};
        const enum dpt_status status = dpt_model_build(&job->model, &shapes[i], &graph, &err);

        if (status == DPT_OK)
            demand_whole(&graph);
        else
            demand_reason(status, &err);
        dpt_graph_release(&graph);
    }
}

/* Does what a resumed run does: compares the job with that of a checkpoint, which may hold any
 * text. */
static void try_resume(const struct dpt_job *job, const struct dpt_conf *conf, const char *text)
{
    struct dpt_str signature = {0}, changes = {0};

    dpt_job_signature(job, conf, &signature);
    if (signature.length < DPT_YAML_BYTES) {
        DEMAND(dpt_jobs_compare(signature.text, signature.text, dpt_job_options,
                                sizeof(struct dpt_job), NULL, true, &changes),
               "%s", changes.text);
        DEMAND(changes.length == 0, "%s", changes.text);
    }
    dpt_jobs_compare(text, signature.text, dpt_job_options, sizeof(struct dpt_job), NULL, true,
                     &changes);
    dpt_jobs_compare(signature.text, text, dpt_job_options, sizeof(struct dpt_job), NULL, true,
                     &changes);
    DEMAND(!changes.failed, "no memory");
    dpt_str_release(&signature);
    dpt_str_release(&changes);
}

/* Makes a file without a name, so that nothing is left behind. */
static int put_file(const void *bytes, size_t size, char path[64])
{
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);

    DEMAND(fd >= 0 && write(fd, bytes, size) == (ssize_t)size, "no memory");
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

/* The resolved job is a job, the same one. */
static void demand_stays(const struct dpt_conf *conf)
{
    struct dpt_str text = {0}, second = {0};
    struct dpt_error err = {0};
    struct dpt_conf again;
    struct dpt_job job;
    char path[64];
    int fd;

    dpt_conf_write(conf->root, &text);
    if (text.length < DPT_YAML_BYTES) {
        fd = put_file(text.text, text.length, path);
        DEMAND(dpt_job_load(&job, &again, path, NULL, 0, &err) == DPT_OK, "%s\n%s", err.text,
               text.text);
        dpt_conf_write(again.root, &second);
        DEMAND(strcmp(text.text, second.text) == 0, "%s\n%s", text.text, second.text);
        dpt_conf_release(&again);
        close(fd);
    }
    dpt_str_release(&text);
    dpt_str_release(&second);
}

/* text: the file and behind it the assignments, with a NUL behind each. */
static void try_job(const char *text, size_t length, const char *const *sets, size_t n_sets)
{
    struct dpt_error err = {0};
    struct dpt_conf conf;
    struct dpt_job job;
    char path[64];
    const int fd = put_file(text, length, path);
    const enum dpt_status status = dpt_job_load(&job, &conf, path, sets, n_sets, &err);

    if (status == DPT_OK) {
        demand_survives(conf.root);
        demand_stays(&conf);
        try_models(&job);
        try_resume(&job, &conf, text);
    } else {
        demand_reason(status, &err);
    }
    dpt_conf_release(&conf);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *sets[MOST_SETS];
    size_t n_sets = 0, length = size;
    char *text = malloc(size + 1);

    DEMAND(text != NULL, "no memory");
    memcpy(text, data, size);
    text[size] = '\0';
    for (size_t i = 0; i < size; i++) {
        if (data[i] != END)
            continue;
        text[i] = '\0';
        if (n_sets == 0)
            length = i;
        if (n_sets < MOST_SETS)
            sets[n_sets++] = text + i + 1;
    }
    try_parser(data, length);
    try_job(text, length, sets, n_sets);
    free(text);
    return 0;
}
