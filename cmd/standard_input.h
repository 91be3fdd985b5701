/*
 * standard_input: the bytes that come on standard input, as a file that every rank can open.
 *
 * Launchers give standard input to rank 0 alone, and a pipe can be read once; formats are read more
 * than once and by all ranks. So each rank gets the bytes in a file without a name in $TMPDIR (else
 * /tmp), which takes the place of its standard input: /dev/stdin opens it, from its beginning, as
 * often as wanted. It is gone with the process.
 */
#ifndef DPT_CMD_STANDARD_INPUT_H
#define DPT_CMD_STANDARD_INPUT_H

#include "core/comm/comm.h"

#define DPT_STANDARD_INPUT "/dev/stdin"

/* Collective. Memory is one piece, whatever comes. Errors: IO, STOPPED. */
enum dpt_status dpt_standard_input_share(const struct dpt_group *group, struct dpt_error *err);

#endif
