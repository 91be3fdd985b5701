/*
 * str: a string that grows.
 *
 * Zero-initialise: {0}. `text` is NUL-terminated, or NULL while nothing was added. Running out of memory sets `failed` and
 * drops what did not fit, so that a writer checks once, at the end.
 */
#ifndef DPT_BASE_STR_H
#define DPT_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>

struct dpt_str {
    char *text;
    size_t length, capacity;
    bool failed;
};

void dpt_str_printf(struct dpt_str *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void dpt_str_add(struct dpt_str *s, const char *bytes, size_t n);
/* Adds text as a JSON string literal, quotes and escapes included; bytes that are no UTF-8 become U+FFFD. */
void dpt_str_json(struct dpt_str *s, const char *text);
/* Adds the shortest decimal that reads back as the same double; JSON null for NaN and infinities. */
void dpt_str_number(struct dpt_str *s, double value);
void dpt_str_clear(struct dpt_str *s);
void dpt_str_release(struct dpt_str *s);

/* The one of n names that is nearest to `name` by edit distance and close enough to suggest, or NULL. */
const char *dpt_nearest(const char *name, const char *const *names, size_t n);

/* Adds the numbers of 0 ... n-1 that `is` marks: "0-2, 5"; of many the first runs, and "...". */
void dpt_str_ranks(struct dpt_str *s, const bool *is, int n);

/* Writes a count with thin groups ("60 000") into buf (at least 32 bytes) and returns buf. */
const char *dpt_group_digits(char *buf, long long value);

#endif
