/*
 * output: the streams that the process starts with, and standard output as results are printed to
 * it.
 *
 * Nothing else in the program asks whether what it printed arrived: it prints, and `main` asks once
 * at the end. A reader that went away (`| head -1`) has what it wanted, so that is no failure;
 * SIGPIPE is ignored, and shows as EPIPE. A full disk is one.
 *
 * Names of runs, classes, files and data sets come from anywhere, and they may contain terminal
 * control sequences. So all that is printed goes through dpt_str_printable on its way out,
 * whichever command prints it; JSON stays JSON thereby, since its strings have such characters
 * escaped already.
 */
#ifndef DPT_CMD_OUTPUT_H
#define DPT_CMD_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/error.h"
#include "core/base/str.h"

/*
 * First of all in `main`: a stream that was closed when we were started is /dev/null from here on,
 * since the next file that is opened, or MPI's pipe, would otherwise get its number and what is
 * printed. Without memory stdout is not made printable.
 */
void dpt_output_begin(void);
/* Writes out what was printed. Errors: IO (all that was ever lost, also earlier). */
enum dpt_status dpt_output_flush(struct dpt_error *err);
/* Writes out and closes at the end of the process: some file systems report errors only then. */
enum dpt_status dpt_output_end(struct dpt_error *err);

/* Prints a text that was collected, and releases it. what: names it in messages. Errors: RANK (it
 * failed to grow). */
enum dpt_status dpt_output_text(struct dpt_str *text, const char *what, struct dpt_error *err);
/* Prints text that has colours, and whose words of others were made printable before. Errors: IO.
 */
enum dpt_status dpt_output_colored(const char *text, struct dpt_error *err);
/* Writes all of it, past stdio; waits where fd does not block. False with errno. */
bool dpt_output_write(int fd, const char *bytes, size_t n);

#endif
