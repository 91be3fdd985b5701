/*
 * tensorboard_record: TFRecords, one behind another. Private to tensorboard.
 *
 *   8 bytes  n, the length of the data
 *   4 bytes  masked CRC-32C of these
 *   n bytes  data
 *   4 bytes  masked CRC-32C of the data
 *
 * All little-endian.
 */
#ifndef DPT_STATE_TENSORBOARD_RECORD_H
#define DPT_STATE_TENSORBOARD_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/str.h"

enum { DPT_RECORD_HEAD = 12, DPT_RECORD_TAIL = 4 };

/* Adds a record with n bytes of data. */
void dpt_record_add(struct dpt_str *out, const void *data, size_t n);

/*
 * Goes through the records of an open file. visit: called with each whole one; it may change the
 * data, without their length, and returns true then: the record is written anew in its place. *end:
 * out, where the last whole record ends. path: for messages. Errors: IO, RANK.
 */
enum dpt_status dpt_records_scan(int fd, const char *path,
                                 bool (*visit)(void *arg, char *data, size_t n), void *arg,
                                 long long *end, struct dpt_error *err);

#endif
