/*
 * watch_view: a run, or several, as lines for a terminal. Private to `dptrain watch`.
 *
 * Lines end with a newline and are at most `columns` wide, colours not counted; what people wrote
 * is shown so that it cannot steer the terminal.
 */
#ifndef DPT_CMD_WATCH_VIEW_H
#define DPT_CMD_WATCH_VIEW_H

#include "core/base/str.h"
#include "core/state/history.h"

/* ANSI sequence that ends a colour. */
#define DPT_VIEW_PLAIN "\033[0m"

struct dpt_view {
    int columns, rows; /* of the screen; rows 0: as many as it takes */
    bool ascii;        /* nothing but ASCII, as the locale wants it */
    bool color;
};

/* One run with curves, in at most so many rows where that is possible at all. */
void dpt_view_run(const struct dpt_view *view, const struct dpt_history *h,
                  const struct dpt_run_status *run_status, struct dpt_str *out);

/* Several runs, a line each under a head. life: of each. */
void dpt_view_head(const struct dpt_view *view, struct dpt_str *out);
void dpt_view_line(const struct dpt_view *view, const struct dpt_history *h,
                   const struct dpt_run_status *run_status, struct dpt_str *out);
/* A folder whose run has not written anything yet. */
void dpt_view_waiting(const struct dpt_view *view, const char *folder, struct dpt_str *out);

/* Adds a line of text, cut to the width, with its colours only where they are wanted. */
void dpt_view_add(const struct dpt_view *view, struct dpt_str *out, const char *text);

/* The curves of a run: of loss, of accuracy, which not all runs have. */
enum dpt_view_curve { DPT_VIEW_LOSS, DPT_VIEW_ACCURACY };

/* Adds a legend and so many rows. */
void dpt_view_curve(const struct dpt_view *view, const struct dpt_history *h,
                    enum dpt_view_curve curve, int rows, struct dpt_str *out);

#endif
