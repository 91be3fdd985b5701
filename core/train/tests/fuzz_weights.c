/*
 * Fuzzer for files of weights. The first byte of the input says what becomes of the others:
 *
 *   0  they are the file: safetensors, npz, or anything
 *   1  they are the header of a safetensors file, whose length is put in front of it and some
 *      bytes behind it
 *
 * A file is refused with a reason, or lists tensors that it holds: all of which can be read, or are
 * refused likewise, and are paired with a small model in several ways.
 */
#include <stdint.h>

#include "core/interchange/match.h"
#include "core/train/use/checkpoint_model.h"
#include "data/tests/forge.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { COUNT_MOST = 1 << 16, BODY = 64 };

static void demand_reason(enum dpt_status status, const struct dpt_error *err, const char *path)
{
    DEMAND(status == DPT_BAD_DATA && err->status == status && strstr(err->text, path) != NULL,
           "%d: %s", (int)status, err->text);
}

static void read_all(struct dpt_weights *w)
{
    struct dpt_error err = {0};

    for (size_t i = 0; i < w->n; i++) {
        const struct dpt_weight *weight = &w->at[i];
        int64_t count = 1;
        enum dpt_status status;
        float *to;

        for (int d = 0; d < weight->n_dims; d++)
            count *= weight->dims[d];
        DEMAND(count == weight->count && count >= 0, "%lld", (long long)count);
        if (count > COUNT_MOST) /* compressed well; nobody asks for more than a model has */
            continue;
        to = malloc((size_t)count * sizeof *to); /* not a byte more: what is behind is guarded */
        DEMAND(to != NULL || count == 0, "no memory");
        status = dpt_weights_read(w, weight, to, &err);
        if (status != DPT_OK)
            demand_reason(status, &err, w->path);
        free(to);
    }
}

static void match_all(const struct dpt_weights *w)
{
    static const char *const rules[] = {"a=dense1", "=b", "module.=", "x"};
    struct dpt_tensor weight = {.name = "dense1/weight", .n_dims = 2, .dims = {3, 2}};
    struct dpt_tensor bias = {.name = "dense1/bias", .n_dims = 1, .dims = {3}};
    struct dpt_tensor mean = {
        .name = "dense1/running_mean", .n_dims = 1, .dims = {3}, .state = true};
    struct dpt_graph graph = {0};
    struct dpt_error err = {0};
    int32_t index;

    DEMAND(dpt_graph_add_tensor(&graph, &weight, &index, &err) == DPT_OK &&
               dpt_graph_add_tensor(&graph, &bias, &index, &err) == DPT_OK &&
               dpt_graph_add_tensor(&graph, &mean, &index, &err) == DPT_OK,
           "%s", err.text);
    for (unsigned how = 0; how < 16; how++) {
        const struct dpt_match_options options = {.map = rules + how / 4,
                                                  .n_map = how / 4 == 0 ? 0 : 1,
                                                  .by_order = how % 2 == 1,
                                                  .partial = how / 2 % 2 == 1};
        struct dpt_match match = {0};
        const enum dpt_status status = dpt_match_open(&match, w, &graph, &options, &err);

        DEMAND(status == DPT_OK || status == DPT_BAD_DATA || status == DPT_USAGE, "%s", err.text);
        for (int32_t k = 0; status == DPT_OK && k < graph.n_tensors; k++) {
            const struct dpt_weight *found = match.weight[k];

            DEMAND(found != NULL || options.partial, "tensor %d", k);
            DEMAND(found == NULL || found->count == graph.tensors[k].count, "tensor %d", k);
        }
        dpt_match_release(&match);
    }
    dpt_graph_release(&graph);
}

/* Writes the length, the header, and bytes that it may tell of. */
static void put_header(int fd, const uint8_t *data, size_t size)
{
    uint8_t length[8];
    const uint8_t body[BODY] = {0x3f, 0x80, 0x7f};

    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)size >> 8 * i);
    DEMAND(pwrite(fd, length, 8, 0) == 8 && pwrite(fd, data, size, 8) == (ssize_t)size &&
               pwrite(fd, body, BODY, 8 + (off_t)size) == BODY,
           "no memory");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int mode = size > 0 ? data[0] % 2 : 0;
    struct dpt_weights w = {0};
    struct dpt_error err = {0};
    enum dpt_status status;
    char path[128];
    int fd;

    data += size > 0;
    size -= size > 0;
    fd = forge_open(path);
    if (mode == 1)
        put_header(fd, data, size);
    else
        DEMAND(pwrite(fd, data, size, 0) == (ssize_t)size, "no memory");
    status = dpt_weights_open(&w, path, &dpt_weights_checkpoint, &err);
    if (status == DPT_OK) {
        read_all(&w);
        match_all(&w);
    } else {
        demand_reason(status, &err, path);
    }
    dpt_weights_close(&w);
    forge_close(fd, path);
    return 0;
}
