/*
 * checkpoint: the state of a run as an HDF5 file.
 *
 *   /params/<layer>/weight|bias            float32, canonical layout, unpadded
 *   /optimizer/<slot>/<layer>/weight|bias  float32, likewise
 *   /job                                   what of the job decides the result, as YAML text
 *   attributes of /                        format, format_version, step, updates, samples, epoch,
 * epoch_step, seed, parameters attribute crc32 of every data set      CRC-32 of its bytes
 *
 * The bytes are a function of the state alone: no time, host, path, rank or thread count. A file is
 * written under a temporary name, synced and renamed, so a final name always stands for a whole
 * file.
 */
#ifndef DPT_TRAIN_CHECKPOINT_H
#define DPT_TRAIN_CHECKPOINT_H

#include "core/train/trainer.h"

enum { DPT_CHECKPOINT_FORMAT = 1 };

/* "FOLDER/checkpoints/step-00001200.h5" into buf; returns buf. */
const char *dpt_checkpoint_path(const char *folder, int64_t step, char *buf, size_t size);

/* Writes one file. By one rank. Errors: IO (disk full, not writable; names the file), RANK. */
enum dpt_status dpt_checkpoint_save(const struct dpt_trainer *t, const char *job_text,
                                    const char *path, struct dpt_error *err);

/* After a save: points FOLDER/checkpoints/latest to it and removes all but the `keep` newest (0:
 * none is removed). Errors: IO. */
enum dpt_status dpt_checkpoint_rotate(const char *folder, const char *path, int64_t keep,
                                      struct dpt_error *err);

/*
 * Collective. Reads the parameters on rank 0, verifies their checksums and gives them to all ranks.
 * path: a file, or a run folder for its latest. Errors: BAD_DATA (missing, damaged, of another
 * model; names the first difference), RANK.
 */
enum dpt_status dpt_checkpoint_load_params(struct dpt_trainer *t, const char *path,
                                           struct dpt_error *err);

#endif
