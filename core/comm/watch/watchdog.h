/*
 * watchdog: the state of a rank's watchdog, for the files that implement it. Private to core/comm.
 *
 * watch.c observes the ranks and ends the job, without any collective. watch_rank.c takes what a
 * rank says of itself: notes, collectives that it enters, limits, links. watch_attach.c connects
 * the ranks of a node when MPI runs, nodes.c the nodes of a job.
 */
#ifndef DPT_COMM_WATCHDOG_H
#define DPT_COMM_WATCHDOG_H

#include "core/base/device_waits.h"
#include "core/base/pool.h"
#include "core/comm/watch/heartbeat.h"

/* The other nodes of a job. */
struct dpt_nodes {
    int n, me;        /* of the job's nodes */
    char others[256]; /* names of the others: "node08, node09"; "": there are none */
    /* The members below belong to the first rank of a node, and are NULL where the nodes have no
     * heartbeat. */
    struct dpt_heartbeat *heartbeat;
    struct dpt_node_addresses *all_addresses; /* [n] */
    struct dpt_remote_node *remote;           /* [n]; this node's entry is empty */
    int *ranks;                               /* of the world, by node */
};

/* What the ranks of a node share. */
struct dpt_watch_page {
    _Atomic bool explained; /* a rank has printed why the job ends */
    _Atomic int64_t told;   /* when a rank has printed last who is waited for; whole seconds */
    struct dpt_watched_rank ranks[];
};

/* What a rank's phase was at the last tick, and how many files it had moved. */
struct dpt_watch_history {
    uint64_t phase, moves;
    double still;   /* seconds without progress of any kind */
    double waiting; /* seconds in the same phase */
};

struct dpt_watch {
    struct dpt_thread thread;                          /* its lock is over all but what is atomic */
    _Atomic bool closing;                              /* MPI_Abort may not be called any more */
    void (*_Atomic tell)(void *arg, const char *line); /* NULL: nobody is told */
    void *tell_arg;
    int rank;
    struct dpt_comm_limits limits;
    _Atomic bool started; /* only limits.seconds counts */
    double looked;
    double patience, lasted; /* how long a note may be the last one (0: for ever), and has been */
    unsigned note;           /* the number of notes at the last tick */
    uint64_t moves;          /* and of files' */
    void (*_Atomic abort)(void *link); /* NULL: the ranks' devices do not wait for each other */
    void *link;
    _Atomic bool aborted; /* that has returned */
    bool alone;           /* a job of one rank: nobody else is watched */
    struct dpt_device_waits device_waits;
    uint64_t device_waited; /* the number of waits for the device that had ended at the last tick */
    double device_wait;     /* seconds for which this one continues */
    double device_longest;  /* of those that have ended */
    double waited;          /* for the start of MPI */
    double told;            /* how long that was when it was told last */
    bool slept;             /* it was stopped itself, and others may have printed meanwhile */
    struct dpt_siblings siblings;
    int n, me; /* of the node's group; n 0: not attached */
    int axes;  /* splits that this rank has open */
    char host[DPT_HOST_TEXT];
    char (*places)[DPT_PLACE_TEXT]; /* [ranks of the job]; NULL: none */
    struct dpt_shared shared;
    struct dpt_watch_page *page;
    struct dpt_watched_rank *mine, own; /* own: until it is attached */
    struct dpt_watch_history *history;  /* [n] */
    struct dpt_rank_status *seen;       /* [n] */
    bool *visible;                      /* [n]: whether its process is visible from here */
    struct dpt_nodes nodes;
};

/* Collective over the world, all of whose hosts are known. Errors: RANK. */
enum dpt_status dpt_nodes_open(struct dpt_nodes *nodes, const struct dpt_comm *comm,
                               struct dpt_error *err);
void dpt_nodes_close(struct dpt_nodes *nodes);

/* What the watchdog's thread does at each tick, `passed` seconds after the one before. Both end the
 * process where it has waited for too long: for MPI to start; for its device; alone, for its next
 * note. */
void dpt_watch_check_start(struct dpt_watch *watch, double passed);
void dpt_watch_check_device(struct dpt_watch *watch, double passed);
void dpt_watch_check_note(struct dpt_watch *watch, double passed);

/* Ends what linked devices do for each other, once. */
void dpt_watch_abort_links(struct dpt_watch *watch);

/* Publishes that this rank has ended, waits until the node's other ranks have too, and ends the
 * watchdog's thread. */
void dpt_watch_end(struct dpt_watch *watch);

#endif
