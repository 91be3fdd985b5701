/*
 * tensorboard: an event file that TensorBoard reads.
 *
 * FOLDER/events.out.tfevents.dptrain is a row of TFRecords (length and bytes, each with a masked
 * CRC-32C) and only ever grows, so a TensorBoard that looks at it live never gets lost: what a kill
 * left of a record at its end is cut off, and a run that goes on says with a SessionLog START which
 * steps it makes anew, whose old values TensorBoard then drops.
 *
 * Only rank 0 opens one; a closed one (zeroed) accepts all calls and writes nothing. What is told
 * is kept in memory until dpt_tensorboard_flush. As with metrics.jsonl a failed write is told by
 * that, and nothing of it stays in the file.
 */
#ifndef DPT_STATE_TENSORBOARD_H
#define DPT_STATE_TENSORBOARD_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/str.h"
#include "core/conf/yaml.h"

#define DPT_TENSORBOARD_FILE "events.out.tfevents.dptrain"

enum { DPT_HISTOGRAM_BINS = 64 };

/* Of many numbers: bins of equal width from least to most. Zeroed: of none. */
struct dpt_histogram {
    double least, most, sum, sum_of_squares;
    int64_t n; /* of finite numbers; others are left out */
    int64_t bins[DPT_HISTOGRAM_BINS];
};

struct dpt_tensorboard {
    bool open;
    bool fresh; /* there was no such file, or an empty one */
    int fd;
    char path[PATH_MAX + 40];
    double flushed;                             /* dpt_now of the last flush */
    struct dpt_str pending;                     /* whole records that are not written yet */
    struct dpt_str event, summary, value, part; /* that are being built */
};

/*
 * Opens the file of a run folder. resumed: the step that the run goes on from, -1: it begins.
 * Errors: IO (names the file), RANK.
 */
enum dpt_status dpt_tensorboard_open(struct dpt_tensorboard *b, const char *folder, int64_t resumed,
                                     struct dpt_error *err);
void dpt_tensorboard_close(struct dpt_tensorboard *b);

/* Values of one step: begin, values, end. Numbers that are not finite are left out. */
void dpt_tensorboard_begin(struct dpt_tensorboard *b, int64_t step);
void dpt_tensorboard_scalar(struct dpt_tensorboard *b, const char *tag, double value);
void dpt_tensorboard_histogram(struct dpt_tensorboard *b, const char *tag,
                               const struct dpt_histogram *histogram);
/* Markdown, for the TEXT tab. */
void dpt_tensorboard_text(struct dpt_tensorboard *b, const char *tag, const char *markdown);
/* For the HPARAMS tab: the job's keys and values and the number of ranks; that it came to its end,
 * or failed. */
void dpt_tensorboard_hparams(struct dpt_tensorboard *b, const struct dpt_conf_node *job, int ranks);
void dpt_tensorboard_outcome(struct dpt_tensorboard *b, bool good);
void dpt_tensorboard_end(struct dpt_tensorboard *b);

/* Whether enough is waiting, or long enough, to be written. */
bool dpt_tensorboard_due(const struct dpt_tensorboard *b);
/* Writes what is waiting. Errors: IO (names the file), RANK. */
enum dpt_status dpt_tensorboard_flush(struct dpt_tensorboard *b, struct dpt_error *err);

#endif
