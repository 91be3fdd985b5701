/*
 * watch_curves: the curves that `dptrain watch` draws, a row each. Private to that command.
 */
#ifndef DPT_CMD_WATCH_CURVES_H
#define DPT_CMD_WATCH_CURVES_H

#include "cmd/watch/view.h"

enum { DPT_VIEW_CURVES = 2 };

/* What a plot shows: of the train events, and of the evaluations. */
struct dpt_view_curve_type {
    const char *title;
    bool logarithmic;   /* where it says more */
    double least, most; /* the range holds these, where least <= most */
    double (*of_train)(const struct dpt_history_train *t);
    double (*of_eval)(const struct dpt_history_eval *e);
};

/* The loss; the accuracy, which not all runs have. */
extern const struct dpt_view_curve_type dpt_view_curves[DPT_VIEW_CURVES];

/* A legend and so many rows. */
void dpt_view_curve(const struct dpt_view *view, const struct dpt_history *h,
                    const struct dpt_view_curve_type *curve, int rows, struct dpt_str *out);

#endif
