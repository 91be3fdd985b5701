/* CSV records and numbers: written at random and read back; any bytes at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "core/base/rng.h"
#include "core/base/str.h"
#include "data/tables/columns.h"
#include "data/tables/csv.h"

/* Reads bytes as if they were a file's: one in memory. */
static void open_bytes(struct dpt_csv *csv, const char *bytes, size_t n)
{
    static char path[64];
    struct dpt_error err = {0};
    const int fd = memfd_create("t.csv", 0);

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    assert_int_equal(dpt_csv_open(csv, path, NULL, &err), DPT_OK);
    close(fd);
}

struct random {
    uint64_t seed, at;
};

static uint32_t below(struct random *r, uint32_t n)
{
    return (uint32_t)(dpt_random64(r->seed, DPT_RANDOM_SYNTHETIC, 0, r->at++) % n);
}

enum { CELL_MOST = 40, CELLS_MOST = 8 };

/* Text of a cell; begins and ends with no blank, as those around an unquoted cell are not its own.
 */
static size_t random_text(struct random *r, char text[CELL_MOST])
{
    static const char letters[] = "abc 019.-\",\n\xc3\xc3;'";
    const size_t n = below(r, CELL_MOST - 1);

    for (size_t i = 0; i < n; i++) {
        text[i] = letters[below(r, sizeof letters - 1)];
        if (text[i] == '\xc3' && i + 1 < n)
            text[++i] = '\xa4';
        else if (text[i] == '\xc3')
            text[i] = 'u';
    }
    text[n] = '\0';
    return n;
}

static void write_cell(struct random *r, struct dpt_str *out, const char *text, char delimiter)
{
    const size_t n = strlen(text);
    const bool must = strpbrk(text, (const char[]){'"', '\n', delimiter, '\0'}) != NULL ||
                      (n > 0 && (text[0] == ' ' || text[n - 1] == ' '));

    if (!must && below(r, 3) > 0) {
        dpt_str_printf(out, "%s%s%s", below(r, 2) ? " " : "", text,
                       below(r, 2) ? delimiter == '\t' ? " " : "\t" : "");
        return;
    }
    dpt_str_add(out, "\"", 1);
    for (size_t i = 0; i < n; i++)
        dpt_str_printf(out, text[i] == '"' ? "\"\"" : "%c", text[i]);
    dpt_str_add(out, "\"", 1);
}

/* Whatever cells hold, quoted where they must be and sometimes where not: the same cells come back,
 * with their lines. */
static void cells_come_back(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct random r = {.seed = seed};
        const size_t rows = 1 + below(&r, 40), columns = 2 + below(&r, CELLS_MOST - 1);
        const char *const ends[] = {"\n", "\r\n", "\r"};
        const char *end = ends[below(&r, 3)], delimiter = ",,;\t|"[below(&r, 5)];
        char(*want)[CELL_MOST] = calloc(rows * columns, sizeof *want);
        int64_t *lines = calloc(rows, sizeof *lines), line = 1;
        struct dpt_str out = {0};
        struct dpt_error err = {0};
        struct dpt_csv csv;
        bool more;

        if (below(&r, 2))
            dpt_str_printf(&out, "\xEF\xBB\xBF");
        for (size_t i = 0; i < rows; i++) {
            for (; below(&r, 4) == 0; line++)
                dpt_str_printf(&out, "%s", end);
            lines[i] = line++;
            for (size_t k = 0; k < columns; k++) {
                char *text = want[i * columns + k];

                random_text(&r, text);
                for (const char *p = text; *p != '\0'; p++)
                    line += *p == '\n';
                write_cell(&r, &out, text, delimiter);
                dpt_str_printf(&out, "%s",
                               k + 1 < columns                ? (const char[]){delimiter, '\0'}
                               : i + 1 < rows || below(&r, 2) ? end
                                                              : "");
            }
        }
        open_bytes(&csv, out.text, out.length);
        csv.delimiter = delimiter;
        for (size_t i = 0; i < rows; i++) {
            if (dpt_csv_next(&csv, &more, &err) != DPT_OK || !more)
                fail_msg("seed %llu, row %zu of %zu: %s", (unsigned long long)seed, i, rows,
                         err.text);
            assert_int_equal(csv.n_cells, columns);
            assert_int_equal(csv.line, lines[i]);
            for (size_t k = 0; k < columns; k++) {
                assert_string_equal(csv.cells[k].text, want[i * columns + k]);
                assert_int_equal(csv.cells[k].length, strlen(want[i * columns + k]));
            }
        }
        assert_int_equal(dpt_csv_next(&csv, &more, &err), DPT_OK);
        assert_false(more);
        dpt_csv_close(&csv);
        dpt_str_release(&out);
        free(want);
        free(lines);
    }
}

/* Any bytes at all: an error that names the file, or records; never a crash, and it ends. */
static void any_bytes_are_survived(void **state)
{
    static const char letters[] = "\"\",,\n\r 1a\t\xEF\xBB\xBF\xFF\xFE\0";
    char bytes[200];

    (void)state;
    for (uint64_t seed = 0; seed < 20000; seed++) {
        struct random r = {.seed = seed};
        const size_t n = below(&r, sizeof bytes);
        struct dpt_error err = {0};
        struct dpt_csv csv;
        enum dpt_status status;
        bool more = true;
        size_t cells = 0;

        for (size_t i = 0; i < n; i++)
            bytes[i] = letters[below(&r, sizeof letters - (seed % 4 != 0))];
        open_bytes(&csv, bytes, n);
        while ((status = dpt_csv_next(&csv, &more, &err)) == DPT_OK && more)
            for (size_t i = 0; i < csv.n_cells; i++, cells++)
                assert_int_equal(strlen(csv.cells[i].text), csv.cells[i].length);
        assert_true(cells <= n + 1);
        if (status != DPT_OK) {
            assert_int_equal(status, DPT_BAD_DATA);
            assert_non_null(strstr(err.text, csv.in.path));
        }
        dpt_csv_close(&csv);
    }
}

/* Records that lie across the reader's buffer. */
static void records_cross_the_buffer(void **state)
{
    const size_t n = 3 * DPT_CSV_BUFFER;

    (void)state;
    for (size_t shift = 0; shift < 40; shift++) {
        struct dpt_str out = {0};
        struct dpt_error err = {0};
        struct dpt_csv csv;
        size_t rows = 0;
        bool more;

        for (size_t i = 0; i < shift; i++)
            dpt_str_add(&out, "\n", 1);
        while (out.length < n)
            dpt_str_printf(&out, "\"a\"\"%06zu\",x\r\n", rows++);
        open_bytes(&csv, out.text, out.length);
        for (size_t i = 0; i < rows; i++) {
            char want[32];

            snprintf(want, sizeof want, "a\"%06zu", i);
            assert_int_equal(dpt_csv_next(&csv, &more, &err), DPT_OK);
            assert_true(more && csv.n_cells == 2);
            assert_string_equal(csv.cells[0].text, want);
            assert_int_equal(csv.line, 1 + shift + i);
        }
        assert_int_equal(dpt_csv_next(&csv, &more, &err), DPT_OK);
        assert_false(more);
        dpt_csv_close(&csv);
        dpt_str_release(&out);
    }
}

/* Written with any number of digits and read by the C library: the same double, bit by bit. */
static void numbers_are_the_nearest(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20000; seed++) {
        struct random r = {.seed = seed};
        const int digits = (int)below(&r, 20), power = (int)below(&r, 60) - 30;
        const double x = ((double)below(&r, 2000001) - 1e6) * pow(10, power) / 7;
        char text[400];
        double got, want;

        snprintf(text, sizeof text,
                 below(&r, 2)   ? "%.*g"
                 : below(&r, 2) ? "%.*f"
                                : "%.*e",
                 digits, x);
        want = strtod(text, NULL);
        /* The bits, so that -0 is no 0. NOLINTNEXTLINE(bugprone-suspicious-memory-comparison) */
        if (dpt_csv_number(text, &got) != DPT_CSV_NUMBER || memcmp(&got, &want, sizeof got) != 0)
            fail_msg("seed %llu: %s is read as %.17g, not %.17g", (unsigned long long)seed, text,
                     got, want);
    }
}

static void kinds_of_cells(void **state)
{
    static const struct {
        const char *text;
        enum dpt_csv_kind kind;
    } cases[] = {
        {"0", DPT_CSV_NUMBER},         {"-0", DPT_CSV_NUMBER},
        {"+.5", DPT_CSV_NUMBER},       {"5.", DPT_CSV_NUMBER},
        {"1e-400", DPT_CSV_NUMBER},    {"1E+05", DPT_CSV_NUMBER},
        {"00012", DPT_CSV_NUMBER},     {"123456789012345678901234567890", DPT_CSV_NUMBER},
        {"", DPT_CSV_MISSING},         {"NA", DPT_CSV_MISSING},
        {"n/a", DPT_CSV_MISSING},      {"?", DPT_CSV_MISSING},
        {"nan", DPT_CSV_NOT_FINITE},   {"-NaN", DPT_CSV_NOT_FINITE},
        {"inf", DPT_CSV_NOT_FINITE},   {"-Infinity", DPT_CSV_NOT_FINITE},
        {"1e400", DPT_CSV_NOT_FINITE}, {".", DPT_CSV_TEXT},
        {"-", DPT_CSV_TEXT},           {"+", DPT_CSV_TEXT},
        {"1e", DPT_CSV_TEXT},          {"1e+", DPT_CSV_TEXT},
        {"e5", DPT_CSV_TEXT},          {"1,5", DPT_CSV_TEXT},
        {"1.2.3", DPT_CSV_TEXT},       {"0x10", DPT_CSV_TEXT},
        {"1 2", DPT_CSV_TEXT},         {"--1", DPT_CSV_TEXT},
        {"1f", DPT_CSV_TEXT},          {"nan(1)", DPT_CSV_TEXT},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double value;

        if (dpt_csv_number(cases[i].text, &value) != cases[i].kind)
            fail_msg("'%s' is of another kind", cases[i].text);
    }
}

/* Another decimal mark takes the point's place, and a point is none then; what stands between
 * groups of digits is left out where it stands there. */
static void decimal_marks(void **state)
{
    static const struct {
        const char *text;
        enum dpt_csv_kind kind;
        double value;
        char decimal, thousands;
    } cases[] = {
        {"1,5", DPT_CSV_NUMBER, 1.5, ',', 0},
        {"-,25e1", DPT_CSV_NUMBER, -2.5, ',', 0},
        {"7", DPT_CSV_NUMBER, 7, ',', 0},
        {"1.5", DPT_CSV_TEXT, 0, ',', 0},
        {"1.000,5", DPT_CSV_TEXT, 0, ',', 0},
        {"NA", DPT_CSV_MISSING, 0, ',', 0},
        {"inf", DPT_CSV_NOT_FINITE, 0, ',', 0},
        {"1,2,3", DPT_CSV_TEXT, 0, ',', 0},
        {"", DPT_CSV_MISSING, 0, ',', 0},
        {"1.000,5", DPT_CSV_NUMBER, 1000.5, ',', '.'},
        {"-1.234.567", DPT_CSV_NUMBER, -1234567, ',', '.'},
        {"1.5", DPT_CSV_TEXT, 0, ',', '.'},
        {"1,234.5", DPT_CSV_NUMBER, 1234.5, '.', ','},
        {"+12,34,567e-3", DPT_CSV_NUMBER, 1234.567, '.', ','},
        {"1234.5", DPT_CSV_NUMBER, 1234.5, '.', ','},
        {"1 234 567,25", DPT_CSV_NUMBER, 1234567.25, ',', ' '},
        {"1\xC2\xA0"
         "234\xE2\x80\xAF"
         "567,25",
         DPT_CSV_NUMBER, 1234567.25, ',', ' '},
        {"1\xC2\xA0"
         "234",
         DPT_CSV_TEXT, 0, '.', ','},
        {"1\xC2\xA0"
         "23",
         DPT_CSV_TEXT, 0, '.', ' '},
        {"1,5", DPT_CSV_TEXT, 0, '.', ','},
        {"1,2345", DPT_CSV_TEXT, 0, '.', ','},
        {"1234,567", DPT_CSV_TEXT, 0, '.', ','},
        {"123,45", DPT_CSV_TEXT, 0, '.', ','},
        {",123", DPT_CSV_TEXT, 0, '.', ','},
        {"1,,234", DPT_CSV_TEXT, 0, '.', ','},
        {"1.234,567", DPT_CSV_TEXT, 0, '.', ','},
        {"1,234,", DPT_CSV_TEXT, 0, '.', ','},
        {"N/A", DPT_CSV_MISSING, 0, '.', ','},
        {"nan", DPT_CSV_NOT_FINITE, 0, '.', '\''},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double value;

        if (dpt_csv_number_in(cases[i].text, cases[i].decimal, cases[i].thousands, &value) !=
                cases[i].kind ||
            value != cases[i].value)
            fail_msg("'%s' with %c is %g", cases[i].text, cases[i].decimal, value);
    }
}

/* --- what is kept of columns ------------------------------------------------------------------ */

static void add_values(struct random *r, struct dpt_columns *columns, struct dpt_column *column)
{
    struct dpt_error err = {0};
    char text[CELL_MOST];

    for (size_t n = below(r, 4); n > 0; n--) {
        random_text(r, text);
        struct dpt_name value = dpt_column_value(dpt_region_strdup(&columns->region, text));

        assert_int_equal(dpt_names_add(&column->values, value, &err), DPT_OK);
    }
    assert_int_equal(dpt_names_number(&column->values, &columns->region, &column->texts, &err),
                     DPT_OK);
}

/* The two words of a column of numbers, 0 and 1. */
static void add_words(struct dpt_columns *columns, struct dpt_column *column)
{
    const dpt_column_words *words = dpt_column_words_of("YES");
    struct dpt_error err = {0};

    for (size_t i = 0; i < 2; i++)
        assert_int_equal(dpt_names_add(&column->values, dpt_column_value((*words)[i]), &err),
                         DPT_OK);
    assert_int_equal(dpt_names_number(&column->values, &columns->region, &column->texts, &err),
                     DPT_OK);
    assert_string_equal(column->texts[0], "no");
}

/* Some parts of a date, in their order. */
static void add_parts(struct random *r, struct dpt_column *column)
{
    column->order = (enum dpt_date_order)below(r, 3);
    for (enum dpt_date_part part = DPT_DATE_YEAR; part < DPT_DATE_PART_COUNT; part++)
        if (below(r, 2) || (part == DPT_DATE_HOUR && column->n_parts == 0))
            column->parts[column->n_parts++] = part;
}

/* Whatever columns and categories are called: the text reads back as what was written, and any
 * damage to it is refused or is another text, but never a crash. */
static void columns_come_back(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct random r = {.seed = seed};
        struct dpt_columns columns = {.delimiter = below(&r, 2) ? ';' : 0}, again = {0};
        struct dpt_str text = {0}, twice = {0};
        struct dpt_error err = {0};
        char name[CELL_MOST];

        for (size_t n = 1 + below(&r, 6); n > 0; n--) {
            struct dpt_column *column;

            random_text(&r, name);
            assert_int_equal(
                dpt_columns_add(&columns, name, below(&r, DPT_COLUMN_ROLE_COUNT), &column, &err),
                DPT_OK);
            if (column->role == DPT_COLUMN_DATE)
                add_parts(&r, column);
            if (column->role == DPT_COLUMN_NUMBER || column->role == DPT_COLUMN_DATE) {
                column->filled = below(&r, 2);
                column->indicator = below(&r, 2);
            }
            if (column->role == DPT_COLUMN_LABEL && below(&r, 2))
                column->place = 1 + below(&r, 9);
            column->fill = column->filled ? below(&r, 1000) / 7.0 : 0;
            if (column->role == DPT_COLUMN_NUMBER || column->role == DPT_COLUMN_LABEL)
                column->offset = below(&r, 3) ? 0 : 1.7e12 + below(&r, 1000) / 7.0;
            if (column->role == DPT_COLUMN_CATEGORY || column->role == DPT_COLUMN_LABEL)
                add_values(&r, &columns, column);
            else if (column->role == DPT_COLUMN_NUMBER && below(&r, 2))
                add_words(&columns, column);
        }
        random_text(&r, name);
        assert_int_equal(dpt_columns_add_missing(&columns, name, strlen(name), &err), DPT_OK);
        dpt_columns_write(&columns, &text);
        if (dpt_columns_parse(&again, text.text, "t.h5", &err) != DPT_OK)
            fail_msg("seed %llu: %s\n%s", (unsigned long long)seed, err.text, text.text);
        dpt_columns_write(&again, &twice);
        assert_string_equal(twice.text, text.text);
        assert_int_equal(again.n, columns.n);
        assert_int_equal(dpt_columns_check(text.text, "a", twice.text, "b", &err), DPT_OK);
        for (size_t i = 0; i < columns.n; i++) {
            assert_string_equal(again.at[i].name, columns.at[i].name);
            assert_true(again.at[i].offset == columns.at[i].offset);
            assert_true(again.at[i].place == columns.at[i].place);
            assert_true(again.at[i].order == columns.at[i].order);
            assert_true(again.at[i].indicator == columns.at[i].indicator);
            assert_int_equal(dpt_column_width(&again.at[i]), dpt_column_width(&columns.at[i]));
        }
        dpt_columns_release(&again);
        text.text[below(&r, (uint32_t)text.length)] = "x,\"\n9"[below(&r, 5)];
        if (dpt_columns_parse(&again, text.text, "t.h5", &err) != DPT_OK)
            assert_non_null(strstr(err.text, "t.h5"));
        dpt_columns_release(&again);
        dpt_columns_release(&columns);
        dpt_str_release(&text);
        dpt_str_release(&twice);
    }
}

/* Moments as the C library writes them read back, and what is damaged is another date or none. */
static void dates_come_back(void **state)
{
    static const char *const forms[] = {"%Y-%m-%d %H:%M:%S",     "%d.%m.%Y %H:%M:%S",
                                        "%Y/%m/%dT%H:%M:%SZ",    "%d %b %Y %H:%M:%S",
                                        "%B %d, %Y %I:%M:%S %p", "%Y-%m-%d %H:%M:%S+02:00"};
    struct random r = {.seed = 7};

    (void)state;
    for (int i = 0; i < 20000; i++) {
        const time_t moment = (time_t)below(&r, UINT32_MAX) * 4 - 4000000000;
        char text[DPT_DATE_TEXT];
        struct dpt_date date;
        struct tm parts;

        gmtime_r(&moment, &parts);
        assert_true(strftime(text, sizeof text, forms[below(&r, 6)], &parts) > 0);
        if (!dpt_date_read(text, DPT_DATE_UNKNOWN, &date))
            fail_msg("%s is no date", text);
        assert_true(date.seconds == (double)moment && date.timed);
        text[below(&r, (uint32_t)strlen(text))] = "9x-:. T\0"[below(&r, 8)];
        dpt_date_read(text, (enum dpt_date_order)below(&r, 3), &date);
    }
}

/* What goes into a message stays on its line, in its bounds, and whole characters. */
static void shown_text_is_tame(void **state)
{
    char text[400], shown[DPT_CSV_SHOWN];

    (void)state;
    for (size_t n = 0; n < sizeof text; n++) {
        for (size_t i = 0; i < n; i++)
            text[i] = "\n\x1b[1m\xe7\x8c\xab"[i % 8];
        text[n] = '\0';
        dpt_csv_shown(text, shown);
        assert_true(strlen(shown) < sizeof shown);
        assert_null(strpbrk(shown, "\n\x1b"));
        for (size_t i = 0, length; shown[i] != '\0'; i += length)
            assert_true(dpt_utf8_decode(shown + i, strlen(shown + i), &length) >= 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cells_come_back),
        cmocka_unit_test(any_bytes_are_survived),
        cmocka_unit_test(records_cross_the_buffer),
        cmocka_unit_test(numbers_are_the_nearest),
        cmocka_unit_test(kinds_of_cells),
        cmocka_unit_test(shown_text_is_tame),
        cmocka_unit_test(decimal_marks),
        cmocka_unit_test(columns_come_back),
        cmocka_unit_test(dates_come_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
