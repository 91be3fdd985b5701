/*
 * streams: the three streams that a process starts with.
 *
 * Nothing else in the program asks whether what it printed arrived: it prints, and `main` asks once
 * at the end. A reader that went away (`| head -1`) has what it wanted, so that is no failure;
 * SIGPIPE is ignored, and shows as EPIPE. A full disk is one.
 */
#ifndef DPT_CMD_STREAMS_H
#define DPT_CMD_STREAMS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/error.h"

/*
 * First of all in `main`: a stream that was closed when we were started is /dev/null from here on.
 * Otherwise the next file that is opened, or MPI's pipe, would get its number and what is printed.
 */
void dpt_streams_repair(void);

/* Writes all of it, past stdio; waits where fd does not block. False with errno. */
bool dpt_streams_write(int fd, const char *bytes, size_t n);

/* Writes out what was printed to standard output. Errors: IO (all that was ever lost, also
 * earlier). */
enum dpt_status dpt_streams_flush(struct dpt_error *err);

/* The same at the end of the process: closes it, since some file systems tell only then. */
enum dpt_status dpt_streams_finish(struct dpt_error *err);

#endif
