/*
 * relay: passes on what a child process writes to our standard output and error.
 *
 * mpirun ends a whole job when the reader of its output goes away, and does not heed a full disk.
 * With a relay the first loses nothing but the output, and the second is reported. A terminal needs
 * no relay and gets none, so that the ranks can see it. Where both streams are one file, the child
 * gets one pipe for both, so that what it wrote keeps its order.
 */
#ifndef DPT_CMD_RELAY_H
#define DPT_CMD_RELAY_H

#include <sys/types.h>

#include "core/base/error.h"

struct dpt_relay {
    int from[2]; /* our ends, of standard output and error; -1: there is none */
    int to[2];   /* the child's */
};

/* Before the fork. Errors: RANK. Close it in any case. */
enum dpt_status dpt_relay_open(struct dpt_relay *relay, struct dpt_error *err);
void dpt_relay_close(struct dpt_relay *relay);

/* In the child: its standard output and error are the pipes from here on. */
void dpt_relay_enter(const struct dpt_relay *relay);

/* In the parent: returns when the child has ended, with waitpid's *state. Errors: RANK (no such
 * child); IO (standard output took not all of it; *state is valid). */
enum dpt_status dpt_relay_run(struct dpt_relay *relay, pid_t child, int *state,
                              struct dpt_error *err);

#endif
