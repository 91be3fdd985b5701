/*
 * shard_find: which of a file's data sets are samples and labels. Private to shards/.
 */
#ifndef DPT_DATA_SHARD_FIND_H
#define DPT_DATA_SHARD_FIND_H

#include "data/shards/shard.h"

/* Describes the data set `key`, or where that is NULL whichever of two names the file has. Under
 * dpt_h5_enter. Errors: BAD_DATA (there is none: says what the file holds, and how to name it). */
enum dpt_status dpt_shard_find(hid_t file, const char *path, const char *key, const char *name,
                               const char *other, struct dpt_field *field, struct dpt_error *err);

/* If MATLAB wrote the shard, sets shard->matlab, by which its dimensions are read in its
 * order. Call it under dpt_h5_enter. */
void dpt_shard_turn(struct dpt_shard *shard, hid_t file);

/* Notes what else the file holds (shard->unused). */
void dpt_shard_note_unused(struct dpt_shard *shard, hid_t file);

/* What other programs have under /files is theirs, where there are images. */
bool dpt_shard_keeps_files(hid_t file);

#endif
