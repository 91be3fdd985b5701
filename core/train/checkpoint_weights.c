/* dptrain's own checkpoints as files of weights: read, not written. */
#include <stdlib.h>
#include <string.h>

#include "core/train/checkpoint_model.h"

static bool is_hdf5(const unsigned char *head, size_t n)
{
    return n >= 8 && memcmp(head, "\x89HDF\r\n\x1a\n", 8) == 0;
}

static enum dpt_status open_checkpoint(struct dpt_weights *w, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_checkpoint_model *m = calloc(1, sizeof *m);
    char name[DPT_NAME];

    if (m == NULL)
        return dpt_fail_memory(err, w->path, sizeof *m);
    w->file = m;
    DPT_TRY(dpt_checkpoint_model_open(m, w->path, NULL, false, err));
    for (int32_t k = 0; k < m->graph.n_tensors; k++) {
        const struct dpt_tensor *t = &m->graph.tensors[k];
        struct dpt_weight *weight;

        dpt_weight_name(t, name);
        DPT_TRY(dpt_weights_add(w, name, strlen(name), &weight, err));
        weight->type = "float32";
        weight->kind = DPT_FLOAT_32;
        weight->n_dims = t->n_dims;
        memcpy(weight->dims, t->dims, sizeof t->dims);
        weight->count = t->count;
        weight->position = (uint64_t)t->offset;
    }
out:
    return status;
}

static enum dpt_status read_checkpoint(struct dpt_weights *w, const struct dpt_weight *weight,
                                       float *to, struct dpt_error *err)
{
    const struct dpt_checkpoint_model *m = w->file;

    (void)err;
    memcpy(to, m->params + weight->position, (size_t)weight->count * sizeof *to);
    return DPT_OK;
}

static void close_checkpoint(struct dpt_weights *w)
{
    if (w->file != NULL)
        dpt_checkpoint_model_close(w->file);
    free(w->file);
    w->file = NULL;
}

const struct dpt_weights_format dpt_weights_checkpoint = {
    .name = "checkpoint",
    .suffix = ".h5",
    .summary = "of dptrain",
    .is = is_hdf5,
    .open = open_checkpoint,
    .read = read_checkpoint,
    .close = close_checkpoint,
    .ordered = true,
};
