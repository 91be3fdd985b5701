/* The figures that tables of runs tell, and which of them may be compared: those of the same
 * samples, weights, loss and scale. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/runs.h"
#include "core/train/job/job.h"

static const void *find_record(const struct dpt_history *h, enum dpt_record record)
{
    switch (record) {
    case DPT_RECORD_START:
        return dpt_history_start(h);
    case DPT_RECORD_TRAIN:
        return h->n_train > 0 ? &h->train[h->n_train - 1] : NULL;
    case DPT_RECORD_BEST:
        return dpt_history_best(h, DPT_HISTORY_VALID);
    default:
        return dpt_history_last(h, (enum dpt_history_split)(record - DPT_RECORD_EPOCH));
    }
}

static bool is_of(enum dpt_figure_of runs, const struct dpt_history *h)
{
    return runs == DPT_OF_ALL || (runs == DPT_OF_UNEVEN && h->uneven) ||
           (runs == DPT_OF_LABELS && h->labels) || (runs == DPT_OF_OTHERS && !h->labels);
}

double dpt_figure_number(const struct dpt_figure *f, const struct dpt_history *h)
{
    const char *record = f->of == NULL ? find_record(h, f->record) : NULL;
    int64_t count;

    if (!is_of(f->runs, h))
        return NAN;
    if (f->of != NULL)
        return f->of(h);
    if (record == NULL)
        return NAN;
    if (f->type == DPT_FIGURE_REAL)
        return *(const double *)(record + f->member);
    count = *(const int64_t *)(record + f->member);
    return count >= 0 ? (double)count : NAN;
}

const char *dpt_figure_text(const struct dpt_figure *f, const struct dpt_history *h)
{
    const char *record = find_record(h, f->record);

    return record != NULL ? *(const char *const *)(record + f->member) : "";
}

double dpt_figure_step(const struct dpt_history *h)
{
    return (double)dpt_history_step(h);
}

static double best_loss(const struct dpt_history *h, bool accuracy)
{
    const struct dpt_history_eval *e = dpt_history_best(h, DPT_HISTORY_VALID);

    return e != NULL && !isnan(e->accuracy) == accuracy ? e->loss : NAN;
}

double dpt_figure_best_loss(const struct dpt_history *h)
{
    return best_loss(h, false);
}

double dpt_figure_its_loss(const struct dpt_history *h)
{
    return best_loss(h, true);
}

double dpt_figure_starts(const struct dpt_history *h)
{
    return (double)h->n_starts;
}

/* --- what they are of ------------------------------------------------------------------------- */

static bool is_below(const char *path, const char *key)
{
    const size_t n = strlen(key);

    return strncmp(path, key, n) == 0 && (path[n] == '\0' || path[n] == '.');
}

const char *dpt_runs_value(const struct dpt_runs *runs, size_t run, const char *path)
{
    for (size_t k = 0; k < runs->jobs.n_keys; k++)
        if (strcmp(runs->jobs.keys[k].path, path) == 0)
            return runs->jobs.keys[k].value[run];
    return NULL;
}

/* Adds all that a job says below a key: "cross_entropy, label_smoothing 0.1". */
static void add_values(const struct dpt_runs *runs, size_t run, const char *key,
                       struct dpt_str *out)
{
    bool first = true;

    for (size_t k = 0; k < runs->jobs.n_keys; k++) {
        const struct dpt_job_key *one = &runs->jobs.keys[k];
        const char *name = one->path + strlen(key);

        if (!is_below(one->path, key) || one->value[run] == NULL)
            continue;
        name += *name == '.';
        dpt_str_printf(out, "%s%s%s%s", first ? "" : ", ",
                       *name == '\0' || strcmp(name, "type") == 0 ? "" : name,
                       *name == '\0' || strcmp(name, "type") == 0 ? "" : " ", one->value[run]);
        first = false;
    }
}

/* Whether data.valid is a part of data.train, which the seed draws. */
static bool is_held_out(const struct dpt_runs *runs, size_t run)
{
    const char *valid = dpt_runs_value(runs, run, "data.valid");
    char *end;

    return valid != NULL && strtod(valid, &end) > 0 && *end == '\0';
}

static bool is_synthetic(const struct dpt_runs *runs, size_t run, const char *key)
{
    const char *value = dpt_runs_value(runs, run, key);

    return value != NULL && strcmp(value, "synthetic") == 0;
}

/* Adds the samples of a split: its files and, where the seed draws them, that. */
static void add_data(const struct dpt_runs *runs, size_t run, enum dpt_history_split split,
                     struct dpt_str *out)
{
    static const char *const keys[] = {"data.train", "data.valid", "data.test"};
    const bool held_out = split == DPT_HISTORY_VALID && is_held_out(runs, run);
    const char *key = held_out ? "data.train" : keys[split];
    const char *seed = dpt_runs_value(runs, run, "seed");

    if (held_out)
        dpt_str_printf(out, "%s of ", dpt_runs_value(runs, run, "data.valid"));
    add_values(runs, run, key, out);
    if (is_synthetic(runs, run, key)) {
        dpt_str_printf(out, ", ");
        add_values(runs, run, "data.synthetic", out);
    }
    if (seed != NULL && (held_out || is_synthetic(runs, run, key)))
        dpt_str_printf(out, ", seed %s", seed);
}

static void describe_weights(const struct dpt_runs *runs, size_t run, enum dpt_history_split split,
                             struct dpt_str *out)
{
    const struct dpt_history_eval *e = dpt_history_last(&runs->at[run].history, split);
    struct dpt_str classes = {0};
    const bool trained =
        split == DPT_HISTORY_EPOCH || (split == DPT_HISTORY_VALID && is_held_out(runs, run));

    add_values(runs, run, "data.class_weights", &classes);
    if (trained && classes.length > 0 && strcmp(classes.text, "none") != 0)
        dpt_str_printf(out, "weighted by data.class_weights%s%s",
                       strcmp(classes.text, "balanced") != 0 ? ": " : "",
                       strcmp(classes.text, "balanced") != 0 ? classes.text : "");
    else
        dpt_str_printf(out, e != NULL && !isnan(e->weight) ? "weighted by the samples' weights"
                                                           : "unweighted");
    dpt_str_release(&classes);
}

static void describe_scale(const struct dpt_runs *runs, size_t run, struct dpt_str *out)
{
    const char *how = dpt_runs_value(runs, run, "data.targets.normalize");
    const char *transform = dpt_runs_value(runs, run, "data.targets.transform");
    const bool plain = transform == NULL || strcmp(transform, "none") == 0;

    dpt_str_printf(out, "of %s%stargets ", plain ? "" : transform, plain ? "" : " of ");
    if (how != NULL && strcmp(how, "auto") == 0) {
        dpt_str_printf(out, "scaled by those of ");
        add_data(runs, run, DPT_HISTORY_EPOCH, out);
        if (is_held_out(runs, run))
            dpt_str_printf(out, " without the %s that seed %s holds out",
                           dpt_runs_value(runs, run, "data.valid"),
                           dpt_runs_value(runs, run, "seed"));
    } else if (runs->at[run].history.scaled && how == NULL) {
        dpt_str_printf(out, "scaled by ");
        add_values(runs, run, "data.targets.normalize", out);
    } else {
        dpt_str_printf(out, "as they are");
    }
}

/* Whether a run has figures of a split that have this basis. */
static bool has_basis(const struct dpt_runs *runs, size_t run, enum dpt_history_split split,
                      enum dpt_basis basis)
{
    const struct dpt_history *h = &runs->at[run].history;
    const char *loss = dpt_runs_value(runs, run, "loss.type");
    const bool training = split == DPT_HISTORY_EPOCH;

    if (runs->at[run].no_job != NULL || (training && h->n_train == 0) ||
        (!training && dpt_history_last(h, split) == NULL))
        return false;
    /* What runs have learned from may differ, and is not what they are measured by. */
    return basis == DPT_BASIS_DATA    ? !training
           : basis == DPT_BASIS_SCALE ? loss != NULL && dpt_loss_predicts_numbers(loss)
                                      : true;
}

static const char *describe(struct dpt_runs *runs, size_t run, enum dpt_history_split split,
                            enum dpt_basis basis)
{
    const struct dpt_history_eval *e = dpt_history_last(&runs->at[run].history, split);
    struct dpt_str text = {0};
    const char *copy;

    if (basis == DPT_BASIS_DATA && e->samples >= 0)
        dpt_str_printf(&text, "%lld samples, ", (long long)e->samples);
    if (basis == DPT_BASIS_DATA)
        add_data(runs, run, split, &text);
    else if (basis == DPT_BASIS_WEIGHTS)
        describe_weights(runs, run, split, &text);
    else if (basis == DPT_BASIS_LOSS)
        add_values(runs, run, "loss", &text);
    else
        describe_scale(runs, run, &text);
    copy = text.failed ? NULL : dpt_region_strdup(&runs->texts, text.text != NULL ? text.text : "");
    dpt_str_release(&text);
    return copy;
}

/* What metrics.jsonl of older versions does not say, the job does. */
static void mend_history(const struct dpt_runs *runs, size_t run)
{
    struct dpt_history *h = &runs->at[run].history;
    const char *loss = dpt_runs_value(runs, run, "loss.type");
    const char *how = dpt_runs_value(runs, run, "data.targets.normalize");

    h->scaled = h->scaled || (loss != NULL && strcmp(loss, "mse") == 0 &&
                              ((how != NULL && strcmp(how, "none") != 0) ||
                               dpt_runs_value(runs, run, "data.targets.normalize.std") != NULL));
    for (size_t i = 0; i < h->n_evals; i++)
        h->labels = h->labels || (!isnan(h->evals[i].label_accuracy) &&
                                  h->evals[i].label_accuracy != h->evals[i].accuracy);
}

bool dpt_runs_find_bases(struct dpt_runs *runs)
{
    bool uneven = false;

    for (size_t run = 0; run < runs->n; run++) {
        struct dpt_run_folder *folder = &runs->at[run];

        mend_history(runs, run);
        uneven = uneven || folder->history.uneven;
        folder->basis = dpt_region_alloc(&runs->texts, DPT_HISTORY_SPLITS * sizeof *folder->basis);
        for (int split = 0; folder->basis != NULL && split < DPT_HISTORY_SPLITS; split++)
            for (int basis = 0; basis < DPT_BASES; basis++)
                if (has_basis(runs, run, (enum dpt_history_split)split, (enum dpt_basis)basis) &&
                    (folder->basis[split][basis] = describe(
                         runs, run, (enum dpt_history_split)split, (enum dpt_basis)basis)) == NULL)
                    return false;
    }
    /* Weights may hide from one run that classes are imbalanced; it stands beside runs that show
     * it. */
    for (size_t run = 0; run < runs->n; run++)
        runs->at[run].history.uneven = uneven;
    return !runs->texts.failed;
}

static enum dpt_history_split split_of(enum dpt_record record)
{
    return record == DPT_RECORD_TEST                                 ? DPT_HISTORY_TEST
           : record == DPT_RECORD_VALID || record == DPT_RECORD_BEST ? DPT_HISTORY_VALID
                                                                     : DPT_HISTORY_EPOCH;
}

/* Whether the runs that have a basis have the same one. f: those alone that have this figure. */
static bool same_basis(const struct dpt_runs *runs, enum dpt_history_split split,
                       enum dpt_basis basis, const struct dpt_figure *f)
{
    const char *first = NULL;

    for (size_t run = 0; run < runs->n; run++) {
        const char *text = runs->at[run].basis[split][basis];

        if (text == NULL || (f != NULL && isnan(dpt_figure_number(f, &runs->at[run].history))))
            continue;
        if (first != NULL && strcmp(first, text) != 0)
            return false;
        first = text;
    }
    return true;
}

bool dpt_runs_same_basis(const struct dpt_runs *runs, const struct dpt_figure *f, size_t a,
                         size_t b)
{
    const enum dpt_history_split split = split_of(f->record);

    for (int basis = 0; basis < DPT_BASES; basis++) {
        const char *x = runs->at[a].basis[split][basis], *y = runs->at[b].basis[split][basis];

        if ((f->basis & 1U << basis) != 0 && x != NULL && y != NULL && strcmp(x, y) != 0)
            return false;
    }
    return true;
}

bool dpt_runs_alike(const struct dpt_runs *runs, const struct dpt_figure *f)
{
    for (int basis = 0; basis < DPT_BASES; basis++)
        if ((f->basis & 1U << basis) != 0 &&
            !same_basis(runs, split_of(f->record), (enum dpt_basis)basis, f))
            return false;
    return true;
}

const char *dpt_runs_mark(const struct dpt_runs *runs, size_t run, const struct dpt_figure *f)
{
    const struct dpt_run_folder *folder = &runs->at[run];
    const char *weights = folder->basis[split_of(f->record)][DPT_BASIS_WEIGHTS];
    const bool scaled = (f->basis & 1U << DPT_BASIS_SCALE) != 0 && folder->history.scaled;
    const bool weighted = (f->basis & 1U << DPT_BASIS_WEIGHTS) != 0 && weights != NULL &&
                          strcmp(weights, "unweighted") != 0;

    return scaled && weighted ? "weighted, scaled" : scaled ? "scaled" : weighted ? "weighted" : "";
}

/* Whether all runs have the same text for two splits. */
static bool same_split(const struct dpt_runs *runs, enum dpt_basis basis, int a, int b)
{
    for (size_t run = 0; run < runs->n; run++) {
        const char *x = runs->at[run].basis[a][basis], *y = runs->at[run].basis[b][basis];

        if ((x == NULL) != (y == NULL) || (x != NULL && strcmp(x, y) != 0))
            return false;
    }
    return true;
}

/* Adds each text once, with the runs whose it is. */
static void tell_groups(const struct dpt_runs *runs, enum dpt_history_split split,
                        enum dpt_basis basis, const char *const *names, struct dpt_str *out)
{
    const char *between = " ";

    for (size_t run = 0; run < runs->n; run++) {
        const char *text = runs->at[run].basis[split][basis];
        bool told = text == NULL;

        for (size_t i = 0; i < run && !told; i++)
            told = runs->at[i].basis[split][basis] != NULL &&
                   strcmp(runs->at[i].basis[split][basis], text) == 0;
        if (told)
            continue;
        dpt_str_printf(out, "%s%s in ", between, text);
        for (size_t i = run, n = 0; i < runs->n; i++)
            if (runs->at[i].basis[split][basis] != NULL &&
                strcmp(runs->at[i].basis[split][basis], text) == 0)
                dpt_str_printf(out, "%s%s", n++ > 0 ? ", " : "", names[i]);
        between = "; ";
    }
    dpt_str_printf(out, ".");
}

/* Adds "The train, valid and test losses", of those splits that are alike in a basis. told: which
 * need no further sentence. */
static void tell_figures(const struct dpt_runs *runs, int split, enum dpt_basis basis,
                         bool told[DPT_HISTORY_SPLITS], struct dpt_str *out)
{
    static const char *const figures[DPT_BASES] = {
        [DPT_BASIS_DATA] = "figures",
        [DPT_BASIS_WEIGHTS] = "losses and accuracies",
        [DPT_BASIS_LOSS] = "losses",
        [DPT_BASIS_SCALE] = "losses",
    };
    static const char *const splits[DPT_HISTORY_SPLITS] = {"train", "valid", "test"};
    int alike[DPT_HISTORY_SPLITS], n = 0;

    for (int other = split; other < DPT_HISTORY_SPLITS; other++)
        if (same_split(runs, basis, split, other)) {
            alike[n++] = other;
            told[other] = true;
        }
    for (int i = 0; i < n; i++)
        dpt_str_printf(out, "%s%s",
                       i == 0       ? "The "
                       : i == n - 1 ? " and "
                                    : ", ",
                       splits[alike[i]]);
    dpt_str_printf(out, " %s", figures[basis]);
}

size_t dpt_runs_tell_bases(const struct dpt_runs *runs, const char *const *names,
                           struct dpt_region *region, const char *said[DPT_MOST_REASONS])
{
    size_t n = 0;

    for (int basis = 0; basis < DPT_BASES; basis++) {
        bool told[DPT_HISTORY_SPLITS] = {false};

        for (int split = 0; split < DPT_HISTORY_SPLITS; split++) {
            struct dpt_str text = {0};

            if (told[split] ||
                same_basis(runs, (enum dpt_history_split)split, (enum dpt_basis)basis, NULL))
                continue;
            tell_figures(runs, split, (enum dpt_basis)basis, told, &text);
            dpt_str_printf(&text, " are not comparable:");
            tell_groups(runs, (enum dpt_history_split)split, (enum dpt_basis)basis, names, &text);
            if (basis == DPT_BASIS_WEIGHTS && runs->at[0].history.uneven)
                dpt_str_printf(&text, " Class weights do not change balanced accuracy.");
            said[n] = text.failed ? NULL : dpt_region_strdup(region, text.text);
            region->failed = region->failed || said[n] == NULL;
            n += said[n] != NULL;
            dpt_str_release(&text);
        }
    }
    return n;
}
