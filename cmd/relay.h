/*
 * relay: a child's standard output and error, passed on to ours.
 *
 * mpirun ends a whole job when the reader of its output goes away, and does not heed a full disk.
 * With a relay the first loses nothing but the output, and the second is reported. A terminal needs
 * no relay and gets none, so that the ranks can see it, unless the launcher adds a text of its own
 * to the ranks' errors, which the relay takes out (launcher_text.h). Where both streams are one
 * file, the child gets one pipe for both, so that what it wrote keeps its order.
 */
#ifndef DPT_CMD_RELAY_H
#define DPT_CMD_RELAY_H

#include <stdbool.h>

#include "cmd/launcher_text.h"
#include "core/base/error.h"

struct dpt_relay {
    int from[2]; /* our ends, of standard output and error; -1: there is none */
    int to[2];   /* the child's */
    int lost[2]; /* errno of the first write that failed */
    bool talks;  /* the child adds to the ranks' errors */
    struct dpt_launcher_text text[2];
};

#define DPT_RELAY_CLOSED ((struct dpt_relay){.from = {-1, -1}, .to = {-1, -1}})

/* Opens the pipes; called before the fork. talks: the child adds a text of its own to the errors of
 * ranks, which is left out once some rank has come (dpt_launched_come). Errors: RANK. Close it in
 * any case. */
enum dpt_status dpt_relay_open(struct dpt_relay *relay, bool talks, struct dpt_error *err);
void dpt_relay_close(struct dpt_relay *relay);

/* Makes the pipes the child's standard output and error from here on. */
void dpt_relay_enter(const struct dpt_relay *relay);
/* Begins in the parent, after the fork. */
void dpt_relay_begin(struct dpt_relay *relay);

/* Waits until the child has written something, which is passed on, or `other` can be read (-1:
 * nothing else is waited for), or the time is over, or a signal came. Whether something was written
 * or a pipe has come to its end. */
bool dpt_relay_wait(struct dpt_relay *relay, int other, int milliseconds);
/* Whether a terminal of ours takes nothing just now, so that who writes to it waits (Ctrl-S). */
bool dpt_relay_blocked(void);
/* At the child's end: passes on what was held back. Errors: IO (standard output took not all of
 * it). */
enum dpt_status dpt_relay_end(struct dpt_relay *relay, struct dpt_error *err);

#endif
