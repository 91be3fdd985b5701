#include "core/state/tensorboard.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/proto.h"
#include "core/conf/option.h"
#include "core/conf/settings.h"
#include "core/state/tensorboard_record.h"

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
/* Values. */
enum { LOG_START = 1, TYPE_FLOAT = 1, TYPE_STRING = 7, OUTCOME_GOOD = 1, OUTCOME_BAD = 2 };

/* The second one is as long and means nothing to anybody. */
static const char outcome_tag[] = "_hparams_/session_end_info";
static const char former_tag[] = "_hparams_/session_end_past";

static double wall_time(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void begin_event(struct dpt_tensorboard *b, int64_t step)
{
    dpt_proto_double(&b->event, EVENT_WALL_TIME, wall_time());
    dpt_proto_int(&b->event, EVENT_STEP, step);
}

static void end_event(struct dpt_tensorboard *b)
{
    if (b->event.failed) /* half an event would be none */
        b->pending.failed = true;
    else
        dpt_record_add(&b->pending, b->event.text, b->event.length);
    dpt_str_clear(&b->event);
}

/* A run that goes on is not at its end, whatever was said when it stopped: TensorBoard takes the
 * first word about that, so it has to go. */
static bool take_back_outcome(void *arg, char *data, size_t n)
{
    char *tag = memmem(data, n, outcome_tag, sizeof outcome_tag - 1);

    (void)arg;
    if (tag != NULL)
        memcpy(tag, former_tag, sizeof former_tag - 1);
    return tag != NULL;
}

/* What every file begins with; where it goes on, the step from which on it tells anew. */
static void add_head(struct dpt_tensorboard *b, int64_t resumed)
{
    if (b->fresh) {
        dpt_proto_double(&b->event, EVENT_WALL_TIME, wall_time());
        dpt_proto_text(&b->event, EVENT_VERSION, "brain.Event:2");
        end_event(b);
        return;
    }
    begin_event(b, resumed + 1);
    dpt_proto_int(&b->part, LOG_STATUS, LOG_START);
    dpt_proto_message(&b->event, EVENT_LOG, &b->part);
    end_event(b);
}

enum dpt_status dpt_tensorboard_open(struct dpt_tensorboard *b, const char *folder, int64_t resumed,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    long long end;

    snprintf(b->path, sizeof b->path, "%s/%s", folder, DPT_TENSORBOARD_FILE);
    DPT_TRY(dpt_file_open(b->path, DPT_FILE_UPDATE, DPT_IO, &b->fd, err));
    b->open = true;
    DPT_TRY(dpt_records_scan(b->fd, b->path, take_back_outcome, NULL, &end, err));
    if (ftruncate(b->fd, end) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", b->path));
    b->fresh = end == 0;
    add_head(b, resumed);
out:
    return status;
}

void dpt_tensorboard_close(struct dpt_tensorboard *b)
{
    if (b->open)
        close(b->fd);
    dpt_str_release(&b->pending);
    dpt_str_release(&b->event);
    dpt_str_release(&b->summary);
    dpt_str_release(&b->value);
    dpt_str_release(&b->part);
    memset(b, 0, sizeof *b);
}

void dpt_tensorboard_begin(struct dpt_tensorboard *b, int64_t step)
{
    if (b->open)
        begin_event(b, step);
}

void dpt_tensorboard_end(struct dpt_tensorboard *b)
{
    if (!b->open)
        return;
    if (b->summary.length > 0) {
        dpt_proto_message(&b->event, EVENT_SUMMARY, &b->summary);
        end_event(b);
    }
    dpt_str_clear(&b->event);
}

static void end_value(struct dpt_tensorboard *b)
{
    dpt_proto_message(&b->summary, SUMMARY_VALUE, &b->value);
}

void dpt_tensorboard_scalar(struct dpt_tensorboard *b, const char *tag, double value)
{
    if (!b->open || !isfinite(value))
        return;
    dpt_proto_text(&b->value, VALUE_TAG, tag);
    dpt_proto_float(&b->value, VALUE_NUMBER, (float)value);
    end_value(b);
}

void dpt_tensorboard_histogram(struct dpt_tensorboard *b, const char *tag,
                               const struct dpt_histogram *h)
{
    const double width = (h->most - h->least) / DPT_HISTOGRAM_BINS;
    double limits[DPT_HISTOGRAM_BINS], counts[DPT_HISTOGRAM_BINS];

    if (!b->open || h->n == 0)
        return;
    for (int i = 0; i < DPT_HISTOGRAM_BINS; i++) {
        limits[i] = i < DPT_HISTOGRAM_BINS - 1 ? h->least + width * (i + 1) : h->most;
        counts[i] = (double)h->bins[i];
    }
    dpt_proto_double(&b->part, HISTOGRAM_LEAST, h->least);
    dpt_proto_double(&b->part, HISTOGRAM_MOST, h->most);
    dpt_proto_double(&b->part, HISTOGRAM_N, (double)h->n);
    dpt_proto_double(&b->part, HISTOGRAM_SUM, h->sum);
    dpt_proto_double(&b->part, HISTOGRAM_SQUARES, h->sum_of_squares);
    dpt_proto_doubles(&b->part, HISTOGRAM_LIMITS, limits, DPT_HISTOGRAM_BINS);
    dpt_proto_doubles(&b->part, HISTOGRAM_COUNTS, counts, DPT_HISTOGRAM_BINS);
    dpt_proto_text(&b->value, VALUE_TAG, tag);
    dpt_proto_message(&b->value, VALUE_HISTOGRAM, &b->part);
    end_value(b);
}

/* Names the plugin that the value is for; content: emptied, may be NULL. */
static void add_metadata(struct dpt_tensorboard *b, const char *plugin, struct dpt_str *content)
{
    struct dpt_str data = {0}, metadata = {0};

    dpt_proto_text(&data, PLUGIN_NAME, plugin);
    if (content != NULL)
        dpt_proto_message(&data, PLUGIN_CONTENT, content);
    dpt_proto_message(&metadata, METADATA_PLUGIN, &data);
    dpt_proto_message(&b->value, VALUE_METADATA, &metadata);
    dpt_str_release(&data);
    dpt_str_release(&metadata);
}

/* A list of one text, or an empty one of numbers where text is NULL. */
static void add_tensor(struct dpt_tensorboard *b, const char *text)
{
    struct dpt_str dim = {0}, shape = {0}, tensor = {0};

    dpt_proto_int(&tensor, TENSOR_TYPE, text != NULL ? TYPE_STRING : TYPE_FLOAT);
    dpt_proto_int(&dim, DIM_SIZE, text != NULL);
    dpt_proto_message(&shape, SHAPE_DIM, &dim);
    dpt_proto_message(&tensor, TENSOR_SHAPE, &shape);
    if (text != NULL)
        dpt_proto_text(&tensor, TENSOR_STRING, text);
    dpt_proto_message(&b->value, VALUE_TENSOR, &tensor);
    dpt_str_release(&dim);
    dpt_str_release(&shape);
    dpt_str_release(&tensor);
}

void dpt_tensorboard_text(struct dpt_tensorboard *b, const char *tag, const char *markdown)
{
    if (!b->open)
        return;
    dpt_proto_text(&b->value, VALUE_TAG, tag);
    add_tensor(b, markdown);
    add_metadata(b, "text", NULL);
    end_value(b);
}

/* The value of the hparams plugin; part: what it says, as its own field `which`. */
static void add_hparams(struct dpt_tensorboard *b, const char *tag, int which)
{
    struct dpt_str content = {0};

    dpt_proto_int(&content, HPARAMS_VERSION, 0);
    dpt_proto_message(&content, which, &b->part);
    dpt_proto_text(&b->value, VALUE_TAG, tag);
    add_tensor(b, NULL);
    add_metadata(b, "hparams", &content);
    dpt_str_release(&content);
    end_value(b);
}

static void add_entry(struct dpt_tensorboard *b, const char *key, struct dpt_str *value)
{
    struct dpt_str entry = {0};

    dpt_proto_text(&entry, MAP_KEY, key);
    dpt_proto_message(&entry, MAP_VALUE, value);
    dpt_proto_message(&b->part, START_HPARAMS, &entry);
    dpt_str_release(&entry);
}

static void visit_key(void *arg, const char *path, const struct dpt_conf_node *setting,
                      enum dpt_effect effect)
{
    struct dpt_str value = {0}, text = {0};
    const bool plain = setting->kind == DPT_NODE_SCALAR && !setting->quoted;
    double number;

    if (effect == DPT_EFFECT_OUTPUT || dpt_conf_is_null(setting))
        return;
    if (plain && dpt_parse_real(setting->text, &number)) {
        dpt_proto_double(&value, JSON_NUMBER, number);
    } else if (plain &&
               (strcmp(setting->text, "true") == 0 || strcmp(setting->text, "false") == 0)) {
        dpt_proto_int(&value, JSON_BOOL, setting->text[0] == 't');
    } else {
        dpt_conf_setting_text(setting, &text);
        dpt_proto_text(&value, JSON_STRING, text.text != NULL ? text.text : "");
    }
    value.failed = value.failed || text.failed;
    add_entry(arg, path, &value);
    dpt_str_release(&value);
    dpt_str_release(&text);
}

void dpt_tensorboard_hparams(struct dpt_tensorboard *b, const struct dpt_conf_node *job, int ranks)
{
    struct dpt_str value = {0};

    if (!b->open)
        return;
    if (!dpt_conf_settings(job, visit_key, b))
        b->pending.failed = true;
    dpt_proto_double(&value, JSON_NUMBER, ranks);
    add_entry(b, "ranks", &value);
    dpt_str_release(&value);
    dpt_proto_double(&b->part, START_TIME, wall_time());
    add_hparams(b, "_hparams_/session_start_info", HPARAMS_START);
}

void dpt_tensorboard_outcome(struct dpt_tensorboard *b, bool good)
{
    if (!b->open)
        return;
    dpt_proto_int(&b->part, END_STATUS, good ? OUTCOME_GOOD : OUTCOME_BAD);
    dpt_proto_double(&b->part, END_TIME, wall_time());
    add_hparams(b, outcome_tag, HPARAMS_END);
}

bool dpt_tensorboard_due(const struct dpt_tensorboard *b)
{
    return b->pending.length > MOST_WAITING || dpt_now() - b->flushed > MOST_SECONDS;
}

enum dpt_status dpt_tensorboard_flush(struct dpt_tensorboard *b, struct dpt_error *err)
{
    struct stat before;
    int code;

    if (!b->open || (b->pending.length == 0 && !b->pending.failed))
        return DPT_OK;
    if (b->pending.failed)
        return dpt_fail_memory(err, b->path, (double)b->pending.length);
    if (fstat(b->fd, &before) != 0)
        return dpt_fail_errno(err, DPT_IO, "%s", b->path);
    if (dpt_pwrite_all(b->fd, b->pending.text, b->pending.length, before.st_size) != 0) {
        dpt_fail_errno(err, DPT_IO, "%s", b->path);
        code = ftruncate(b->fd, before.st_size); /* else it is cut off when the run goes on */
        (void)code;
        return err->status;
    }
    dpt_str_clear(&b->pending);
    b->flushed = dpt_now();
    return DPT_OK;
}
