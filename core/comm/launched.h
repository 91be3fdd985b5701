/*
 * launched: what the ranks of `--ranks` and the process that started mpirun for them tell each
 * other.
 *
 * mpirun passes on signals, output and an exit code, but only while it is well, and a signal that
 * comes before a rank's handlers are installed ends that rank. So the launcher keeps a page in
 * memory without a name, whose path the environment hands to the ranks (DPTRAIN_LAUNCHED): the
 * launcher writes the signal that came, a rank that it has come so far, its step, and its exit
 * code. Hydra kills all ranks at once where one died, before any of them could say which: the
 * launcher knows then (dpt_launched_lost). Ranks on other machines, which do not see the page, do
 * without it. One page per process.
 */
#ifndef DPT_COMM_LAUNCHED_H
#define DPT_COMM_LAUNCHED_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

#define DPT_LAUNCHED_VARIABLE "DPTRAIN_LAUNCHED"

/* --- in a rank -------------------------------------------------------------------------------- */

/* Finds the page, and notes that this rank's signal handlers are installed. Without one it does
 * nothing. It must be called before other threads exist. */
void dpt_launched_join(void);
/* The signal that came to the launcher, or 0; in the launcher itself, too. For signal handlers. */
int dpt_launched_signal(void);
/* Notes in which step this rank is. */
void dpt_launched_step(int64_t step);
/* Notes the exit code that this rank is about to end with. */
void dpt_launched_end(int code);

/* --- in the launcher -------------------------------------------------------------------------- */

/* Finds the program that starts ranks of the MPI that this is linked with, also where the PATH has
 * that of another MPI first. Errors: RANK (there is none). */
enum dpt_status dpt_mpirun_find(char path[PATH_MAX], struct dpt_error *err);
/* Whether that program adds a text of its own where a rank ends with another code than 0. */
bool dpt_mpirun_talks(void);

/* Makes the page for so many ranks; without memory for it there is none. */
void dpt_launched_create(int ranks);
/* Sets the environment variable, for children of this process, which is `launcher`. */
void dpt_launched_export(int launcher);
/* Notes a signal for the ranks. For signal handlers. */
void dpt_launched_request(int number);
/* Whether some rank, or all of them, have come so far as to take signals, or ended after that.
 * Without a page none is known to have come, and all are taken to be ready. */
bool dpt_launched_come(void);
bool dpt_launched_ready(void);
/* The ranks' exit code once none is left: that of the first one that failed and said so; 0: all
 * said so; -1: none failed, but some left without a word. */
int dpt_launched_code(void);

/* Begins to look after the ranks that have come since the last call, so that it is known later who
 * died first: to be called often while ranks come. */
void dpt_launched_follow(void);
/* Whether a rank that had come so far left without a word, and no other rank has said why it
 * failed; if so, writes a line that names the first of these. For the end, when none is left. */
bool dpt_launched_lost(char *line, size_t size);

/* What there is below a process that starts ranks. */
struct dpt_launched_tree {
    bool ranks;     /* a process that runs this program's file */
    bool others;    /* another process, beside the one that was asked about */
    bool connected; /* one of these others, or that one, talks to another machine by TCP */
};

/* Looks at the descendants of process `pid`, which is not dead. Once a rank is found the rest is
 * not looked for. What cannot be looked at counts as a rank. */
void dpt_launched_look(int pid, struct dpt_launched_tree *tree);

#endif
