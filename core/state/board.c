#include "core/state/board.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/proto.h"
#include "core/conf/option.h"

/* Written when so much is waiting, or so many seconds after the last time. */
enum { MOST_WAITING = 1 << 18 };
static const double MOST_SECONDS = 2;

/* Field numbers of TensorFlow's and TensorBoard's .proto files. */
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_LOG = 7 };
enum { LOG_STATUS = 1 };
enum { SUMMARY_VALUE = 1 };
enum { VALUE_TAG = 1, VALUE_NUMBER = 2, VALUE_HISTOGRAM = 5, VALUE_TENSOR = 8, VALUE_METADATA = 9 };
enum { METADATA_PLUGIN = 1, PLUGIN_NAME = 1, PLUGIN_CONTENT = 2 };
enum { TENSOR_TYPE = 1, TENSOR_SHAPE = 2, TENSOR_STRING = 8, SHAPE_DIM = 2, DIM_SIZE = 1 };
enum { HISTOGRAM_LEAST = 1, HISTOGRAM_MOST, HISTOGRAM_N, HISTOGRAM_SUM, HISTOGRAM_SQUARES };
enum { HISTOGRAM_LIMITS = 6, HISTOGRAM_COUNTS = 7 };
enum { HPARAMS_VERSION = 1, HPARAMS_START = 3, HPARAMS_END = 4 };
enum { START_HPARAMS = 1, START_TIME = 5, END_STATUS = 1, END_TIME = 2 };
enum { MAP_KEY = 1, MAP_VALUE = 2 };
enum { JSON_NUMBER = 2, JSON_STRING = 3, JSON_BOOL = 4 };
/* Values of such fields. */
enum { LOG_START = 1, TYPE_FLOAT = 1, TYPE_STRING = 7, OUTCOME_GOOD = 1, OUTCOME_BAD = 2 };

/* The second one is as long and means nothing to anybody. */
static const char outcome_tag[] = "_hparams_/session_end_info";
static const char former_tag[] = "_hparams_/session_end_past";

enum { BINS = 64 };

/* Summarises many numbers: bins of equal width from least to most. */
struct dpt_histogram {
    double least, most, sum, sum_of_squares;
    double n; /* of finite numbers; others are left out. 0: all are */
    double bins[BINS];
};

/* Below this many floats one thread is faster than waking the others. More are added up in so many
 * parts, one after another, however many threads there are: so the sums do not depend on them. */
enum { ALONE = 16 * 1024, PARTS = 16 };

/* --- events ----------------------------------------------------------------------------------- */

static double wall_time(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void begin_event(struct dpt_board *b, int64_t step)
{
    dpt_proto_double(&b->event, EVENT_WALL_TIME, wall_time());
    dpt_proto_int(&b->event, EVENT_STEP, step);
}

static void end_event(struct dpt_board *b)
{
    if (b->event.failed) /* half an event would be none */
        b->pending.failed = true;
    else
        dpt_record_add(&b->pending, b->event.text, b->event.length);
    dpt_str_clear(&b->event);
}

/* Ends an event that consists of the summary's values, where there are any. */
static void end_step(struct dpt_board *b)
{
    if (b->summary.length > 0) {
        dpt_proto_message(&b->event, EVENT_SUMMARY, &b->summary);
        end_event(b);
    }
    dpt_str_clear(&b->event);
}

/* Begins a value of the event's summary. */
static void begin_value(struct dpt_board *b, const char *tag)
{
    dpt_proto_text(&b->value, VALUE_TAG, tag);
}

static void end_value(struct dpt_board *b)
{
    dpt_proto_message(&b->summary, SUMMARY_VALUE, &b->value);
}

/* Names the plugin that the value is for; content: emptied, may be NULL. */
static void add_metadata(struct dpt_board *b, const char *plugin, struct dpt_str *content)
{
    struct dpt_str *data = &b->inner[1], *metadata = &b->inner[2];

    dpt_proto_text(data, PLUGIN_NAME, plugin);
    if (content != NULL)
        dpt_proto_message(data, PLUGIN_CONTENT, content);
    dpt_proto_message(metadata, METADATA_PLUGIN, data);
    dpt_proto_message(&b->value, VALUE_METADATA, metadata);
}

/* Adds a list of one text, or an empty one of numbers where text is NULL. */
static void add_tensor(struct dpt_board *b, const char *text)
{
    struct dpt_str *tensor = &b->inner[0], *dim = &b->inner[1], *shape = &b->inner[2];

    dpt_proto_int(tensor, TENSOR_TYPE, text != NULL ? TYPE_STRING : TYPE_FLOAT);
    dpt_proto_int(dim, DIM_SIZE, text != NULL);
    dpt_proto_message(shape, SHAPE_DIM, dim);
    dpt_proto_message(tensor, TENSOR_SHAPE, shape);
    if (text != NULL)
        dpt_proto_text(tensor, TENSOR_STRING, text);
    dpt_proto_message(&b->value, VALUE_TENSOR, tensor);
}

/* Adds Markdown, for the TEXT tab. */
static void add_text(struct dpt_board *b, const char *tag, const char *markdown)
{
    begin_value(b, tag);
    add_tensor(b, markdown);
    add_metadata(b, "text", NULL);
    end_value(b);
}

/* A value of the hparams plugin; b->part holds its content, whose field number is `which`. */
static void add_hparams(struct dpt_board *b, const char *tag, int which)
{
    begin_value(b, tag);
    add_tensor(b, NULL);
    dpt_proto_int(&b->inner[0], HPARAMS_VERSION, 0);
    dpt_proto_message(&b->inner[0], which, &b->part);
    add_metadata(b, "hparams", &b->inner[0]);
    end_value(b);
}

/* Adds a hyperparameter, whose value stands in b->inner[0]. */
static void add_entry(struct dpt_board *b, const char *key)
{
    dpt_proto_text(&b->inner[1], MAP_KEY, key);
    dpt_proto_message(&b->inner[1], MAP_VALUE, &b->inner[0]);
    dpt_proto_message(&b->part, START_HPARAMS, &b->inner[1]);
}

static void visit_key(void *arg, const char *path, const struct dpt_conf_node *setting,
                      enum dpt_effect effect)
{
    struct dpt_board *b = arg;
    struct dpt_str *value = &b->inner[0], text = {0};
    const bool plain = setting->kind == DPT_NODE_SCALAR && !setting->quoted;
    double number;

    if (effect == DPT_EFFECT_OUTPUT || dpt_conf_is_null(setting))
        return;
    if (plain && dpt_parse_real(setting->text, &number)) {
        dpt_proto_double(value, JSON_NUMBER, number);
    } else if (plain &&
               (strcmp(setting->text, "true") == 0 || strcmp(setting->text, "false") == 0)) {
        dpt_proto_int(value, JSON_BOOL, setting->text[0] == 't');
    } else {
        dpt_conf_setting_text(setting, &text);
        dpt_proto_text(value, JSON_STRING, text.text != NULL ? text.text : "");
        value->failed = value->failed || text.failed;
        dpt_str_release(&text);
    }
    add_entry(b, path);
}

/* The job's keys and values and the number of ranks, for the HPARAMS tab. */
static void add_job(struct dpt_board *b, const struct dpt_board_start *start)
{
    if (!dpt_conf_settings(start->job, visit_key, b))
        b->pending.failed = true;
    dpt_proto_double(&b->inner[0], JSON_NUMBER, start->ranks);
    add_entry(b, "ranks");
    dpt_proto_double(&b->part, START_TIME, wall_time());
    add_hparams(b, "_hparams_/session_start_info", HPARAMS_START);
}

/* The job's text as Markdown shows it as it is: indented. */
static void add_job_text(struct dpt_board *b, const char *job_text)
{
    struct dpt_str text = {0};
    const char *line = job_text, *end;

    for (; (end = strchr(line, '\n')) != NULL; line = end + 1)
        dpt_str_printf(&text, "    %.*s\n", (int)(end - line), line);
    add_text(b, "job", text.text != NULL ? text.text : "");
    b->pending.failed = b->pending.failed || text.failed;
    dpt_str_release(&text);
}

/* --- histograms ------------------------------------------------------------------------------- */

/* A pass of the threads over one tensor's numbers, each times `scale`: the first pass finds bounds
 * and sums, the second one counts the numbers of each bin between those bounds. */
struct pass {
    const float *x;
    size_t n;
    double scale;
    int threads, n_parts;
    struct dpt_histogram *parts; /* [n_parts] */
    bool binning;
    double least, inverse; /* of the bins */
};

static void look_at_part(const struct pass *p, int part)
{
    struct dpt_histogram *h = &p->parts[part];
    size_t begin, end;

    if (!p->binning)
        *h = (struct dpt_histogram){.least = INFINITY, .most = -INFINITY};
    dpt_thread_part(p->n, part, p->n_parts, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const double x = p->x[i] * p->scale;

        if (!isfinite(x))
            continue;
        if (p->binning) {
            const int bin = (int)((x - p->least) * p->inverse);

            h->bins[bin < BINS ? bin : BINS - 1]++;
            continue;
        }
        h->least = x < h->least ? x : h->least;
        h->most = x > h->most ? x : h->most;
        h->sum += x;
        h->sum_of_squares += x * x;
        h->n++;
    }
}

static void look(void *arg, int thread)
{
    const struct pass *p = arg;

    for (int part = thread; part < p->n_parts; part += p->threads)
        look_at_part(p, part);
}

static void run_pass(struct dpt_pool *pool, struct pass *p)
{
    if (p->threads == 1)
        look(p, 0);
    else
        dpt_pool_run(pool, look, p);
}

static void count_numbers(struct dpt_pool *pool, struct pass *p, struct dpt_histogram *out)
{
    *out = (struct dpt_histogram){.least = INFINITY, .most = -INFINITY};
    p->threads = p->n < ALONE ? 1 : dpt_pool_threads(pool);
    p->n_parts = p->n < ALONE ? 1 : PARTS;
    p->binning = false;
    run_pass(pool, p);
    for (int i = 0; i < p->n_parts; i++) {
        out->least = fmin(out->least, p->parts[i].least);
        out->most = fmax(out->most, p->parts[i].most);
        out->sum += p->parts[i].sum;
        out->sum_of_squares += p->parts[i].sum_of_squares;
        out->n += p->parts[i].n;
    }
    if (out->n == 0) {
        *out = (struct dpt_histogram){0};
        return;
    }
    p->binning = true;
    p->least = out->least;
    p->inverse = out->most > out->least ? BINS / (out->most - out->least) : 0;
    run_pass(pool, p);
    for (int i = 0; i < p->n_parts; i++)
        for (int k = 0; k < BINS; k++)
            out->bins[k] += p->parts[i].bins[k];
}

static void add_histogram(struct dpt_board *b, const char *tag, const struct dpt_histogram *h)
{
    const double width = (h->most - h->least) / BINS;
    double limits[BINS];

    if (h->n == 0)
        return;
    for (int i = 0; i < BINS; i++)
        limits[i] = i < BINS - 1 ? h->least + width * (i + 1) : h->most;
    dpt_proto_double(&b->part, HISTOGRAM_LEAST, h->least);
    dpt_proto_double(&b->part, HISTOGRAM_MOST, h->most);
    dpt_proto_double(&b->part, HISTOGRAM_N, h->n);
    dpt_proto_double(&b->part, HISTOGRAM_SUM, h->sum);
    dpt_proto_double(&b->part, HISTOGRAM_SQUARES, h->sum_of_squares);
    dpt_proto_doubles(&b->part, HISTOGRAM_LIMITS, limits, BINS);
    dpt_proto_doubles(&b->part, HISTOGRAM_COUNTS, h->bins, BINS);
    begin_value(b, tag);
    dpt_proto_message(&b->value, VALUE_HISTOGRAM, &b->part);
    end_value(b);
}

enum dpt_status dpt_board_counts_open(struct dpt_board_counts *c, const struct dpt_graph *graph,
                                      struct dpt_pool *pool, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t tensors = (size_t)graph->n_tensors;

    c->graph = graph;
    c->pool = pool;
    DPT_TRY(DPT_ALLOCATE(c->histograms, 2 * tensors + 1, "histograms", err));
    DPT_TRY(DPT_ALLOCATE(c->parts, PARTS, "histograms", err));
    for (size_t i = 0; i < tensors; i++)
        c->bytes = (size_t)graph->tensors[i].count * sizeof *c->room > c->bytes
                       ? (size_t)graph->tensors[i].count * sizeof *c->room
                       : c->bytes;
    c->room = dpt_reserve(c->bytes);
    if (c->room == NULL)
        DPT_TRY(dpt_fail_memory(err, "histograms", (double)c->bytes));
out:
    return status;
}

void dpt_board_counts_close(struct dpt_board_counts *c)
{
    dpt_free(c->histograms);
    dpt_free(c->parts);
    dpt_unreserve(c->room, c->bytes);
    *c = (struct dpt_board_counts){0};
}

void dpt_board_count(struct dpt_board_counts *c, int32_t tensor, bool gradient, const float *x,
                     double scale)
{
    struct pass pass = {
        .x = x, .n = (size_t)c->graph->tensors[tensor].count, .scale = scale, .parts = c->parts};
    struct dpt_histogram *out = &c->histograms[tensor + (gradient ? c->graph->n_tensors : 0)];

    *out = (struct dpt_histogram){0};
    if (x != NULL)
        count_numbers(c->pool, &pass, out);
}

/* --- the file --------------------------------------------------------------------------------- */

/* A resumed run is not at its end, whatever was written when it stopped: TensorBoard takes the
 * first word about that, so it has to go. */
static bool take_back_outcome(void *arg, char *data, size_t n)
{
    char *tag = memmem(data, n, outcome_tag, sizeof outcome_tag - 1);

    (void)arg;
    if (tag != NULL)
        memcpy(tag, former_tag, sizeof former_tag - 1);
    return tag != NULL;
}

/* The event that a file begins with, or where it continues, the step from which on it repeats. */
static void add_head(struct dpt_board *b, bool fresh, int64_t resumed)
{
    if (fresh) {
        dpt_proto_double(&b->event, EVENT_WALL_TIME, wall_time());
        dpt_proto_text(&b->event, EVENT_VERSION, "brain.Event:2");
    } else {
        begin_event(b, resumed + 1);
        dpt_proto_int(&b->part, LOG_STATUS, LOG_START);
        dpt_proto_message(&b->event, EVENT_LOG, &b->part);
    }
    end_event(b);
}

enum dpt_status dpt_board_open(struct dpt_board *b, const char *folder, int64_t resumed,
                               const struct dpt_board_start *start, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    long long end;

    *b = (struct dpt_board){.lock = start->lock, .weights_step = -1};
    snprintf(b->path, sizeof b->path, "%s/%s", folder, DPT_TENSORBOARD_FILE);
    DPT_TRY(dpt_file_open(b->path, DPT_FILE_UPDATE, DPT_IO, &b->fd, err));
    b->open = true;
    DPT_TRY(dpt_records_scan(b->fd, b->path, take_back_outcome, NULL, &end, err));
    if (TEMP_FAILURE_RETRY(ftruncate(b->fd, end)) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", b->path));
    add_head(b, end == 0, resumed);
    if (end == 0 || resumed < 0) { /* else it is there, and its first word counts */
        begin_event(b, 0);
        add_job(b, start);
        add_job_text(b, start->job_text);
        add_text(b, "machine", start->machine);
        end_step(b);
    }
    DPT_TRY(dpt_board_flush(b, true, err));
out:
    return status;
}

void dpt_board_close(struct dpt_board *b)
{
    struct dpt_str *const texts[] = {&b->pending, &b->event,    &b->summary,  &b->value,
                                     &b->part,    &b->inner[0], &b->inner[1], &b->inner[2]};

    if (b->open)
        close(b->fd);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        dpt_str_release(texts[i]);
    *b = (struct dpt_board){0};
}

enum dpt_status dpt_board_scalars(struct dpt_board *b, int64_t step, const char *split,
                                  const struct dpt_board_scalar *scalars, size_t n, bool now,
                                  struct dpt_error *err)
{
    char tag[64];

    if (!b->open)
        return DPT_OK;
    begin_event(b, step);
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(scalars[i].value))
            continue;
        snprintf(tag, sizeof tag, "%s/%s", split, scalars[i].name);
        begin_value(b, tag);
        dpt_proto_float(&b->value, VALUE_NUMBER, (float)scalars[i].value);
        end_value(b);
    }
    end_step(b);
    return dpt_board_flush(b, now, err);
}

void dpt_board_weights(struct dpt_board *b, int64_t step, const struct dpt_board_counts *c)
{
    const struct dpt_graph *graph = c->graph;
    char tag[DPT_NAME + 32];

    begin_event(b, step);
    for (int32_t i = 0; i < 2 * graph->n_tensors; i++) {
        const struct dpt_tensor *tensor = &graph->tensors[i % graph->n_tensors];

        snprintf(tag, sizeof tag, "%s/%s", i < graph->n_tensors ? "weights" : "gradients",
                 tensor->name);
        add_histogram(b, tag, &c->histograms[i]);
    }
    end_step(b);
    dpt_decommit(c->room, c->room + c->bytes / sizeof *c->room);
    b->weights_step = step;
}

enum dpt_status dpt_board_flush(struct dpt_board *b, bool now, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (!b->open ||
        (!now && b->pending.length <= MOST_WAITING && dpt_now() - b->flushed <= MOST_SECONDS))
        return DPT_OK;
    DPT_TRY(dpt_lock_check(b->lock, err));
    if (b->pending.failed)
        DPT_TRY(dpt_fail_memory(err, b->path, (double)b->pending.length));
    if (dpt_append_all(b->fd, b->pending.text, b->pending.length) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", b->path));
    dpt_str_clear(&b->pending);
    b->flushed = dpt_now();
out:
    return status;
}

enum dpt_status dpt_board_end(struct dpt_board *b, int64_t step, enum dpt_status ended,
                              struct dpt_error *err)
{
    if (b->open && ended != DPT_STOPPED) { /* a stopped run may be resumed */
        begin_event(b, step);
        dpt_proto_int(&b->part, END_STATUS, ended == DPT_OK ? OUTCOME_GOOD : OUTCOME_BAD);
        dpt_proto_double(&b->part, END_TIME, wall_time());
        add_hparams(b, outcome_tag, HPARAMS_END);
        end_step(b);
    }
    return dpt_board_flush(b, true, err);
}
