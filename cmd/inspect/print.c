#include "cmd/inspect/print.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "core/base/str.h"
#include "core/train/update/monitor.h"

enum { CLASSES_TOLD = 256, WIDTH = 80, NAME_SHOWN = 32 };

static const struct dpt_inspect_attribute *number(const struct dpt_inspect *f, const char *name)
{
    static const struct dpt_inspect_attribute none = {.text = "?"};
    const struct dpt_inspect_attribute *a = dpt_inspect_attribute(f, name);

    return a != NULL ? a : &none;
}

static const char *digits(const struct dpt_inspect *f, const char *name, char buf[32])
{
    const struct dpt_inspect_attribute *a = number(f, name);

    return a->name != NULL && a->kind == DPT_INSPECT_INTEGER ? dpt_group_digits(buf, a->integer)
                                                             : a->text;
}

/* Whether print_checkpoint has a line of its own for an attribute. */
static bool is_worded(const char *name)
{
    static const char *const worded[] = {
        "format",     "format_version", "step",         "updates",   "samples", "epoch",
        "epoch_step", "seed",           "parameters",   "version",   "backend", "best_metric",
        "best_step",  "library",        "best_monitor", "best_loss",
    };

    const size_t n = sizeof worded / sizeof worded[0];

    return dpt_find(name, worded, n) < n || strncmp(name, "early_stop_", 11) == 0 ||
           strncmp(name, "plateau_", 8) == 0;
}

static void print_best(const struct dpt_inspect *f)
{
    const struct dpt_inspect_attribute *best = number(f, "best_metric");
    const struct dpt_inspect_attribute *monitor = dpt_inspect_attribute(f, "best_monitor");
    const char *step = number(f, "best_step")->text;
    double value = best->real;

    /* It is kept so that more is better. */
    if (monitor != NULL && dpt_monitor_falls(dpt_monitor_find(monitor->text)))
        value = -value;
    if (number(f, "best_step")->integer < 0)
        dpt_inspect_property("best", "not evaluated yet");
    else if (monitor != NULL)
        dpt_inspect_property("best", "%s %.6g at step %s", monitor->text, value, step);
    else if (best->real < 0)
        dpt_inspect_property("best", "loss %.6g at step %s", -best->real, step);
    else
        dpt_inspect_property("best", "%.6g at step %s", best->real, step);
}

/* Prints what is remembered of a monitored value, where something is. kind: "plateau". */
static void print_watch(const struct dpt_inspect *f, const char *kind, const char *title)
{
    const char *const parts[] = {"monitor", "best", "step", "waits", "drops"};
    const struct dpt_inspect_attribute *at[5];
    char name[64], drops[64] = "";

    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "%s_%s", kind, parts[i]);
        at[i] = dpt_inspect_attribute(f, name);
        if (at[i] == NULL && i < 4)
            return;
    }
    if (at[4] != NULL)
        snprintf(drops, sizeof drops, "; lowered %lld time%s", (long long)at[4]->integer,
                 at[4]->integer == 1 ? "" : "s");
    if (at[2]->integer < 0)
        dpt_inspect_property(title, "%s: no value yet%s", at[0]->text, drops);
    else
        dpt_inspect_property(title, "%s: %.6g at step %s, %s evaluation%s since%s", at[0]->text,
                             at[1]->real, at[2]->text, at[3]->text, at[3]->integer == 1 ? "" : "s",
                             drops);
}

static void print_checkpoint(const struct dpt_inspect *f)
{
    char a[32], b[32];
    size_t tensors = 0;

    for (size_t i = 0; i < f->n_sets; i++)
        tensors += strncmp(f->sets[i].name, "/params/", 8) == 0;
    dpt_inspect_property("step", "%s: %s updates, %s samples seen", number(f, "step")->text,
                         digits(f, "updates", a), digits(f, "samples", b));
    dpt_inspect_property("next", "epoch %s, step %s of it (both counted from 0)",
                         number(f, "epoch")->text, number(f, "epoch_step")->text);
    print_best(f);
    print_watch(f, "early_stop", "early stop");
    print_watch(f, "plateau", "plateau");
    dpt_inspect_property("model", "%s parameters in %zu tensors", digits(f, "parameters", a),
                         tensors);
    dpt_inspect_property("seed", "%s", number(f, "seed")->text);
    dpt_inspect_property("made by", "dptrain %s, backend %s: %s", number(f, "version")->text,
                         number(f, "backend")->text, number(f, "library")->text);
    dpt_inspect_property("format", "%s", number(f, "format_version")->text);
    for (size_t i = 0; i < f->n_attributes; i++)
        if (!is_worded(f->attributes[i].name))
            dpt_inspect_property(f->attributes[i].name, "%s", f->attributes[i].text);
}

/* Prints the weights of samples, and data sets that training does not read. */
static void print_beside(const struct dpt_inspect_shard *shard)
{
    char all[32], none[32];

    if (shard->weights != NULL)
        dpt_inspect_property("weights", "of %s: sum %.6g, %s of %s samples count nothing",
                             shard->weights->name, shard->weight,
                             dpt_group_digits(none, shard->weightless),
                             dpt_group_digits(all, shard->samples));
    if (shard->unused[0] != '\0')
        dpt_inspect_property("unused", "%s", shard->unused);
}

static void print_shard(const struct dpt_inspect_shard *shard)
{
    char a[32], b[32], extent[DPT_DIMS_TEXT];
    int64_t least = INT64_MAX, most = 0;
    size_t present = 0;

    if (shard->labels == NULL) {
        dpt_inspect_property("samples", "%s, without labels", dpt_group_digits(a, shard->samples));
        return;
    }
    dpt_dims_text(shard->shape.flat ? 1 : 3,
                  (const int64_t[]){shard->shape.c, shard->shape.h, shard->shape.w}, extent);
    dpt_inspect_property("samples", "%s of %s%s", dpt_group_digits(a, shard->samples), extent,
                         shard->shape.flat ? "" : " (channels, height, width)");
    if (shard->files)
        dpt_inspect_property("stored", "as image files, %.0f bytes each on average",
                             (double)shard->images->bytes / (double)shard->samples);
    else if (!shard->shape.flat)
        dpt_inspect_property("layout", "%s%s", shard->nhwc ? "NHWC" : "NCHW",
                             shard->layout == NULL ? " (no attribute says otherwise)" : "");
    if (!shard->classes) {
        dpt_inspect_property("labels", "numbers, %lld per sample", (long long)shard->width);
        return;
    }
    for (size_t i = 0; i < shard->n_counts; i++) {
        present += shard->counts[i] > 0;
        if (shard->counts[i] > 0 && shard->counts[i] < least)
            least = shard->counts[i];
        most = shard->counts[i] > most ? shard->counts[i] : most;
    }
    if (present > 0)
        dpt_inspect_property("labels", "%zu class%s, %s%s%s samples each", present,
                             present == 1 ? "" : "es", dpt_group_digits(a, least),
                             least < most ? " to " : "",
                             least < most ? dpt_group_digits(b, most) : "");
    if (shard->outside > 0)
        dpt_inspect_property("", "%s labels are no class numbers: below 0 or above %d",
                             dpt_group_digits(a, shard->outside), DPT_INSPECT_CLASSES - 1);
}

/* Samples of each class, as many side by side as there is room for. */
static void print_counts(const struct dpt_inspect_shard *shard)
{
    const size_t told = shard->n_counts < CLASSES_TOLD ? shard->n_counts : CLASSES_TOLD;
    int number_width = 1, name_width = 0, count_width = 1, in_line;
    char text[32];

    if (!shard->classes || told == 0)
        return;
    for (size_t i = 0; i < told; i++) {
        const int n = snprintf(NULL, 0, "%zu", i);
        const int count = (int)strlen(dpt_group_digits(text, shard->counts[i]));
        const int name = i < shard->n_names ? (int)strlen(shard->names[i]) + 1 : 0;

        number_width = n > number_width ? n : number_width;
        count_width = count > count_width ? count : count_width;
        name_width = name > name_width ? name : name_width;
    }
    name_width = name_width > NAME_SHOWN ? NAME_SHOWN : name_width;
    in_line = (WIDTH - 2) / (number_width + name_width + count_width + 6);
    in_line = in_line < 1 ? 1 : in_line;
    printf("\n  samples of each class\n");
    for (size_t i = 0; i < told; i++) {
        const bool ends = (int)(i % (size_t)in_line) == in_line - 1 || i + 1 == told;
        char shown[6 * NAME_SHOWN + 8];

        dpt_show_text(shown, i < shard->n_names ? shard->names[i] : "", NAME_SHOWN);
        printf("  %*zu%s%-*.*s %*s%s", number_width, i, name_width > 0 ? " " : ":",
               name_width > 0 ? name_width - 1 : 0, name_width > 0 ? name_width - 1 : 0, shown,
               count_width, dpt_group_digits(text, shard->counts[i]), ends ? "\n" : "  ");
    }
    if (shard->n_counts > told)
        printf("  and classes %zu to %zu\n", told, shard->n_counts - 1);
}

static const char *const verdicts[] = {
    [DPT_SUM_NONE] = "none",     [DPT_SUM_UNCHECKED] = "unchecked",   [DPT_SUM_GOOD] = "ok",
    [DPT_SUM_WRONG] = "DAMAGED", [DPT_SUM_UNREADABLE] = "UNREADABLE",
};

static enum dpt_status print_sets(const struct dpt_inspect *f, bool checkpoint,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_table table = {.title = "data set",
                              .titles = {"type", "shape", "bytes", "stored", "checksum"},
                              .align = "llrll"};
    char dims[DPT_DIMS_TEXT];

    DPT_TRY(dpt_table_open(&table, f->n_sets, err));
    for (size_t i = 0; i < f->n_sets; i++) {
        const struct dpt_inspect_set *set = &f->sets[i];
        struct dpt_table_row *row = dpt_table_add(&table, set->name);

        snprintf(row->cell[0], DPT_TABLE_CELL, "%s", set->type);
        snprintf(row->cell[1], DPT_TABLE_CELL, "%s", dpt_dims_text(set->n_dims, set->dims, dims));
        dpt_group_digits(row->cell[2], set->bytes);
        if (!checkpoint || strcmp(set->stored, "contiguous") != 0)
            snprintf(row->cell[3], DPT_TABLE_CELL, "%s", set->stored);
        snprintf(row->cell[4], DPT_TABLE_CELL, "%s", verdicts[set->sum]);
    }
    dpt_table_print(&table);
out:
    dpt_table_close(&table);
    return status;
}

static enum dpt_status print_values(const struct dpt_inspect *f, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_table table = {
        .title = "values", .titles = {"min", "max", "mean", "rms", "NaN/inf"}, .align = "rrrrr"};
    int64_t nonfinite = 0;

    DPT_TRY(dpt_table_open(&table, f->n_sets, err));
    for (size_t i = 0; i < f->n_sets; i++) {
        const struct dpt_inspect_set *set = &f->sets[i];
        const double values[] = {set->min, set->max, set->mean, set->rms};
        struct dpt_table_row *row;

        if (!set->numbers || set->items == 0)
            continue;
        row = dpt_table_add(&table, set->name);
        for (int c = 0; c < 4; c++)
            snprintf(row->cell[c], DPT_TABLE_CELL, set->finite > 0 ? "%.4g" : "-", values[c]);
        if (set->nonfinite > 0)
            dpt_group_digits(row->cell[4], set->nonfinite);
        nonfinite += set->nonfinite;
    }
    if (table.n > 0)
        dpt_table_print(&table);
    if (table.n > 0 && nonfinite == 0)
        printf("  all of them finite\n");
out:
    dpt_table_close(&table);
    return status;
}

static void print_checksums(const struct dpt_inspect *f, bool checkpoint, enum dpt_trailer trailer)
{
    static const char *const whole[] = {
        [DPT_TRAILER_NONE] = "; that of the whole file is missing",
        [DPT_TRAILER_WRONG] = "; that of the whole file does not",
        [DPT_TRAILER_GOOD] = "; that of the whole file matches",
    };
    size_t n[sizeof verdicts / sizeof verdicts[0]] = {0}, has;

    for (size_t i = 0; i < f->n_sets; i++)
        n[f->sets[i].sum]++;
    has = f->n_sets - n[DPT_SUM_NONE];
    if (has == 0 && !checkpoint) {
        printf("\nno checksum: nothing to verify\n");
        return;
    }
    printf("\nchecksums: %zu of %zu data sets match", n[DPT_SUM_GOOD], has);
    if (n[DPT_SUM_NONE] > 0)
        printf(", %zu ha%s none", n[DPT_SUM_NONE], n[DPT_SUM_NONE] == 1 ? "s" : "ve");
    printf("%s\n", checkpoint ? whole[trailer] : "");
}

static void print_title(const struct dpt_inspect *f, const char *kind)
{
    char target[PATH_MAX], bytes[32];
    const ssize_t n = readlink(f->path, target, sizeof target - 1);

    printf("%s", f->path);
    if (n > 0) {
        target[n] = '\0';
        printf(" -> %s", target);
    }
    printf(": %s, %s bytes\n", kind, dpt_group_digits(bytes, f->bytes));
}

enum dpt_status dpt_inspect_print(struct dpt_inspect *f, enum dpt_trailer trailer,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, found = DPT_OK;
    const bool checkpoint = dpt_checkpoint_is(f, trailer);
    struct dpt_inspect_shard shard = {0};
    struct dpt_error fault;
    bool is_shard = false;

    if (checkpoint)
        dpt_inspect_sort(f);
    else
        found = dpt_inspect_shard(f, &shard, &is_shard, &fault);
    print_title(f, checkpoint ? "checkpoint" : is_shard ? "shard" : "HDF5");
    if (checkpoint) {
        print_checkpoint(f);
    } else if (is_shard && found == DPT_OK && shard.samples + (shard.labels == NULL) > 0) {
        print_shard(&shard);
        print_beside(&shard);
    } else if (!is_shard) {
        dpt_inspect_property("content", "neither a checkpoint nor a shard: it holds no /images or "
                                        "/x");
    }
    DPT_TRY(print_sets(f, checkpoint, err));
    DPT_TRY(print_values(f, err));
    if (found == DPT_OK)
        print_counts(&shard);
    print_checksums(f, checkpoint, trailer);
    if (found != DPT_OK) {
        *err = fault;
        status = found;
    }
out:
    return status;
}
