/*
 * `dptrain bench --find-lr`: the range test of Smith 2015, "Cyclical Learning Rates for Training
 * Neural Networks", section 3.3, with a rate that grows by a factor from step to step, as fastai
 * and Lightning have it. The weights are thrown away.
 */
#include <math.h>
#include <stdio.h>

#include "cmd/bench/bench.h"
#include "cmd/output.h"
#include "cmd/report/chart.h"
#include "cmd/report/page.h"
#include "core/base/file.h"
#include "core/train/update/schedule.h"
#include "core/train/use/init.h"

enum { LEAST_STEPS = 2, USUAL_STEPS = 200, TABLE_ROWS = 24, BAR = 40 };

static const double remembered = 0.9; /* weight of the old running loss, which ends the test */
static const double too_much = 4;     /* times the lowest running loss: the end, as in fastai */
static const double window = 0.05;    /* share of the steps before and after one in its mean */
static const double falls = 2;        /* times the spread of the steps' losses: a real fall */
/* The share of the rate at which the loss is lowest. In seven jobs (MLPs on tables with adamw and
 * with sgd, CNNs on digits) the best rate of a grid was 0.2 to 1.8 times that rate. Half of it left
 * 1.15 times the grid's least loss in the mean, 1.24 at most; a third 1.31; the rate at which the
 * loss falls fastest, which depends on noise, 2.4. */
static const double careful = 0.5;

struct find_lr {
    const struct dpt_job *job;
    double from, to;
    int64_t steps, n;          /* n: taken */
    double *rate, *raw, *loss; /* [n]; loss: smoothed */
    int64_t suggested, lowest; /* points; -1: the loss never falls */
    bool diverged;             /* the test ended before `to` */
    struct dpt_region region;
};

/* --- the test --------------------------------------------------------------------------------- */

/* Takes a step at a rate. *bad: its loss or gradient was not finite. *loss: NAN where no update
 * was made. Collective; all ranks get the same numbers. */
static enum dpt_status take_step(struct dpt_trainer *t, double rate, double *loss, bool *bad,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_step_result result;

    t->lr = rate;
    DPT_TRY(dpt_trainer_step(t, &result, err));
    if (result.deferred)
        DPT_TRY(dpt_trainer_settle(t, &result, err));
    *bad = result.skipped > 0;
    *loss = result.weight > 0 ? result.loss / result.weight : NAN;
out:
    return status;
}

/* Takes steps until the rate is at its end, or the loss grows far beyond its lowest. */
static enum dpt_status take_steps(struct find_lr *f, struct dpt_trainer *t, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const double last = (double)f->steps - 1;
    double sum = 0, weight = 0, least = INFINITY;

    for (int64_t k = 0; k < f->steps && !f->diverged; k++) {
        const double rate = f->from * pow(f->to / f->from, (double)k / last);
        char text[64];
        double loss;

        DPT_TRY(take_step(t, rate, &loss, &f->diverged, err));
        snprintf(text, sizeof text, "step %lld of %lld", (long long)k + 1, (long long)f->steps);
        dpt_log_live(t->log, text);
        if (f->diverged || isnan(loss))
            continue;
        f->rate[f->n] = rate;
        f->raw[f->n++] = loss;
        sum = remembered * sum + (1 - remembered) * loss;
        weight = remembered * weight + (1 - remembered);
        least = fmin(least, sum / weight);
        f->diverged = k > f->steps / 10 && sum / weight > too_much * fabs(least);
    }
out:
    dpt_log_live(t->log, NULL);
    return status;
}

/* Smooths the losses by a triangle over their neighbours, so that no point is late. */
static void smooth(struct find_lr *f)
{
    const int64_t wide = (int64_t)ceil(window * (double)f->steps);

    for (int64_t k = 0; k < f->n; k++) {
        double sum = 0, weight = 0;

        for (int64_t i = k - wide; i <= k + wide; i++) {
            const double w = 1 - fabs((double)(i - k)) / (double)(wide + 1);

            if (i < 0 || i >= f->n)
                continue;
            sum += w * f->raw[i];
            weight += w;
        }
        f->loss[k] = sum / weight;
    }
}

/* Finds where the loss is lowest, and the last point that stays carefully below. */
static void judge(struct find_lr *f)
{
    double stray = 0;

    f->lowest = f->suggested = -1;
    for (int64_t k = 0; k < f->n; k++)
        if (f->lowest < 0 || f->loss[k] < f->loss[f->lowest])
            f->lowest = k;
    for (int64_t k = 0; k <= f->lowest; k++) {
        stray += (f->raw[k] - f->loss[k]) * (f->raw[k] - f->loss[k]);
        if (f->rate[k] <= careful * f->rate[f->lowest])
            f->suggested = k;
    }
    stray = f->lowest >= 0 ? sqrt(stray / (double)(f->lowest + 1)) : 0;
    if (f->suggested < 0 || f->loss[0] - f->loss[f->lowest] < falls * stray)
        f->lowest = f->suggested = -1;
}

/* The job's optimizer.lr that gives a rate. */
static double job_rate(const struct find_lr *f, double rate)
{
    return rate / dpt_schedule_scale(&f->job->schedule, 1, f->job->batch.global);
}

/* --- what is told ----------------------------------------------------------------------------- */

static void print_row(const struct find_lr *f, int64_t k, double least, double most,
                      struct dpt_str *out)
{
    const double share = most > least ? (fmin(f->loss[k], most) - least) / (most - least) : 0;

    dpt_str_printf(out, "%12.3g %12.5g  %.*s%s\n", f->rate[k], f->loss[k],
                   1 + (int)lround(share * (BAR - 1)), "****************************************",
                   k == f->suggested ? " suggested"
                   : k == f->lowest  ? " lowest"
                                     : "");
}

static void print_suggestion(const struct find_lr *f, struct dpt_str *out)
{
    const double scale = dpt_schedule_scale(&f->job->schedule, 1, f->job->batch.global);

    if (f->suggested < 0) {
        dpt_str_printf(out, "no suggestion: the loss does not fall; another --lr-range, or more "
                            "--steps, may show more\n");
        return;
    }
    dpt_str_printf(out,
                   "suggestion  optimizer.lr=%.2g, half the rate at which the loss is "
                   "lowest",
                   job_rate(f, f->rate[f->suggested]));
    if (f->lowest == f->n - 1)
        dpt_str_printf(out, "; at the end of the range it still falls\n");
    else
        dpt_str_printf(out, ", %.2g\n", job_rate(f, f->rate[f->lowest]));
    if (scale != 1)
        dpt_str_printf(out,
                       "            (the table has rates after schedule.scale_lr, %.4g times "
                       "optimizer.lr)\n",
                       scale);
}

static enum dpt_status print_table(const struct find_lr *f, struct dpt_error *err)
{
    const int64_t every = f->n / TABLE_ROWS > 0 ? f->n / TABLE_ROWS : 1;
    double least = INFINITY, most = f->n > 0 ? f->loss[0] : 0;
    struct dpt_str out = {0};

    dpt_str_printf(&out, "range test of %s: %lld steps of %lld samples, %s\n\n", f->job->name,
                   (long long)f->n, (long long)f->job->batch.global,
                   f->job->optimizer.variant->name);
    dpt_str_printf(&out, "%12s %12s\n", "lr", "loss");
    for (int64_t k = 0; k < f->n; k++)
        least = fmin(least, f->loss[k]);
    most = fmax(most, least + 1.5 * (most - least)); /* what is above that fills its line */
    for (int64_t k = 0; k < f->n; k++)
        if (k % every == 0 || k == f->n - 1 || k == f->suggested || k == f->lowest)
            print_row(f, k, least, most, &out);
    dpt_str_printf(&out, "%s\n", f->diverged ? "         ... the loss grows without end\n" : "");
    print_suggestion(f, &out);
    return dpt_output_text(&out, "the table", err);
}

static void write_points(struct dpt_json *j, const char *key, const double *values, int64_t n)
{
    dpt_json_array(j, key);
    for (int64_t k = 0; k < n; k++)
        dpt_json_real(j, NULL, values[k]);
    dpt_json_end(j);
}

static enum dpt_status print_json(const struct find_lr *f, struct dpt_error *err)
{
    struct dpt_json j = {.file = stdout};

    dpt_json_object(&j, NULL);
    dpt_json_text(&j, "job", f->job->name);
    dpt_json_text(&j, "optimizer", f->job->optimizer.variant->name);
    dpt_json_int(&j, "batch", f->job->batch.global);
    write_points(&j, "lr", f->rate, f->n);
    write_points(&j, "raw_loss", f->raw, f->n);
    write_points(&j, "loss", f->loss, f->n);
    dpt_json_bool(&j, "diverged", f->diverged);
    dpt_json_real(&j, "suggestion", f->suggested < 0 ? NAN : job_rate(f, f->rate[f->suggested]));
    dpt_json_real(&j, "lowest", f->lowest < 0 ? NAN : job_rate(f, f->rate[f->lowest]));
    dpt_json_end(&j);
    return dpt_json_finish(&j, "the table", err);
}

/* The highest loss that a chart shows: after a divergence all else would be a flat line. */
static double most_shown(const struct find_lr *f)
{
    double least = INFINITY;

    for (int64_t k = 0; k < f->n; k++)
        least = fmin(least, f->loss[k]);
    return fmax(least + 1.5 * (f->loss[0] - least), least + 0.25 * fabs(least));
}

/* Points over the logarithm of the rate, up to where the smoothed loss leaves the chart for
 * good. */
static bool open_line(struct find_lr *f, struct dpt_line *line, const double *values)
{
    const double most = most_shown(f);
    int64_t last = f->n - 1;

    if (!dpt_series_open(&line->points, (size_t)f->n, &f->region))
        return false;
    while (last > 0 && !(f->loss[last - 1] < most))
        last--;
    for (int64_t k = 0; k <= last; k++)
        if (dpt_series_fits(values[k]))
            dpt_series_add(&line->points, log10(f->rate[k]), fmin(values[k], most));
    return true;
}

static enum dpt_status write_html(struct find_lr *f, const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_str out = {0}, said = {0};
    struct dpt_line lines[3] = {
        {.name = "loss of a step", .part = "raw", .kind = DPT_LINE_RAW},
        {.name = "loss, smoothed", .part = "smooth", .kind = DPT_LINE_SOLID},
        {.name = "suggestion", .part = "suggestion", .kind = DPT_LINE_MARK, .colour = 1}};
    struct dpt_chart chart = {.id = "range",
                              .title = "Loss by learning rate",
                              .x_label = "learning rate",
                              .powers = true,
                              .y_label = "of each step, and smoothed",
                              .lines = lines,
                              .n = f->suggested < 0 ? 2 : 3};

    if (!open_line(f, &lines[0], f->raw) || !open_line(f, &lines[1], f->loss) ||
        !dpt_series_open(&lines[2].points, 1, &f->region))
        DPT_TRY(dpt_fail_memory(err, "the page", (double)f->n * sizeof(double)));
    if (f->suggested >= 0)
        dpt_series_add(&lines[2].points, log10(f->rate[f->suggested]), f->loss[f->suggested]);
    chart.log = dpt_chart_wants_log(lines, 2);
    print_suggestion(f, &said);
    dpt_page_begin(&out, "bench");
    dpt_html_element(&out, "", f->job->name, "");
    dpt_page_body(&out, "bench --find-lr");
    dpt_html_element(&out, "<h1>Range test of ", f->job->name, "</h1>\n");
    dpt_html_element(&out, "<p>", said.text != NULL ? said.text : "", "</p>\n");
    dpt_str_printf(&out, "<div class=\"charts\">\n");
    dpt_chart_write(&chart, &out);
    dpt_str_printf(&out, "</div>\n");
    dpt_page_end(&out);
    if (out.failed || said.failed)
        DPT_TRY(dpt_fail_memory(err, "the page", (double)out.length));
    DPT_TRY(dpt_file_write(path, out.text, out.length, err));
out:
    dpt_str_release(&out);
    dpt_str_release(&said);
    return status;
}

/* --- the command ------------------------------------------------------------------------------ */

static enum dpt_status read_range(const struct dpt_cli *cli, struct find_lr *f,
                                  struct dpt_error *err)
{
    const char *text = dpt_cli_value(cli, "--lr-range");
    int end = 0;

    f->from = 1e-7;
    f->to = 10;
    if (text == NULL)
        return DPT_OK;
    if (sscanf(text, "%lf,%lf%n", &f->from, &f->to, &end) != 2 || text[end] != '\0' ||
        !(f->from > 0) || !(f->to > f->from) || !(f->to <= 1e6))
        return dpt_fail(err, DPT_USAGE,
                        "dptrain bench: --lr-range %s: two rates above 0 are wanted, the smaller "
                        "one first, as in 1e-7,10",
                        text);
    return DPT_OK;
}

static enum dpt_status read_options(const struct dpt_cli *cli, struct find_lr *f,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *html = dpt_cli_value(cli, "--html");
    long long steps;

    DPT_TRY(dpt_cli_int(cli, "--steps", LEAST_STEPS, 1000000, USUAL_STEPS, &steps, err));
    DPT_TRY(read_range(cli, f, err));
    if (html != NULL)
        DPT_TRY(dpt_page_check_output(html, err));
    f->steps = steps;
    f->rate = dpt_region_alloc(&f->region, (size_t)steps * sizeof *f->rate);
    f->raw = dpt_region_alloc(&f->region, (size_t)steps * sizeof *f->raw);
    f->loss = dpt_region_alloc(&f->region, (size_t)steps * sizeof *f->loss);
    if (f->rate == NULL || f->raw == NULL || f->loss == NULL)
        status = dpt_fail_memory(err, "the losses", 3 * (double)steps * sizeof(double));
out:
    return status;
}

enum dpt_status dpt_bench_find_lr(struct dpt_cli *cli, const struct dpt_job *job,
                                  const struct dpt_comm *comm, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct find_lr f = {.job = job};
    struct dpt_job own = *job;
    struct dpt_trainer t = {0};
    struct dpt_init_result init = {0};

    own.schedule = dpt_schedule_none;
    own.train.ema = 0;
    own.train.on_nan = DPT_ON_NAN_SKIP; /* the test ends there */
    own.log.hashes = own.log.trace = false;
    DPT_TRY(dpt_group_agree(&comm->world, read_options(cli, &f, err), err));
    DPT_TRY(dpt_trainer_open(&t, &own, comm, &cli->log, DPT_PART_TRAIN, NULL, err));
    DPT_TRY(dpt_init_weights(&t, &init, err));
    t.steps = INT64_MAX / 2; /* epochs may be shorter than the test */
    DPT_TRY(take_steps(&f, &t, err));
    smooth(&f);
    judge(&f);
    if (comm->world.rank == 0)
        status = dpt_cli_has(cli, "--json") ? print_json(&f, err) : print_table(&f, err);
    if (comm->world.rank == 0 && status == DPT_OK && dpt_cli_has(cli, "--html"))
        status = write_html(&f, dpt_cli_value(cli, "--html"), err);
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
out:
    dpt_init_release(&init);
    dpt_trainer_close(&t);
    dpt_region_release(&f.region);
    return status;
}
