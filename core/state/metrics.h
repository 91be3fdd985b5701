/*
 * metrics: metrics.jsonl, one JSON object per line, "event" first.
 *
 * Only rank 0 opens one; a closed one (zeroed) accepts all calls and writes nothing. Each line is
 * flushed when it is complete, so a reader never waits long. A failed write is remembered and
 * reported by dpt_metrics_end: nothing is lost silently.
 */
#ifndef DPT_STATE_METRICS_H
#define DPT_STATE_METRICS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/log.h"

/* Most ranks of which a line tells each: more than a person would read. */
enum { DPT_RANKS_LISTED = 64 };

struct dpt_metrics {
    FILE *file;
    const char *path; /* borrowed */
    struct dpt_json line;
    struct dpt_log *log; /* borrowed; NULL: nobody is told */
    bool told;           /* that the file is no longer there */
};

/* log: is told once where somebody removes the file while it is written. Errors: IO. */
enum dpt_status dpt_metrics_open(struct dpt_metrics *m, const char *path, struct dpt_log *log,
                                 struct dpt_error *err);
void dpt_metrics_close(struct dpt_metrics *m);

/* A line: begin, fields, end. Errors of end: IO (names the file). */
void dpt_metrics_begin(struct dpt_metrics *m, const char *event);
void dpt_metrics_int(struct dpt_metrics *m, const char *key, int64_t value);
void dpt_metrics_real(struct dpt_metrics *m, const char *key, double value);
void dpt_metrics_text(struct dpt_metrics *m, const char *key, const char *value);
/* Lists; of numbers to six digits. */
void dpt_metrics_reals(struct dpt_metrics *m, const char *key, const double *values, size_t n);
void dpt_metrics_ints(struct dpt_metrics *m, const char *key, const int32_t *values, size_t n);
void dpt_metrics_texts(struct dpt_metrics *m, const char *key, const char *const *values, size_t n);
enum dpt_status dpt_metrics_end(struct dpt_metrics *m, struct dpt_error *err);

#endif
