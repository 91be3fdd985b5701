#include "cmd/watch/view.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/sort.h"
#include "core/base/str.h"

enum { DIGITS = 32, SHOWN = 200, SHOWN_BYTES = 6 * SHOWN + 8 };
/* The least rows of a plot, and its rows where no screen limits them. */
enum { PLOT_LEAST = 3, PLOT_FREE = 8 };
/* Train events that the present speed is the median of. */
enum { RECENT = 5 };
/* Seconds without a sign of life after which a person should hear of it. */
static const double QUIET = 30;

static const char bold[] = "\033[1m", green[] = "\033[32m", red[] = "\033[31m";
static const char yellow[] = "\033[33m";

static void print_line(const struct dpt_view *v, struct dpt_str *out, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void print_line(const struct dpt_view *v, struct dpt_str *out, const char *format, ...)
{
    char text[4 * SHOWN_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    dpt_view_add(v, out, text);
}

static int width_of(const char *text)
{
    return (int)dpt_utf8_width(text, strlen(text));
}

/* Samples/s at present; NAN: unknown. */
static double present_rate(const struct dpt_history *h)
{
    double rates[RECENT];
    size_t n = 0;

    for (size_t i = h->n_train; i-- > 0 && n < RECENT;) {
        if (h->train[i].start != (int32_t)h->n_starts - 1)
            break;
        if (h->train[i].rate > 0)
            rates[n++] = h->train[i].rate;
    }
    return n > 0 ? dpt_median(rates, n) : NAN;
}

/* Seconds of training that are left at the present speed; NAN: unknown, or it does not run. */
static double seconds_left(const struct dpt_history *h, const struct dpt_run_status *run_status)
{
    const struct dpt_history_start *start = dpt_history_start(h);
    const double rate = present_rate(h);

    if (start == NULL || run_status->state != DPT_RUN_RUNNING || start->steps < 0 ||
        start->global < 1)
        return NAN;
    return (double)(start->steps - dpt_history_step(h)) * (double)start->global / rate;
}

static double done_part(const struct dpt_history *h)
{
    const struct dpt_history_start *start = dpt_history_start(h);

    if (start == NULL || start->steps <= 0)
        return 0;
    return fmin((double)dpt_history_step(h) / (double)start->steps, 1);
}

static const char *state_ink(enum dpt_run_state state)
{
    return state == DPT_RUN_RUNNING || state == DPT_RUN_DONE ? green
           : state == DPT_RUN_STOPPED                        ? yellow
                                                             : red;
}

static void state_text(const struct dpt_run_status *run_status, char *buf, size_t size)
{
    const char *word = dpt_run_state_names[run_status->state];
    char silent[DIGITS];

    if (run_status->state != DPT_RUN_RUNNING)
        snprintf(buf, size, "%s", word);
    else if (run_status->silent > QUIET)
        snprintf(buf, size, "%s on %s, silent for %s", word, run_status->owner.host,
                 dpt_show_clock(run_status->silent, silent));
    else
        snprintf(buf, size, "%s on %s", word,
                 run_status->owner.pid > 0 ? run_status->owner.host : "?");
}

static void view_title(const struct dpt_view *v, const struct dpt_history *h,
                       const struct dpt_run_status *run_status, struct dpt_str *out)
{
    const struct dpt_history_start *start = dpt_history_start(h);
    char name[SHOWN_BYTES], shown[SHOWN_BYTES], state[2 * DPT_OWNER_WORD];
    const char *folder;
    int space;

    dpt_show_text(name, start != NULL ? start->name : "", 40);
    dpt_show_text(shown, h->folder, SHOWN);
    state_text(run_status, state, sizeof state);
    space = v->columns - width_of(name) - 2 - width_of(state);
    /* Rather than that the state is cut off; the end of a name says more than its beginning. */
    folder = dpt_utf8_end(shown, space > 14 ? space - 2 : 12);
    space -= width_of(folder);
    print_line(v, out, "%s%s%s  %s%*s%s%s", bold, name, DPT_VIEW_PLAIN, folder,
               space > 2 ? space : 2, "", state_ink(run_status->state), state);
}

static void view_bar(const struct dpt_view *v, const struct dpt_history *h, struct dpt_str *out)
{
    /* Eighths of a block, U+2588 and down. */
    static const char *const parts[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    const double part = done_part(h);
    const int cells = v->columns - 9 > 5 ? v->columns - 9 : 5;
    const int eighths = (int)floor(part * cells * 8), full = eighths / 8;
    struct dpt_str line = {0};

    dpt_str_printf(&line, "[%s", green);
    for (int i = 0; i < full; i++)
        dpt_str_printf(&line, "%s", v->ascii ? "#" : "█");
    dpt_str_printf(&line, "%s%s", v->ascii ? "" : parts[eighths % 8], DPT_VIEW_PLAIN);
    dpt_str_printf(&line, "%*s] %3.0f %%", cells - full - (!v->ascii && eighths % 8 > 0), "",
                   floor(100 * part));
    dpt_view_add(v, out, line.text != NULL ? line.text : "");
    dpt_str_release(&line);
}

static void view_progress(const struct dpt_view *v, const struct dpt_history *h,
                          const struct dpt_run_status *run_status, struct dpt_str *out)
{
    const struct dpt_history_start *start = dpt_history_start(h);
    const int64_t step = dpt_history_step(h);
    const double left = seconds_left(h, run_status), took = dpt_history_seconds(h);
    char steps[DIGITS], all[DIGITS], rest[DIGITS], time[2 * DIGITS] = "";

    if (start == NULL)
        return;
    if (isfinite(left))
        snprintf(time, sizeof time, "%s left", dpt_show_clock(left, rest));
    else if (run_status->state != DPT_RUN_RUNNING && !isnan(took))
        snprintf(time, sizeof time, "took %s", dpt_show_clock(took, rest));
    print_line(v, out, "epoch %lld of %lld   step %s of %s   %s",
               (long long)dpt_history_epoch(h, step), (long long)dpt_history_epochs(h),
               dpt_group_digits(steps, step), dpt_group_digits(all, start->steps), time);
}

/* The word before "loss": the loss of scaled targets is not in the targets' units. */
static const char *scaled(const struct dpt_history *h)
{
    return h->scaled ? "scaled " : "";
}

static const char *accuracy_name(const struct dpt_history *h)
{
    return h->labels ? "exact match" : "accuracy";
}

static void view_numbers(const struct dpt_view *v, const struct dpt_history *h, struct dpt_str *out)
{
    const struct dpt_history_start *start = dpt_history_start(h);
    const struct dpt_history_train *last = h->n_train > 0 ? &h->train[h->n_train - 1] : NULL;
    const double rate = present_rate(h);
    struct dpt_str line = {0};
    char digits[DIGITS];

    if (last != NULL)
        dpt_str_printf(&line, "%sloss %.4g   ", scaled(h), last->loss);
    if (last != NULL && !isnan(last->accuracy))
        dpt_str_printf(&line, "%s %.4f   ", accuracy_name(h), last->accuracy);
    if (last != NULL && !isnan(last->lr))
        dpt_str_printf(&line, "lr %.3g   ", last->lr);
    if (!isnan(rate))
        dpt_str_printf(&line, "%s samples/s   ", dpt_group_digits(digits, (long long)rate));
    if (start != NULL && start->ranks > 0)
        dpt_str_printf(&line, "%lld rank%s%s%s", (long long)start->ranks,
                       start->ranks == 1 ? "" : "s", start->device[0] != '\0' ? ", " : "",
                       start->device);
    if (line.length > 0)
        dpt_view_add(v, out, line.text);
    dpt_str_release(&line);
}

static void view_split(const struct dpt_view *v, const struct dpt_history *h,
                       enum dpt_history_split split, struct dpt_str *out)
{
    const struct dpt_history_eval *last = dpt_history_last(h, split);
    const struct dpt_history_eval *best = dpt_history_best(h, split);
    char step[DIGITS], best_step[DIGITS], accuracy[DIGITS] = "", most[4 * DIGITS] = "";

    if (last == NULL)
        return;
    dpt_group_digits(step, last->step);
    dpt_group_digits(best_step, best->step);
    if (!isnan(last->accuracy)) {
        snprintf(accuracy, sizeof accuracy, "  %s %.4f", accuracy_name(h), last->accuracy);
        snprintf(most, sizeof most, "; best %.4f at step %s", best->accuracy, best_step);
    } else {
        snprintf(most, sizeof most, "; best %sloss %.4g at step %s", scaled(h), best->loss,
                 best_step);
    }
    if (!isnan(last->mae))
        snprintf(accuracy, sizeof accuracy, "  MAE %.4g  R2 %.4f", last->mae, last->r2);
    print_line(v, out, "%-6s%sloss %.4g%s at step %s%s", dpt_history_splits[split], scaled(h),
               last->loss, accuracy, step, split == DPT_HISTORY_VALID ? most : "");
}

static void view_foot(const struct dpt_view *v, const struct dpt_history *h,
                      const struct dpt_run_status *run_status, struct dpt_str *out)
{
    const struct dpt_history_start *start = dpt_history_start(h);
    char step[DIGITS], shown[SHOWN_BYTES];

    for (int split = 0; split < DPT_HISTORY_SPLITS; split++)
        view_split(v, h, (enum dpt_history_split)split, out);
    if (h->saved >= 0)
        print_line(v, out, "saved step %s", dpt_group_digits(step, h->saved));
    if (start != NULL && start->resumed_from >= 0)
        print_line(v, out, "resumed at step %s", dpt_group_digits(step, start->resumed_from));
    if (h->damaged > 0)
        print_line(v, out, "%lld line%s of metrics.jsonl make%s no sense", (long long)h->damaged,
                   h->damaged == 1 ? "" : "s", h->damaged == 1 ? "s" : "");
    if (run_status->state == DPT_RUN_LOST)
        print_line(v, out, "%sno process runs it and it logged no end: stopped by force", red);
    if (run_status->state != DPT_RUN_STOPPED && run_status->state != DPT_RUN_FAILED &&
        (run_status->state != DPT_RUN_DONE || strcmp(run_status->reason, "done") == 0))
        return;
    dpt_show_text(shown, run_status->reason, SHOWN);
    print_line(v, out, "%s%s%s", state_ink(run_status->state),
               run_status->state == DPT_RUN_DONE ? "stopped early: " : "", shown);
}

static bool has_accuracy(const struct dpt_history *h)
{
    return (h->n_train > 0 && !isnan(h->train[h->n_train - 1].accuracy)) ||
           (h->n_evals > 0 && !isnan(h->evals[h->n_evals - 1].accuracy));
}

static int lines_in(const struct dpt_str *s)
{
    int n = 0;

    for (size_t i = 0; i < s->length; i++)
        n += s->text[i] == '\n';
    return n;
}

/* Rows of each plot, its legend not counted, and how many there are. */
static int plot_rows(const struct dpt_view *v, const struct dpt_history *h, int others, int *plots)
{
    int rows;

    *plots = h->n_train + h->n_evals == 0 ? 0 : has_accuracy(h) ? 2 : 1;
    if (v->rows == 0)
        return PLOT_FREE;
    for (; *plots > 0; --*plots) {
        rows = (v->rows - others) / *plots - 1;
        if (rows >= PLOT_LEAST)
            return rows;
    }
    return 0;
}

void dpt_view_run(const struct dpt_view *v, const struct dpt_history *h,
                  const struct dpt_run_status *run_status, struct dpt_str *out)
{
    struct dpt_str foot = {0};
    char digits[DIGITS];
    const int before = lines_in(out);
    int plots, rows;

    view_foot(v, h, run_status, &foot);
    view_title(v, h, run_status, out);
    view_bar(v, h, out);
    view_progress(v, h, run_status, out);
    view_numbers(v, h, out);
    rows = plot_rows(v, h, lines_in(out) - before + lines_in(&foot) + 1, &plots);
    for (int i = 0; i < plots; i++)
        dpt_view_curve(v, h, (enum dpt_view_curve)i, rows, out);
    if (plots > 0)
        print_line(v, out, "%*s0%*s", 10, "", v->columns > 12 ? v->columns - 11 : 1,
                   dpt_group_digits(digits, dpt_history_step(h)));
    if (foot.length > 0)
        dpt_str_add(out, foot.text, foot.length);
    out->failed = out->failed || foot.failed;
    dpt_str_release(&foot);
}

/* Columns of a folder's name where several runs stand below each other. */
static int name_columns(const struct dpt_view *v)
{
    return v->columns > 12 + 58 ? v->columns - 58 : 12;
}

void dpt_view_head(const struct dpt_view *v, struct dpt_str *out)
{
    print_line(v, out, "%s%-*s %-8s %13s %8s %6s %9s %8s", bold, name_columns(v), "run", "state",
               "step", "loss", "acc.", "samples/s", "left");
}

void dpt_view_line(const struct dpt_view *v, const struct dpt_history *h,
                   const struct dpt_run_status *run_status, struct dpt_str *out)
{
    const struct dpt_history_train *train = h->n_train > 0 ? &h->train[h->n_train - 1] : NULL;
    const struct dpt_history_eval *best = dpt_history_best(h, DPT_HISTORY_VALID);
    const double rate = present_rate(h), left = seconds_left(h, run_status);
    const double accuracy = best != NULL ? best->accuracy : train != NULL ? train->accuracy : NAN;
    char shown[SHOWN_BYTES], step[2 * DIGITS], digits[DIGITS];
    char loss[DIGITS] = "", share[DIGITS] = "", speed[DIGITS] = "", rest[DIGITS] = "";
    const char *name;

    dpt_show_text(shown, h->folder, SHOWN);
    name = dpt_utf8_end(shown, name_columns(v));
    snprintf(step, sizeof step, "%s %3.0f%%", dpt_group_digits(digits, dpt_history_step(h)),
             floor(100 * done_part(h)));
    if (train != NULL)
        snprintf(loss, sizeof loss, "%.4g", train->loss);
    if (!isnan(accuracy))
        snprintf(share, sizeof share, "%.4f", accuracy);
    if (!isnan(rate))
        dpt_group_digits(speed, (long long)rate);
    if (isfinite(left))
        dpt_show_clock(left, rest);
    print_line(v, out, "%s%*s %s%-8s%s %13s %8s %6s %9s %8s", name,
               name_columns(v) - width_of(name), "", state_ink(run_status->state),
               dpt_run_state_names[run_status->state], DPT_VIEW_PLAIN, step, loss, share, speed,
               rest);
}

void dpt_view_waiting(const struct dpt_view *v, const char *folder, struct dpt_str *out)
{
    const int columns = v->columns - 26;
    char shown[SHOWN_BYTES];

    dpt_show_text(shown, folder, SHOWN);
    print_line(v, out, "%s: nothing logged yet", dpt_utf8_end(shown, columns > 12 ? columns : 12));
}
