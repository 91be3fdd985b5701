/*
 * output: standard output, as results are printed to it.
 *
 * Names of runs, classes, files and data sets come from anywhere, and what steers a terminal may
 * hide in them. So all that is printed goes through dpt_str_printable on its way out, whichever
 * command prints it; JSON stays JSON thereby, since its strings have such characters escaped
 * already. Errors of writing are those of stdio, as without.
 */
#ifndef DPT_CMD_OUTPUT_H
#define DPT_CMD_OUTPUT_H

#include "core/base/error.h"

/* Puts that stream in the place of stdout. Once, at the start; without memory stdout stays as it
 * is. */
void dpt_output_begin(void);

/* Prints text that has colours, and whose words of others were made printable before. Errors: IO.
 */
enum dpt_status dpt_output_colored(const char *text, struct dpt_error *err);

#endif
