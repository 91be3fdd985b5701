/* What a run tells TensorBoard: log.tensorboard. */
#include <math.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/train/gather.h"
#include "core/train/profile.h"
#include "core/train/run.h"
#include "data/sets/dataset.h"

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
        h->squares += x * x;
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

static void run_look(const struct dpt_trainer *t, struct look *l, void (*work)(void *, int))
{
    if (l->threads == 1)
        work(l, 0);
    else
        dpt_pool_run(t->team.pool, work, l);
}

static void count_numbers(const struct dpt_trainer *t, struct look *l, struct dpt_histogram *out)
{
    *out = (struct dpt_histogram){.least = INFINITY, .most = -INFINITY};
    l->threads = l->n < ALONE ? 1 : t->team.threads;
    run_look(t, l, find_bounds);
    for (int i = 0; i < l->threads; i++) {
        out->least = fmin(out->least, l->parts[i].least);
        out->most = fmax(out->most, l->parts[i].most);
        out->sum += l->parts[i].sum;
        out->squares += l->parts[i].squares;
        out->n += l->parts[i].n;
    }
    if (out->n == 0)
        return;
    l->least = out->least;
    l->inverse = out->most > out->least ? DPT_HISTOGRAM_BINS / (out->most - out->least) : 0;
    run_look(t, l, fill_bins);
    for (int i = 0; i < l->threads; i++)
        for (int k = 0; k < DPT_HISTOGRAM_BINS; k++)
            out->bins[k] += l->parts[i].bins[k];
}

static void tell_arena(struct dpt_run *run, const char *what, const float *arena, double scale)
{
    const struct dpt_trainer *t = &run->trainer;
    struct look look = {.scale = scale, .parts = run->counts};
    struct dpt_histogram histogram;
    char tag[DPT_NAME + 32];

    for (int32_t i = 0; i < t->model.graph.n_tensors; i++) {
        const struct dpt_tensor *tensor = &t->model.graph.tensors[i];

        look.x = arena + tensor->offset;
        look.n = (size_t)tensor->count;
        count_numbers(t, &look, &histogram);
        snprintf(tag, sizeof tag, "%s/%s", what, tensor->name);
        dpt_tensorboard_histogram(&run->board, tag, &histogram);
    }
}

void dpt_board_weights(struct dpt_run *run)
{
    struct dpt_trainer *t = &run->trainer;
    const double weight = t->reduction.sum[t->model.graph.floats + DPT_TAIL_WEIGHT];

    if (!run->board.open || run->board_step == t->progress.step)
        return;
    dpt_profile_begin(t->profile, t->progress.step);
    dpt_tensorboard_begin(&run->board, t->progress.step);
    tell_arena(run, "weights", t->arenas.params, 1);
    if (weight > 0)
        tell_arena(run, "gradients", t->reduction.sum, 1 / weight);
    dpt_tensorboard_end(&run->board);
    dpt_profile_end(t->profile, DPT_SPAN_EVALUATE);
    run->board_step = t->progress.step;
}

/* The job as Markdown shows it: as it is. */
static void tell_job(struct dpt_run *run)
{
    struct dpt_str text = {0};
    const char *line = run->resolved.text, *end;

    for (; (end = strchr(line, '\n')) != NULL; line = end + 1)
        dpt_str_printf(&text, "    %.*s\n", (int)(end - line), line);
    dpt_tensorboard_text(&run->board, "job", text.text != NULL ? text.text : "");
    run->board.pending.failed = run->board.pending.failed || text.failed;
    dpt_str_release(&text);
}

static void tell_machine(struct dpt_run *run)
{
    const struct dpt_trainer *t = &run->trainer;
    struct dpt_str text = {0};

    dpt_str_printf(&text,
                   "- dptrain %s\n- ranks: %d, nodes: %d, threads a rank: %d\n- host: %s\n"
                   "- device: %s (%s)\n- %s\n- HDF5 %s\n- parameters: %lld\n",
                   run->version, t->comm->world.size, t->comm->nodes, t->team.threads,
                   t->comm->host, t->backend->name, t->backend->describe(), dpt_comm_version(),
                   dpt_h5_version(), (long long)t->model.graph.parameters);
    dpt_tensorboard_text(&run->board, "machine", text.text != NULL ? text.text : "");
    run->board.pending.failed = run->board.pending.failed || text.failed;
    dpt_str_release(&text);
}

enum dpt_status dpt_board_start(struct dpt_run *run, struct dpt_error *err)
{
    const struct dpt_trainer *t = &run->trainer;

    if (!run->board.open)
        return DPT_OK;
    run->counts = dpt_alloc_array((size_t)t->team.threads, sizeof *run->counts);
    if (run->counts == NULL)
        return dpt_fail_memory(err, "histograms", 0);
    if (run->board.fresh || run->resumed < 0) { /* else it is there, and its first word counts */
        dpt_tensorboard_begin(&run->board, 0);
        dpt_tensorboard_hparams(&run->board, run->conf->root, t->comm->world.size);
        tell_job(run);
        tell_machine(run);
        dpt_tensorboard_end(&run->board);
    }
    return dpt_board_flush(run, true, err);
}

enum dpt_status dpt_board_step(struct dpt_run *run, double loss, double accuracy, double rate,
                               struct dpt_error *err)
{
    struct dpt_tensorboard *b = &run->board;

    dpt_tensorboard_begin(b, run->trainer.progress.step);
    dpt_tensorboard_scalar(b, "train/loss", loss);
    dpt_tensorboard_scalar(b, "train/accuracy", accuracy);
    dpt_tensorboard_scalar(b, "train/lr", run->lr);
    dpt_tensorboard_scalar(b, "train/gradient_norm", run->norm);
    dpt_tensorboard_scalar(b, "train/samples_per_second", rate);
    dpt_tensorboard_end(b);
    return dpt_board_flush(run, false, err);
}

enum dpt_status dpt_board_evaluation(struct dpt_run *run, const char *split, double loss,
                                     double accuracy, struct dpt_error *err)
{
    struct dpt_tensorboard *b = &run->board;
    char tag[64];

    dpt_tensorboard_begin(b, run->trainer.progress.step);
    snprintf(tag, sizeof tag, "%s/loss", split);
    dpt_tensorboard_scalar(b, tag, loss);
    snprintf(tag, sizeof tag, "%s/accuracy", split);
    dpt_tensorboard_scalar(b, tag, accuracy);
    dpt_tensorboard_end(b);
    return dpt_board_flush(run, true, err);
}

enum dpt_status dpt_board_flush(struct dpt_run *run, bool now, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (!run->board.open || (!now && !dpt_tensorboard_due(&run->board)))
        return DPT_OK;
    DPT_TRY(dpt_lock_check(run->lock, err));
    DPT_TRY(dpt_tensorboard_flush(&run->board, err));
out:
    return status;
}

enum dpt_status dpt_board_end(struct dpt_run *run, enum dpt_status ended, struct dpt_error *err)
{
    if (ended != DPT_STOPPED) { /* that one goes on some day */
        dpt_tensorboard_begin(&run->board, run->trainer.progress.step);
        dpt_tensorboard_outcome(&run->board, ended == DPT_OK);
        dpt_tensorboard_end(&run->board);
    }
    return dpt_board_flush(run, true, err);
}

void dpt_board_close(struct dpt_run *run)
{
    dpt_tensorboard_close(&run->board);
    dpt_free(run->counts);
    run->counts = NULL;
}
