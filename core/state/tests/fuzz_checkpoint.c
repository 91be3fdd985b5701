/*
 * Fuzzer for checkpoints. The first byte of the input says what becomes of the others:
 *
 *   0  they are the file: it is accepted if and only if its last line is right
 *   1  they get a right last line, and are accepted by dpt_checkpoint_verify
 *   2  they are choices of forge.h: a whole HDF5 file with a right last line, which is loaded, or
 *      refused with a reason
 *   3  likewise, and then one byte of the file is changed: refused
 *
 * HDF5's own structures are never damaged under a right checksum: no accident does that, and
 * libhdf5 1.10 does not bear it.
 */
#include <stdint.h>

#include "core/state/checkpoint.h"
#include "core/state/jobs.h"
#include "core/state/tests/load.h"
#include "data/shards/h5.h"
#include "data/tests/forge.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ROWS = 3, COLUMNS = 2, ARENA = 32, SLOTS = 2 };

/* A state to load into: one dense layer and Adam's state. */
struct scene {
    struct dpt_graph graph;
    struct dpt_state state;
    float arena[1 + SLOTS][ARENA];
    const char *names[SLOTS];
};

static const char plan_text[] = "dense1 forward\tproduct fp32 8x3x2\t-algo=1\n";
static const char job_text[] = "seed: 1\nmodel:\n  type: linear\n  outputs: 3\n";

static void open_scene(struct scene *s)
{
    struct dpt_tensor weight = {.name = "dense1/weight", .n_dims = 2, .dims = {ROWS, COLUMNS}};
    struct dpt_tensor bias = {.name = "dense1/bias", .n_dims = 1, .dims = {ROWS}};
    struct dpt_error err;
    int32_t index;

    memset(s, 0, sizeof *s);
    DEMAND(dpt_graph_add_tensor(&s->graph, &weight, &index, &err) == DPT_OK &&
               dpt_graph_add_tensor(&s->graph, &bias, &index, &err) == DPT_OK,
           "%s", err.text);
    DEMAND(s->graph.floats == ARENA, "%lld", (long long)s->graph.floats);
    s->names[0] = "m";
    s->names[1] = "v";
    s->state = (struct dpt_state){.graph = &s->graph,
                                  .params = s->arena[0],
                                  .slots = SLOTS,
                                  .slot = {s->arena[1], s->arena[2]},
                                  .slot_names = s->names,
                                  .job_text = job_text};
}

static float value_of(int arena, int32_t tensor, int64_t i)
{
    return (float)(100 * arena + 10 * tensor + i) / 7.0F;
}

static void forge_numbers(struct forge *f, hid_t file)
{
    static const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"format_version", DPT_CHECKPOINT_FORMAT},
        {"parameters", ROWS * COLUMNS + ROWS},
        {"step", 7},
        {"updates", 6},
        {"samples", 448},
        {"epoch", 1},
        {"epoch_step", 2},
        {"best_step", 4},
    };
    const double best = 0.75;

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        forge_attribute(f, file, numbers[i].name, H5T_NATIVE_INT64, 0, &numbers[i].value);
    forge_attribute(f, file, "best_metric", H5T_NATIVE_DOUBLE, 0, &best);
}

static void forge_tensors(struct forge *f, const struct scene *s, hid_t file)
{
    for (int k = 0; k < 1 + SLOTS; k++)
        for (int32_t i = 0; i < s->graph.n_tensors; i++) {
            const struct dpt_tensor *tensor = &s->graph.tensors[i];
            struct forge_want want = {
                .type = H5T_IEEE_F32LE, .n_dims = tensor->n_dims, .crc = true};
            float values[ROWS * COLUMNS];
            char name[96];

            snprintf(name, sizeof name, "%s%s/%s", k == 0 ? "/params" : "/optimizer/",
                     k == 0 ? "" : s->names[k - 1], tensor->name);
            for (int d = 0; d < tensor->n_dims; d++)
                want.dims[d] = (hsize_t)tensor->dims[d];
            for (int64_t j = 0; j < tensor->count; j++)
                values[j] = value_of(k, i, j);
            want.name = name;
            want.values = values;
            forge_put(f, file, &want);
        }
}

/* The line that a checkpoint ends with, after the file's present bytes. */
static void put_trailer(int fd)
{
    const off_t size = lseek(fd, 0, SEEK_END);
    char line[DPT_CHECKPOINT_TRAILER + 1];
    uint8_t piece[4096];
    uint32_t crc = 0;

    for (off_t at = 0; at < size;) {
        const ssize_t n = pread(fd, piece, sizeof piece, at);

        DEMAND(n > 0, "no bytes at %lld", (long long)at);
        crc = dpt_crc32(crc, piece, (size_t)n);
        at += n;
    }
    snprintf(line, sizeof line, "dptrain crc32 %08x %020lld\n", crc, (long long)size);
    DEMAND(pwrite(fd, line, DPT_CHECKPOINT_TRAILER, size) == DPT_CHECKPOINT_TRAILER, "no memory");
}

static bool forge_checkpoint(struct forge *f, const struct scene *s, int fd, const char *path)
{
    const hid_t text = forge_string(sizeof job_text - 1);
    const hid_t line = forge_string(sizeof plan_text - 1);
    const struct forge_want job = {.name = "/job", .type = text, .values = job_text, .crc = true};
    const struct forge_want plans = {
        .name = "/plans", .type = line, .values = plan_text, .crc = true};
    const hid_t file = forge_create(f, path);

    forge_numbers(f, file);
    forge_tensors(f, s, file);
    forge_put(f, file, &job);
    forge_put(f, file, &plans);
    H5Fclose(file);
    H5Tclose(text);
    H5Tclose(line);
    put_trailer(fd);
    return f->usual;
}

static void demand_reason(enum dpt_status status, const struct dpt_error *err)
{
    DEMAND(status == DPT_BAD_DATA && err->status == status && err->text[0] != '\0', "%d: %s",
           (int)status, err->text);
}

static void try_plans(const char *path, bool usual)
{
    struct dpt_checkpoint file;
    struct dpt_error err = {0};
    char *text = NULL;
    enum dpt_status status = dpt_checkpoint_open(&file, path, &err);

    if (status == DPT_OK)
        status = dpt_checkpoint_text(&file, "/plans", &text, &err);
    DEMAND(!usual || (status == DPT_OK && strcmp(text, plan_text) == 0), "%s", err.text);
    if (status != DPT_OK) {
        demand_reason(status, &err);
        DEMAND(text == NULL, "%s", err.text);
    }
    free(text);
    dpt_checkpoint_close(&file);
}

/* Loads all of it, and the parameters alone as predicting does. usual: it must be what was put
 * there. */
static void try_load(struct scene *s, const char *path, bool usual)
{
    struct dpt_error err = {0};
    struct dpt_str changes = {0};
    char *text = NULL;
    const unsigned all = DPT_LOAD_PARAMS | DPT_LOAD_SLOTS | DPT_LOAD_PROGRESS;
    enum dpt_status status = load(&s->state, path, all, &text, &err);

    DEMAND(status == DPT_OK || !usual, "%s", err.text);
    if (status == DPT_OK) {
        const bool same = dpt_jobs_compare(text, job_text, NULL, 0, NULL, true, &changes);

        DEMAND(text != NULL && (same || !usual), "%s", changes.text);
    } else {
        demand_reason(status, &err);
        DEMAND(text == NULL, "%s", err.text);
    }
    for (int k = 0; usual && k < 1 + SLOTS; k++)
        for (int32_t i = 0; i < s->graph.n_tensors; i++)
            for (int64_t j = 0; j < s->graph.tensors[i].count; j++)
                DEMAND(s->arena[k][s->graph.tensors[i].offset + j] == value_of(k, i, j),
                       "arena %d, tensor %d", k, i);
    DEMAND(!usual || (s->state.progress.step == 7 && s->state.progress.best_metric == 0.75), "%lld",
           (long long)s->state.progress.step);
    free(text);
    dpt_str_release(&changes);
    status = load(&s->state, path, DPT_LOAD_PARAMS, NULL, &err);
    if (status != DPT_OK)
        demand_reason(status, &err);
    try_plans(path, usual);
}

/* The last line, looked at in another way than dptrain does. */
static bool looks_right(const uint8_t *data, size_t size)
{
    uint32_t crc = ~0U;
    char line[DPT_CHECKPOINT_TRAILER + 1];

    if (size <= DPT_CHECKPOINT_TRAILER)
        return false;
    for (size_t i = 0; i < size - DPT_CHECKPOINT_TRAILER; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320U : 0);
    }
    snprintf(line, sizeof line, "dptrain crc32 %08x %020zu\n", ~crc, size - DPT_CHECKPOINT_TRAILER);
    return memcmp(line, data + size - DPT_CHECKPOINT_TRAILER, DPT_CHECKPOINT_TRAILER) == 0;
}

static void try_bytes(struct scene *s, const uint8_t *data, size_t size, bool complete, int fd,
                      const char *path)
{
    struct dpt_error err = {0};
    enum dpt_status status;

    DEMAND(pwrite(fd, data, size, 0) == (ssize_t)size, "no memory");
    if (complete)
        put_trailer(fd);
    status = dpt_checkpoint_verify(path, &err);
    if (status != DPT_OK)
        demand_reason(status, &err);
    DEMAND((status == DPT_OK) == (complete ? size > 0 : looks_right(data, size)), "%s", err.text);
    if (status != DPT_OK)
        DEMAND(load(&s->state, path, DPT_LOAD_PARAMS, NULL, &err) == status, "%s", err.text);
}

/* Any one byte changed is noticed, wherever it lies. */
static void try_damage(int fd, const char *path, const uint8_t *where, size_t size)
{
    const off_t length = lseek(fd, 0, SEEK_END);
    uint32_t place = 0;
    struct dpt_error err = {0};
    enum dpt_status status;
    uint8_t byte;

    memcpy(&place, where, size < sizeof place ? size : sizeof place);
    DEMAND(pread(fd, &byte, 1, place % length) == 1, "%u", place);
    byte ^= (uint8_t)(1 + place % 255);
    DEMAND(pwrite(fd, &byte, 1, place % length) == 1, "%u", place);
    status = dpt_checkpoint_verify(path, &err);
    DEMAND(status != DPT_OK, "byte %lld of %lld", (long long)(place % length), (long long)length);
    demand_reason(status, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int mode = size > 0 ? data[0] % 4 : 2;
    struct scene scene;
    struct forge *f;
    long long before;
    char path[128];
    bool usual;
    int fd;

    data += size > 0;
    size -= size > 0;
    open_scene(&scene);
    dpt_h5_enter();
    fd = forge_open(path);
    if (mode < 2) {
        try_bytes(&scene, data, size, mode == 1, fd, path);
    } else {
        f = forge_new(data, size);
        usual = forge_checkpoint(f, &scene, fd, path);
        before = forge_identifiers();
        if (mode == 2)
            try_load(&scene, path, usual);
        else
            try_damage(fd, path, data, size);
        DEMAND(forge_identifiers() == before, "HDF5 objects were left open");
        free(f);
    }
    forge_close(fd, path);
    dpt_h5_leave();
    dpt_graph_release(&scene.graph);
    return 0;
}
