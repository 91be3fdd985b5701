/*
 * identity: what tells one data set from another, as a line of text that checkpoints keep.
 *
 *     samples 130; form float32 6; inputs float32 1a2b3c4d; sampled 9f8e7d6c; labels 5e6f7a8b;
 *     weights none
 *
 * It depends on the samples and on their order alone: not on the shards' names, places and number,
 * nor on the ranks and on what is in memory. `inputs` is the CRC-32 of all stored inputs, after
 * their type in the files, where all shards have checksums; `sampled` that of some runs of them,
 * which is all that is read for it. Labels and weights are in memory and count as a whole. The
 * samples of a synthetic set are the job's affair: of them their number and form are kept.
 *
 * What the set calls its classes is kept beside it, as a text with a line for each.
 */
#ifndef DPT_DATA_IDENTITY_H
#define DPT_DATA_IDENTITY_H

#include "core/base/str.h"
#include "data/sets/dataset.h"

enum { DPT_IDENTITY_TEXT = 256 };

/* Writes the identity of an open set; of one that is only described, its checksums are zeros. By
 * one thread of one rank. Errors: BAD_DATA, IO (names the shard), RANK. */
enum dpt_status dpt_dataset_identity(const struct dpt_dataset *set, char text[DPT_IDENTITY_TEXT],
                                     struct dpt_error *err);

enum dpt_identity_result {
    DPT_IDENTITY_UNKNOWN, /* one of the two is empty */
    DPT_IDENTITY_SAME,
    DPT_IDENTITY_OTHER,
};

/* Compares two identities. told: a line for each difference is added, without a line break after
 * the last; key: stands in front of each ("data.train"). */
enum dpt_identity_result dpt_identity_compare(const char *then, const char *now, const char *key,
                                              struct dpt_str *told);

/* Adds the names of the set's classes to a text, a line each: none where it does not say them.
 * Fails where a class of the set is called otherwise than in such a text, of the model in the file
 * `from`; NULL: unknown, then all is well. Errors: BAD_DATA (names both files and the first class
 * that differs), RANK. */
void dpt_dataset_write_classes(const struct dpt_dataset *set, struct dpt_str *out);
enum dpt_status dpt_dataset_compare_classes(const struct dpt_dataset *set, const char *text,
                                            const char *from, struct dpt_error *err);

#endif
