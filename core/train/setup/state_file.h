/*
 * state_file: a checkpoint's file that all ranks have open, if ranks keep parts of it.
 *
 * Each rank writes and reads what it keeps; of what several keep, a share. All functions but close
 * are collective over the job; pointers are rank 0's, and unused elsewhere. If a rank does not see
 * the file, nothing is done: t->file.seen tells all. A rank that fails makes all fail, with its
 * name.
 *
 * Where all ranks have memory for a copy of what they write, a thread of each rank writes that
 * while the training goes on. A flag of each step (DPT_FLAG_WRITES) tells all when none does any
 * more; then they end it together.
 */
#ifndef DPT_TRAIN_STATE_FILE_H
#define DPT_TRAIN_STATE_FILE_H

#include "core/train/trainer.h"

/* Not collective: allocates t->file, if ranks keep parts. Errors: RANK. */
enum dpt_status dpt_state_file_open(struct dpt_trainer *t, struct dpt_error *err);
/* Closes the file that was open last, which is otherwise done when another one is opened; release:
 * frees also what open allocated. */
void dpt_state_file_forget(struct dpt_trainer *t);
void dpt_state_file_release(struct dpt_trainer *t);

/* Each rank writes what fills blocks of the file, as struct dpt_state says; what other nodes have
 * written is on the disk. *n: out, of t->file.all; 0: a rank does not see the file. later: it may
 * be written beside the training; if it is, t->file.pending tells all, and the checksums are not
 * known before dpt_state_file_end. Errors: IO, RANK. */
enum dpt_status dpt_state_file_write(struct dpt_trainer *t, const struct dpt_shared_file *file,
                                     const int64_t *offset, bool later, size_t *n,
                                     struct dpt_error *err);
/* Not collective: begins to write what is pending, once rank 0 has all else from the ranks: threads
 * that write would slow that down where they have no core of their own. */
void dpt_state_file_begin(struct dpt_trainer *t);
/* Not collective: whether this rank still writes beside the training, after at most so many
 * seconds. */
bool dpt_state_file_writes(struct dpt_trainer *t, double seconds);
/* Waits until all ranks have written what is pending. *n: as above. Errors: IO, RANK: of what was
 * written. */
enum dpt_status dpt_state_file_end(struct dpt_trainer *t, size_t *n, struct dpt_error *err);
/* The ranks take the checksum of the first `size` bytes together. Errors: IO, RANK. */
enum dpt_status dpt_state_file_verify(struct dpt_trainer *t, const struct dpt_shared_file *file,
                                      int64_t size, uint32_t *crc, struct dpt_error *err);
/* Each rank reads what it keeps from the file that was verified, and all replicas get what all of
 * them have. sets: numbers in `offset`, which may end before the slots. *n: as above. Errors: IO,
 * RANK. */
enum dpt_status dpt_state_file_read(struct dpt_trainer *t, const int64_t *offset, size_t sets,
                                    size_t *n, struct dpt_error *err);

#endif
