#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/compare/compare.h"
#include "core/base/memory.h"
#include "core/conf/text.h"

/* A cell's text, and the columns of one. */
enum { CELL = 256, NAME_MOST = 34, CELL_LEAST = 8, CELL_MOST = 30, GAP = 2 };

/* A row of results: what a run has there, as text; "" nothing. */
struct result {
    const char *name;
    void (*write)(const struct dpt_compare_run *run, char cell[CELL]);
    bool always; /* else only where the runs differ */
};

static void number(char cell[CELL], const char *format, double value)
{
    if (!isnan(value))
        snprintf(cell, CELL, format, value);
}

static void state(const struct dpt_compare_run *run, char cell[CELL])
{
    snprintf(cell, CELL, "%s", dpt_run_state_names[run->run_status.state]);
}

static void reason(const struct dpt_compare_run *run, char cell[CELL])
{
    char shown[6 * 30 + 8];

    if (strcmp(run->run_status.reason, "done") == 0)
        return;
    dpt_show_text(shown, run->run_status.reason, 30);
    snprintf(cell, CELL, "%s", shown);
}

static void step(const struct dpt_compare_run *run, char cell[CELL])
{
    char digits[32];

    snprintf(cell, CELL, "%s", dpt_group_digits(digits, dpt_history_step(&run->history)));
}

static void of_steps(const struct dpt_compare_run *run, char cell[CELL])
{
    const struct dpt_history_start *start = dpt_history_start(&run->history);
    char digits[32];

    if (start != NULL && start->steps >= 0)
        snprintf(cell, CELL, "%s", dpt_group_digits(digits, start->steps));
}

static void train_loss(const struct dpt_compare_run *run, char cell[CELL])
{
    const struct dpt_history *h = &run->history;

    if (h->n_train > 0)
        number(cell, "%.4g", h->train[h->n_train - 1].loss);
}

static void train_accuracy(const struct dpt_compare_run *run, char cell[CELL])
{
    const struct dpt_history *h = &run->history;

    if (h->n_train > 0)
        number(cell, "%.4f", h->train[h->n_train - 1].accuracy);
}

static void epoch_loss(const struct dpt_compare_run *run, char cell[CELL])
{
    const struct dpt_history_eval *last = dpt_history_last(&run->history, DPT_HISTORY_EPOCH);

    if (last != NULL)
        number(cell, "%.4g", last->loss);
}

static void epoch_accuracy(const struct dpt_compare_run *run, char cell[CELL])
{
    const struct dpt_history_eval *last = dpt_history_last(&run->history, DPT_HISTORY_EPOCH);

    if (last != NULL)
        number(cell, "%.4f", last->accuracy);
}

static void valid_loss(const struct dpt_compare_run *run, char cell[CELL])
{
    const struct dpt_history_eval *last = dpt_history_last(&run->history, DPT_HISTORY_VALID);

    if (last != NULL)
        number(cell, "%.4g", last->loss);
}

static void best_valid(const struct dpt_compare_run *run, char cell[CELL])
{
    const struct dpt_history_eval *best = dpt_history_best(&run->history, DPT_HISTORY_VALID);

    if (best != NULL && !isnan(best->accuracy))
        number(cell, "%.4f", best->accuracy);
    else if (best != NULL)
        number(cell, "%.4g", best->loss);
}

static void best_step(const struct dpt_compare_run *run, char cell[CELL])
{
    const struct dpt_history_eval *best = dpt_history_best(&run->history, DPT_HISTORY_VALID);
    char digits[32];

    if (best != NULL)
        snprintf(cell, CELL, "%s", dpt_group_digits(digits, best->step));
}

static void test_loss(const struct dpt_compare_run *run, char cell[CELL])
{
    const struct dpt_history_eval *last = dpt_history_last(&run->history, DPT_HISTORY_TEST);

    if (last != NULL)
        number(cell, "%.4g", last->loss);
}

static void test_accuracy(const struct dpt_compare_run *run, char cell[CELL])
{
    const struct dpt_history_eval *last = dpt_history_last(&run->history, DPT_HISTORY_TEST);

    if (last != NULL)
        number(cell, "%.4f", last->accuracy);
}

static void rate(const struct dpt_compare_run *run, char cell[CELL])
{
    const double value = dpt_history_rate(&run->history);
    char digits[32];

    if (!isnan(value))
        snprintf(cell, CELL, "%s", dpt_group_digits(digits, (long long)value));
}

static void seconds(const struct dpt_compare_run *run, char cell[CELL])
{
    number(cell, "%.1f", dpt_history_seconds(&run->history));
}

static void starts(const struct dpt_compare_run *run, char cell[CELL])
{
    snprintf(cell, CELL, "%zu", run->history.n_starts);
}

/* Of the newest start. */
#define OF_START(function, format, value)                                                          \
    static void function(const struct dpt_compare_run *run, char cell[CELL])                       \
    {                                                                                              \
        const struct dpt_history_start *start = dpt_history_start(&run->history);                  \
                                                                                                   \
        if (start != NULL)                                                                         \
            snprintf(cell, CELL, format, value);                                                   \
    }
OF_START(ranks, "%lld", (long long)start->ranks)
OF_START(hosts, "%lld", (long long)start->hosts)
OF_START(threads, "%lld", (long long)start->threads)
OF_START(micro, "%lld", (long long)start->micro)
OF_START(parameters, "%lld", (long long)start->parameters)
OF_START(version, "%s", start->version)
OF_START(device, "%s", start->device)
OF_START(library, "%s", start->library)
OF_START(mpi, "%s", start->mpi)
OF_START(hdf5, "%s", start->hdf5)

static const struct result results[] = {
    {"state", state, true},
    {"why it ended", reason, false},
    {"step", step, true},
    {"of steps", of_steps, true},
    {"starts", starts, false},
    {"train loss", train_loss, true},
    {"train accuracy", train_accuracy, true},
    {"epoch loss", epoch_loss, true},
    {"epoch accuracy", epoch_accuracy, true},
    {"valid loss", valid_loss, true},
    {"best valid", best_valid, true},
    {"  at step", best_step, true},
    {"test loss", test_loss, true},
    {"test accuracy", test_accuracy, true},
    {"samples/s", rate, true},
    {"seconds", seconds, true},
    {"parameters", parameters, false},
    {"ranks", ranks, true},
    {"nodes", hosts, false},
    {"threads", threads, false},
    {"micro-batch", micro, false},
    {"device", device, true},
    {"dptrain", version, true},
    {"library", library, false},
    {"MPI", mpi, false},
    {"HDF5", hdf5, false},
};

/* A table that is being made: cells[row * runs + run]. */
struct table {
    const struct dpt_compare *c;
    const char **names;
    char (*cells)[CELL];
    size_t rows, jobs; /* rows, and how many of them are about the jobs: the first */
    size_t shared;     /* bytes that the folders' names have in common, not shown */
    int width;         /* of the names */
    int columns;
    bool ascii;
};

static int width_of(const char *text)
{
    return (int)dpt_utf8_width(text, strlen(text));
}

/* Whether a row of results is worth showing: somebody has it, and it is always or it differs. */
static bool shown(const struct table *t, const char (*row)[CELL], bool always)
{
    bool any = false, differs = false;

    for (size_t i = 0; i < t->c->n; i++) {
        any = any || row[i][0] != '\0';
        differs = differs || strcmp(row[i], row[0]) != 0;
    }
    return any && (always || differs);
}

static void add_row(struct table *t, const char *name)
{
    const int width = width_of(name);

    t->names[t->rows++] = name;
    if (width > t->width)
        t->width = width < NAME_MOST ? width : NAME_MOST;
}

static void fill(struct table *t)
{
    const struct dpt_compare *c = t->c;

    for (size_t k = 0; k < c->jobs.n_keys; k++) {
        const struct dpt_job_key *key = &c->jobs.keys[k];

        if (!key->differs)
            continue;
        for (size_t i = 0; i < c->n; i++)
            snprintf(t->cells[t->rows * c->n + i], CELL, "%.*s", CELL - 1,
                     key->value[i] != NULL ? key->value[i] : "-");
        add_row(t, key->path);
    }
    t->jobs = t->rows;
    for (size_t k = 0; k < sizeof results / sizeof *results; k++) {
        char(*row)[CELL] = &t->cells[t->rows * c->n];

        for (size_t i = 0; i < c->n; i++)
            results[k].write(&c->runs[i], memset(row[i], 0, CELL));
        if (shown(t, (const char(*)[CELL])row, results[k].always))
            add_row(t, results[k].name);
    }
}

/* Adds text in so many columns, cut where it is longer; keep_end: at its beginning. */
static void add_cell(const struct table *t, const char *text, int width, bool right, bool keep_end,
                     struct dpt_str *out)
{
    const char *cut = t->ascii ? "~" : "…";
    const int own = width_of(text);

    if (right && own < width)
        dpt_str_printf(out, "%*s", width - own, "");
    if (own <= width)
        dpt_str_printf(out, "%s", text);
    else if (keep_end)
        dpt_str_printf(out, "%s%s", cut, text + (int)dpt_utf8_bytes(text, own - width + 1));
    else
        dpt_str_printf(out, "%.*s%s", (int)dpt_utf8_bytes(text, width - 1), text, cut);
    if (!right && own < width)
        dpt_str_printf(out, "%*s", width - own, "");
}

/* Bytes of the folders that all runs lie in. */
static size_t common_folders(const struct dpt_compare *c)
{
    const char *first = c->runs[0].history.folder;
    size_t n = 0;

    for (size_t at = 0; c->n > 1 && first[at] != '\0'; at++) {
        for (size_t i = 1; i < c->n; i++)
            if (c->runs[i].history.folder[at] != first[at])
                return n;
        if (first[at] == '/')
            n = at + 1;
    }
    return n;
}

static const char *folder_of(const struct table *t, size_t run, char *buf)
{
    dpt_show_text(buf, t->c->runs[run].history.folder + t->shared, 200);
    return buf;
}

static int cell_width(const struct table *t, size_t run)
{
    char folder[6 * 200 + 8];
    int width = width_of(folder_of(t, run, folder));

    for (size_t row = 0; row < t->rows; row++) {
        const int own = width_of(t->cells[row * t->c->n + run]);

        width = own > width ? own : width;
    }
    return width < CELL_LEAST ? CELL_LEAST : width < CELL_MOST ? width : CELL_MOST;
}

/* Some runs beside each other. */
static void print_block(const struct table *t, size_t first, size_t last, struct dpt_str *out)
{
    char folder[6 * 200 + 8];

    dpt_str_printf(out, "%*s", t->width, "");
    for (size_t i = first; i < last; i++) {
        dpt_str_printf(out, "%*s", GAP, "");
        add_cell(t, folder_of(t, i, folder), cell_width(t, i), true, true, out);
    }
    dpt_str_printf(out, "\n");
    for (size_t row = 0; row < t->rows; row++) {
        if (row == t->jobs && t->jobs > 0)
            dpt_str_printf(out, "\n");
        add_cell(t, t->names[row], t->width, false, true, out);
        for (size_t i = first; i < last; i++) {
            dpt_str_printf(out, "%*s", GAP, "");
            add_cell(t, t->cells[row * t->c->n + i], cell_width(t, i), true, false, out);
        }
        while (out->length > 0 && out->text[out->length - 1] == ' ')
            out->length--;
        dpt_str_printf(out, "\n");
    }
}

static void print_blocks(const struct table *t, struct dpt_str *out)
{
    for (size_t first = 0, last; first < t->c->n; first = last) {
        int width = t->width;

        for (last = first; last < t->c->n; last++) {
            width += GAP + cell_width(t, last);
            if (last > first && width > t->columns)
                break;
        }
        dpt_str_printf(out, "%s", first == 0 ? "" : "\n");
        print_block(t, first, last, out);
    }
    if (t->c->n > 1 && t->jobs == 0)
        dpt_str_printf(out, "\nThe jobs are the same.\n");
}

void dpt_compare_print(const struct dpt_compare *c, int columns, bool ascii, struct dpt_str *out)
{
    const size_t most = c->jobs.n_keys + sizeof results / sizeof *results;
    struct table t = {.c = c, .columns = columns, .ascii = ascii, .shared = common_folders(c)};

    t.names = dpt_alloc_array(most, sizeof *t.names);
    t.cells = dpt_alloc_array(most * c->n, sizeof *t.cells);
    if (t.names != NULL && t.cells != NULL) {
        fill(&t);
        print_blocks(&t, out);
    } else {
        out->failed = true;
    }
    dpt_free(t.names);
    dpt_free(t.cells);
}
