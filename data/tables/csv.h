/*
 * csv: records and numbers of comma-separated text, RFC 4180.
 *
 * A record is a line, or several where a quoted cell holds line ends. Line ends are LF, CRLF or CR;
 * lines with nothing in them are skipped; a byte-order mark of UTF-8 at the start is, too,
 * and a first line as "sep=;", which says what the delimiter is. Spaces and tabs around an unquoted
 * cell do not belong to it. Memory is one record. One thread.
 */
#ifndef DPT_DATA_CSV_H
#define DPT_DATA_CSV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/str.h"
#include "data/tables/input.h"

enum { DPT_CSV_RECORD_MOST = 64 << 20, DPT_CSV_BUFFER = 64 * 1024 };

struct dpt_csv_cell {
    const char *text; /* NUL-terminated, no NUL within */
    size_t length;
    int64_t line; /* where it begins, 1 is the first */
    bool quoted;
};

/* Zero-initialise: {0}. */
struct dpt_csv {
    /* The record that dpt_csv_next gave; valid until the next one. */
    struct dpt_csv_cell *cells;
    size_t n_cells;
    int64_t line;   /* where the record begins */
    char delimiter; /* between cells; a comma, unless set before the first record */
    bool said;      /* that is so, whatever a line sep= says */

    /* Private. */
    struct dpt_input in;
    char *buffer; /* DPT_CSV_BUFFER bytes of the file */
    size_t used, filled;
    bool ended, beyond_ascii;
    int64_t next_line;
    char *text; /* the cells' text */
    size_t text_length, text_capacity, cells_capacity;
};

/* Errors: as dpt_input_open, RANK. */
enum dpt_status dpt_csv_open(struct dpt_csv *csv, const char *path,
                             const volatile sig_atomic_t *stop, struct dpt_error *err);
/* Reads a text instead, which is copied; name: for messages. Errors: RANK. */
enum dpt_status dpt_csv_open_text(struct dpt_csv *csv, const char *text, const char *name,
                                  struct dpt_error *err);
void dpt_csv_close(struct dpt_csv *csv);

/*
 * Reads the next record; *more is false after the last. Errors: BAD_DATA (a quote that is not
 * closed, text after a closing quote, a NUL byte, no UTF-8, a record above DPT_CSV_RECORD_MOST;
 * names file and line), IO, STOPPED, RANK.
 */
enum dpt_status dpt_csv_next(struct dpt_csv *csv, bool *more, struct dpt_error *err);

/* A cell's text for a message: printable, cut where it is long; returns buf. */
enum { DPT_CSV_CHARACTERS = 60, DPT_CSV_SHOWN = 6 * DPT_CSV_CHARACTERS + 8 };
const char *dpt_csv_shown(const char *text, char buf[DPT_CSV_SHOWN]);

enum dpt_csv_kind { DPT_CSV_NUMBER, DPT_CSV_NOT_FINITE, DPT_CSV_MISSING, DPT_CSV_TEXT };

/*
 * What a cell holds (csv_number.c). NUMBER: digits, a point, an exponent, no matter what the locale
 * is, maybe within blanks or with a unit, as 5% (which is 0.05) or $5; a minus may be U+2212;
 * *value is the nearest double. NOT_FINITE: nan, inf, or beyond a double. MISSING: nothing, NA,
 * N/A, null, None, ?. *value is 0 but for NUMBER.
 */
enum dpt_csv_kind dpt_csv_number(const char *text, double *value);
/* Likewise, with `decimal` in the place of the point; then a point is none. thousands: what may
 * stand between groups of digits in front of it, the last of three, those before of two (as in
 * India) or three; 0: nothing. A space is also each of those at which no line is broken, an
 * apostrophe also the curved one. Both differ. */
enum dpt_csv_kind dpt_csv_number_in(const char *text, char decimal, char thousands, double *value);
/* The unit of a number, "%" or "$", static; NULL: it has none, or is none. */
const char *dpt_csv_unit(const char *text, char decimal, char thousands);
/* The character that a mark of --thousands is: itself, or the plain one of U+00A0 and the like; 0:
 * it is none. */
char dpt_csv_plain_mark(const char *text);

/* Adds a cell, in quotes where it would be read as another without. */
void dpt_csv_put(struct dpt_str *out, const char *text);

#endif
