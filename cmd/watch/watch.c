/* `dptrain watch`: monitors runs in a terminal. */
#include <langinfo.h>
#include <limits.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/output.h"
#include "cmd/screen.h"
#include "cmd/watch/view.h"
#include "core/base/file.h"
#include "core/base/memory.h"

/* A run folder that is looked at. */
struct watched {
    const char *folder; /* as it was given */
    bool open;          /* its run has told something */
    struct dpt_history history;
    struct dpt_run_status run_status;
};

struct watch {
    struct watched *runs;
    size_t n;
    struct dpt_view view;
    struct dpt_str lines;
};

static enum dpt_status look(struct watched *w, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char lock[PATH_MAX];
    bool changed;

    if (w->open) {
        status = dpt_history_more(&w->history, &changed, err);
        if (status == DPT_IO) /* a file server that is away for a moment */
            status = DPT_OK;
        DPT_TRY(status);
    } else {
        dpt_history_close(&w->history);
        status = dpt_history_open(&w->history, w->folder, err);
        w->open = status == DPT_OK && w->history.lines > 0;
        snprintf(lock, sizeof lock, "%s/.lock", w->folder);
        if (status == DPT_USAGE && dpt_file_exists(lock)) /* it has only not written anything yet */
            return DPT_OK;
    }
    if (w->open)
        dpt_run_status_read(&w->history, &w->run_status);
out:
    return status;
}

static enum dpt_status look_at_all(struct watch *w, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (size_t i = 0; i < w->n && status == DPT_OK; i++)
        status = look(&w->runs[i], err);
    return status;
}

static enum dpt_status draw(struct watch *w, struct dpt_error *err)
{
    dpt_str_clear(&w->lines);
    if (w->n > 1)
        dpt_view_head(&w->view, &w->lines);
    for (size_t i = 0; i < w->n; i++) {
        const struct watched *run = &w->runs[i];

        if (!run->open)
            dpt_view_waiting(&w->view, run->folder, &w->lines);
        else if (w->n == 1)
            dpt_view_run(&w->view, &run->history, &run->run_status, &w->lines);
        else
            dpt_view_line(&w->view, &run->history, &run->run_status, &w->lines);
    }
    return w->lines.failed ? dpt_fail_memory(err, "the screen", 0) : DPT_OK;
}

static enum dpt_status snapshot(struct watch *w, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int rows;

    dpt_screen_size(&w->view.columns, &rows);
    DPT_TRY(look_at_all(w, err));
    DPT_TRY(draw(w, err));
    DPT_TRY(dpt_output_colored(w->lines.text, err));
out:
    return status;
}

/* Follows runs until a key or signal ends it. killed: out, the signal that did; 0: none. */
static enum dpt_status follow(struct watch *w, struct dpt_screen *screen, int milliseconds,
                              int *killed, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    enum dpt_screen_event event = DPT_SCREEN_TIME;
    int number = 0;

    while (event != DPT_SCREEN_QUIT && event != DPT_SCREEN_KILLED) {
        /* The rest of a line that shall not wrap, and of the screen that shall not scroll, is the
         * screen's own business. */
        dpt_screen_size(&w->view.columns, &w->view.rows);
        DPT_TRY(look_at_all(w, err));
        DPT_TRY(draw(w, err));
        DPT_TRY(dpt_screen_show(&w->lines, w->view.rows, err));
        event = dpt_screen_wait(screen, milliseconds, &number);
    }
    *killed = event == DPT_SCREEN_KILLED ? number : 0;
out:
    return status;
}

/* Shows runs on the terminal's other screen; what was seen last stays on the first one. */
static enum dpt_status live(struct watch *w, int milliseconds, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_screen screen;
    int killed = 0;

    DPT_TRY(look_at_all(w, err)); /* a folder that is none is told on a screen that stays */
    DPT_TRY(dpt_screen_open(&screen, err));
    status = follow(w, &screen, milliseconds, &killed, err);
    dpt_screen_close(&screen);
    if (killed != 0)
        raise(killed);
    DPT_TRY(status);
    DPT_TRY(dpt_output_colored(w->lines.text, err));
out:
    return status;
}

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *no_color = getenv("NO_COLOR");
    struct watch w = {.n = cli->n_positional};
    long long every;

    DPT_TRY(dpt_cli_int(cli, "--every", 1, 3600, 1, &every, err));
    if (w.n == 0)
        return dpt_cli_wrong(cli, "no run folder given;", err);
    w.runs = dpt_alloc_array(w.n, sizeof *w.runs);
    if (w.runs == NULL)
        return dpt_fail_memory(err, "the runs", 0);
    for (size_t i = 0; i < w.n; i++)
        w.runs[i].folder = cli->positional[i];
    setlocale(LC_CTYPE, "");
    w.view.ascii = strcmp(nl_langinfo(CODESET), "UTF-8") != 0;
    w.view.color = dpt_screen_possible() && (no_color == NULL || no_color[0] == '\0');
    if (dpt_cli_has(cli, "--once") || !dpt_screen_possible())
        status = snapshot(&w, err);
    else
        status = live(&w, (int)every * 1000, err);
out:
    for (size_t i = 0; w.runs != NULL && i < w.n; i++)
        dpt_history_close(&w.runs[i].history);
    dpt_free(w.runs);
    dpt_str_release(&w.lines);
    return status;
}

static const struct dpt_cli_option options[] = {
    {"--every", "N", "look again every N seconds (1)"},
    {"--once", NULL, "print the present state, and end"},
    {0},
};

const struct dpt_command dpt_cmd_watch = {
    .name = "watch",
    .usage = "RUN... [--every N] [--once]",
    .summary = "monitor runs in a terminal: progress, curves, how they end",
    .details = "Reads the run folder's metrics.jsonl as it grows, from any machine that sees "
               "the folder, and shows the run's progress and remaining time, the curves of loss "
               "and accuracy, the last evaluation and checkpoint, whether it still runs and how "
               "it ended. It changes nothing in the folder, and does not disturb the run.\n\n"
               "q or Ctrl-C ends it. Several runs get a line each. If standard output is not a "
               "terminal, or is a dumb one, it prints the present state and ends; without UTF-8 "
               "in the locale (LC_ALL) it draws with ASCII; with NO_COLOR set it uses no "
               "colours.\n\n"
               "  dptrain watch runs/mnist-cnn\n"
               "  dptrain watch runs/*\n"
               "  dptrain watch runs/mnist-cnn | mail -s training me",
    .options = options,
    .one_rank = true,
    .run = run,
};
