/*
 * doctor: checks whether a machine, or all of a job's machines, are set up correctly. Private to
 * `dptrain doctor`.
 *
 * A check is a row of a table. It looks at one thing and adds findings: ok, a warning, or a
 * failure, what was found, and what to do. Checks of a rank or of a node look around without
 * talking to anyone, so that one that fails keeps nobody; their findings are brought together
 * afterwards and told once where all agree, else by rank and host. Checks of the world are
 * collective; rank 0's findings count.
 */
#ifndef DPT_CMD_DOCTOR_H
#define DPT_CMD_DOCTOR_H

#include <stdbool.h>

#include "cmd/cmd.h"
#include "core/backend/gpu_query.h"
#include "core/base/json.h"
#include "core/base/memory.h"
#include "core/comm/comm.h"
#include "core/plan/plan.h"

enum dpt_doctor_level { DPT_DOCTOR_OK, DPT_DOCTOR_WARNING, DPT_DOCTOR_FAILED, DPT_DOCTOR_LEVELS };

enum dpt_doctor_scope {
    DPT_DOCTOR_RANK,  /* every rank looks */
    DPT_DOCTOR_NODE,  /* the first rank of every node */
    DPT_DOCTOR_FIRST, /* rank 0 */
    DPT_DOCTOR_WORLD, /* collective: all look together */
};

/* What makes the findings of several ranks the same. */
enum dpt_doctor_compare {
    DPT_DOCTOR_TEXT,  /* what was found, to the letter */
    DPT_DOCTOR_LEAST, /* nothing: the one with the least value is told, with its rank and host */
};

enum { DPT_DOCTOR_NAME = 20, DPT_DOCTOR_LINE = 400 };

struct dpt_finding {
    enum dpt_doctor_level level;
    bool quiet; /* told only where the ranks differ */
    double value;
    const char *name, *found, *advice; /* advice "": none */
};

struct dpt_doctor;

struct dpt_doctor_check {
    const char *section;
    const char *name; /* of its findings, unless they have names of their own */
    enum dpt_doctor_scope scope;
    enum dpt_doctor_compare compare;
    void (*run)(struct dpt_doctor *d);
    /* What a check of the world does instead. Errors: RANK; all ranks fail together. */
    enum dpt_status (*together)(struct dpt_doctor *d, struct dpt_error *err);
    enum dpt_doctor_level differ; /* what it is where ranks differ */
    const char *advice;           /* then */
};

struct dpt_doctor {
    struct dpt_cli *cli;
    struct dpt_comm comm;
    bool alone; /* MPI did not start: `why` says why */
    const char *why;
    const char *output;         /* the run folder */
    bool unwritable;            /* nothing can be saved there; rank 0 knows */
    double limit;               /* seconds that a check may take */
    double cores;               /* this rank's share of its node's cores */
    double node_cores;          /* that any rank of the node may use */
    bool crowded;               /* some ranks share a core */
    struct dpt_machine machine; /* one thread of this rank; zero: not measured */
    struct dpt_fabric fabric;   /* between nodes, at worst; zero: not measured */
    struct dpt_gpu_query gpus;
    int nccl_log;                          /* file that NCCL writes its log to; 0: not asked to */
    const struct dpt_doctor_check *checks; /* ends with a row without a name */
    const struct dpt_doctor_check *check;  /* whose findings are added now */
    struct dpt_str findings;               /* packed, of this rank */
    struct dpt_region region;              /* what checks gather, and the report */
};

/* Adds what the running check has found. advice: may be NULL. A finding without a name of its own
 * gets the check's. */
void dpt_doctor_add(struct dpt_doctor *d, struct dpt_finding finding, const char *advice,
                    const char *format, ...) __attribute__((format(printf, 4, 5)));
#define dpt_doctor_say(d, at, advice, ...)                                                         \
    dpt_doctor_add(d, (struct dpt_finding){.level = (at)}, advice, __VA_ARGS__)
#define dpt_ok(d, ...)              dpt_doctor_say(d, DPT_DOCTOR_OK, NULL, __VA_ARGS__)
#define dpt_warning(d, advice, ...) dpt_doctor_say(d, DPT_DOCTOR_WARNING, advice, __VA_ARGS__)
#define dpt_failed(d, advice, ...)  dpt_doctor_say(d, DPT_DOCTOR_FAILED, advice, __VA_ARGS__)
/* Judges with the advice only where it is not ok. */
#define dpt_judge(d, at, advice, ...)                                                              \
    dpt_doctor_say(d, at, (at) == DPT_DOCTOR_OK ? NULL : (advice), __VA_ARGS__)
/* Whether this is built with Open MPI, whose variables and options others do not have. */
bool dpt_doctor_open_mpi(void);
/* What a value is that should not lie below these. */
enum dpt_doctor_level dpt_doctor_below(double value, double fails, double warns);

/* Collective. Gives every rank's `mine` of `size` bytes to all, [ranks], in the region; NULL:
 * failed, on all ranks together. */
void *dpt_doctor_gather(struct dpt_doctor *d, const void *mine, size_t size, struct dpt_error *err);
/* Sets `all` to what it gives, or fails as DPT_TRY does. */
#define DPT_DOCTOR_GATHER(all, d, mine, size, err)                                                 \
    do {                                                                                           \
        (all) = dpt_doctor_gather((d), (mine), (size), (err));                                     \
        if ((all) == NULL)                                                                         \
            DPT_TRY((err)->status);                                                                \
    } while (0)

/* --- the report, on rank 0 -------------------------------------------------------------------- */

/* A line of it: ranks that found the same. */
struct dpt_doctor_line {
    const struct dpt_doctor_check *check;
    struct dpt_finding finding;
    int *ranks; /* NULL: all that looked */
    int n_ranks;
};

struct dpt_doctor_report {
    struct dpt_doctor_line *lines;
    size_t n;
    int count[DPT_DOCTOR_LEVELS];
};

/* Collective where MPI runs. Brings all ranks' findings together; the report, zeroed before, is
 * rank 0's and lies in d's region. Errors: RANK. */
enum dpt_status dpt_doctor_collect(struct dpt_doctor *d, struct dpt_doctor_report *report,
                                   struct dpt_error *err);
/* Writes the report for a person, in 80 columns (quiet: without what is ok), or as one JSON object.
 * */
void dpt_doctor_print(const struct dpt_doctor *d, const struct dpt_doctor_report *report,
                      bool quiet, struct dpt_str *out);
void dpt_doctor_json(const struct dpt_doctor *d, const struct dpt_doctor_report *report,
                     struct dpt_json *j);
/* "rank 3 (node07)", "ranks 0-2, 5 (node01, node02)" into buf; returns buf. */
const char *dpt_doctor_who(const struct dpt_doctor *d, const int *ranks, int n, char *buf,
                           size_t size);

/* Has NCCL write a log for dpt_doctor_nccl, unless the user has it write one. To be called before
 * anything starts threads, which may read the environment. */
void dpt_doctor_listen(struct dpt_doctor *d);

/* Whether --mesh can be understood. Errors: USAGE. */
enum dpt_status dpt_doctor_read_mesh(const struct dpt_cli *cli, struct dpt_error *err);

/* What the checks do: each rank or node for itself, or all ranks together. */
// clang-format off
#define DPT_DOCTOR_LOOKS(X)                                                                        \
    X(program) X(backend) X(user)                                                                  \
    X(start) X(library) X(launcher) X(threads)                                                     \
    X(system) X(processor) X(governor) X(numa) X(pages) X(load) X(memory) X(dev_shm) X(temporary)  \
    X(driver) X(libraries) X(library_files) X(devices) X(peers) X(near) X(cuda_aware)              \
    X(hdf5) X(output) X(disk)                                                                      \
    X(limits) X(variables)                                                                         \
    X(slurm) X(slurm_cores) X(slurm_time) X(slurm_requeue)
#define DPT_DOCTOR_COLLECTIVES(X)                                                                  \
    X(ranks) X(mesh) X(cores) X(shared) X(latency) X(sum) X(links) X(clocks) X(speed) X(gpu_ranks)   \
    X(gpu_sum) X(nccl) X(lock)
// clang-format on
#define X(name) void dpt_doctor_##name(struct dpt_doctor *d);
DPT_DOCTOR_LOOKS(X)
#undef X
#define X(name) enum dpt_status dpt_doctor_##name(struct dpt_doctor *d, struct dpt_error *err);
DPT_DOCTOR_COLLECTIVES(X)
#undef X

#endif
