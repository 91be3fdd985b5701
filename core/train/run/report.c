#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/train/layout/report.h"
#include "core/train/run/run.h"
#include "core/train/setup/choose.h"
#include "core/train/setup/warnings.h"
#include "core/train/step/evaluate.h"
#include "core/train/team.h"
#include "core/train/update/schedule.h"
#include "data/sets/dataset.h"

enum { DIGITS = 32, COLUMNS = 79 };

/* "2 ranks on node07, 4 threads each" or "4 ranks on 2 hosts: node07 (2 ranks, 4 threads each), …"
 */
static void list_hosts(const struct dpt_comm *comm, const int32_t *threads, struct dpt_str *out)
{
    const int n = comm->world.size;
    int hosts = 0;

    for (int i = 0; i < n; i++)
        hosts += i == 0 || strcmp(dpt_comm_host(comm, i), dpt_comm_host(comm, i - 1)) != 0;
    dpt_str_printf(out, "%d rank%s on ", n, n == 1 ? "" : "s");
    if (hosts > 1)
        dpt_str_printf(out, "%d hosts: ", hosts);
    for (int i = 0, k; i < n; i = k) {
        const char *host = dpt_comm_host(comm, i);
        bool even = true;

        for (k = i; k < n && strcmp(dpt_comm_host(comm, k), host) == 0; k++)
            even = even && threads[k] == threads[i];
        dpt_str_printf(out, "%s%s (", i == 0 ? "" : ", ", host);
        if (hosts > 1)
            dpt_str_printf(out, "%d rank%s, ", k - i, k - i == 1 ? "" : "s");
        for (int j = i; j < (even ? i + 1 : k); j++)
            dpt_str_printf(out, "%s%d", j == i ? "" : "+", threads[j]);
        dpt_str_printf(out, " thread%s%s)", even && threads[i] == 1 ? "" : "s",
                       k - i > 1 && even ? " each" : "");
    }
}

static void describe_data(const struct dpt_trainer *t, struct dpt_str *out)
{
    char digits[DIGITS], shape[40];

    for (const struct dpt_split *s = t->data.split; s < t->data.split + DPT_SPLITS; s++)
        if (s->present)
            dpt_str_printf(out, "%s%s %s%s", s == t->data.split ? "" : ", ",
                           dpt_group_digits(digits, s->sampler.samples), s->name,
                           s->set->weights != NULL ? " (weighted)" : "");
    dpt_str_printf(out, "; samples %s %s, %s", dpt_shape_text(&t->data.train.set->shape, shape),
                   t->data.train.set->files ? "decoded from image files"
                   : t->data.train.set->u8  ? "uint8"
                                            : "float32",
                   t->data.train.set->memory != NULL ? "in memory" : "read while training");
}

static void describe_rate(const struct dpt_trainer *t, struct dpt_str *out)
{
    const double base = dpt_optimizer_lr(&t->job->optimizer);

    dpt_str_printf(out, "%s, learning rate %g", t->job->optimizer.variant->name, t->lr);
    if (t->lr != base)
        dpt_str_printf(out, " (%g scaled to the batch)", base);
    dpt_str_printf(out, ", %s", t->job->schedule.variant->name);
    if (t->job->train.ema > 0)
        dpt_str_printf(out, "; the weights' average is evaluated (ema %g)", t->job->train.ema);
}

static bool has_accuracy(const struct dpt_run *run)
{
    return dpt_loss_judges(run->trainer.model.loss.kind);
}

/* The accuracy, or NaN if there are no classes. */
static double accuracy_of(const struct dpt_run *run, const struct dpt_metric_sums *metric_sums)
{
    return has_accuracy(run) ? dpt_metric_sums_accuracy(metric_sums) : NAN;
}

static const char *accuracy_text(const struct dpt_run *run,
                                 const struct dpt_metric_sums *metric_sums, char buf[DIGITS])
{
    buf[0] = '\0';
    if (has_accuracy(run))
        snprintf(buf, DIGITS, "  %s %.4f", dpt_trainer_accuracy_name(&run->trainer),
                 dpt_metric_sums_accuracy(metric_sums));
    return buf;
}

/* The words before "loss": the loss of scaled targets is not in their units. */
static const char *scaled_text(const struct dpt_run *run)
{
    return dpt_target_scale_changes(&run->trainer.targets) ? "scaled " : "";
}

static void log_lines(const struct dpt_run *run)
{
    const struct dpt_every *every = &run->log_every;
    const char *unit = every->unit == DPT_SECONDS ? "second"
                       : every->unit == DPT_STEPS ? "step"
                                                  : "epoch";

    if (every->unit != DPT_NEVER)
        dpt_log_info(run->trainer.log,
                     "  lines    every %g %s%s: mean %sloss%s%s and samples/s since the last one",
                     every->n, unit, every->n == 1 ? "" : "s", scaled_text(run),
                     has_accuracy(run) ? ", " : "",
                     has_accuracy(run) ? dpt_trainer_accuracy_name(&run->trainer) : "");
}

/* Adds, after the number of ranks, what a person could do about it. cores: those that a rank may
 * use. */
static void advise_ranks(const struct dpt_trainer *t, double cores, struct dpt_str *out)
{
    const bool gpu = t->backend->devices != NULL;

    if (t->comm->world.size == 1 && !gpu)
        dpt_str_printf(out, "; --ranks N or mpirun -np N starts more");
    else if (cores < 1 - 1e-6 && !gpu)
        dpt_str_printf(out, "; ranks that share a core slow each other down");
}

/* Logs the backend and, for bf16, the CPU's instructions that multiply it. */
static void log_device(const struct dpt_trainer *t)
{
    const char *bf16 = t->backend->bf16();
    char text[160] = "";

    if (t->job->device.precision == DPT_PRECISION_BF16)
        snprintf(text, sizeof text, " by %s",
                 bf16 != NULL ? bf16
                              : "fp32's instructions, no faster than fp32 (none for bf16 here)");
    dpt_log_info(t->log, "  device   %s (%s), %s%s", t->backend->name, t->backend->uses(),
                 dpt_job_precision(t->job), text);
}

static void log_shards(const struct dpt_layout *l, struct dpt_log *log)
{
    static const char *const what[DPT_SHARD_COUNT] = {
        [DPT_SHARD_OPTIMIZER] = "the optimizer's state",
        [DPT_SHARD_GRADIENTS] = "the optimizer's state and the gradients",
        [DPT_SHARD_PARAMETERS] = "the optimizer's state, the gradients and the weights",
    };

    if (l->updaters > 1)
        dpt_log_info(log, "  shards   %s, a part on each of %d %s", what[l->job->parallel.shard],
                     l->updaters, l->on_device ? "GPUs" : "ranks");
}

static void log_header(const struct dpt_run *run, const int32_t *threads, double cores)
{
    const struct dpt_trainer *t = &run->trainer;
    const struct dpt_sampler *s = &t->data.train.sampler;
    const struct dpt_patience *stop = &t->job->train.early_stop;
    const int also = t->job->train.also;
    const int32_t micros = (s->global + s->micro - 1) / s->micro;
    const int64_t all = t->model.graph.parameters, learned = dpt_graph_learned(&t->model.graph);
    char digits[DIGITS], steps[DIGITS], each[64] = "", part[64] = "";
    struct dpt_str text = {0};

    if (learned < all)
        snprintf(part, sizeof part, "learns %s of ", dpt_group_digits(digits, learned));
    if (t->job->batch.per_rank != 0)
        snprintf(each, sizeof each, " (%lld per rank)", (long long)t->job->batch.per_rank);
    dpt_log_info(t->log, "dptrain %s: %s", DPT_VERSION, t->job->name);
    list_hosts(t->comm, threads, &text);
    advise_ranks(t, cores, &text);
    dpt_log_info(t->log, "  ranks    %s", text.text);
    if (t->backend->devices != NULL)
        dpt_gpus_log(t);
    else
        log_device(t);
    dpt_str_clear(&text);
    describe_data(t, &text);
    dpt_log_info(t->log, "  data     %s", text.text);
    dpt_log_info(t->log, "  model    %s, %s%s parameters", t->job->model.variant->name, part,
                 dpt_group_digits(digits, all));
    dpt_str_clear(&text);
    dpt_layout_describe_stages(&t->layout, &text);
    if (text.length > 0)
        dpt_log_info(t->log, "  stages   %s", text.text);
    dpt_str_clear(&text);
    dpt_layout_describe_parts(&t->layout, &text);
    if (text.length > 0)
        dpt_log_info(t->log, "  tensor   %s", text.text);
    log_shards(&t->layout, t->log);
    dpt_log_info(t->log, "  batch    %d%s = %d micro-batch%s x %d%s", s->global, each, micros,
                 micros == 1 ? "" : "es", s->micro,
                 s->global % s->micro == 0 ? "" : ", the last one short");
    if (t->reduction.buckets > 0)
        dpt_log_info(t->log, "  sums     between nodes in %d buckets, while backward goes on",
                     t->reduction.buckets);
    dpt_str_clear(&text);
    describe_rate(t, &text);
    dpt_log_info(t->log, "  train    %s steps, %s per epoch; %s", dpt_group_digits(steps, t->steps),
                 dpt_group_digits(digits, t->steps_per_epoch), text.text);
    if (stop->patience > 0)
        dpt_log_info(t->log, "  stops    sooner where %lld evaluation%s bring%s no better %s%s%s",
                     (long long)stop->patience, stop->patience == 1 ? "" : "s",
                     stop->patience == 1 ? "s" : "", dpt_monitor_name(stop->monitor),
                     also != DPT_MONITOR_AUTO ? " or " : "",
                     also != DPT_MONITOR_AUTO ? dpt_monitor_name(also) : "");
    dpt_init_log(t, &run->init, run->resumed >= 0);
    log_lines(run);
    dpt_log_info(t->log, "  output   %s", t->job->output);
    dpt_warn_data(t->job, &t->data, &t->model, t->log);
    dpt_warn_job(t->job, &t->model, t->steps, t->steps_per_epoch, t->lr, t->log);
    dpt_warn_idle(&t->layout, t->log);
    if (t->comm->world.size == 1 && t->backend->devices != NULL && t->gpus[0].info.count > 1)
        dpt_log_warn(t->log,
                     "one rank only, so one GPU of %d works; `mpirun -np N dptrain ...` or "
                     "`--ranks N` starts N",
                     t->gpus[0].info.count);
    dpt_str_release(&text);
}

enum dpt_status dpt_report_line(struct dpt_run *run, struct dpt_error *err)
{
    const enum dpt_status status = dpt_lock_check(run->lock, err);

    return status == DPT_OK ? dpt_metrics_end(&run->metrics, err) : status;
}

/* nodes: [ranks] */
static enum dpt_status start_event(struct dpt_run *run, const int32_t *nodes, struct dpt_error *err)
{
    const struct dpt_trainer *t = &run->trainer;
    struct dpt_metrics *m = &run->metrics;

    dpt_metrics_begin(m, "run");
    dpt_metrics_text(m, "name", t->job->name);
    dpt_metrics_text(m, "version", DPT_VERSION);
    if (t->fault.action != NULL)
        dpt_metrics_text(m, "fault", getenv("DPTRAIN_FAULT"));
    dpt_metrics_text(m, "mpi", dpt_comm_version());
    dpt_metrics_text(m, "hdf5", dpt_h5_version());
    dpt_metrics_text(m, "device", t->backend->name);
    dpt_metrics_text(m, "library", t->backend->describe());
    if (t->backend->devices != NULL)
        dpt_gpus_metrics(t, m);
    dpt_metrics_int(m, "ranks", t->comm->world.size);
    dpt_metrics_int(m, "hosts", t->comm->nodes);
    dpt_metrics_text(m, "host", t->comm->host);
    dpt_metrics_int(m, "threads", t->layout.threads);
    dpt_layout_metrics(&t->layout, nodes, m);
    dpt_metrics_int(m, "parameters", t->model.graph.parameters);
    if (dpt_graph_learned(&t->model.graph) < t->model.graph.parameters)
        dpt_metrics_int(m, "learned", dpt_graph_learned(&t->model.graph));
    dpt_metrics_int(m, "train_samples", t->data.train.sampler.samples);
    if (t->data.valid.present)
        dpt_metrics_int(m, "valid_samples", t->data.valid.sampler.samples);
    if (t->data.test.present)
        dpt_metrics_int(m, "test_samples", t->data.test.sampler.samples);
    dpt_metrics_int(m, "global", t->data.train.sampler.global);
    dpt_metrics_int(m, "micro", t->data.train.sampler.micro);
    if (t->reduction.buckets > 0)
        dpt_metrics_int(m, "buckets", t->reduction.buckets);
    dpt_metrics_int(m, "steps", t->steps);
    dpt_metrics_int(m, "steps_per_epoch", t->steps_per_epoch);
    dpt_metrics_real(m, "lr", t->lr);
    if (dpt_target_scale_changes(&t->targets))
        dpt_metrics_text(m, "targets", "scaled");
    if (dpt_trainer_labels(t) > 1)
        dpt_metrics_int(m, "labels", dpt_trainer_labels(t));
    if (run->init.format != NULL) {
        dpt_metrics_text(m, "init_from", t->job->init.from);
        dpt_metrics_text(m, "init_format", run->init.format);
        dpt_metrics_int(m, "init_tensors", run->init.from);
        dpt_metrics_int(m, "init_random", run->init.random);
    }
    if (run->resumed >= 0)
        dpt_metrics_int(m, "resumed_from_step", run->resumed);
    return dpt_report_line(run, err);
}

enum dpt_status dpt_report_start(struct dpt_run *run, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_comm *comm = run->trainer.comm;
    const int32_t mine = run->trainer.layout.threads;
    const size_t ranks = (size_t)comm->world.size;
    int32_t *threads = NULL, *nodes; /* every rank's */
    double cores;

    status = DPT_ALLOCATE(threads, 2 * ranks, "the list of ranks", err);
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    nodes = threads + ranks;
    DPT_TRY(dpt_group_allgather(&comm->world, &mine, threads, sizeof mine, err));
    DPT_TRY(dpt_comm_number_nodes(comm, nodes, err));
    DPT_TRY(dpt_core_share(&comm->node, &cores, err));
    if (comm->world.rank == 0) {
        log_header(run, threads, cores);
        status = start_event(run, nodes, err);
    }
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
out:
    dpt_free(threads);
    return status;
}

/* Writes the seconds and the memory of every rank or, if there are more than a person would read,
 * the least, the mean and the most. */
static void write_ranks(struct dpt_run *run)
{
    struct dpt_metrics *m = &run->metrics;
    const struct dpt_rank_work *work = run->rank_work;
    const int n = run->trainer.comm->world.size;
    double list[DPT_RANKS_LISTED], sum = 0;
    int low = 0, high = 0, largest = 0;

    if (work == NULL || run->log_every.unit == DPT_SECONDS)
        return;
    for (int i = 0; i < n; i++) {
        low = work[i].seconds < work[low].seconds ? i : low;
        high = work[i].seconds > work[high].seconds ? i : high;
        largest = work[i].bytes > work[largest].bytes ? i : largest;
        sum += work[i].seconds;
    }
    for (int i = 0; i < n && n <= DPT_RANKS_LISTED; i++)
        list[i] = work[i].seconds;
    if (n <= DPT_RANKS_LISTED)
        dpt_metrics_reals(m, "rank_seconds", list, (size_t)n);
    dpt_metrics_real(m, "rank_seconds_mean", sum / n);
    dpt_metrics_real(m, "rank_seconds_least", work[low].seconds);
    dpt_metrics_real(m, "rank_seconds_most", work[high].seconds);
    dpt_metrics_int(m, "slowest_rank", high);
    for (int i = 0; i < n && n <= DPT_RANKS_LISTED; i++)
        list[i] = work[i].bytes;
    if (n <= DPT_RANKS_LISTED)
        dpt_metrics_reals(m, "rank_bytes", list, (size_t)n);
    dpt_metrics_real(m, "rank_bytes_most", work[largest].bytes);
}

const char *dpt_report_rate(double rate, char digits[DPT_RATE_TEXT])
{
    const double unit = pow(10, fmax(0, floor(log10(fmax(rate, 1))) - 2));

    return dpt_group_digits(digits, (long long)(round(rate / unit) * unit));
}

/*
 * "epoch 1/4  step 50/1784  mean loss 2.17  accuracy 0.2134  1 967/s  1:53 left", without its least
 * important parts if it would not fit. All further lines leave these out too, so that they stay
 * alike.
 */
static void write_step(struct dpt_run *run, char *text, size_t size)
{
    enum { NO_UNIT = 1, NO_STEPS, NO_EPOCHS, NO_CLOCK };
    const struct dpt_trainer *t = &run->trainer;
    const struct dpt_progress *p = &t->progress;
    const int64_t done = p->step - (run->resumed > 0 ? run->resumed : 0);
    const double left = run->training / (double)done * (double)(t->steps - p->step);
    const int64_t epochs = (t->steps - 1) / t->steps_per_epoch + 1;
    const double rate = (double)run->window.metric_sums.samples / run->window.seconds;
    char of_steps[DIGITS], of_epochs[DIGITS], digits[DIGITS], clock[DIGITS], end[DIGITS + 8];
    char accuracy[DIGITS];

    snprintf(of_steps, sizeof of_steps, "/%lld", (long long)t->steps);
    snprintf(of_epochs, sizeof of_epochs, "/%lld", (long long)epochs);
    snprintf(end, sizeof end, "  %s left", dpt_show_clock(left, clock));
    accuracy_text(run, &run->window.metric_sums, accuracy);
    while (snprintf(text, size, "epoch %lld%s  step %lld%s  mean %sloss %.4g%s  %s%s%s",
                    (long long)dpt_run_epoch(t, p->step), run->cuts < NO_EPOCHS ? of_epochs : "",
                    (long long)p->step, run->cuts < NO_STEPS ? of_steps : "", scaled_text(run),
                    dpt_metric_sums_loss(&run->window.metric_sums), accuracy,
                    dpt_report_rate(rate, digits), run->cuts < NO_UNIT ? " samples/s" : "/s",
                    run->cuts < NO_CLOCK ? end : "") > COLUMNS &&
           run->cuts < NO_CLOCK)
        run->cuts++;
}

/* Begins an event of a step with the means of some samples. split: may be NULL. */
static void begin_means(struct dpt_run *run, const char *event, int64_t step, const char *split,
                        const struct dpt_metric_sums *metric_sums)
{
    struct dpt_metrics *m = &run->metrics;

    dpt_metrics_begin(m, event);
    dpt_metrics_int(m, "step", step);
    dpt_metrics_int(m, "epoch", dpt_run_epoch(&run->trainer, step));
    if (split != NULL)
        dpt_metrics_text(m, "split", split);
    dpt_metrics_real(m, "loss", dpt_metric_sums_loss(metric_sums));
    if (has_accuracy(run))
        dpt_metrics_real(m, "accuracy", dpt_metric_sums_accuracy(metric_sums));
}

enum dpt_status dpt_report_step(struct dpt_run *run, bool line, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_progress *p = &run->trainer.progress;
    struct dpt_metrics *m = &run->metrics;
    const struct dpt_metric_sums *sums = &run->window.metric_sums;
    const double loss = dpt_metric_sums_loss(sums);
    const double rate = (double)sums->samples / run->window.seconds;
    const struct dpt_board_scalar scalars[] = {{"loss", loss},
                                               {"accuracy", accuracy_of(run, sums)},
                                               {"lr", run->lr},
                                               {"gradient_norm", run->norm},
                                               {"samples_per_second", rate}};
    char text[200];

    write_step(run, text, sizeof text);
    (line ? dpt_log_progress : dpt_log_live)(run->trainer.log, text);
    if (!line)
        return DPT_OK;
    begin_means(run, "train", p->step, NULL, sums);
    dpt_metrics_real(m, "lr", run->lr);
    dpt_metrics_real(m, "gradient_norm", run->norm);
    dpt_metrics_real(m, "samples_per_s", rate);
    dpt_metrics_int(m, "samples", p->samples);
    write_ranks(run);
    run->last_loss = loss;
    memset(&run->window, 0, sizeof run->window);
    DPT_TRY(dpt_report_line(run, err));
    DPT_TRY(dpt_board_scalars(&run->board, p->step, "train", scalars,
                              sizeof scalars / sizeof *scalars, false, err));
out:
    return status;
}

/* Writes TensorBoard's scalars of a set of samples. */
static enum dpt_status show_set(struct dpt_run *run, const char *split,
                                const struct dpt_metric_sums *sums, const struct dpt_scores *scores,
                                struct dpt_error *err)
{
    enum { MOST = 16 };
    struct dpt_board_scalar scalars[MOST] = {{"loss", dpt_metric_sums_loss(sums)},
                                             {"accuracy", accuracy_of(run, sums)}};
    size_t n = 2;

    for (const struct dpt_score *row = dpt_scores; row->name != NULL && n < MOST; row++)
        scalars[n++] = (struct dpt_board_scalar){row->name, dpt_score_value(scores, row)};
    return dpt_board_scalars(&run->board, run->trainer.progress.step, split, scalars, n, true, err);
}

/* The set of samples that means were taken over. */
struct told {
    const char *event, *split; /* "eval", "valid"; split NULL: an epoch */
    int64_t step;              /* the weights' */
    double seconds;
    const char *more; /* after the line */
};

/* Reports the means of a set in a line, an event, and on the board. */
static enum dpt_status report_set(struct dpt_run *run, const struct told *told,
                                  const struct dpt_metric_sums *sums,
                                  const struct dpt_scores *scores, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_trainer *t = &run->trainer;
    const struct dpt_progress *p = &t->progress;
    const int64_t epoch = dpt_run_epoch(t, told->step);
    const double loss = dpt_metric_sums_loss(sums);
    const bool shown = p->step == t->steps || told->step != p->step || dpt_run_stops_early(run) ||
                       told->step % t->steps_per_epoch != 0 || epoch % run->epochs_shown == 0;
    char accuracy[DIGITS], scored[DPT_SCORES_TEXT], balanced[DIGITS + 32] = "";

    if (told->split == NULL) { /* for the end */
        if (run->first_epoch == 0) {
            run->first_epoch = epoch;
            run->first_epoch_loss = loss;
        }
        run->last_epoch = epoch;
        run->last_epoch_loss = run->last_loss = loss;
    }
    if (scores->uneven)
        snprintf(balanced, sizeof balanced, "  balanced accuracy %.4f", scores->balanced_accuracy);
    (shown ? dpt_log_info : dpt_log_detail)(
        t->log, "epoch %lld  step %lld  %s %sloss %.4g%s%s%s%s%s", (long long)epoch,
        (long long)told->step, told->split != NULL ? told->split : "train", scaled_text(run), loss,
        accuracy_text(run, sums, accuracy), dpt_scores_text(scores, false, "  ", "  ", scored),
        balanced, sums->weight != (double)sums->samples ? "  (weighted)" : "", told->more);
    begin_means(run, told->event, told->step, told->split, sums);
    for (const struct dpt_score *row = dpt_scores; row->name != NULL; row++)
        if (!isnan(dpt_score_value(scores, row)))
            dpt_metrics_real(&run->metrics, row->name, dpt_score_value(scores, row));
    if (scores->uneven)
        dpt_metrics_real(&run->metrics, "rare_recall", scores->rare_recall);
    if (scores->positive >= 0)
        dpt_metrics_int(&run->metrics, "positive", scores->positive);
    dpt_metrics_int(&run->metrics, "samples", sums->samples);
    if (sums->weight != (double)sums->samples)
        dpt_metrics_real(&run->metrics, "weight", sums->weight);
    dpt_metrics_real(&run->metrics, "seconds", told->seconds);
    if (p->best_monitor[0] != '\0' && told->step == p->best_step && sums != &run->test)
        dpt_metrics_text(&run->metrics, "best", p->best_monitor);
    DPT_TRY(dpt_report_line(run, err));
    if (told->step == p->step)
        DPT_TRY(show_set(run, told->split != NULL ? told->split : "epoch", sums, scores, err));
out:
    return status;
}

/* If the run was resumed in mid-epoch, or skipped steps, the line adds how many samples it is
 * about. */
enum dpt_status dpt_report_epoch(struct dpt_run *run, struct dpt_error *err)
{
    const struct dpt_sampler *s = &run->trainer.data.train.sampler;
    const struct dpt_metric_sums *sums = &run->epoch.metric_sums;
    struct dpt_scores none;
    char digits[DIGITS], part[DIGITS + 16] = "";
    const int64_t last = run->trainer.steps_per_epoch - 1;

    if (sums->samples < last * s->global + dpt_sampler_count(s, last))
        snprintf(part, sizeof part, "  (%s samples)", dpt_group_digits(digits, sums->samples));
    dpt_scores_clear(&none);
    return report_set(run,
                      &(struct told){.event = "epoch",
                                     .step = run->trainer.progress.step,
                                     .seconds = run->epoch.seconds,
                                     .more = part},
                      sums, &none, err);
}

enum dpt_status dpt_report_evaluation(struct dpt_run *run, const char *split, int64_t step,
                                      const struct dpt_metric_sums *metric_sums,
                                      const struct dpt_scores *scores, double seconds,
                                      struct dpt_error *err)
{
    const struct dpt_progress *p = &run->trainer.progress;
    const bool best = step != p->step;
    char more[DPT_WATCH_NAME + 16] = "";

    if (best)
        snprintf(more, sizeof more, "  (best %s)", p->best_monitor);
    return report_set(run,
                      &(struct told){.event = best ? "best" : "eval",
                                     .split = split,
                                     .step = step,
                                     .seconds = seconds,
                                     .more = more},
                      metric_sums, scores, err);
}

enum dpt_status dpt_report_saved(struct dpt_run *run, const struct dpt_saved *saved,
                                 struct dpt_error *err)
{
    struct dpt_metrics *m = &run->metrics;

    dpt_log_detail(run->trainer.log, "saved %s in %.3f s, of which training waited %.3f s",
                   saved->path, saved->seconds, saved->copying);
    dpt_metrics_begin(m, "checkpoint");
    dpt_metrics_int(m, "step", saved->step);
    dpt_metrics_text(m, "path", saved->path);
    dpt_metrics_real(m, "seconds", saved->seconds);
    dpt_metrics_real(m, "copy_seconds", saved->copying);
    return dpt_report_line(run, err);
}
