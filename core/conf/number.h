/*
 * number: numbers and times in words. Private to this room; dpt_parse_int and dpt_parse_real are in
 * option.h.
 */
#ifndef DPT_CONF_NUMBER_H
#define DPT_CONF_NUMBER_H

#include "core/conf/option.h"

/* Bytes of the decimal number that text begins with, 0 for none: [+-] digits [. digits] [e [+-]
 * digits], or `.5`, `5.` */
size_t dpt_number_length(const char *text);

/* Whether text is digits with at most a sign, of any length. */
bool dpt_is_whole(const char *text);

/* Reads "1 epoch", "50 steps", "10 min", "never". NULL, or what is wrong, for a person; *every is
 * untouched then. */
const char *dpt_parse_every(const char *text, struct dpt_every *every);

#endif
