/*
 * Predictions as HDF5. As for shards, HDF5 makes its metadata in memory and never touches the disk:
 * a full disk is an errno of ours.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "data/shards/skeleton.h"
#include "data/sources/predictions_type.h"

enum which { VALUES, PROBABILITIES, LABELS, TARGETS, LOSS, NAMES, SETS };

struct state {
    struct dpt_skeleton_set sets[SETS];
    char *names; /* of one run, as stored */
    size_t names_room;
};

/* Whether an attribute can hold the names of the classes. */
static bool names_fit(const struct dpt_predictions_format *f)
{
    size_t longest = 1;

    for (size_t i = 0; i < f->n_classes; i++)
        longest = strlen(f->class_names[i]) > longest ? strlen(f->class_names[i]) : longest;
    return longest * f->n_classes <= DPT_CLASS_NAME_BYTES;
}

/* Lists the file's data sets. */
static void list_sets(struct dpt_predictions *p)
{
    const struct dpt_predictions_format *f = &p->format;
    struct dpt_skeleton_set *sets = ((struct state *)p->state)->sets;
    const hid_t number = f->offsets != NULL ? H5T_IEEE_F64LE : H5T_IEEE_F32LE;
    const int64_t n = f->samples, width = f->outputs;

    sets[VALUES] =
        dpt_skeleton_numbers(f->classes || f->labels ? "logits" : "predictions", number, n, width);
    if (f->classes || f->labels)
        sets[PROBABILITIES] = dpt_skeleton_numbers("probabilities", H5T_IEEE_F32LE, n, width);
    if (f->classes || f->decided)
        sets[LABELS] = dpt_skeleton_numbers("labels", H5T_STD_I32LE, n, f->decided ? width : 0);
    if (f->classes && f->class_names != NULL && names_fit(f)) {
        sets[LABELS].classes = f->class_names;
        sets[LABELS].n_classes = f->n_classes;
    }
    if (f->truth == DPT_TRUTH_CLASS)
        sets[TARGETS] = dpt_skeleton_numbers("targets", H5T_STD_I32LE, n, 0);
    if (f->truth == DPT_TRUTH_VECTOR)
        sets[TARGETS] = dpt_skeleton_numbers("targets", number, n, width);
    if (f->truth != DPT_TRUTH_NONE)
        sets[LOSS] = dpt_skeleton_numbers("loss", H5T_IEEE_F32LE, n, 0);
    if (f->name_bytes > 0) {
        sets[NAMES] = dpt_skeleton_numbers("names", H5I_INVALID_HID, n, 0);
        sets[NAMES].text_bytes = f->name_bytes;
    }
}

static enum dpt_status begin(struct dpt_predictions *p, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_predictions_format *f = &p->format;
    const struct dpt_skeleton_attribute attributes[] = {
        {.name = "checkpoint", .text = f->checkpoint},
        {.name = "step", .number = f->step},
        {.name = "job", .text = f->job},
        {.name = "version", .text = f->version},
        {.name = f->thresholds != NULL ? "thresholds" : NULL, .text = f->thresholds},
    };
    struct dpt_h5_metadata skeleton = {
        .memory = -1,
        .sets = ((struct state *)p->state)->sets,
        .n_sets = SETS,
        .attributes = attributes,
        .n_attributes = sizeof attributes / sizeof attributes[0],
    };

    DPT_TRY(dpt_h5_metadata_open(&skeleton, err));
    dpt_h5_enter(); /* which knows the types once it is up */
    list_sets(p);
    dpt_h5_leave();
    DPT_TRY(dpt_h5_metadata_begin(&skeleton, p->path, "", p->fd, err));
    if (dpt_h5_metadata_copy(&skeleton, p->fd) != 0)
        DPT_TRY(dpt_predictions_cannot_write(p, err));
out:
    dpt_h5_metadata_close(&skeleton);
    return status;
}

/* Makes the names as the file has them: of one length, filled up with zeros. */
static enum dpt_status store_names(struct dpt_predictions *p,
                                   const struct dpt_predictions_rows *rows, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = p->state;
    const size_t width = p->format.name_bytes, need = (size_t)rows->count * width;

    DPT_GROW(state->names, &state->names_room, need, "the names of the samples", err);
    for (int32_t i = 0; i < rows->count; i++) /* which fills up with zeros */
        strncpy(state->names + (size_t)i * width, rows->names[i], width);
out:
    return status;
}

static enum dpt_status add(struct dpt_predictions *p, const struct dpt_predictions_rows *rows,
                           struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = p->state;
    const bool offset = p->format.offsets != NULL;
    const void *from[SETS] = {
        [VALUES] = offset ? (const void *)p->values : rows->values,
        [PROBABILITIES] = rows->probabilities,
        [LABELS] = rows->labels,
        [TARGETS] = p->format.truth == DPT_TRUTH_CLASS ? (const void *)rows->classes
                    : offset                           ? (const void *)p->targets
                                                       : rows->targets,
        [LOSS] = rows->loss,
    };

    if (state->sets[NAMES].name != NULL)
        DPT_TRY(store_names(p, rows, err));
    from[NAMES] = state->names;
    for (int i = 0; i < SETS; i++) {
        const struct dpt_skeleton_set *set = &state->sets[i];
        const int64_t row = (set->end - set->first) / p->format.samples;

        if (set->name != NULL)
            DPT_TRY(dpt_predictions_put(p, from[i], (size_t)(rows->count * row),
                                        set->first + p->done * row, err));
    }
out:
    return status;
}

static void close_state(void *state)
{
    free(((struct state *)state)->names);
}

const struct dpt_predictions_kind dpt_predictions_h5 = {
    .endings = {".h5", ".hdf5"},
    .state = sizeof(struct state),
    .begin = begin,
    .add = add,
    .close = close_state,
};
