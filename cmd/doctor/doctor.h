/*
 * doctor: looks whether a machine, or all of a job's, is set up right. Private to `dptrain doctor`.
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
#include "core/backend/devices.h"
#include "core/base/json.h"
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
    char name[DPT_DOCTOR_NAME * 2];
    char found[DPT_DOCTOR_LINE];
    char advice[DPT_DOCTOR_LINE]; /* "": none */
};

struct dpt_doctor;
struct dpt_guard;

struct dpt_doctor_check {
    const char *section;
    const char *name; /* of its findings, unless they have names of their own */
    enum dpt_doctor_scope scope;
    enum dpt_doctor_compare compare;
    /* Errors, of a check of the world only: RANK; all ranks fail together. */
    enum dpt_status (*look)(struct dpt_doctor *d, struct dpt_error *err);
    enum dpt_doctor_level differ; /* what it is where ranks differ */
    const char *advice;           /* then */
};

extern const struct dpt_doctor_check dpt_doctor_checks[]; /* ends with a row without a name */

/* GPUs as a process of its own saw them, before MPI ran. */
enum { DPT_DOCTOR_GPUS = 16 };
struct dpt_doctor_gpus {
    bool library;     /* libcuda is there */
    int code;         /* of its start: 0 is well */
    int driver;       /* 12040: the CUDA version that the driver knows */
    char version[32]; /* of the driver, by libnvidia-ml; "": unknown */
    char nvml[64];    /* what libnvidia-ml has to say against it; "": nothing */
    int count;        /* of the devices, DPT_DOCTOR_GPUS at most are described */
    struct {
        char name[64];
        double memory, available; /* bytes */
        int major, minor;         /* compute capability */
    } gpu[DPT_DOCTOR_GPUS];
    int message; /* device memory through MPI: 1 arrived whole, 0 did not, -1 was not tried */
    char why[128];
    char libraries[96]; /* "driver for CUDA 13.0, cuDNN 9.19.0, ..." */
    struct dpt_device_library library_files[DPT_DEVICE_LIBRARIES];
    char missing[DPT_DOCTOR_LINE]; /* what keeps this program from using them; "": nothing */
    /* The one that would be this rank's; "": it has none. */
    char own_bus[32], own_name[64];
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
    struct dpt_doctor_gpus gpus;
    struct dpt_guard *guard;              /* of a lone rank */
    const struct dpt_doctor_check *check; /* whose findings are added now */
    struct dpt_str findings;              /* packed, of this rank */
};

/* Adds a finding of the check that looks. name: NULL for the check's own. */
struct dpt_finding dpt_doctor_finding(const struct dpt_doctor *d, const char *name);
void dpt_doctor_add(struct dpt_doctor *d, const struct dpt_finding *finding);
/* The same in one go; advice may be NULL. */
void dpt_doctor_say(struct dpt_doctor *d, enum dpt_doctor_level level, const char *advice,
                    const char *format, ...) __attribute__((format(printf, 4, 5)));

/* --- the report, on rank 0 ------------------------------------------------------------------- */

/* A line of it: ranks that found the same. */
struct dpt_doctor_line {
    const struct dpt_doctor_check *check;
    struct dpt_finding finding;
    int *ranks; /* NULL: all that looked; the report's */
    int n_ranks;
};

struct dpt_doctor_report {
    struct dpt_doctor_line *lines;
    size_t n, capacity;
    int count[DPT_DOCTOR_LEVELS];
};

/* Collective where MPI runs. Brings all ranks' findings together; the report is rank 0's. Errors:
 * RANK. */
enum dpt_status dpt_doctor_gather(struct dpt_doctor *d, struct dpt_doctor_report *report,
                                  struct dpt_error *err);
void dpt_doctor_report_release(struct dpt_doctor_report *report);
/* For a person, in 80 columns; quiet: without what is ok. One JSON object. */
void dpt_doctor_print(const struct dpt_doctor *d, const struct dpt_doctor_report *report,
                      bool quiet, struct dpt_str *out);
void dpt_doctor_json(const struct dpt_doctor *d, const struct dpt_doctor_report *report,
                     struct dpt_json *j);
/* "rank 3 (node07)", "ranks 0-2, 5 (node01, node02)" into buf; returns buf. */
const char *dpt_doctor_who(const struct dpt_doctor *d, const int *ranks, int n, char *buf,
                           size_t size);

/* --- for checks ------------------------------------------------------------------------------ */

/* "1.54 GB" into buf (at least 32 bytes); returns buf. "1.2 us" likewise. */
const char *dpt_doctor_bytes(double bytes, char *buf);
const char *dpt_doctor_seconds(double seconds, char *buf);
/* The first line of a file without its end; false where there is none. */
bool dpt_doctor_read_line(const char *path, char *line, size_t size);
/* The first number of a file; `otherwise` where there is none. */
double dpt_doctor_read_number(const char *path, double otherwise);

/* The kind of file system that a path lies on. */
struct dpt_doctor_fs {
    const char *name; /* "ext4" */
    bool remote;
    bool fleeting;    /* in memory: lost with the machine, and takes its memory */
    const char *note; /* what matters for runs there, or NULL */
};
const struct dpt_doctor_fs *dpt_doctor_fs(const char *path);

/* Before MPI starts: what libcuda and libnvidia-ml say, found out by a child process: on the first
 * rank of a node all that there is, on the others which device is theirs. */
void dpt_doctor_look_for_gpus(struct dpt_doctor_gpus *gpus);

/* What the checks do. */
// clang-format off
#define DPT_DOCTOR_LOOKS(X)                                                                        \
    X(program) X(backend) X(user)                                                                  \
    X(start) X(library) X(launcher) X(threads) X(ranks) X(cores) X(shared)                         \
    X(latency) X(sum) X(links) X(clocks) X(speed)                                                  \
    X(system) X(processor) X(governor) X(numa) X(pages) X(load) X(memory) X(dev_shm) X(temporary)  \
    X(driver) X(libraries) X(library_files) X(devices) X(gpu_ranks) X(cuda_aware) X(gpu_sum)       \
    X(hdf5) X(output) X(disk) X(lock)                                                              \
    X(limits) X(variables)                                                                         \
    X(slurm) X(slurm_cores) X(slurm_time) X(slurm_requeue)
// clang-format on
#define X(name) enum dpt_status dpt_doctor_##name(struct dpt_doctor *d, struct dpt_error *err);
DPT_DOCTOR_LOOKS(X)
#undef X

#endif
