#include "core/state/board.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/memory.h"

/* Below this many floats one thread is faster than waking the others. */
enum { ALONE = 16 * 1024 };

/* One tensor's numbers, each times `scale`, which the threads look at together. */
struct look {
    const float *x;
    size_t n;
    double scale;
    int threads;
    struct dpt_histogram *parts; /* [threads] */
    double least, inverse;       /* of the bins, once all know the bounds */
};

static void find_bounds(void *arg, int thread)
{
    const struct look *l = arg;
    struct dpt_histogram *h = &l->parts[thread];
    size_t begin, end;

    *h = (struct dpt_histogram){.least = INFINITY, .most = -INFINITY};
    dpt_thread_part(l->n, thread, l->threads, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const double x = l->x[i] * l->scale;

        if (!isfinite(x))
            continue;
        h->least = x < h->least ? x : h->least;
        h->most = x > h->most ? x : h->most;
        h->sum += x;
        h->sum_of_squares += x * x;
        h->n++;
    }
}

static void fill_bins(void *arg, int thread)
{
    const struct look *l = arg;
    struct dpt_histogram *h = &l->parts[thread];
    size_t begin, end;

    dpt_thread_part(l->n, thread, l->threads, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const double x = l->x[i] * l->scale;
        int bin;

        if (!isfinite(x))
            continue;
        bin = (int)((x - l->least) * l->inverse);
        h->bins[bin < DPT_HISTOGRAM_BINS ? bin : DPT_HISTOGRAM_BINS - 1]++;
    }
}

static void run_look(const struct dpt_board *b, struct look *l, void (*work)(void *, int))
{
    if (l->threads == 1)
        work(l, 0);
    else
        dpt_pool_run(b->pool, work, l);
}

static void count_numbers(const struct dpt_board *b, struct look *l, struct dpt_histogram *out)
{
    *out = (struct dpt_histogram){.least = INFINITY, .most = -INFINITY};
    l->threads = l->n < ALONE ? 1 : dpt_pool_threads(b->pool);
    run_look(b, l, find_bounds);
    for (int i = 0; i < l->threads; i++) {
        out->least = fmin(out->least, l->parts[i].least);
        out->most = fmax(out->most, l->parts[i].most);
        out->sum += l->parts[i].sum;
        out->sum_of_squares += l->parts[i].sum_of_squares;
        out->n += l->parts[i].n;
    }
    if (out->n == 0)
        return;
    l->least = out->least;
    l->inverse = out->most > out->least ? DPT_HISTOGRAM_BINS / (out->most - out->least) : 0;
    run_look(b, l, fill_bins);
    for (int i = 0; i < l->threads; i++)
        for (int k = 0; k < DPT_HISTOGRAM_BINS; k++)
            out->bins[k] += l->parts[i].bins[k];
}

static void tell_arena(struct dpt_board *b, const struct dpt_graph *graph, const char *what,
                       const float *arena, double scale)
{
    struct look look = {.scale = scale, .parts = b->parts};
    struct dpt_histogram histogram;
    char tag[DPT_NAME + 32];

    for (int32_t i = 0; i < graph->n_tensors; i++) {
        const struct dpt_tensor *tensor = &graph->tensors[i];

        look.x = arena + tensor->offset;
        look.n = (size_t)tensor->count;
        count_numbers(b, &look, &histogram);
        snprintf(tag, sizeof tag, "%s/%s", what, tensor->name);
        dpt_tensorboard_histogram(&b->file, tag, &histogram);
    }
}

void dpt_board_weights(struct dpt_board *b, int64_t step, const struct dpt_graph *graph,
                       const float *params, const float *gradient, double weight)
{
    dpt_tensorboard_begin(&b->file, step);
    tell_arena(b, graph, "weights", params, 1);
    if (weight > 0)
        tell_arena(b, graph, "gradients", gradient, 1 / weight);
    dpt_tensorboard_end(&b->file);
    b->weights_step = step;
}

/* The job as Markdown shows it: as it is. */
static void tell_job(struct dpt_board *b, const char *job_text)
{
    struct dpt_str text = {0};
    const char *line = job_text, *end;

    for (; (end = strchr(line, '\n')) != NULL; line = end + 1)
        dpt_str_printf(&text, "    %.*s\n", (int)(end - line), line);
    dpt_tensorboard_text(&b->file, "job", text.text != NULL ? text.text : "");
    b->file.pending.failed = b->file.pending.failed || text.failed;
    dpt_str_release(&text);
}

enum dpt_status dpt_board_open(struct dpt_board *b, const char *folder, int64_t resumed,
                               const struct dpt_board_start *start, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    *b = (struct dpt_board){.lock = start->lock, .pool = start->pool, .weights_step = -1};
    DPT_TRY(dpt_tensorboard_open(&b->file, folder, resumed, err));
    b->parts = dpt_alloc_array((size_t)dpt_pool_threads(b->pool), sizeof *b->parts);
    if (b->parts == NULL)
        DPT_TRY(dpt_fail_memory(err, "histograms", 0));
    if (b->file.fresh || resumed < 0) { /* else it is there, and its first word counts */
        dpt_tensorboard_begin(&b->file, 0);
        dpt_tensorboard_hparams(&b->file, start->job, start->ranks);
        tell_job(b, start->job_text);
        dpt_tensorboard_text(&b->file, "machine", start->machine);
        dpt_tensorboard_end(&b->file);
    }
    DPT_TRY(dpt_board_flush(b, true, err));
out:
    return status;
}

void dpt_board_close(struct dpt_board *b)
{
    dpt_tensorboard_close(&b->file);
    dpt_free(b->parts);
    b->parts = NULL;
}

enum dpt_status dpt_board_step(struct dpt_board *b, int64_t step, const struct dpt_board_step *told,
                               struct dpt_error *err)
{
    dpt_tensorboard_begin(&b->file, step);
    dpt_tensorboard_scalar(&b->file, "train/loss", told->loss);
    dpt_tensorboard_scalar(&b->file, "train/accuracy", told->accuracy);
    dpt_tensorboard_scalar(&b->file, "train/lr", told->lr);
    dpt_tensorboard_scalar(&b->file, "train/gradient_norm", told->norm);
    dpt_tensorboard_scalar(&b->file, "train/samples_per_second", told->rate);
    dpt_tensorboard_end(&b->file);
    return dpt_board_flush(b, false, err);
}

enum dpt_status dpt_board_evaluation(struct dpt_board *b, int64_t step, const char *split,
                                     double loss, double accuracy, struct dpt_error *err)
{
    char tag[64];

    dpt_tensorboard_begin(&b->file, step);
    snprintf(tag, sizeof tag, "%s/loss", split);
    dpt_tensorboard_scalar(&b->file, tag, loss);
    snprintf(tag, sizeof tag, "%s/accuracy", split);
    dpt_tensorboard_scalar(&b->file, tag, accuracy);
    dpt_tensorboard_end(&b->file);
    return dpt_board_flush(b, true, err);
}

enum dpt_status dpt_board_flush(struct dpt_board *b, bool now, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (!b->file.open || (!now && !dpt_tensorboard_due(&b->file)))
        return DPT_OK;
    DPT_TRY(dpt_lock_check(b->lock, err));
    DPT_TRY(dpt_tensorboard_flush(&b->file, err));
out:
    return status;
}

enum dpt_status dpt_board_end(struct dpt_board *b, int64_t step, enum dpt_status ended,
                              struct dpt_error *err)
{
    if (ended != DPT_STOPPED) { /* that one goes on some day */
        dpt_tensorboard_begin(&b->file, step);
        dpt_tensorboard_outcome(&b->file, ended == DPT_OK);
        dpt_tensorboard_end(&b->file);
    }
    return dpt_board_flush(b, true, err);
}
