/*
 * str: a string that grows.
 *
 * Zero-initialise: {0}. `text` is NUL-terminated, or NULL while nothing was added. Running out of
 * memory sets `failed` and drops what did not fit, so that a writer checks once, at the end.
 */
#ifndef DPT_BASE_STR_H
#define DPT_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * An enum and its words are made of one list, so that they cannot disagree:
 *     #define KINDS(X) X(KIND_AUTO, "auto") X(KIND_NONE, "none")
 *     enum kind { KINDS(DPT_LIST_NAME) KIND_COUNT };
 *     const char *const words[] = {KINDS(DPT_LIST_WORD) NULL};
 */
#define DPT_LIST_NAME(name, word) name,
#define DPT_LIST_WORD(name, word) word,

struct dpt_str {
    char *text;
    size_t length, capacity;
    bool failed;
};

void dpt_str_printf(struct dpt_str *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void dpt_str_add(struct dpt_str *s, const char *bytes, size_t n);
/*
 * Adds n bytes of text that may come from anywhere, so that they can be shown on a terminal or in a
 * log: controls (C0, C1, DEL), direction marks, line separators and bytes that are no UTF-8 are
 * escaped, as the C language does. Tabs stay as they are, and line breaks where `lines` says that
 * the text is one of several lines. What was escaped stays so when it is added again.
 */
void dpt_str_printable(struct dpt_str *s, const char *text, size_t n, bool lines);
/* Adds text as a JSON string literal, quotes included; what cannot be shown is escaped, and bytes
 * that are no UTF-8 become U+FFFD. */
void dpt_str_json(struct dpt_str *s, const char *text);
/* Adds text as one word of a command line, in quotes where a shell would take it for another. */
void dpt_str_shell(struct dpt_str *s, const char *text);
/* Adds the shortest decimal that reads back as the same double; JSON null for NaN and
 * infinities. */
void dpt_str_number(struct dpt_str *s, double value);
/* Adds the shortest decimal that reads back as the same float; "nan" or "inf" if it is not
 * finite. */
void dpt_str_float(struct dpt_str *s, float value);
/* Adds bytes in base 64 (RFC 4648), padded. */
void dpt_str_base64(struct dpt_str *s, const void *bytes, size_t n);
void dpt_str_clear(struct dpt_str *s);
void dpt_str_release(struct dpt_str *s);

/* Decodes one character of n > 0 bytes of UTF-8. *length: its bytes. -1 (length 1) where they are
 * no UTF-8 (RFC 3629). */
int32_t dpt_utf8_decode(const char *bytes, size_t n, size_t *length);
/* The columns that n bytes of UTF-8 take on a terminal; a wide character takes two. Then the bytes
 * of a text's longest beginning that fits into so many columns, and its longest such end. */
size_t dpt_utf8_width(const char *text, size_t n);
size_t dpt_utf8_bytes(const char *text, long columns);
const char *dpt_utf8_end(const char *text, long columns);

/*
 * Adds words, broken at `width` columns, and ends the line. They begin at `column`, further lines
 * at `indent`. A line break in the text begins a paragraph, and a paragraph that begins with a
 * blank at column 0 stands as it is.
 */
void dpt_str_wrap(struct dpt_str *s, const char *text, size_t indent, size_t column, size_t width);

/* Whether a character can be shown on a terminal, in one line: no controls, line separators or
 * direction marks. */
bool dpt_shown_character(int32_t c);

/*
 * Copies text as dpt_str_printable does for one line, into out (at least 6 x limit + 8 bytes);
 * after `limit` characters it is cut and an ellipsis put. Tabs are escaped, too.
 */
void dpt_show_text(char *out, const char *text, size_t limit);

/* The number of the one of n names that is `name`; n: none is. */
size_t dpt_find(const char *name, const char *const *names, size_t n);
/* Whether a text begins with one of n others. */
bool dpt_begins_with(const char *text, const char *const *beginnings, size_t n);
/* The one of n names that is nearest to `name` by edit distance and close enough to suggest, or
 * NULL. */
const char *dpt_nearest(const char *name, const char *const *names, size_t n);

/* Adds n rising numbers: "0-2, 5"; of many the first runs, and "...". The second one: those of 0
 * ... n-1 that `is` marks; n > 0. */
void dpt_str_ranks(struct dpt_str *s, const int *ranks, int n);
void dpt_str_ranks_where(struct dpt_str *s, const bool *is, int n);

/* Writes a count with thin groups ("60 000") into buf (at least 32 bytes) and returns buf. */
const char *dpt_group_digits(char *buf, long long value);

/* "[64, 32, 3, 3]", of at most 8 dimensions, into buf; returns buf. */
enum { DPT_DIMS_TEXT = 192 };
const char *dpt_dims_text(int n, const int64_t *dims, char buf[DPT_DIMS_TEXT]);

/* "1.54 GB", "1.2 us" into buf (at least 32 bytes); return buf. */
const char *dpt_show_bytes(double bytes, char *buf);
const char *dpt_show_seconds(double seconds, char *buf);
/* A time as a clock shows it, "0:31", "12:05", "1:02:03", "3 d 04:00", into buf (at least 32
 * bytes); returns buf. */
const char *dpt_show_clock(double seconds, char *buf);

#endif
