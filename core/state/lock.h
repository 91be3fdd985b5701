/*
 * lock: one run at a time in a run folder.
 *
 * FOLDER/.lock is one line of text that names its owner. It is made in one go (a
 * hard link to a finished file, or exclusive creation where there are no links), so it works on NFS
 * and Lustre without their locking; a thread renews its time every 10 seconds, whatever the run is
 * busy with. A lock whose owner is gone is taken over: the owner's process has ended; or it lives
 * on another host and has not renewed the lock for 60 seconds by the file system's own clock; or
 * SLURM has restarted the same job; or nothing is in it for two seconds, as a power cut leaves
 * it. Each owner's generation is one more than that of the one
 * before; FOLDER/.lock.last keeps the number after the lock was given back.
 *
 * An owner that was taken for dead (a node cut off, a process stopped for minutes) finds out
 * through dpt_lock_check, which comes before a checkpoint gets its final name, before `latest`
 * moves and older ones are cleared away, and before each line of metrics. Between the check and the
 * write lies a moment in which a takeover would go unnoticed. A write in that moment harms nothing:
 * an intact checkpoint appears under the name of its step, a link to one moves (the next save moves
 * it on), the oldest ones go, or one line of metrics is added.
 *
 * dpt_lock_check may be called from several threads; NULL stands for "no lock" everywhere.
 */
#ifndef DPT_STATE_LOCK_H
#define DPT_STATE_LOCK_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/error.h"
#include "core/base/log.h"

enum { DPT_OWNER_LINE = 512, DPT_OWNER_WORD = 80 };

struct dpt_owner {
    char host[DPT_OWNER_WORD];
    char boot[DPT_OWNER_WORD];  /* the kernel's boot id; "-": unknown */
    char job[DPT_OWNER_WORD];   /* "CLUSTER/JOB" of SLURM; "-": none */
    char since[DPT_OWNER_WORD]; /* "2026-11-21T08:00:00", local time of its host */
    long pid;
    unsigned long long start;     /* of the process, in ticks since boot; 0: unknown */
    unsigned long long pid_space; /* inode of its PID namespace; 0: unknown */
    long long restart;            /* SLURM_RESTART_COUNT */
    long long generation;         /* how many owners the folder has had, this one included */
};

struct dpt_lock;

/*
 * Takes the lock of a run folder, which is created where it does not exist. host: this machine's
 * name. log: for a line about a takeover. Errors: USAGE (another run is at work there), IO, RANK.
 */
enum dpt_status dpt_lock_take(struct dpt_lock **lock, const char *folder, const char *host,
                              struct dpt_log *log, struct dpt_error *err);

/* Gives it back; a folder in which nothing was kept (dpt_lock_keep) and which was not there before
 * goes, too. */
void dpt_lock_release(struct dpt_lock *lock);
/* The folder is in use from now on: it stays. */
void dpt_lock_keep(struct dpt_lock *lock);

/* Whether the folder is still ours; allocates nothing. Errors: RANK (another run took it over;
 * names it), IO. */
enum dpt_status dpt_lock_check(const struct dpt_lock *lock, struct dpt_error *err);

/*
 * Tells readers of a folder whether a process holds its lock. *owner: out, who; *alive: out,
 * whether that process still runs as far as this machine, called `host`, can tell; *silent: out,
 * seconds since its last sign of life by this machine's clock. Changes nothing.
 */
bool dpt_lock_holder(const char *folder, const char *host, struct dpt_owner *owner, bool *alive,
                     double *silent);

/*
 * --- owner.c: which process a run folder belongs to, as one line of text, and whether it is gone -
 *
 * A process number alone says little: numbers are used again, hosts and containers may have equal
 * names. So an owner is also known by its start time, by the kernel that it runs on (the boot id)
 * and by that kernel's space of process numbers. Only where both are ours can we ask whether the
 * process lives; everywhere else the age of its last sign of life decides.
 */

/* An owner whose last sign of life is older than this many seconds is taken for gone. */
extern const double dpt_owner_patience;

/* This process. generation is left 0. */
void dpt_owner_self(struct dpt_owner *owner, const char *host);

/* Writes the owner as one line with its newline; returns its length. */
size_t dpt_owner_write(const struct dpt_owner *owner, char line[DPT_OWNER_LINE]);
/* Parses such a line; false where the text is none: then *owner is "an unknown process". */
bool dpt_owner_read(const char *line, struct dpt_owner *owner);

/* "process 1234 on node07 (since 2026-11-21T08:00:00)" into buf; returns buf. */
const char *dpt_owner_text(const struct dpt_owner *owner, char *buf, size_t size);

/* Whether `me` can see the owner's process. */
bool dpt_owner_near(const struct dpt_owner *owner, const struct dpt_owner *me);

/*
 * Whether the owner is gone, as far as `me` can tell; `age`: seconds since its last sign of life,
 * by the file system's clock. Where in doubt it is not.
 */
bool dpt_owner_gone(const struct dpt_owner *owner, const struct dpt_owner *me, double age);

#endif
