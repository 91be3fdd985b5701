#include "core/state/history.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "core/base/file.h"
#include "core/state/lock.h"

/* Bytes read at a time; no line is longer. */
enum { PIECE = 1 << 20 };

const char *const dpt_history_splits[DPT_HISTORY_SPLITS] = {"epoch", "valid", "test"};

const char *const dpt_run_state_names[DPT_RUN_STATES] = {"running", "done", "stopped", "failed",
                                                         "lost"};

const struct dpt_history_score dpt_history_scores[] = {
    {"weight", offsetof(struct dpt_history_eval, weight)},
    {"mae", offsetof(struct dpt_history_eval, mae)},
    {"rmse", offsetof(struct dpt_history_eval, rmse)},
    {"r2", offsetof(struct dpt_history_eval, r2)},
    {"label_accuracy", offsetof(struct dpt_history_eval, label_accuracy)},
    {"balanced_accuracy", offsetof(struct dpt_history_eval, balanced_accuracy)},
    {"rare_recall", offsetof(struct dpt_history_eval, rare_recall)},
    {"precision", offsetof(struct dpt_history_eval, precision)},
    {"recall", offsetof(struct dpt_history_eval, recall)},
    {"f1", offsetof(struct dpt_history_eval, f1)},
    {"roc_auc", offsetof(struct dpt_history_eval, roc_auc)},
    {"top5_accuracy", offsetof(struct dpt_history_eval, top5)},
    {NULL, 0},
};

/* The arrays, in the order of `capacity`. */
enum array { STARTS, TRAIN, EVALS, ENDS };

/* A line that is looked at. */
struct line {
    json_t *map;
    bool no_memory;
};

static int64_t whole(const struct line *line, const char *key)
{
    const json_t *value = json_object_get(line->map, key);

    return json_is_integer(value) ? json_integer_value(value) : -1;
}

static double real(const struct line *line, const char *key)
{
    const json_t *value = json_object_get(line->map, key);

    return json_is_number(value) ? json_number_value(value) : NAN;
}

static const char *text(struct dpt_history *h, struct line *line, const char *key)
{
    const char *value = json_string_value(json_object_get(line->map, key));
    const char *copy = dpt_region_strdup(&h->texts, value != NULL ? value : "");

    line->no_memory = line->no_memory || copy == NULL;
    return copy != NULL ? copy : "";
}

/* Adds an entry to an array. */
#define APPEND(h, line, which, array, entry)                                                       \
    do {                                                                                           \
        void *const larger =                                                                       \
            dpt_grow((h)->array, &(h)->capacity[which], (h)->n_##array + 1, sizeof *(h)->array);   \
        (line)->no_memory = (line)->no_memory || larger == NULL;                                   \
        if (larger == NULL)                                                                        \
            break;                                                                                 \
        (h)->array = larger;                                                                       \
        (h)->array[(h)->n_##array++] = (entry);                                                    \
    } while (0)

/* Keeps a list of n numbers in *to, where the line has one of so many; adds: to those of before. */
static bool take_list(struct dpt_history *h, struct line *line, const char *key, int64_t n,
                      bool adds, double **to)
{
    const json_t *list = json_object_get(line->map, key);

    if (n <= 0 || (int64_t)json_array_size(list) != n)
        return false;
    if (*to == NULL)
        *to = dpt_region_alloc(&h->texts, (size_t)n * sizeof **to);
    line->no_memory = line->no_memory || *to == NULL;
    for (size_t i = 0; *to != NULL && i < (size_t)n; i++)
        (*to)[i] = (adds ? (*to)[i] : 0) + fmax(0, json_number_value(json_array_get(list, i)));
    return *to != NULL;
}

static void take_stages(struct dpt_history *h, struct line *line, struct dpt_history_start *s)
{
    const json_t *list = json_object_get(line->map, "stages");
    const size_t n = json_array_size(list);

    if (n == 0 || (int64_t)n != s->pipeline)
        return;
    s->stages = dpt_region_alloc(&h->texts, n * sizeof *s->stages);
    line->no_memory = line->no_memory || s->stages == NULL;
    for (size_t i = 0; s->stages != NULL && i < n; i++) {
        const char *name = json_string_value(json_array_get(list, i));

        s->stages[i] = dpt_region_strdup(&h->texts, name != NULL ? name : "");
        line->no_memory = line->no_memory || s->stages[i] == NULL;
    }
}

static bool add_start(struct dpt_history *h, struct line *line)
{
    struct dpt_history_start s = {
        .name = text(h, line, "name"),
        .version = text(h, line, "version"),
        .mpi = text(h, line, "mpi"),
        .hdf5 = text(h, line, "hdf5"),
        .device = text(h, line, "device"),
        .library = text(h, line, "library"),
        .host = text(h, line, "host"),
        .ranks = whole(line, "ranks"),
        .hosts = whole(line, "hosts"),
        .threads = whole(line, "threads"),
        .parameters = whole(line, "parameters"),
        .learned = whole(line, "learned"),
        .train_samples = whole(line, "train_samples"),
        .valid_samples = whole(line, "valid_samples"),
        .test_samples = whole(line, "test_samples"),
        .global = whole(line, "global"),
        .micro = whole(line, "micro"),
        .steps = whole(line, "steps"),
        .steps_per_epoch = whole(line, "steps_per_epoch"),
        .resumed_from = whole(line, "resumed_from_step"),
        .data = whole(line, "data"),
        .tensor = whole(line, "tensor"),
        .pipeline = whole(line, "pipeline"),
        .shard = text(h, line, "shard"),
    };

    h->scaled = json_object_get(line->map, "targets") != NULL;
    h->labels = whole(line, "labels") > 1;
    take_stages(h, line, &s);
    take_list(h, line, "rank_nodes", s.ranks, false, &s.rank_nodes);
    APPEND(h, line, STARTS, starts, s);
    return true;
}

/* What the newest start's ranks worked, and have in memory. */
static void add_ranks(struct dpt_history *h, struct line *line)
{
    struct dpt_history_start *s = h->n_starts > 0 ? &h->starts[h->n_starts - 1] : NULL;

    if (s == NULL)
        return;
    if (take_list(h, line, "rank_seconds", s->ranks, true, &s->rank_seconds))
        s->n_rank_seconds = (size_t)s->ranks;
    take_list(h, line, "rank_bytes", s->ranks, false, &s->rank_bytes);
}

static bool add_train(struct dpt_history *h, struct line *line)
{
    const struct dpt_history_train t = {
        .step = whole(line, "step"),
        .samples = whole(line, "samples"),
        .start = (int32_t)h->n_starts - 1,
        .loss = real(line, "loss"),
        .accuracy = real(line, "accuracy"),
        .lr = real(line, "lr"),
        .norm = real(line, "gradient_norm"),
        .rate = real(line, "samples_per_s"),
        .rank_mean = real(line, "rank_seconds_mean"),
        .rank_most = real(line, "rank_seconds_most"),
    };

    APPEND(h, line, TRAIN, train, t);
    add_ranks(h, line);
    return true;
}

static struct dpt_history_eval read_means(struct dpt_history *h, struct line *line,
                                          enum dpt_history_split split)
{
    struct dpt_history_eval e = {
        .step = whole(line, "step"),
        .samples = whole(line, "samples"),
        .split = split,
        .loss = real(line, "loss"),
        .accuracy = real(line, "accuracy"),
        .best = json_object_get(line->map, "best") != NULL,
    };

    for (const struct dpt_history_score *s = dpt_history_scores; s->name != NULL; s++)
        *(double *)(void *)((char *)&e + s->member) = real(line, s->name);
    h->uneven = h->uneven || !isnan(e.rare_recall);
    return e;
}

static bool add_means(struct dpt_history *h, struct line *line, enum dpt_history_split split)
{
    const struct dpt_history_eval e = read_means(h, line, split);

    APPEND(h, line, EVALS, evals, e);
    if (split == DPT_HISTORY_TEST)
        h->best_test.step = -1;
    return true;
}

static bool add_best(struct dpt_history *h, struct line *line)
{
    h->best_test = read_means(h, line, DPT_HISTORY_TEST);
    return true;
}

static bool add_epoch(struct dpt_history *h, struct line *line)
{
    return add_means(h, line, DPT_HISTORY_EPOCH);
}

static bool add_eval(struct dpt_history *h, struct line *line)
{
    const char *name = json_string_value(json_object_get(line->map, "split"));

    for (int split = DPT_HISTORY_VALID; name != NULL && split < DPT_HISTORY_SPLITS; split++)
        if (strcmp(name, dpt_history_splits[split]) == 0)
            return add_means(h, line, (enum dpt_history_split)split);
    return false;
}

static bool add_save(struct dpt_history *h, struct line *line)
{
    h->saved = whole(line, "step");
    return true;
}

static bool add_end(struct dpt_history *h, struct line *line)
{
    const struct dpt_history_end e = {
        .start = (int32_t)h->n_starts - 1,
        .reason = text(h, line, "reason"),
        .early = text(h, line, "stopped_early"),
        .seconds = real(line, "seconds"),
        .generation = whole(line, "generation"),
    };

    APPEND(h, line, ENDS, ends, e);
    return true;
}

/* What each event becomes; false: the line lacks what makes it one. */
static const struct {
    const char *name;
    bool (*add)(struct dpt_history *h, struct line *line);
} events[] = {
    {"run", add_start}, {"train", add_train},     {"epoch", add_epoch}, {"eval", add_eval},
    {"best", add_best}, {"checkpoint", add_save}, {"end", add_end},
};

/* *whole_line: it is one; events that are not known are, too. */
static enum dpt_status add_line(struct dpt_history *h, const char *bytes, size_t n,
                                bool *whole_line, struct dpt_error *err)
{
    json_error_t wrong;
    struct line line = {.map = json_loadb(bytes, n, 0, &wrong)};
    const char *event = json_string_value(json_object_get(line.map, "event"));

    line.no_memory = line.map == NULL && json_error_code(&wrong) == json_error_out_of_memory;
    *whole_line = event != NULL;
    for (size_t i = 0; *whole_line && i < sizeof events / sizeof *events; i++) {
        const int64_t step = whole(&line, "step");

        if (strcmp(event, events[i].name) != 0)
            continue;
        *whole_line = (events[i].add == add_start || step >= 0) && events[i].add(h, &line);
        if (*whole_line && step > h->step)
            h->step = step;
    }
    json_decref(line.map);
    return line.no_memory ? dpt_fail_memory(err, h->path, 0) : DPT_OK;
}

/* Takes the whole lines of a piece. *used: out, its bytes that are done with. */
static enum dpt_status take_lines(struct dpt_history *h, const char *piece, size_t n, size_t *used,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *end;
    bool good;

    for (*used = 0; (end = memchr(piece + *used, '\n', n - *used)) != NULL;
         *used = (size_t)(end - piece) + 1) {
        DPT_TRY(add_line(h, piece + *used, (size_t)(end - piece) - *used, &good, err));
        /* A line at the end that makes no sense yet may do so when all of it has arrived. */
        if (!good && end + 1 == piece + n && !(*used == 0 && n == PIECE))
            break;
        h->damaged += !good;
        h->lines++;
    }
    if (*used == 0 && n == PIECE) { /* no line is that long */
        *used = n;
        h->damaged++;
        h->lines++;
    }
out:
    return status;
}

static enum dpt_status take_rest(struct dpt_history *h, int fd, char *piece, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    size_t used;

    do {
        ssize_t n;

        do
            n = pread(fd, piece, PIECE, h->offset);
        while (n < 0 && errno == EINTR);
        if (n < 0)
            return dpt_fail_errno(err, DPT_IO, "%s", h->path);
        status = take_lines(h, piece, (size_t)n, &used, err);
        h->offset += (long long)used;
        DPT_TRY(status);
    } while (used > 0);
out:
    return status;
}

static void reset(struct dpt_history *h)
{
    h->n_starts = h->n_train = h->n_evals = h->n_ends = 0;
    h->lines = h->damaged = h->offset = h->step = 0;
    h->saved = h->best_test.step = -1;
    h->scaled = h->labels = h->uneven = false;
    dpt_region_release(&h->texts);
}

static enum dpt_status fail_open(const struct dpt_history *h, struct dpt_error *err)
{
    if (!dpt_file_exists(h->folder))
        return dpt_fail(err, DPT_USAGE, "%s: there is no such run folder", h->folder);
    return dpt_fail(err, DPT_USAGE, "%s holds no run: there is no metrics.jsonl in it", h->folder);
}

enum dpt_status dpt_history_more(struct dpt_history *h, bool *changed, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t before = h->lines;
    char *piece = NULL;
    struct stat info;
    int fd;

    *changed = false;
    if (!dpt_file_exists(h->path) && (errno == ENOENT || errno == ENOTDIR))
        return fail_open(h, err);
    /* Opening a file asks a network file system's server for its present state. */
    if (dpt_file_open(h->path, DPT_FILE_READ, DPT_IO, &fd, err) != DPT_OK)
        return err->status;
    if (fstat(fd, &info) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", h->path));
    if (info.st_dev != h->device || info.st_ino != h->inode || info.st_size < h->offset) {
        *changed = h->lines > 0;
        reset(h);
        h->device = info.st_dev;
        h->inode = info.st_ino;
    }
    if (info.st_size == h->offset)
        goto out;
    piece = malloc(PIECE);
    if (piece == NULL)
        DPT_TRY(dpt_fail_memory(err, h->path, PIECE));
    status = take_rest(h, fd, piece, err);
    *changed = *changed || h->lines != before;
out:
    free(piece);
    close(fd);
    return status;
}

enum dpt_status dpt_history_open(struct dpt_history *h, const char *folder, struct dpt_error *err)
{
    static const char name[] = "/metrics.jsonl";
    size_t n = strlen(folder);
    struct stat info;
    bool changed;

    memset(h, 0, sizeof *h);
    while (n > 1 && folder[n - 1] == '/')
        n--;
    if (n >= sizeof h->folder)
        return dpt_fail(err, DPT_USAGE, "the name of a run folder is too long: %.60s…", folder);
    if (n > sizeof name - 1 && memcmp(folder + n - (sizeof name - 1), name, sizeof name - 1) == 0 &&
        stat(folder, &info) == 0 && S_ISREG(info.st_mode))
        n -= sizeof name - 1;
    memcpy(h->folder, folder, n);
    snprintf(h->path, sizeof h->path, "%s%s", h->folder, name);
    return dpt_history_more(h, &changed, err);
}

void dpt_history_close(struct dpt_history *h)
{
    reset(h);
    free(h->starts);
    free(h->train);
    free(h->evals);
    free(h->ends);
    memset(h, 0, sizeof *h);
}

const struct dpt_history_start *dpt_history_start(const struct dpt_history *h)
{
    return h->n_starts > 0 ? &h->starts[h->n_starts - 1] : NULL;
}

const struct dpt_history_end *dpt_history_end(const struct dpt_history *h)
{
    const struct dpt_history_end *end = h->n_ends > 0 ? &h->ends[h->n_ends - 1] : NULL;

    return end != NULL && end->start == (int32_t)h->n_starts - 1 ? end : NULL;
}

bool dpt_history_done(const struct dpt_history *h)
{
    const struct dpt_history_end *end = dpt_history_end(h);

    return end != NULL && strcmp(end->reason, "done") == 0;
}

const struct dpt_history_eval *dpt_history_last(const struct dpt_history *h,
                                                enum dpt_history_split split)
{
    if (split == DPT_HISTORY_TEST && h->best_test.step >= 0)
        return &h->best_test;
    for (size_t i = h->n_evals; i-- > 0;)
        if (h->evals[i].split == split)
            return &h->evals[i];
    return NULL;
}

static bool better(const struct dpt_history_eval *a, const struct dpt_history_eval *b)
{
    if (!isnan(a->accuracy) || !isnan(b->accuracy))
        return a->accuracy > b->accuracy || isnan(b->accuracy);
    return a->loss < b->loss || (isnan(b->loss) && !isnan(a->loss));
}

const struct dpt_history_eval *dpt_history_best(const struct dpt_history *h,
                                                enum dpt_history_split split)
{
    const struct dpt_history_eval *best = NULL;

    for (size_t i = 0; i < h->n_evals; i++)
        if (h->evals[i].split == split &&
            (best == NULL || h->evals[i].best || (!best->best && better(&h->evals[i], best))))
            best = &h->evals[i];
    return best;
}

int64_t dpt_history_step(const struct dpt_history *h)
{
    const struct dpt_history_start *start = dpt_history_start(h);

    return start != NULL && start->resumed_from > h->step ? start->resumed_from : h->step;
}

int64_t dpt_history_epoch(const struct dpt_history *h, int64_t step)
{
    const struct dpt_history_start *start = dpt_history_start(h);

    if (start == NULL || start->steps_per_epoch <= 0)
        return 0;
    return step > 0 ? (step - 1) / start->steps_per_epoch + 1 : 1;
}

int64_t dpt_history_epochs(const struct dpt_history *h)
{
    const struct dpt_history_start *start = dpt_history_start(h);

    return start != NULL ? dpt_history_epoch(h, start->steps) : 0;
}

double dpt_history_rate(const struct dpt_history *h)
{
    double samples = 0, seconds = 0;

    for (size_t i = h->n_train; i-- > 0 && h->train[i].start == (int32_t)h->n_starts - 1;) {
        const int64_t before = i > 0 ? h->train[i - 1].samples : 0;
        const double n = (double)h->train[i].samples - (double)before;

        if (n > 0 && h->train[i].rate > 0) {
            samples += n;
            seconds += n / h->train[i].rate;
        }
    }
    return seconds > 0 ? samples / seconds : NAN;
}

double dpt_history_seconds(const struct dpt_history *h)
{
    double seconds = NAN;

    for (size_t i = 0; i < h->n_ends; i++)
        if (!isnan(h->ends[i].seconds))
            seconds = isnan(seconds) ? h->ends[i].seconds : seconds + h->ends[i].seconds;
    return seconds;
}

void dpt_run_status_read(const struct dpt_history *h, struct dpt_run_status *run_status)
{
    static const char stopped[] = "stopped after step "; /* as run.c ends such a run */
    const struct dpt_history_end *end = dpt_history_end(h);
    char host[DPT_OWNER_WORD] = "";
    bool alive = false, dying;

    *run_status = (struct dpt_run_status){.reason = end == NULL             ? ""
                                                    : end->early[0] != '\0' ? end->early
                                                                            : end->reason};
    if (gethostname(host, sizeof host - 1) != 0)
        host[0] = '\0';
    run_status->held =
        dpt_lock_holder(h->folder, host, &run_status->owner, &alive, &run_status->silent);
    /* A process that hangs may outlive its run until the launcher has killed it. */
    dying = run_status->held && end != NULL && end->generation == run_status->owner.generation;
    if (end != NULL && strcmp(end->reason, "done") == 0)
        run_status->state = DPT_RUN_DONE;
    else if (run_status->held && alive && !dying) /* also before it says that it starts again */
        run_status->state = DPT_RUN_RUNNING;
    else if (end == NULL)
        run_status->state = DPT_RUN_LOST;
    else if (strncmp(end->reason, stopped, sizeof stopped - 1) == 0)
        run_status->state = DPT_RUN_STOPPED;
    else
        run_status->state = DPT_RUN_FAILED;
}
