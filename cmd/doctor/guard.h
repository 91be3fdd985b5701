/*
 * guard: ends a lone process whose check does not come to its end, with a line that names it.
 *
 * A folder on a file server that is gone, a driver that hangs: the call never returns. Several
 * ranks have the watchdogs of core/comm for that; a lone one has this thread.
 */
#ifndef DPT_CMD_GUARD_H
#define DPT_CMD_GUARD_H

#include "core/comm/comm.h"

struct dpt_guard;

/* comm is borrowed. Errors: RANK. */
enum dpt_status dpt_guard_open(struct dpt_guard **guard, struct dpt_comm *comm, double seconds,
                               struct dpt_error *err);
/* What begins now; its time runs from here. what is copied. NULL is fine, here and below. */
void dpt_guard_note(struct dpt_guard *guard, const char *what);
void dpt_guard_close(struct dpt_guard *guard);

#endif
