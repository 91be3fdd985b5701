/* `dptrain layers`: what a job can name, layers, models, losses, optimizers and schedules, and the
 * metrics by which its model is judged. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "cmd/words.h"
#include "core/train/job/job.h"
#include "core/train/scores/scores.h"

enum { COLUMN = 22, MOST = 256 };

/* A listing on its way. A group is a key that takes one of several kinds ("optimizer"). */
struct listing {
    const char *const *wanted; /* names of kinds or groups; none: all of them, short */
    size_t n;
    bool *found;       /* for each of them */
    const char *group; /* NULL: no group */
    bool told, whole;  /* its title stands there; all of it is wanted */
    int depth;         /* of its kinds */
    bool shown;        /* the kind in which the walk is */
    bool any;          /* was printed so far */
    struct dpt_str title, keys;
    const char *names[MOST];
    size_t n_names;
};

/* Whether a name was asked for; "layers" stands for "model.layers". */
static bool is_wanted(struct listing *l, const char *name)
{
    const char *dot = strrchr(name, '.');
    bool wanted = false;

    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->wanted[i], name) == 0 || (dot != NULL && strcmp(l->wanted[i], dot + 1) == 0))
            wanted = l->found[i] = true;
    return wanted;
}

static void print_keys(struct listing *l)
{
    if (l->keys.length > 0) {
        printf("%*s", COLUMN, "");
        dpt_cli_print(COLUMN, COLUMN, l->keys.text);
    }
    dpt_str_clear(&l->keys);
}

static void begin_group(struct listing *l, const struct dpt_option_visit *at)
{
    print_keys(l);
    dpt_str_clear(&l->title);
    dpt_str_printf(&l->title, "%s: %s", at->path, at->row->help);
    l->group = at->row->name;
    l->whole = is_wanted(l, at->path);
    l->told = l->shown = false;
    l->depth = at->depth + 1;
    if (l->n_names < MOST)
        l->names[l->n_names++] = l->group;
}

static void begin_kind(struct listing *l, const struct dpt_option_visit *at)
{
    const bool named = is_wanted(l, at->variant);

    print_keys(l);
    if (l->n_names < MOST)
        l->names[l->n_names++] = at->variant;
    l->shown = l->n == 0 || l->whole || named;
    if (!l->shown)
        return;
    if (!l->told) {
        printf("%s", l->any ? "\n" : "");
        dpt_cli_print(0, 0, l->title.text != NULL ? l->title.text : "");
        l->told = l->any = true;
    }
    dpt_cli_print(COLUMN, printf("  %s  ", at->variant), at->summary);
}

/* A key of the kind: by its name and default, or all that is known of it. */
static void take_key(struct listing *l, const struct dpt_option_visit *at)
{
    const struct dpt_option *row = at->row;
    struct dpt_option_visit below = *at;
    struct dpt_str text = {0};

    if (l->n > 0) {
        below.depth = at->depth - l->depth;
        dpt_option_help(&below, &text);
        fputs(text.text != NULL ? text.text : "", stdout);
        dpt_str_release(&text);
    } else if (at->depth == l->depth + 1) {
        dpt_str_printf(&l->keys, "%s%s", l->keys.length > 0 ? ", " : "", row->name);
        if (row->fallback == NULL)
            dpt_str_printf(&l->keys, " (must be given)");
        else if (row->type != DPT_OPT_SECTION)
            dpt_str_printf(&l->keys, ": %s", row->fallback);
    }
}

static void visit(void *arg, const struct dpt_option_visit *at)
{
    struct listing *l = arg;
    const struct dpt_option *row = at->row;
    const bool list = row != NULL && row->type == DPT_OPT_CUSTOM && row->alternatives != NULL &&
                      row->alternatives->kind != NULL && !at->listed;

    if (row == NULL && l->group != NULL && at->depth == l->depth) {
        begin_kind(l, at);
        return;
    }
    if (row != NULL && l->shown && at->depth > l->depth)
        take_key(l, at);
    if (row != NULL && (row->type == DPT_OPT_VARIANT || list)) {
        begin_group(l, at);
    } else if (row != NULL && at->depth == 0) {
        print_keys(l);
        l->group = NULL;
        l->shown = false;
    }
}

/* What evaluations tell, under the names that metrics.jsonl and `eval --json` give it. */
static void visit_metrics(struct listing *l)
{
    static const struct dpt_option row = {
        .name = "metrics",
        .help = "results of evaluations: for classification, multi-label "
                "classification or regression"};
    const struct dpt_option_visit group = {.path = row.name, .row = &row};
    struct dpt_option_visit metric = {.variant = "loss", .summary = "the job's loss, a mean"};
    struct dpt_str text = {0};

    begin_group(l, &group);
    begin_kind(l, &metric);
    metric = (struct dpt_option_visit){.variant = "accuracy",
                                       .summary = "classes: share whose class is the likeliest; "
                                                  "labels: share of which all are right"};
    begin_kind(l, &metric);
    for (const struct dpt_score *score = dpt_scores; score->name != NULL; score++) {
        dpt_str_clear(&text);
        dpt_str_printf(&text, "%s: %s",
                       score->classes                                                 ? "classes"
                       : score->offset == offsetof(struct dpt_scores, label_accuracy) ? "labels"
                                                                                      : "numbers",
                       score->summary);
        metric = (struct dpt_option_visit){.variant = score->name, .summary = text.text};
        begin_kind(l, &metric);
    }
    dpt_str_release(&text);
}

static void list(struct listing *l)
{
    dpt_options_walk(dpt_job_options, visit, l);
    print_keys(l);
    visit_metrics(l);
}

void dpt_word_kinds(struct dpt_str *words)
{
    const char *const nothing = "";
    bool found;
    struct listing l = {.wanted = &nothing, .n = 1, .found = &found};

    list(&l);
    for (size_t i = 0; i < l.n_names; i++)
        dpt_str_printf(words, "%s ", l.names[i]);
    dpt_str_release(&l.title);
    dpt_str_release(&l.keys);
}

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    bool found[MOST] = {false};
    struct listing l = {
        .wanted = (const char *const *)cli->positional, .n = cli->n_positional, .found = found};

    if (l.n > MOST)
        return dpt_fail(err, DPT_USAGE, "dptrain layers: %d names at most", MOST);
    list(&l);
    for (size_t i = 0; i < l.n && status == DPT_OK; i++)
        if (!found[i])
            status = dpt_cli_unknown("dptrain layers", l.wanted[i], "not known", l.names, l.n_names,
                                     "; `dptrain layers` lists all", err);
    dpt_str_release(&l.title);
    dpt_str_release(&l.keys);
    return status;
}

static const struct dpt_cli_option options[] = {{0}};

const struct dpt_command dpt_cmd_layers = {
    .name = "layers",
    .usage = "[KIND...]",
    .summary = "list all layers, losses, optimizers, schedules and metrics",
    .details = "Lists what a job can name, with its meaning, keys and their defaults, and the "
               "metrics that its evaluations report. KIND is the name of one of them, as a "
               "layer, or of a group (layers, model, loss, optimizer, schedule, metrics): "
               "prints each key's meaning and bounds.\n\n"
               "  dptrain layers\n"
               "  dptrain layers conv batchnorm\n"
               "  dptrain layers optimizer",
    .options = options,
    .one_rank = true,
    .run = run,
};
