/*
 * stream: any samples of a data set from its shards, many at a time.
 *
 * Samples are read in the order of the files, neighbours with one call. A stream belongs to one
 * thread; several may read one data set. Private to data/.
 */
#ifndef DPT_DATA_STREAM_H
#define DPT_DATA_STREAM_H

#include "data/sets/dataset.h"

struct dpt_stream;

/* most: samples a read. sequential: neighbours will be asked for soon. set is borrowed, its shards
 * attached. Errors: RANK. */
enum dpt_status dpt_stream_open(struct dpt_stream **stream, const struct dpt_dataset *set,
                                size_t most, bool sequential, struct dpt_error *err);
void dpt_stream_close(struct dpt_stream *stream);

/* bytes: out, [n][stride], in the order of `sample`. Errors: BAD_DATA, IO (names the file and the
 * sample). */
enum dpt_status dpt_stream_read(struct dpt_stream *stream, const int64_t *sample, int32_t n,
                                uint8_t *bytes, struct dpt_error *err);

#endif
