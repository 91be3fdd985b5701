/*
 * owner: which process a run folder belongs to, as one line of text, and whether it is gone.
 *
 * A process number alone says little: numbers are used again, hosts and containers may have equal
 * names. So an owner is also known by its start time, by the kernel that it runs on (the boot id)
 * and by that kernel's space of process numbers. Only where both are ours can we ask whether the
 * process lives; everywhere else the age of its last sign of life decides.
 */
#ifndef DPT_STATE_OWNER_H
#define DPT_STATE_OWNER_H

#include <stdbool.h>
#include <stddef.h>

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

/* An owner whose last sign of life is older than this many seconds is taken for gone. */
extern const double dpt_owner_patience;

/* This process. generation is left 0. */
void dpt_owner_self(struct dpt_owner *owner, const char *host);

/* As one line with its newline; returns its length. */
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
