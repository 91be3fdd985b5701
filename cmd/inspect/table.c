#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/inspect/print.h"

enum { WIDTH = 80, INDENT = 2, VALUE_COLUMN = 14 };

enum dpt_status dpt_table_open(struct dpt_table *table, size_t most, struct dpt_error *err)
{
    table->n = 0;
    table->rows = calloc(most + 1, sizeof *table->rows);
    return table->rows != NULL
               ? DPT_OK
               : dpt_fail_memory(err, "a table", (double)(most * sizeof *table->rows));
}

void dpt_table_close(struct dpt_table *table)
{
    for (size_t r = 0; table->rows != NULL && r < table->n; r++)
        dpt_str_release(&table->rows[r].shown);
    free(table->rows);
    table->rows = NULL;
}

struct dpt_table_row *dpt_table_add(struct dpt_table *table, const char *name)
{
    struct dpt_table_row *row = &table->rows[table->n++];

    dpt_str_printable(&row->shown, name, strlen(name), false);
    row->name = row->shown.length > 0 && !row->shown.failed ? row->shown.text : name;
    return row;
}

/* Bytes of the folder in "/params/conv1/weight", which is all but its last two parts; 0: none. */
static size_t folder_length(const char *name)
{
    const char *before = NULL, *last = NULL;

    for (const char *c = name; *c != '\0'; c++)
        if (*c == '/') {
            before = last;
            last = c;
        }
    return before != NULL ? (size_t)(before - name) : 0;
}

static bool same_folder(const char *a, const char *b)
{
    const size_t n = folder_length(a);

    return folder_length(b) == n && strncmp(a, b, n) == 0;
}

/* The name as its row shows it: what is after the folder, further in. */
static const char *short_name(const char *name, int *indent)
{
    const size_t n = folder_length(name);

    *indent = n > 0 ? 2 * INDENT : INDENT;
    return n > 0 ? name + n + 1 : name;
}

static void measure(const struct dpt_table *table, int width[DPT_TABLE_CELLS], int *name_width)
{
    int rest = 0;

    *name_width = INDENT + (int)strlen(table->title);
    for (int c = 0; c < DPT_TABLE_CELLS; c++) {
        width[c] = 0;
        if (table->titles[c] == NULL)
            break;
        for (size_t r = 0; r < table->n; r++)
            if ((int)strlen(table->rows[r].cell[c]) > width[c])
                width[c] = (int)strlen(table->rows[r].cell[c]);
        if (width[c] > 0 && width[c] < (int)strlen(table->titles[c]))
            width[c] = (int)strlen(table->titles[c]);
        rest += width[c] > 0 ? 2 + width[c] : 0;
    }
    for (size_t r = 0; r < table->n; r++) {
        int indent;
        const int n = (int)strlen(short_name(table->rows[r].name, &indent)) + indent;

        if (n > *name_width && n + rest <= WIDTH) /* a longer one has a line of its own */
            *name_width = n;
    }
}

static void print_cells(const struct dpt_table *table, const int width[DPT_TABLE_CELLS],
                        const struct dpt_table_row *row)
{
    int owed = 0; /* blanks that are only printed where something follows */

    for (int c = 0; c < DPT_TABLE_CELLS && table->titles[c] != NULL; c++) {
        const char *text = row != NULL ? row->cell[c] : table->titles[c];
        const int blank = width[c] - (int)strlen(text);

        if (width[c] == 0)
            continue;
        owed += 2 + (table->align[c] == 'r' ? blank : 0);
        if (*text != '\0') {
            printf("%*s%s", owed, "", text);
            owed = 0;
        }
        owed += table->align[c] == 'r' ? (*text == '\0' ? width[c] - blank : 0) : blank;
    }
    putchar('\n');
}

void dpt_table_print(const struct dpt_table *table)
{
    int width[DPT_TABLE_CELLS] = {0}, name_width;

    measure(table, width, &name_width);
    printf("\n%*s%-*s", INDENT, "", name_width - INDENT, table->title);
    print_cells(table, width, NULL);
    for (size_t r = 0; r < table->n; r++) {
        const struct dpt_table_row *row = &table->rows[r];
        int indent;
        const char *name = short_name(row->name, &indent);

        if (folder_length(row->name) > 0 &&
            (r == 0 || !same_folder(row->name, table->rows[r - 1].name)))
            printf("%*s%.*s\n", INDENT, "", (int)folder_length(row->name), row->name);
        if (indent + (int)strlen(name) > name_width)
            printf("%*s%s\n%*s", indent, "", name, name_width, "");
        else
            printf("%*s%-*s", indent, "", name_width - indent, name);
        print_cells(table, width, row);
    }
}

void dpt_inspect_property(const char *name, const char *format, ...)
{
    char text[2048];
    va_list args;
    int column;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    column = printf("%*s%s ", INDENT, "", name);
    dpt_cli_print(VALUE_COLUMN, column, text);
}
