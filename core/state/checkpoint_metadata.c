#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "core/base/memory.h"
#include "core/state/checkpoint_image.h"
#include "data/shards/skeleton.h"

enum {
    FRAME = 16 << 10,     /* an upper bound of what HDF5 adds to the bytes */
    FRAME_AN_ITEM = 1024, /* and beside that for each data set */
    HEADROOM = 2 << 20,   /* bytes that HDF5 may need for the metadata, far above what was seen */
    HEADROOM_AN_ITEM = 4096, /* and beside them for each data set */
};

/* An attribute's name where it has a text. */
static const char *if_any(const char *name, const char *text)
{
    return text != NULL && text[0] != '\0' ? name : NULL;
}

static enum dpt_status make(const struct dpt_state *s, struct dpt_h5_metadata *made,
                            struct dpt_error *err)
{
    const struct dpt_progress *p = &s->progress;
    const struct dpt_watch *stop = &p->early_stop, *also = &p->also, *plateau = &p->plateau;
    const bool stops = stop->monitor[0] != '\0', two = also->monitor[0] != '\0';
    const bool lowers = plateau->monitor[0] != '\0';
    const double scale = s->scale.scale;
    const bool transforms = s->targets != NULL && s->targets->transform != DPT_TARGETS_PLAIN;
    char shape[40] = "", stored[40] = "";

    if (s->graph->n_nodes > 0)
        dpt_shape_text(&s->graph->nodes[0].out, shape);
    if (s->stored != NULL)
        dpt_shape_text(s->stored, stored);

    /* They stand in the file's order. */
    const struct dpt_skeleton_attribute attributes[] = {
        {.name = "best_metric", .real = &p->best_metric},
        {.name = if_any("best_loss", p->best_monitor), .real = &p->best_loss},
        {.name = stops ? "early_stop_best" : NULL, .real = &stop->best},
        {.name = two ? "early_stop_also_best" : NULL, .real = &also->best},
        {.name = lowers ? "plateau_best" : NULL, .real = &plateau->best},
        {.name = s->scaled ? "loss_scale" : NULL, .real = &scale},
        {.name = s->scaled ? "loss_scale_good" : NULL, .number = s->scale.good},
        {.name = s->scaled ? "loss_scale_overflows" : NULL, .number = s->scale.overflows},
        {.name = "format", .text = "dptrain checkpoint"},
        {.name = if_any("version", s->version), .text = s->version},
        {.name = if_any("backend", s->backend), .text = s->backend},
        {.name = if_any("library", s->library), .text = s->library},
        {.name = if_any("input_shape", shape), .text = shape},
        {.name = if_any("file_shape", stored), .text = stored},
        {.name = if_any("input_type", s->input_type), .text = s->input_type},
        {.name = if_any("trained_on", s->training_data), .text = s->training_data},
        {.name = s->clips_rows ? "norm_chunks" : NULL, .text = "rows"},
        {.name = if_any("best_monitor", p->best_monitor), .text = p->best_monitor},
        {.name = stops ? "early_stop_monitor" : NULL, .text = stop->monitor},
        {.name = two ? "early_stop_also_monitor" : NULL, .text = also->monitor},
        {.name = lowers ? "plateau_monitor" : NULL, .text = plateau->monitor},
        {.name = transforms ? "target_transform" : NULL,
         .text = transforms ? dpt_target_transforms[s->targets->transform] : NULL},
        {.name = "format_version", .number = dpt_checkpoint_format(s)},
        {.name = s->numerics > 1 ? "numerics" : NULL, .number = s->numerics},
        {.name = "step", .number = p->step},
        {.name = "updates", .number = p->updates},
        {.name = "samples", .number = p->samples},
        {.name = "epoch", .number = p->epoch},
        {.name = "epoch_step", .number = p->epoch_step},
        {.name = "seed", .number = s->seed},
        {.name = "parameters", .number = s->graph->parameters},
        {.name = "best_step", .number = p->best_step},
        {.name = stops ? "early_stop_step" : NULL, .number = stop->step},
        {.name = stops ? "early_stop_waits" : NULL, .number = stop->waits},
        {.name = two ? "early_stop_also_step" : NULL, .number = also->step},
        {.name = two ? "early_stop_also_waits" : NULL, .number = also->waits},
        {.name = lowers ? "plateau_step" : NULL, .number = plateau->step},
        {.name = lowers ? "plateau_waits" : NULL, .number = plateau->waits},
        {.name = lowers ? "plateau_drops" : NULL, .number = plateau->drops},
    };

    made->attributes = attributes;
    made->n_attributes = sizeof attributes / sizeof attributes[0];
    return dpt_h5_metadata_make(made, err);
}

/* HDF5 ends the process where some of its own allocations fail, so its memory is asked for
 * beforehand. */
static bool has_headroom(size_t bytes)
{
    void *probe = malloc(bytes);
    const bool good = probe != NULL;

    free(probe);
    return good;
}

/* The process' limit on file sizes holds for HDF5's files in memory, too, and HDF5 cannot even
 * close one that exceeds it. */
static bool may_be_so_large(const struct dpt_item *items, int n)
{
    size_t bytes = FRAME;
    struct rlimit limit;

    for (int i = 0; i < n; i++)
        bytes += items[i].size + FRAME_AN_ITEM;
    return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
           limit.rlim_cur >= bytes;
}

enum dpt_status dpt_checkpoint_metadata(const struct dpt_state *state, struct dpt_item *items,
                                        int n, const char *path, int *fd, uint64_t *size,
                                        struct dpt_error *err)
{
    const size_t headroom = HEADROOM + (size_t)n * HEADROOM_AN_ITEM;
    enum dpt_status status = DPT_OK;
    struct dpt_skeleton_set *sets = dpt_alloc_array((size_t)n, sizeof *sets);
    struct dpt_h5_metadata made = {
        .memory = -1, .sets = sets, .n_sets = (size_t)n, .ascii = true, .aligned = true};

    *fd = -1;
    if (!may_be_so_large(items, n)) {
        errno = EFBIG;
        DPT_TRY(dpt_fail_errno(
            err, DPT_IO, "%s: a checkpoint is larger than files may be here (ulimit -f)", path));
    }
    if (sets == NULL || !has_headroom(headroom))
        DPT_TRY(dpt_fail_memory(err, "writing a checkpoint", (double)headroom));
    dpt_h5_enter(); /* which knows the types once it is up */
    for (int i = 0; i < n; i++) {
        sets[i] = (struct dpt_skeleton_set){.name = items[i].name,
                                            .type = H5T_NATIVE_FLOAT,
                                            .text_bytes = items[i].n_dims == 0 ? items[i].size : 0,
                                            .n_dims = items[i].n_dims,
                                            .crc = &items[i].crc};
        for (int d = 0; d < items[i].n_dims; d++)
            sets[i].dims[d] = (hsize_t)items[i].dims[d];
    }
    dpt_h5_leave();
    status = dpt_h5_metadata_open(&made, err);
    if (status == DPT_OK)
        status = make(state, &made, err);
    if (status != DPT_OK)
        dpt_error_prefix(err, "%s: ", path);
    *fd = made.memory;
    *size = (uint64_t)made.total;
    for (int i = 0; i < n; i++)
        items[i].offset = (uint64_t)sets[i].first;
out:
    dpt_free(sets);
    return status;
}
