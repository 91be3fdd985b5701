/*
 * labels: whether what samples are labelled with are numbers of classes.
 *
 * Whole numbers from 0 are, also where a program stored them as floats, as Caffe and MATLAB do.
 */
#ifndef DPT_DATA_LABELS_H
#define DPT_DATA_LABELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

struct dpt_shard;

/* Whether whole numbers from 0 that are stored as floats are taken as classes where nobody says
 * what they are: few classes, or ten samples of each. Others are amounts. */
bool dpt_labels_seem_classes(int64_t classes, int64_t samples);

/* *classes: in and out, made one more than the largest label of a shard where that is larger; -1
 * where one of its labels is no whole number from 0. Attaches the shard for the while. Errors:
 * BAD_DATA, IO, RANK. */
enum dpt_status dpt_labels_count(struct dpt_shard *shard, int64_t *classes, struct dpt_error *err);

/* Says in one line, into buf, why the numbers of n classes may be none, or which of them have no
 * sample. false: each has one, or there are too few samples to say. */
bool dpt_labels_doubt(const int64_t *counts, int64_t n, char *buf, size_t size);

#endif
