/*
 * log: what a person reads while it runs.
 *
 * There is one struct dpt_log a process; cmd/ owns it and lends it to other code. A silent log
 * (every rank but 0) accepts all calls and prints nothing. Lines go to stderr and, once
 * dpt_log_file was called, with a time stamp to log.txt ("2026-11-21T08:00:00 text", local time);
 * there also those that --quiet keeps from the screen. Not for concurrent use.
 *
 * What it prints may hold words of others, names and paths: so all text is made printable (str.h).
 * It is one line, unless the format itself has a line break in it; an error has those that whoever
 * filled it wanted (error.h).
 */
#ifndef DPT_BASE_LOG_H
#define DPT_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "core/base/error.h"

enum dpt_log_level { DPT_LOG_QUIET, DPT_LOG_NORMAL, DPT_LOG_VERBOSE };

struct dpt_log {
    enum dpt_log_level level;
    bool silent;   /* prints nothing at all, writes no file */
    bool terminal; /* stderr reaches a terminal, maybe through mpirun: one live line may be drawn */
    int columns;   /* width of that terminal */
    int tty;       /* its descriptor + 1; 0: none, and the width stays */
    bool live;     /* a live line is on the screen now */
    FILE *file;
};

/*
 * Finds out whether a terminal is at the other end of stderr (also through mpirun on this node) and
 * how wide it is (else from COLUMNS, else 80). The environment's DPTRAIN_TTY=0|1 overrules what was
 * found; TERM=dumb counts as no terminal.
 */
void dpt_log_init(struct dpt_log *log, enum dpt_log_level level, bool silent);
/* Opens `path` for appending and copies all further lines there. Errors: IO. */
enum dpt_status dpt_log_file(struct dpt_log *log, const char *path, struct dpt_error *err);
void dpt_log_close(struct dpt_log *log);

/* A line; shown unless --quiet, only with --verbose, always ("warning: " in front), always (as it
 * is). */
void dpt_log_info(struct dpt_log *log, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void dpt_log_detail(struct dpt_log *log, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void dpt_log_warn(struct dpt_log *log, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void dpt_log_error(struct dpt_log *log, const struct dpt_error *err);

/* A line of progress: the live line on a terminal, a line of its own elsewhere; always a line of
 * log.txt. */
void dpt_log_progress(struct dpt_log *log, const char *text);

/* Draws the live line over the one before it, cut to the width; nothing where there is no terminal.
 * NULL clears it. */
void dpt_log_live(struct dpt_log *log, const char *text);
/* Draws "what: 1 000 of 60 000" as the live line, ten times per second at most. shown: when it was
 * drawn last, 0 at first. all: 0: not known. log: NULL: nobody is told. */
void dpt_log_live_count(struct dpt_log *log, double *shown, const char *what, int64_t done,
                        int64_t all);

#endif
