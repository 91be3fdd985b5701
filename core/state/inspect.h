/*
 * inspect: what a checkpoint's last line says about the whole file, and where the file is damaged.
 *
 * The checksum of the whole file shows that it is damaged, and the checksums of its data sets show
 * where. Damage that no data set's checksum shows lies in the metadata.
 */
#ifndef DPT_STATE_INSPECT_H
#define DPT_STATE_INSPECT_H

#include "core/state/checkpoint.h"
#include "data/shards/inspect.h"

/* The last line of a file, the checksum of all that is in front of it. */
enum dpt_trailer {
    DPT_TRAILER_NONE, /* it has none: no checkpoint, or one that is cut short */
    DPT_TRAILER_WRONG,
    DPT_TRAILER_GOOD,
};

/* Reads the whole file, without HDF5. Errors: BAD_DATA (missing, no file), IO, RANK. */
enum dpt_status dpt_checkpoint_trailer(const char *path, enum dpt_trailer *trailer,
                                       struct dpt_error *err);

/* Whether a listed file is or was a checkpoint. */
bool dpt_checkpoint_is(const struct dpt_inspect *f, enum dpt_trailer trailer);

/*
 * The validation result of a file whose data sets were all read: OK, or BAD_DATA with one line that
 * names what is damaged first, and how much more is.
 */
enum dpt_status dpt_inspect_validation_result(const struct dpt_inspect *f, enum dpt_trailer trailer,
                                              struct dpt_error *err);

#endif
