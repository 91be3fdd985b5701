/*
 * comm: the ranks of a job and their communication. Only this directory calls MPI.
 *
 * A group is an ordered set of ranks; every collective takes one, never "the world". All calls
 * with groups of one comm come from one thread of a rank at a time. Every function that says
 * "Collective." must be reached by all ranks of the group in the same order, or the job hangs:
 * before such a call that a failing rank would not reach, the ranks agree on their status
 * (dpt_group_agree).
 *
 * If a rank never arrives, because it was killed or stopped or hangs, a watchdog thread of another
 * rank ends the job with exit code 71 and a line that names the missing rank (watch.h). A
 * collective that fails inside MPI on one rank ends the job in the same way.
 */
#ifndef DPT_COMM_COMM_H
#define DPT_COMM_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"

enum { DPT_HOST_TEXT = 64, DPT_PLACE_TEXT = 64, DPT_WHERE_TEXT = DPT_HOST_TEXT + DPT_PLACE_TEXT };

struct dpt_group {
    int rank, size;
    void *handle; /* the communicator; NULL for a group of one, which needs no MPI */
};

struct dpt_comm {
    struct dpt_group world;   /* all ranks of the job */
    struct dpt_group node;    /* those that share this rank's memory */
    struct dpt_group leaders; /* node rank 0 of every node; rank -1 on the others */
    int nodes;
    char host[DPT_HOST_TEXT];
    char (*hosts)[DPT_HOST_TEXT]; /* of every rank; NULL where there is one */
    struct dpt_watch *watch;      /* this rank's watchdog; NULL where there is one rank */
    bool started;                 /* MPI runs */
    int axis;    /* 0: the job's; else the split that made it: see dpt_comm_split */
    bool beside; /* a thread beside the main one uses it, and sleeps where it waits */
};

/* This rank according to the launcher (mpirun, srun) before MPI runs, or 0; and whether there is a
 * launcher at all. */
int dpt_launcher_rank(void);
bool dpt_launcher_present(void);
/* The whole number, at least 0, in an environment variable of the launcher; else `otherwise`. */
int dpt_launcher_number(const char *name, int otherwise);
/* The launcher among this process's ancestors: "mpirun", "srun"; NULL if there is none. */
const char *dpt_launcher_name(void);
/* This rank's number on its node; 0 without a launcher, -1 where the launcher does not set it. */
int dpt_launcher_local_rank(void);
/*
 * Sets the environment for an MPI that is started without a launcher; with one it does nothing. It
 * must be called before any thread that may read the environment exists, as a GPU driver's thread
 * may, since setenv moves the environment. dpt_comm_open calls it too, which then changes nothing.
 */
void dpt_launcher_prepare(void);
/* A rank beside rank 0 that is about to end with an error which rank 0 tells waits here until that
 * has ended, a second at most: launchers end all ranks as soon as one has failed, and what a rank
 * has written by then may be lost. Not collective. */
void dpt_launcher_let_first_speak(void);

/*
 * Starts MPI and finds the groups. Collective over all processes of the job. Without a launcher MPI
 * is started for one process only, which is faster. Errors: RANK, USAGE (srun without --mpi=pmix).
 */
enum dpt_status dpt_comm_open(struct dpt_comm *comm, struct dpt_error *err);
/*
 * How many seconds a rank may keep the others waiting until the watchdog ends the job; 0: for ever.
 * A rank that opens files, or reads or writes a piece of one, keeps nobody waiting. `start` holds
 * until dpt_comm_started, for a rank that runs: MPI, devices and file systems may take long to
 * answer at first. Meanwhile the first node prints every `seconds` who is waited for. What is
 * certain ends the job sooner: a stopped rank after `seconds`, a dead one at once.
 */
struct dpt_comm_limits {
    double seconds, start;
};
/* Sets, before dpt_comm_open, the limits for the start of MPI and until dpt_comm_limit; 60 s and
 * 15 min where this is not called. */
void dpt_comm_start_limit(struct dpt_comm_limits limits);
/* Ends MPI, after a barrier, so that all ranks have done their work when one returns.
 * Collective. */
void dpt_comm_close(struct dpt_comm *comm);

/*
 * Collective over parent->world. Splits the ranks into groups of one color (at least 0) each, in
 * their order, and gives each rank the comm of its own group: whole, with nodes, hosts and the
 * watchdog, which names whoever keeps such a group waiting. A rank may have DPT_AXES_MOST open at a
 * time, and closes them, the last one first, with dpt_comm_close before the parent. Errors: RANK,
 * INTERNAL (too many).
 */
enum { DPT_AXES_MOST = 7 };
enum dpt_status dpt_comm_split(const struct dpt_comm *parent, int color, struct dpt_comm *part,
                               struct dpt_error *err);

/* Says what each rank of the job is there for ("stage 2 of 3"), for the lines that name it: after
 * its host. places: [ranks], by dpt_alloc, which this takes over; NULL: no longer. */
void dpt_comm_places(const struct dpt_comm *comm, char (*places)[DPT_PLACE_TEXT]);
/* "node07, stage 2 of 3", or the host alone, of a rank of the job. */
const char *dpt_comm_where(const struct dpt_comm *comm, int rank, char where[DPT_WHERE_TEXT]);
void dpt_comm_limit(const struct dpt_comm *comm, struct dpt_comm_limits limits);
/* The start is over: from now on limits.seconds holds for all. Not collective; cheap. */
void dpt_comm_started(const struct dpt_comm *comm);
/* Starts a watchdog for a job of one rank, even if MPI was not started: it ends the process with
 * one line when no new note (dpt_comm_note) has come for so many seconds (0: that may take for
 * ever), or when a wait for a device lasts for the limit. dpt_comm_close stops it. Errors: RANK. */
enum dpt_status dpt_comm_guard(struct dpt_comm *comm, double seconds, struct dpt_error *err);
/* The counters of this rank's waits for its device, for struct dpt_program_spec: where one lasts
 * for the limit, and for four times the longest that has ended, the watchdog ends the job. They
 * live as long as the comm. NULL: there is no watchdog. */
struct dpt_device_waits *dpt_comm_device_waits(const struct dpt_comm *comm);
/* What the watchdog calls, in its own thread, with the line that it ends the job with: of the ranks
 * of a node one does. tell: NULL: nothing. arg: borrowed until then. */
void dpt_comm_on_end(const struct dpt_comm *comm, void (*tell)(void *arg, const char *line),
                     void *arg);
/* Notes what this rank does now and in which step (from 1; 0: before the first), for the watchdog's
 * line. Takes some nanoseconds. */
void dpt_comm_note(const struct dpt_comm *comm, int64_t step, const char *what);
/* Notes an activity on a named thing, in the step of the last note: "gathering conv1". */
void dpt_comm_note_of(const struct dpt_comm *comm, const char *what, const char *name);
/* Collective over comm->world. Gives the number of each rank's node, in the order of the nodes'
 * first ranks. nodes: [ranks], out. Errors: RANK. */
enum dpt_status dpt_comm_number_nodes(const struct dpt_comm *comm, int32_t *nodes,
                                      struct dpt_error *err);
/* The host of a rank of the world. */
const char *dpt_comm_host(const struct dpt_comm *comm, int rank);

/* Whether this MPI, which runs, may be called by several threads at a time. */
bool dpt_comm_has_threads(void);
/* Whether this process may have so many more bytes of address space (ulimit -v). */
bool dpt_memory_reserve(size_t bytes);

/* "Open MPI 4.1.4"; static text, may be called before MPI runs. */
const char *dpt_comm_version(void);

/* This rank failed, as err says, where the others wait for it and nothing else tells them: ends the
 * job with "rank R (host): text" where it is watched. Else returns the status. */
enum dpt_status dpt_group_give_up(const struct dpt_group *g, enum dpt_status status,
                                  const struct dpt_error *err);

/* Collective. All ranks get the status and the text of the lowest rank that failed (with "rank R
   (host): " in front where others did not fail), DPT_OK where none did. */
enum dpt_status dpt_group_agree(const struct dpt_group *g, enum dpt_status status,
                                struct dpt_error *err);

/* Collective. Element-wise sums over the ranks, any n; send may equal receive. All ranks get the
 * same bits. Errors: RANK. */
enum dpt_status dpt_group_sum_floats(const struct dpt_group *g, const float *send, float *receive,
                                     size_t n, struct dpt_error *err);
/* Collective. Such sums, in place, for rank 0 alone: the other ranks' numbers stay. Errors:
 * RANK. */
enum dpt_status dpt_group_sum_floats_at_first(const struct dpt_group *g, float *x, size_t n,
                                              struct dpt_error *err);
enum dpt_status dpt_group_sum_doubles(const struct dpt_group *g, const double *send,
                                      double *receive, size_t n, struct dpt_error *err);
enum dpt_status dpt_group_sum_ints(const struct dpt_group *g, const int64_t *send, int64_t *receive,
                                   size_t n, struct dpt_error *err);
/* Collective. Gives all ranks the largest of their values. */
enum dpt_status dpt_group_max(const struct dpt_group *g, double value, double *largest,
                              struct dpt_error *err);
/* Collective. Copies rank root's n bytes to all ranks, any n. */
enum dpt_status dpt_group_broadcast(const struct dpt_group *g, int root, void *bytes, size_t n,
                                    struct dpt_error *err);
/* Collective. Gives all ranks the n bytes of each rank, in rank order; `all` holds size x n
 * bytes. */
enum dpt_status dpt_group_allgather(const struct dpt_group *g, const void *mine, void *all,
                                    size_t n, struct dpt_error *err);
/* The number of floats of each rank's part, and the offset in the array at which the part
 * begins. */
struct dpt_parts {
    int *count, *at;
};

/* Collective (MPI_Gatherv). Gives all ranks' parts to rank root alone; `all` is used on rank root
 * only. Works for any group. */
enum dpt_status dpt_group_gatherv(const struct dpt_group *g, int root, const float *mine,
                                  float *all, const struct dpt_parts *parts, struct dpt_error *err);

/* Collective (MPI_Scatterv). The other way round; rank root's own part stays where it is. */
enum dpt_status dpt_group_scatterv(const struct dpt_group *g, int root, const float *all,
                                   float *mine, const struct dpt_parts *parts,
                                   struct dpt_error *err);

/* A message that is being sent. */
struct dpt_sending {
    _Alignas(8) char request[8];
    bool under_way;
};

/*
 * Messages from one rank of a group to another one; between two ranks they arrive in the order in
 * which they were sent. A send returns at once: the bytes must stay as they are until
 * dpt_group_sent has returned, which follows each send. A message has at most DPT_MESSAGE_BYTES.
 * For the watchdog, a group of two. Errors: RANK.
 */
#define DPT_MESSAGE_BYTES ((size_t)1 << 30)
enum dpt_status dpt_group_send(const struct dpt_group *g, int to, const void *bytes, size_t n,
                               struct dpt_sending *sending, struct dpt_error *err);
enum dpt_status dpt_group_sent(const struct dpt_group *g, struct dpt_sending *sending,
                               struct dpt_error *err);
enum dpt_status dpt_group_receive(const struct dpt_group *g, int from, void *bytes, size_t n,
                                  struct dpt_error *err);
/* Collective. Gives a rank the n bytes of `send` and gets m bytes of it, any n and m, of which it
 * says the same. other: -1: nothing is given or got, while others do. Errors: RANK. */
enum dpt_status dpt_group_swap(const struct dpt_group *g, int other, const void *send, size_t n,
                               void *receive, size_t m, struct dpt_error *err);
/* Lets messages in flight make progress, where MPI does nothing between its calls: to be called
 * now and then where there is other work. */
void dpt_group_progress(const struct dpt_group *g);

/* Collective. */
enum dpt_status dpt_group_barrier(const struct dpt_group *g, struct dpt_error *err);

/* Memory that all ranks of a node's group share. */
struct dpt_shared {
    void *bytes; /* the same memory on all ranks, page-aligned, zeroed */
    size_t size;
};

/* Collective over a group whose ranks share memory. Errors: RANK (names the size and, where it is
 * full, /dev/shm). */
enum dpt_status dpt_shared_open(struct dpt_shared *shared, const struct dpt_group *node,
                                size_t size, struct dpt_error *err);
/* Collective over the same group. */
void dpt_shared_close(struct dpt_shared *shared);

#endif
