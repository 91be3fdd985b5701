/*
 * labels: whether what samples are labelled with are numbers of classes.
 *
 * Whole numbers may be either: data/README.md says which are taken for classes where nobody says
 * what they are. Shards that `dptrain convert` wrote were decided there.
 */
#ifndef DPT_DATA_LABELS_H
#define DPT_DATA_LABELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

struct dpt_shard;

/* The set of whole numbers that samples have as labels. Zero-initialise: {0}; release. */
struct dpt_label_numbers {
    int64_t *at; /* a hash table of `room` numbers, by open addressing; INT64_MIN: none */
    size_t room;
    int64_t n; /* that differ; those beyond DPT_MOST_CLASSES are not told apart */
    int64_t samples, smallest, largest;
    bool fraction; /* some label is no whole number */
};

/* Adds the label of one sample; INT64_MIN: it is no whole number. Errors: RANK. */
enum dpt_status dpt_label_numbers_add(struct dpt_label_numbers *numbers, int64_t label,
                                      struct dpt_error *err);
/* Adds all labels of a shard, which it attaches for the while. Errors: BAD_DATA, IO, RANK. */
enum dpt_status dpt_label_numbers_take(struct dpt_label_numbers *numbers, struct dpt_shard *shard,
                                       struct dpt_error *err);
bool dpt_label_numbers_has(const struct dpt_label_numbers *numbers, int64_t label);
void dpt_label_numbers_release(struct dpt_label_numbers *numbers);

/* Whether they are taken as classes where nobody says what they are. floats: they are stored so;
 * flat: samples are rows of a table. */
bool dpt_labels_seem_classes(const struct dpt_label_numbers *numbers, bool floats, bool flat);
/* "652 different whole numbers from 1 to 977 in 8 645 samples, taken as ... targets" of such that
 * are not; returns buf. */
enum { DPT_LABELS_TOLD = 256 };
const char *dpt_labels_tell_targets(const struct dpt_label_numbers *numbers,
                                    char buf[DPT_LABELS_TOLD]);

/* Says in one line, into buf, why the numbers of n classes may be none, or which of them have no
 * sample. false: each has one, or there are too few samples to say. */
bool dpt_labels_doubt(const int64_t *counts, int64_t n, char *buf, size_t size);

#endif
