/*
 * watch: who has not arrived.
 *
 * A collective that one rank does not reach keeps all the others for ever. So each rank notes on a
 * page that its node's ranks share how many collectives it has entered and left, of all ranks and
 * of each group that the ranks were split into (dpt_comm_split), and a thread of
 * each rank, its watchdog, looks at the page four times per second. It ends the job, with one line
 * that names the rank, the host and the step, where
 *  - the process of a rank is gone (each rank looks after the next one of its node): at once;
 *  - its own rank has waited in a collective for the timeout, and for as long some rank of the node
 *    has not entered it, nor moved a piece of a file, or is stopped;
 *  - its own rank has waited that long, but all ranks of the node have entered: a rank of another
 *    node is missing, whose own watchdogs get a moment to say more. After that the first rank of
 *    the node prints what the other nodes' watchdogs answered to its heartbeat (heartbeat.h), or
 *    that they no longer answer. If they answer that a rank is late but makes progress, that rank
 *    is waited for, up to four timeouts in all.
 * Until the job has started (dpt_comm_started) a rank that runs may stay away for longer, and a
 * line says who is waited for.
 * While MPI starts there is no page yet; then the ranks look after the other children of their
 * launcher, and end the job where one died or is stopped.
 *
 * Time in which a watchdog did not run (the job was suspended) does not count.
 *
 * It costs the training two stores to memory a collective. The page is shared by the node's ranks;
 * the rest belongs to one rank. Private to core/comm.
 */
#ifndef DPT_COMM_WATCH_H
#define DPT_COMM_WATCH_H

#include <stdatomic.h>

#include "core/comm/comm.h"

enum { DPT_NOTE_TEXT = 112 };

/* What a rank publishes to its node. Only that rank writes it. */
struct dpt_watched_rank {
    /* Collectives entered plus collectives left: odd inside of one. Only those that all ranks of
     * the node enter count. */
    _Alignas(64) _Atomic uint64_t phase;
    _Atomic bool in_subgroup; /* it is in a collective which not all ranks of the node enter */
    /* A `phase` for the groups of each split (dpt_comm_split), and the group of it that this rank
     * is in: the number of its first rank plus one; 0: in none. Entry 0 is empty. */
    struct {
        _Atomic uint64_t phase;
        _Atomic int group;
    } axes[DPT_AXES_MOST + 1];
    _Atomic int axis;        /* the split in whose group it waits; 0: in none */
    _Atomic bool ended;      /* it has ended regularly: its process may disappear */
    _Atomic bool for_device; /* at the last tick it waited for its device */
    _Atomic int64_t step;
    _Atomic uint64_t moves; /* dpt_file_moves */
    _Atomic unsigned note;  /* number of notes so far; the last one is notes[note % 2] */
    char notes[2][DPT_NOTE_TEXT];
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
/* Ends the watchdog; called after the last collective. NULL is fine. */
void dpt_watch_close(struct dpt_watch *watch);

/* Notes what this rank does, for dpt_comm_note; step < 0: the step is unchanged. */
void dpt_watch_note(struct dpt_watch *watch, int64_t step, const char *what, const char *name);

/* Say how many splits this rank has open; that it is in the group of that split whose first rank is
 * `first` (-1: no longer). A NULL watch is fine. */
int dpt_watch_axes(const struct dpt_watch *watch);
void dpt_watch_join(struct dpt_watch *watch, int axis, int first);
/* "node07, stage 2 of 3", or the host alone, of a rank of the job; for the thread that sets the
 * places. watch: may be NULL. */
const char *dpt_watch_where(const struct dpt_watch *watch, int rank, const char *host,
                            char where[DPT_WHERE_TEXT]);

/* The ranks' devices are linked by `link`: one that waits may wait for another rank's. Before the
 * watchdog of this rank, or of another one of its node, ends the job it calls abort(link), in a
 * thread of its own, so that nothing on the device waits any more; it gives that two seconds, and
 * no wait for the device returns. abort: NULL: they are no longer linked. A NULL watch is fine. */
void dpt_watch_linked(struct dpt_watch *watch, void (*abort)(void *link), void *link);

/* This rank cannot continue and the others do not know: prints "rank R (host): text", unless
 * another rank prints a better line first, and ends the job with this code. */
void dpt_watch_give_up(struct dpt_watch *watch, int code, const char *text)
    __attribute__((noreturn));

enum { DPT_SIBLINGS_MOST = 256 };

/* The ranks that our launcher started on this machine: sibling processes, known before MPI connects
 * them. Zero-initialise. */
struct dpt_siblings {
    struct dpt_sibling {
        int pid, rank;
        unsigned long long born;
    } all[DPT_SIBLINGS_MOST];
    int n;
    int first;      /* lowest rank that runs and is not alone; -1: none, as for the next two */
    int stopped;    /* lowest rank that is stopped, likewise */
    int dead;       /* lowest rank that was there and is gone */
    bool explained; /* one of them has printed why it ends: the others need not */
};

void dpt_siblings_update(struct dpt_siblings *siblings);
/* Lets the sibling processes see that this process has printed why it ends; they notice it within
 * DPT_SIBLINGS_NOTICE seconds. */
void dpt_siblings_notify(void);
#define DPT_SIBLINGS_NOTICE 0.6
/* MPI has found no others, so this process is about to end. Waits until the siblings have found the
 * same, for some seconds at most: one that is still in MPI_Init would take it for a dead rank. */
void dpt_siblings_await_alone(void);

/* --- the diagnosis: makes a line from what was seen, without clocks, processes or MPI --------- */

enum dpt_process_state { DPT_PROCESS_RUNS, DPT_PROCESS_STOPPED, DPT_PROCESS_GONE };

/* A rank as a watchdog sees it. */
struct dpt_rank_status {
    int rank;
    /* Counts the collectives that this rank's watchdog waits in: the node's, or those of a split's
     * group, which ranks of other groups never hold up: they have passed all of it. */
    uint64_t phase;
    bool in_subgroup; /* it waits in other ones */
    int64_t step;
    double still; /* seconds for which no progress of it has been seen */
    enum dpt_process_state process;
    char note[DPT_NOTE_TEXT];
};

struct dpt_diagnosis_context {
    const char *host;
    double limit;          /* seconds: how long a rank has waited that says something */
    const char *elsewhere; /* "node08, node09"; "": the job has one node */
    /* [ranks of the job]: "stage 2 of 3"; NULL: they all are there for the same. */
    const char (*places)[DPT_PLACE_TEXT];
    /* Seconds for which a rank that runs may stay away; where that is less, `limit`. */
    double start;
};

enum dpt_remote_state {
    DPT_REMOTE_UNKNOWN, /* has never answered, or nobody has asked it lately, or all is well */
    DPT_REMOTE_SILENT,  /* has answered once, and answers none of those that ask it any more */
    DPT_REMOTE_HEARD    /* its last report is a few seconds old at most */
};

/* Another node, as its own watchdog reports it. */
struct dpt_remote_node {
    const char *host;
    enum dpt_remote_state state;
    const int *ranks; /* all of that node */
    int n_ranks;
    const struct dpt_rank_status
        *late; /* where HEARD: ranks that do not wait, are stopped or gone */
    int n_late;
};

enum dpt_diagnosis { DPT_ALL_WELL, DPT_SOME_MISSING, DPT_NONE_MISSING };

/* A rank that keeps the others' linked devices waiting: "rank 3 (node07): its part of the sum over
 * the GPUs has been missing for 60 s: it is at step 4 while reading its samples". */
void dpt_watch_describe_absence(const struct dpt_rank_status *late, const char *host,
                                double seconds, char *line, size_t size);
/*
 * Diagnoses n ranks of a node, as rank number `me` of them sees it. SOME_MISSING: some ranks keep
 * the others waiting. NONE_MISSING: all have arrived, but the wait has passed its limit. line: out,
 * for both of these.
 */
enum dpt_diagnosis dpt_watch_diagnose(const struct dpt_rank_status *seen, int n, int me,
                                      const struct dpt_diagnosis_context *context, char *line,
                                      size_t size);
/*
 * Diagnoses the other nodes where dpt_watch_diagnose found NONE_MISSING. SOME_MISSING: ranks of
 * other nodes keep this node waiting, or a node does not answer any more, and the line says which.
 * ALL_WELL: some ranks are late, but not for the whole limit, and this rank has not waited for four
 * times the limit. NONE_MISSING: nothing is known; the line is left unchanged.
 */
enum dpt_diagnosis dpt_watch_diagnose_remote(const struct dpt_remote_node *remote, int n_remote,
                                             const struct dpt_rank_status *seen, int n, int me,
                                             const struct dpt_diagnosis_context *context,
                                             char *line, size_t size);
/* Whether a rank waits for others. */
bool dpt_watch_waits(const struct dpt_rank_status *seen);
/* The line for a rank whose process is gone. host: with its place, where it has one. */
void dpt_watch_describe_death(const struct dpt_rank_status *dead, const char *host, char *line,
                              size_t size);

#endif
