/*
 * compare: the table of `dptrain compare`. Private to that command.
 */
#ifndef DPT_CMD_COMPARE_H
#define DPT_CMD_COMPARE_H

#include "cmd/runs.h"

/* For a person, in so many columns, several blocks of runs where they do not fit beside each
 * other. */
void dpt_compare_print(const struct dpt_runs *c, int columns, bool ascii, struct dpt_str *out);

#endif
