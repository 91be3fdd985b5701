/*
 * compare: how `dptrain compare` tells of several runs. Private to that command.
 */
#ifndef DPT_CMD_COMPARE_H
#define DPT_CMD_COMPARE_H

#include "cmd/runs.h"
#include "core/base/json.h"

/* For a person, in so many columns, several blocks of runs where they do not fit beside each
 * other; one JSON object. */
void dpt_compare_print(const struct dpt_runs *c, int columns, bool ascii, struct dpt_str *out);
void dpt_compare_json(const struct dpt_runs *c, struct dpt_json *j);

#endif
