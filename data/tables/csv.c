#include "data/tables/csv.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/base/memory.h"
#include "core/base/str.h"

enum { END = -1 };

enum dpt_status dpt_csv_open(struct dpt_csv *csv, const char *path,
                             const volatile sig_atomic_t *stop, struct dpt_error *err)
{
    *csv = (struct dpt_csv){.next_line = 1, .delimiter = ','};
    csv->buffer = malloc(DPT_CSV_BUFFER);
    return csv->buffer != NULL ? dpt_input_open(&csv->in, path, stop, err)
                               : dpt_fail_memory(err, path, DPT_CSV_BUFFER);
}

enum dpt_status dpt_csv_open_text(struct dpt_csv *csv, const char *text, const char *name,
                                  struct dpt_error *err)
{
    *csv = (struct dpt_csv){.next_line = 1, .delimiter = ',', .ended = true};
    csv->in.path = name;
    csv->filled = strlen(text);
    csv->buffer = strdup(text);
    return csv->buffer != NULL ? DPT_OK : dpt_fail_memory(err, name, (double)csv->filled);
}

void dpt_csv_close(struct dpt_csv *csv)
{
    dpt_input_close(&csv->in);
    free(csv->buffer);
    free(csv->cells);
    free(csv->text);
    *csv = (struct dpt_csv){0};
}

/* Whether a byte around a cell does not belong to it. */
static bool is_blank(const struct dpt_csv *csv, int byte)
{
    return (byte == ' ' || byte == '\t') && byte != csv->delimiter;
}

/* The next byte without taking it, or END. */
static inline enum dpt_status peek(struct dpt_csv *csv, int *byte, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (csv->used == csv->filled && !csv->ended) {
        csv->used = 0;
        DPT_TRY(dpt_input_some(&csv->in, csv->buffer, DPT_CSV_BUFFER, &csv->filled, err));
        csv->ended = csv->filled < DPT_CSV_BUFFER;
    }
    *byte = csv->used < csv->filled ? (unsigned char)csv->buffer[csv->used] : END;
    if (*byte == '\0')
        status = dpt_fail(err, DPT_BAD_DATA, "%s:%lld: has a NUL byte: no text, or not in UTF-8",
                          csv->in.path, (long long)csv->next_line);
out:
    return status;
}

/* Adds a byte to the record's text. Cells are NUL-terminated there, and found again by their
 * lengths. */
static inline enum dpt_status put(struct dpt_csv *csv, char byte, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (csv->text_length == csv->text_capacity) {
        if (csv->text_length >= DPT_CSV_RECORD_MOST)
            DPT_TRY(dpt_fail(
                err, DPT_BAD_DATA,
                "%s:%lld: a record longer than %d MB begins here; look for a quote that is not "
                "closed",
                csv->in.path, (long long)csv->line, DPT_CSV_RECORD_MOST >> 20));
        DPT_GROW(csv->text, &csv->text_capacity, csv->text_length + 1, csv->in.path, err);
    }
    csv->text[csv->text_length++] = byte;
    csv->beyond_ascii |= (byte & 0x80) != 0;
out:
    return status;
}

/* Takes a line end; CRLF is one. */
static enum dpt_status take_line_end(struct dpt_csv *csv, int byte, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    csv->used++;
    csv->next_line++;
    if (byte == '\r') {
        DPT_TRY(peek(csv, &byte, err));
        if (byte == '\n')
            csv->used++;
    }
out:
    return status;
}

static enum dpt_status quoted_cell(struct dpt_csv *csv, struct dpt_csv_cell *cell,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *other = NULL;
    int byte;

    csv->used++;
    for (;;) {
        DPT_TRY(peek(csv, &byte, err));
        if (byte == END)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s:%lld: the quote that begins here is not closed",
                             csv->in.path, (long long)cell->line));
        if (byte == '\n' || byte == '\r') {
            /* Within quotes a line end is text; told as LF whatever it was. */
            DPT_TRY(take_line_end(csv, byte, err));
            DPT_TRY(put(csv, '\n', err));
            continue;
        }
        csv->used++;
        if (byte == '"') {
            DPT_TRY(peek(csv, &byte, err));
            if (byte != '"')
                break;
            csv->used++;
        }
        DPT_TRY(put(csv, (char)byte, err));
    }
    while (is_blank(csv, byte)) {
        other = byte == '\t' ? "tab" : other;
        csv->used++;
        DPT_TRY(peek(csv, &byte, err));
    }
    other = byte == ';' ? "';'" : byte == '|' ? "'|'" : byte == ',' ? "," : other;
    if (byte == csv->delimiter || byte == '\n' || byte == '\r' || byte == END)
        return DPT_OK;
    DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s:%lld: text after a closing quote; %s%s", csv->in.path,
                     (long long)csv->next_line,
                     other != NULL ? "if that separates columns, give --delimiter "
                                   : "a quote within quotes is written \"\"",
                     other != NULL ? other : ""));
out:
    return status;
}

static enum dpt_status plain_cell(struct dpt_csv *csv, size_t start, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char delimiter = csv->delimiter;
    int byte;

    for (;;) {
        DPT_TRY(peek(csv, &byte, err));
        if (byte == delimiter || byte == '\n' || byte == '\r' || byte == END)
            break;
        DPT_TRY(put(csv, (char)byte, err));
        csv->used++;
    }
    while (csv->text_length > start && is_blank(csv, csv->text[csv->text_length - 1]))
        csv->text_length--;
out:
    return status;
}

/* Reads one cell; *last: a line end or the end of the file stands after it, and was taken. */
static enum dpt_status read_cell(struct dpt_csv *csv, bool *last, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t start = csv->text_length;
    struct dpt_csv_cell *cell;
    int byte;

    DPT_GROW(csv->cells, &csv->cells_capacity, csv->n_cells + 1, csv->in.path, err);
    cell = &csv->cells[csv->n_cells];
    *cell = (struct dpt_csv_cell){.line = csv->next_line};
    DPT_TRY(peek(csv, &byte, err));
    while (is_blank(csv, byte)) {
        csv->used++;
        DPT_TRY(peek(csv, &byte, err));
    }
    cell->quoted = byte == '"';
    DPT_TRY(cell->quoted ? quoted_cell(csv, cell, err) : plain_cell(csv, start, err));
    cell->length = csv->text_length - start;
    DPT_TRY(put(csv, '\0', err));
    csv->n_cells++;
    DPT_TRY(peek(csv, &byte, err));
    *last = byte != csv->delimiter;
    if (byte == csv->delimiter)
        csv->used++;
    else if (byte != END)
        DPT_TRY(take_line_end(csv, byte, err));
out:
    return status;
}

/* Takes a first line "sep=;", by which Excel is told what stands between columns. */
static void take_separator(struct dpt_csv *csv)
{
    const char *line = csv->buffer + csv->used;
    const size_t left = csv->filled - csv->used;
    const size_t quote = left > 0 && line[0] == '"';
    const size_t end = quote + strlen("sep=") + 1 + quote;

    if (left < end || strncasecmp(line + quote, "sep=", strlen("sep=")) != 0 ||
        strchr("\"\r\n", line[end - quote - 1]) != NULL || (quote > 0 && line[end - 1] != '"') ||
        (left > end && line[end] != '\r' && line[end] != '\n'))
        return;
    if (!csv->said)
        csv->delimiter = line[end - quote - 1];
    csv->used += end;
}

static enum dpt_status skip_mark(struct dpt_csv *csv, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int byte;

    DPT_TRY(peek(csv, &byte, err));
    if (csv->filled >= 3 && memcmp(csv->buffer, "\xEF\xBB\xBF", 3) == 0)
        csv->used = 3;
    else if (csv->filled >= 2 &&
             (memcmp(csv->buffer, "\xFF\xFE", 2) == 0 || memcmp(csv->buffer, "\xFE\xFF", 2) == 0))
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: is UTF-16; UTF-8 is needed (iconv -f UTF-16 -t UTF-8)",
                         csv->in.path));
    take_separator(csv); /* the rest of its line is an empty one */
out:
    return status;
}

/* Names of columns and classes are kept as text, which all readers of it take for UTF-8. */
static enum dpt_status check_text(const struct dpt_csv *csv, struct dpt_error *err)
{
    char shown[DPT_CSV_SHOWN];
    size_t n;

    for (size_t i = 0; i < csv->n_cells; i++)
        for (size_t at = 0; at < csv->cells[i].length; at += n)
            if (dpt_utf8_decode(csv->cells[i].text + at, csv->cells[i].length - at, &n) < 0)
                return dpt_fail(
                    err, DPT_BAD_DATA,
                    "%s:%lld: '%s' is not UTF-8; convert western European text by `iconv -f CP1252 "
                    "-t UTF-8`",
                    csv->in.path, (long long)csv->cells[i].line,
                    dpt_csv_shown(csv->cells[i].text, shown));
    return DPT_OK;
}

enum dpt_status dpt_csv_next(struct dpt_csv *csv, bool *more, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    bool last = false;
    size_t at = 0;
    int byte;

    *more = false;
    if (csv->filled == 0 && !csv->ended)
        DPT_TRY(skip_mark(csv, err));
    do {
        DPT_TRY(peek(csv, &byte, err));
        if (byte == END)
            goto out;
        csv->line = csv->next_line;
        csv->n_cells = csv->text_length = 0;
        csv->beyond_ascii = false;
        do
            DPT_TRY(read_cell(csv, &last, err));
        while (!last);
    } while (csv->n_cells == 1 && csv->cells[0].length == 0 && !csv->cells[0].quoted);
    /* Only now is the text where it stays. */
    for (size_t i = 0; i < csv->n_cells; i++) {
        csv->cells[i].text = csv->text + at;
        at += csv->cells[i].length + 1;
    }
    if (csv->beyond_ascii)
        DPT_TRY(check_text(csv, err));
    *more = true;
out:
    return status;
}

const char *dpt_csv_shown(const char *text, char buf[DPT_CSV_SHOWN])
{
    dpt_show_text(buf, text, DPT_CSV_CHARACTERS);
    return buf;
}

void dpt_csv_put(struct dpt_str *out, const char *text)
{
    const size_t n = strlen(text);

    if (n > 0 && strpbrk(text, ",\"\n\r") == NULL && strchr(" \t", text[0]) == NULL &&
        strchr(" \t", text[n - 1]) == NULL) {
        dpt_str_add(out, text, n);
        return;
    }
    dpt_str_add(out, "\"", 1);
    for (const char *p = text; *p != '\0'; p++)
        dpt_str_printf(out, *p == '"' ? "\"\"" : "%c", *p);
    dpt_str_add(out, "\"", 1);
}
