/*
 * compare: runs beside each other, for a terminal. Private to `dptrain compare`.
 */
#ifndef DPT_CMD_COMPARE_COMPARE_H
#define DPT_CMD_COMPARE_COMPARE_H

#include "cmd/runs.h"
#include "core/base/str.h"

/* Writes a line for each run, the best first: what came out, in what the jobs differ, how they ran;
 * in so many columns, as several blocks where it is wider; and what is to be said of them. ascii:
 * nothing else may be shown. Check out->failed. */
void dpt_compare_table(const struct dpt_runs *runs, int columns, bool ascii, struct dpt_str *out);

#endif
