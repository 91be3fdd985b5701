/*
 * board: what a run shows in TensorBoard, for log.tensorboard.
 *
 * FOLDER/events.out.tfevents.dptrain is a row of TFRecords and only ever
 * grows, so a TensorBoard that looks at it live never gets lost: what a kill left of a record at
 * its end is cut off, and a resumed run says with a SessionLog START which steps it makes
 * again, whose old values TensorBoard then drops.
 *
 * Only rank 0 opens one; a closed one (zeroed) accepts all calls and shows nothing. Events are kept
 * in memory until dpt_board_flush. As with metrics.jsonl a failed write is told by that, and
 * nothing of it stays in the file.
 */
#ifndef DPT_STATE_BOARD_H
#define DPT_STATE_BOARD_H

#include <limits.h>

#include "core/backend/graph.h"
#include "core/base/pool.h"
#include "core/base/str.h"
#include "core/conf/yaml.h"
#include "core/state/lock.h"

#define DPT_TENSORBOARD_FILE "events.out.tfevents.dptrain"

struct dpt_board {
    bool open;
    const struct dpt_lock *lock; /* of the run folder; borrowed */
    int64_t weights_step;        /* of the last histograms, -1: none */
    int fd;
    char path[PATH_MAX + 40];
    double flushed;         /* dpt_now of the last flush */
    struct dpt_str pending; /* whole records that are not written yet */
    struct dpt_str event, summary, value, part, inner[3]; /* messages that are being built */
};

/* How a run begins. All is borrowed, the lock as long as the board is open. */
struct dpt_board_start {
    const struct dpt_lock *lock;
    const struct dpt_conf_node *job; /* resolved, and as text */
    const char *job_text;
    const char *machine; /* Markdown: on what it runs */
    int ranks;
};

/* resumed: the step that the run resumes from, -1: it begins. Errors: as dpt_lock_check; IO, RANK.
 */
enum dpt_status dpt_board_open(struct dpt_board *b, const char *folder, int64_t resumed,
                               const struct dpt_board_start *start, struct dpt_error *err);
void dpt_board_close(struct dpt_board *b);

struct dpt_board_scalar {
    const char *name;
    double value;
};
/* Scalars of a split, or of `train`: "valid/loss"; those that are not finite are left out. now: as
 * dpt_board_flush. Errors: as dpt_lock_check; IO, RANK. */
enum dpt_status dpt_board_scalars(struct dpt_board *b, int64_t step, const char *split,
                                  const struct dpt_board_scalar *scalars, size_t n, bool now,
                                  struct dpt_error *err);

/* Histograms of the tensors of a graph. */
struct dpt_board_counts {
    const struct dpt_graph *graph;    /* borrowed */
    struct dpt_pool *pool;            /* counts; borrowed */
    struct dpt_histogram *histograms; /* of the weights of each tensor, then of the gradients */
    struct dpt_histogram *parts;      /* of one tensor, while it is counted */
    float *room;  /* for a whole tensor, where no rank has one; address space until it is written */
    size_t bytes; /* of it */
};

/* Errors: RANK. On failure *counts is to be closed. */
enum dpt_status dpt_board_counts_open(struct dpt_board_counts *counts,
                                      const struct dpt_graph *graph, struct dpt_pool *pool,
                                      struct dpt_error *err);
void dpt_board_counts_close(struct dpt_board_counts *counts);
/* Counts a whole tensor's weights, or its part of the last step's gradient, each number times
 * `scale`. x: NULL, there is nothing to show. */
void dpt_board_count(struct dpt_board_counts *counts, int32_t tensor, bool gradient, const float *x,
                     double scale);
/* Writes what was counted at a step. The board must be open. */
void dpt_board_weights(struct dpt_board *b, int64_t step, const struct dpt_board_counts *counts);
/* Writes what is pending; where not `now`, only when it is time to. */
enum dpt_status dpt_board_flush(struct dpt_board *b, bool now, struct dpt_error *err);
/* ended: what the run gave. */
enum dpt_status dpt_board_end(struct dpt_board *b, int64_t step, enum dpt_status ended,
                              struct dpt_error *err);

/*
 * --- TFRecords, one after another: tensorboard_record.c -----------------------------------------
 *
 *   8 bytes  n, the length of the data
 *   4 bytes  masked CRC-32C of these
 *   n bytes  data
 *   4 bytes  masked CRC-32C of the data
 *
 * All little-endian.
 */

/* Adds a record with n bytes of data. */
void dpt_record_add(struct dpt_str *out, const void *data, size_t n);

/*
 * Goes through the records of an open file. visit: called with each whole one; it may change the
 * data, without their length, and returns true then: the record is rewritten in its place. *end:
 * out, where the last whole record ends. path: for messages. Errors: IO, RANK.
 */
enum dpt_status dpt_records_scan(int fd, const char *path,
                                 bool (*visit)(void *arg, char *data, size_t n), void *arg,
                                 long long *end, struct dpt_error *err);

#endif
