#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/bench/bench.h"

enum { NAME_LEAST = 24, NUMBERS = 51, LINE = 200, DIGITS = 32 };

/* Rows that take less of a step are printed with `other`, if they may be. */
static const double TELLING = 0.0005;

/* A unit in which a step has a few digits before the point. */
struct unit {
    const char *name;
    double seconds;
};

static struct unit unit_for(double seconds)
{
    if (seconds < 1e-3)
        return (struct unit){"us", 1e-6};
    if (seconds < 10)
        return (struct unit){"ms", 1e-3};
    return (struct unit){"s", 1};
}

/* Enough decimals for small parts of a step to show, too. */
static int decimals_for(double value)
{
    return value >= 1000 ? 1 : value >= 100 ? 2 : 3;
}

/* The row's name in at most `width` characters: the layers' names lose their middle, not the pass.
 */
static void name_row(const struct dpt_bench_row *row, int width, char *out, size_t size)
{
    const int pass = row->pass[0] != '\0' ? (int)strlen(row->pass) + 1 : 0;
    const int length = (int)strlen(row->part), room = width - pass > 4 ? width - pass : 4;
    const char *space = pass > 0 ? " " : "";
    const int head = (room - 2) / 2, tail = room - 2 - head;

    if (length <= room)
        snprintf(out, size, "%s%s%s", row->part, space, row->pass);
    else
        snprintf(out, size, "%.*s..%s%s%s", head, row->part, row->part + length - tail, space,
                 row->pass);
}

static int name_width(const struct dpt_bench *b, int columns)
{
    int most = 20;

    for (size_t i = 0; i < b->n_rows; i++) {
        const int n = (int)(strlen(b->rows[i].part) + strlen(b->rows[i].pass)) + 1;

        most = n > most ? n : most;
    }
    if (columns == 0)
        return most;
    columns = columns - 1 - NUMBERS > NAME_LEAST ? columns - 1 - NUMBERS : NAME_LEAST;
    return most < columns ? most : columns;
}

static void print_line(const char *name, int width, const char *const cells[6], struct dpt_str *out)
{
    char line[LINE + DPT_BENCH_NAME];
    int n = snprintf(line, sizeof line, "%-*s %9s %7s %9s %-5s %8s %s", width, name, cells[0],
                     cells[1], cells[2], cells[3], cells[4], cells[5]);

    n = n < (int)sizeof line ? n : (int)sizeof line - 1;
    while (n > 0 && line[n - 1] == ' ')
        n--;
    dpt_str_printf(out, "%.*s\n", n, line);
}

static void print_row(const struct dpt_bench *b, const char *name, double seconds, double limit,
                      const char *by, const char *way, int width, struct unit unit,
                      struct dpt_str *out)
{
    const int decimals = decimals_for(b->seconds / unit.seconds);
    char time[DIGITS], share[DIGITS], least[DIGITS] = "", part[DIGITS] = "";

    snprintf(time, sizeof time, "%.*f", decimals, seconds / unit.seconds);
    snprintf(share, sizeof share, "%.1f %%", 100 * seconds / b->seconds);
    if (limit > 0) {
        snprintf(least, sizeof least, "%.*f", decimals, limit / unit.seconds);
        if (seconds > 0 && limit / seconds < 99.99)
            snprintf(part, sizeof part, "%.0f %%", 100 * limit / seconds);
    }
    print_line(name, width, (const char *const[]){time, share, least, by, part, way}, out);
}

static void print_machine(const struct dpt_machine *m, struct dpt_str *out)
{
    dpt_str_printf(out, "a thread, all busy: %.1f GFLOP/s, %.1f GB/s in cache, %.1f in memory\n",
                   m->fp32 * 1e-9, m->memory[1].rate * 1e-9,
                   m->memory[DPT_MACHINE_SIZES - 1].rate * 1e-9);
    if (m->bf16 > 0)
        dpt_str_printf(out, "in bf16, by %s: %.1f GFLOP/s, %.1f times as many\n",
                       dpt_backends[0]->bf16(), m->bf16 * 1e-9, m->bf16 / m->fp32);
    dpt_str_printf(out, "\n");
}

static void print_head(const struct dpt_bench *b, struct dpt_str *out)
{
    const struct dpt_trainer *t = b->t;
    const struct dpt_sampler *s = &t->data.train.sampler;
    const struct dpt_machine *m = &b->machine;
    const int ranks = t->comm->world.size;
    char samples[DIGITS];
    const struct unit u = unit_for(b->step.median);
    const int d = decimals_for(b->step.median / u.seconds);

    dpt_str_printable(out, t->job->name, strlen(t->job->name), false);
    dpt_str_printf(out, ": %d rank%s, %lld thread%s, %s (%s)\n", ranks, ranks == 1 ? "" : "s",
                   (long long)t->layout.all_threads, t->layout.all_threads == 1 ? "" : "s",
                   t->backend->name, t->backend->uses());
    dpt_str_printf(out, "batch %d in micro-batches of %d, %s parameters, %s\n", s->global, s->micro,
                   dpt_group_digits(samples, t->model.graph.parameters),
                   t->job->optimizer.variant->name);
    if (b->runs > 0)
        dpt_str_printf(out, "%s, by its data sheet: %.1f TFLOP/s in %s, %.2f TB/s\n\n", b->gpu.name,
                       b->flops * 1e-12, dpt_job_precision(t->job), b->gpu.bandwidth * 1e-12);
    else
        print_machine(m, out);
    dpt_str_printf(out, "step  %.*f %s, the median of ", d, b->step.median / u.seconds, u.name);
    if (b->runs > 0)
        dpt_str_printf(out, "%d runs of %lld\n", b->runs, (long long)(b->steps / b->runs));
    else
        dpt_str_printf(out, "%lld\n", (long long)b->steps);
    dpt_str_printf(out, "      %.*f to %.*f half of them, %.*f to %.*f all\n", d,
                   b->step.low / u.seconds, d, b->step.high / u.seconds, d,
                   b->step.least / u.seconds, d, b->step.most / u.seconds);
    dpt_str_printf(out, "rate  %s samples/s\n\n",
                   dpt_group_digits(samples, llround(b->samples_per_s)));
}

/* How far off the medians may be, as a fraction of a step. */
static double noise(const struct dpt_bench *b)
{
    return (b->step.high - b->step.low + b->timed.high - b->timed.low) / b->step.median /
           sqrt((double)b->steps);
}

static void print_determinism(const struct dpt_trainer *t, struct dpt_str *out)
{
    const size_t before = out->length;

    if (t->backend->determinism != NULL)
        t->backend->determinism(t->model.program, out);
    if (out->length > before)
        dpt_str_printf(out, "%s\n",
                       t->job->device.deterministic
                           ? ";\ndevice.deterministic: false takes the faster ones"
                           : "");
}

static bool has_ways(const struct dpt_bench *b)
{
    for (size_t i = 0; i < b->n_rows; i++)
        if (b->rows[i].way != NULL)
            return true;
    return false;
}

void dpt_bench_print(const struct dpt_bench *b, int columns, struct dpt_str *out)
{
    const struct unit unit = unit_for(b->seconds);
    const int width = name_width(b, columns);
    char name[LINE + DPT_BENCH_NAME];
    double folded = 0;

    print_head(b, out);
    print_line("where it goes", width,
               (const char *const[]){unit.name, "share", "limit", "by", "of limit",
                                     has_ways(b) ? "way" : ""},
               out);
    for (size_t i = 0; i < b->n_rows; i++)
        if (b->rows[i].small && b->rows[i].seconds < TELLING * b->seconds)
            folded += b->rows[i].seconds;
    for (size_t i = 0; i < b->n_rows; i++) {
        const struct dpt_bench_row *row = &b->rows[i];
        const bool other = strcmp(row->part, "other") == 0;

        if (row->small && row->seconds < TELLING * b->seconds)
            continue;
        name_row(row, width, name, sizeof name);
        print_row(b, name, row->seconds + (other ? folded : 0), row->limit,
                  row->limit <= 0 ? ""
                  : row->by_bytes ? "bytes"
                                  : "flop",
                  row->way != NULL ? row->way : "", width, unit, out);
    }
    print_row(b, b->runs > 0 ? "all launches" : "step", b->seconds, b->limit, "", "", width, unit,
              out);
    if (b->runs > 0) {
        dpt_str_printf(out,
                       "\n%.0f %% of the limit; a step takes %.2f times the sum of its launches\n",
                       100 * b->limit / b->seconds, b->step.median / b->seconds);
        print_determinism(b->t, out);
        return;
    }
    dpt_str_printf(out, "\n%.0f %% of the limit; timelines", 100 * b->limit / b->seconds);
    if (b->every > 2) {
        dpt_str_printf(out, ", in one of %d steps, cost %.2f %%; the table is scaled by %.3f\n",
                       b->every, 100 * fmax(0, b->overhead), b->scale);
        return;
    }
    dpt_str_printf(out, " cost ");
    if (b->overhead > noise(b))
        dpt_str_printf(out, "%.1f %% of a step\n", 100 * b->overhead);
    else
        dpt_str_printf(out, "less than can be seen (%.1f %%)\n", 100 * noise(b));
}

static void json_machine(const struct dpt_machine *m, struct dpt_json *j)
{
    dpt_json_object(j, "machine");
    dpt_json_real(j, "flop_per_s_thread", m->flops);
    if (m->bf16 > 0)
        dpt_json_real(j, "flop_per_s_thread_bf16", m->bf16);
    dpt_json_array(j, "bandwidth_thread");
    for (int i = 0; i < DPT_MACHINE_SIZES; i++) {
        dpt_json_object(j, NULL);
        dpt_json_real(j, "bytes", m->memory[i].bytes);
        dpt_json_real(j, "bytes_per_s", m->memory[i].rate);
        dpt_json_end(j);
    }
    dpt_json_end(j);
    dpt_json_end(j);
}

static void json_gpu(const struct dpt_bench *b, struct dpt_json *j)
{
    dpt_json_object(j, "gpu");
    dpt_json_text(j, "name", b->gpu.name);
    dpt_json_text(j, "precision", dpt_job_precision(b->t->job));
    dpt_json_real(j, "flop_per_s", b->flops);
    dpt_json_real(j, "bytes_per_s", b->gpu.bandwidth);
    dpt_json_end(j);
}

static void json_row(const struct dpt_bench_row *row, struct dpt_json *j)
{
    dpt_json_object(j, NULL);
    dpt_json_text(j, "part", row->part);
    dpt_json_text(j, "pass", row->pass);
    dpt_json_text(j, "way", row->way);
    dpt_json_bool(j, "waiting", row->waiting);
    dpt_json_real(j, "seconds", row->seconds);
    dpt_json_real(j, "limit_s", row->limit);
    dpt_json_real(j, "flop", row->cost.flop);
    dpt_json_real(j, "bytes", dpt_cost_bytes(&row->cost));
    dpt_json_text(j, "by", row->limit <= 0 ? NULL : row->by_bytes ? "bytes" : "flop");
    dpt_json_end(j);
}

static void json_spread(const char *key, const struct dpt_bench_spread *s, struct dpt_json *j)
{
    dpt_json_object(j, key);
    dpt_json_real(j, "median", s->median);
    dpt_json_real(j, "low", s->low);
    dpt_json_real(j, "high", s->high);
    dpt_json_real(j, "least", s->least);
    dpt_json_real(j, "most", s->most);
    dpt_json_end(j);
}

void dpt_bench_json(const struct dpt_bench *b, struct dpt_json *j)
{
    const struct dpt_trainer *t = b->t;

    dpt_json_object(j, NULL);
    dpt_json_text(j, "name", t->job->name);
    dpt_json_text(j, "version", DPT_VERSION);
    dpt_json_int(j, "ranks", t->comm->world.size);
    dpt_json_int(j, "nodes", t->comm->nodes);
    dpt_json_int(j, "threads", t->layout.all_threads);
    dpt_json_text(j, "backend", t->backend->name);
    dpt_json_text(j, "library", t->backend->describe());
    dpt_json_object(j, "batch");
    dpt_json_int(j, "global", t->data.train.sampler.global);
    dpt_json_int(j, "micro", t->data.train.sampler.micro);
    dpt_json_end(j);
    dpt_json_int(j, "parameters", t->model.graph.parameters);
    if (b->runs > 0)
        json_gpu(b, j);
    else
        json_machine(&b->machine, j);
    dpt_json_int(j, "steps", b->steps);
    json_spread("step_s", &b->step, j);
    dpt_json_real(j, "samples_per_s", b->samples_per_s);
    if (b->runs == 0) {
        json_spread("timed_s", &b->timed, j);
        dpt_json_int(j, "timed_every", b->every);
        dpt_json_real(j, "overhead", b->overhead);
        dpt_json_real(j, "scale", b->scale);
    }
    dpt_json_array(j, "rows");
    for (size_t i = 0; i < b->n_rows; i++)
        json_row(&b->rows[i], j);
    dpt_json_end(j);
    dpt_json_object(j, "sum");
    dpt_json_real(j, "seconds", b->seconds);
    dpt_json_real(j, "limit_s", b->limit);
    dpt_json_real(j, "of_limit", b->limit / b->seconds);
    dpt_json_end(j);
    dpt_json_end(j);
}
