/*
 * audit: fingerprints of every step, and where two runs first differ.
 *
 * With log.hashes rank 0 writes hashes.jsonl, one line per step:
 *
 *   {"step": 12, "weights": "…", "gradient": "…", "layers": [["conv1/weight", "…", "…"], …]}
 *
 * 16 hexadecimal digits each (dpt_hash_floats): of the weights after the step and of the reduced
 * gradient that made them, of all and of each tensor (weights, gradient). Under comm.reduction:
 * reproducible two runs of one job have the same lines; the first line that differs, and in it the
 * first tensor, is where to look.
 */
#ifndef DPT_TRAIN_AUDIT_H
#define DPT_TRAIN_AUDIT_H

#include "core/base/json.h"
#include "core/train/trainer.h"

/* How many fingerprints a step has. */
int32_t dpt_audit_hashes(const struct dpt_trainer *t);
/* Collective. Takes the fingerprints of the step just done: the ranks' parts add up to the whole.
 * hashes: [dpt_audit_hashes], out. Errors: RANK. */
enum dpt_status dpt_audit_take(const struct dpt_trainer *t, int64_t *hashes, struct dpt_error *err);
/* Writes fingerprints as a line of an open hashes.jsonl. Errors: IO, RANK. */
enum dpt_status dpt_audit_step(FILE *file, const struct dpt_trainer *t, const int64_t *hashes,
                               struct dpt_error *err);

/*
 * Compares the hashes.jsonl of two run folders (or two such files). summary: out, one or two lines
 * for a person: that all common steps agree, or the first step and tensor at which they differ.
 * *same: out. Errors: BAD_DATA (no such file, not of this format; nothing in common).
 */
enum dpt_status dpt_audit_compare(const char *a, const char *b, struct dpt_str *summary, bool *same,
                                  struct dpt_error *err);

#endif
