/*
 * watch: who has not arrived.
 *
 * A collective that one rank does not reach keeps all the others for ever. So each rank notes on a
 * page that its node's ranks share how many collectives it has entered and left, and a thread of
 * each rank, its watchdog, looks at the page four times a second. It ends the job, with one line
 * that names the rank, the host and the step, where
 *  - the process of a rank is gone (each rank looks after the next one of its node): at once;
 *  - its own rank has waited in a collective for the timeout, and so long some rank of the node has
 *    not come to it or is stopped;
 *  - the same, and all ranks of the node have come: a rank of another node is missing, whose
 *    own watchdogs get a moment to say more; after that the first rank of the node tells what the
 *    other nodes' watchdogs said when it asked them (wire.h), or that they say nothing any more.
 *    Where they say that a rank is late but moves it is waited for, up to four timeouts in all.
 * While MPI starts there is no page yet; then the ranks look after the other children of their
 * launcher, and end the job where one died or is stopped.
 *
 * Time in which a watchdog did not run (the job was suspended) does not count.
 *
 * In the training's way stand two stores to memory a collective, nothing else. The page is the
 * node's; the rest belongs to one rank. Private to core/comm.
 */
#ifndef DPT_COMM_WATCH_H
#define DPT_COMM_WATCH_H

#include <stdatomic.h>

#include "core/comm/comm.h"

enum { DPT_NOTE_TEXT = 112 };

/* What a rank tells its node. Written by that rank alone. */
struct dpt_slot {
    /* Collectives entered plus collectives left: odd inside of one. Only those that all ranks of
     * the node enter count. */
    _Alignas(64) _Atomic uint64_t phase;
    _Atomic bool aside; /* inside of a collective of fewer ranks */
    _Atomic bool ended; /* came to its regular end: its process may go */
    _Atomic int64_t step;
    _Atomic unsigned word; /* notes so far; the last one is that of this number, modulo 2 */
    char words[2][DPT_NOTE_TEXT];
    int32_t rank, pid;
    uint64_t born; /* start time of the process, to tell it from a later one of the same number */
};

struct dpt_watch;

/* Starts a rank's watchdog, which until dpt_watch_attach only bounds the start of MPI. rank: in the
 * world. Errors: RANK. */
enum dpt_status dpt_watch_open(struct dpt_watch **watch, int rank, struct dpt_error *err);
/* Collective over the world. From now on all ranks of the node are watched. Errors: RANK. */
enum dpt_status dpt_watch_attach(struct dpt_watch *watch, const struct dpt_comm *comm,
                                 struct dpt_error *err);
/* Just before MPI_Finalize: a collective, too, after which MPI_Abort may not be called. */
void dpt_watch_closing(struct dpt_watch *watch);
/* After the last collective. NULL is fine. */
void dpt_watch_close(struct dpt_watch *watch);

/* Seconds that a rank may wait; 0: for ever. */
void dpt_watch_limit(struct dpt_watch *watch, double seconds);
/* Of a process that works alone: the seconds that a note may be its last one; nothing else is looked at then. */
void dpt_watch_patience(struct dpt_watch *watch, double seconds);
/* step < 0: as before. */
void dpt_watch_note(struct dpt_watch *watch, int64_t step, const char *what);

/* Around every call that waits for other ranks. whole: all ranks of the node take part. */
void dpt_watch_enter(struct dpt_watch *watch, bool whole);
void dpt_watch_leave(struct dpt_watch *watch, bool whole);

/* This rank cannot go on and the others do not know: prints "rank R (host): text", unless a better
 * line comes from elsewhere, and ends the job with this code. */
void dpt_watch_give_up(struct dpt_watch *watch, int code, const char *text)
    __attribute__((noreturn));
/* The job is being ended by this rank, which has said why: nobody needs to say more. */
void dpt_watch_hush(struct dpt_watch *watch);

/* --- processes, by /proc
 * --------------------------------------------------------------------------- */

struct dpt_process {
    char name[16];
    char state;
    int parent;
    unsigned long long born; /* clock ticks after the machine's start */
};

/* False: there is no such process, or it cannot be looked at. */
bool dpt_process_read(int pid, struct dpt_process *process);

enum { DPT_KIN_MOST = 256 };

/* The ranks that our launcher started on this machine, while MPI does not connect us yet.
 * Zero-initialise. */
struct dpt_kin {
    struct dpt_relative {
        int pid, rank;
        unsigned long long born;
    } all[DPT_KIN_MOST];
    int n;
    int first;   /* lowest rank that runs; -1: none, as for the next two */
    int stopped; /* lowest rank that is stopped */
    int dead;    /* lowest rank that was there and is gone */
    bool told;   /* one of them has said why it ends: more need not be said */
};

void dpt_kin_look(struct dpt_kin *kin);
/* Lets the others see that this process has said why it ends, which takes them DPT_KIN_NOTICE
 * seconds. */
void dpt_kin_tell(void);
#define DPT_KIN_NOTICE 0.6

/* --- the verdict: from what is seen to a line; no clock, no process, no MPI
 * ----------------------- */

enum dpt_process_state { DPT_PROCESS_RUNS, DPT_PROCESS_STOPPED, DPT_PROCESS_GONE };

/* A rank as a watchdog sees it. */
struct dpt_seen {
    int rank;
    uint64_t phase;
    bool aside;
    int64_t step;
    double still; /* seconds for which its phase has been seen unchanged */
    enum dpt_process_state process;
    char word[DPT_NOTE_TEXT];
};

struct dpt_verdict_context {
    const char *host;
    double limit;
    const char *elsewhere; /* "node08, node09"; "": the job has one node */
};

enum dpt_far_state {
    DPT_FAR_UNKNOWN, /* was never heard, or not asked lately */
    DPT_FAR_SILENT,  /* was heard once, and does not answer any more */
    DPT_FAR_HEARD    /* its last answer is at most two seconds old */
};

/* Another node, as its own watchdog sees it. */
struct dpt_far {
    const char *host;
    enum dpt_far_state state;
    const int *ranks; /* all of that node */
    int n_ranks;
    const struct dpt_seen *late; /* heard: those that do not wait, or are stopped or gone */
    int n_late;
};

enum dpt_verdict { DPT_ALL_WELL, DPT_SOME_MISSING, DPT_NONE_MISSING };

/*
 * Judges n ranks of a node, of which `me` looks. SOME_MISSING: these ranks keep the others waiting.
 * NONE_MISSING: all have come, yet the wait is over its limit. line: out, for both of these.
 */
enum dpt_verdict dpt_watch_judge(const struct dpt_seen *seen, int n, int me,
                                 const struct dpt_verdict_context *context, char *line,
                                 size_t size);
/*
 * Judges the other nodes where NONE_MISSING was found here. SOME_MISSING: ranks of theirs keep this
 * node waiting, or a node has gone silent, and the line says which. ALL_WELL: some are late, but
 * not yet for so long, and I have not waited for four times the limit. NONE_MISSING: nothing is
 * known; the line is left as it is.
 */
enum dpt_verdict dpt_watch_judge_far(const struct dpt_far *far, int n_far,
                                     const struct dpt_seen *seen, int n, int me,
                                     const struct dpt_verdict_context *context, char *line,
                                     size_t size);
/* Whether a rank waits for others. */
bool dpt_watch_waits(const struct dpt_seen *seen);
/* The line for a rank whose process is gone. */
void dpt_watch_obituary(const struct dpt_seen *dead, const char *host, char *line, size_t size);

#endif
