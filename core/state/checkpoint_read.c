#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/memory.h"
#include "core/base/str.h"
#include "core/state/checkpoint.h"
#include "data/shards/h5.h"

/* More steps than a run may have (train.steps), and no sum of two counters overflows. */
static const int64_t COUNT_MOST = (int64_t)1 << 60;

/* Finds a tensor's data set, which has its shape. name: out, [2 DPT_NAME]. */
static enum dpt_status find_tensor(hid_t file, const char *path, const char *folder,
                                   const struct dpt_tensor *tensor, char *name,
                                   struct dpt_h5_info *info, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char there[DPT_DIMS_TEXT], here[DPT_DIMS_TEXT];
    bool exists;

    snprintf(name, DPT_NAME * 2, "%s/%s", folder, tensor->name);
    DPT_TRY(dpt_h5_exists(file, path, folder, &exists, err));
    if (!exists)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: holds no %s, which this job needs", path, folder));
    DPT_TRY(dpt_h5_exists(file, path, name, &exists, err));
    if (!exists)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: has no %s; it is of another model than this job's",
                         path, name));
    DPT_TRY(dpt_h5_info(file, path, name, info, err));
    if (info->type != DPT_H5_F32 || info->n_dims != tensor->n_dims ||
        memcmp(info->dims, tensor->dims, (size_t)info->n_dims * sizeof *info->dims) != 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: %s is %s there and %s in this job's model", path,
                         name, dpt_dims_text(info->n_dims, info->dims, there),
                         dpt_dims_text(tensor->n_dims, tensor->dims, here)));
out:
    return status;
}

/* Checks what was read of a data set against its checksum. not_finite: the first such float of it,
 * -1: none or any is accepted. */
static enum dpt_status check_tensor(const char *path, const char *name, bool matches,
                                    int64_t not_finite, bool is_nan, struct dpt_error *err)
{
    if (!matches)
        return dpt_fail(err, DPT_BAD_DATA, "%s is damaged: %s does not match its checksum", path,
                        name);
    if (not_finite >= 0)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: number %lld of /%s is %s: the run had diverged when it was "
                        "saved; --allow-nan loads it anyway",
                        path, (long long)not_finite, name + (*name == '/'),
                        is_nan ? "NaN" : "infinite");
    return DPT_OK;
}

/* Reads all of a data set that was found. */
static enum dpt_status read_floats(hid_t file, const char *path, const char *name,
                                   const struct dpt_h5_info *info, float *to, int64_t n, bool any,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
    int64_t bad = 0;

    if (set < 0 || H5Dread(set, H5T_IEEE_F32LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, to) < 0)
        DPT_TRY(dpt_h5_fail(err, DPT_BAD_DATA, "%s: %s cannot be read", path, name));
    dpt_file_moved();
    while (bad < n && (any || isfinite(to[bad])))
        bad++;
    DPT_TRY(check_tensor(path, name,
                         info->has_crc && dpt_crc32(0, to, (size_t)n * sizeof *to) == info->crc,
                         bad < n ? bad : -1, bad < n && isnan(to[bad]), err));
out:
    if (set >= 0)
        H5Dclose(set);
    return status;
}

/* Whether an attribute is one number of the kind that is wanted; of several, HDF5 would write all
 * to where there is room for one. */
static bool is_number(hid_t attribute, hid_t wanted)
{
    const hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
    const bool good =
        H5Tget_class(type) == H5Tget_class(wanted) && H5Sget_simple_extent_npoints(space) == 1;

    H5Sclose(space);
    H5Tclose(type);
    return good;
}

static enum dpt_status read_number(hid_t file, const char *path, const char *name, hid_t type,
                                   void *value, struct dpt_error *err)
{
    const hid_t attribute =
        H5Aexists(file, name) > 0 ? H5Aopen(file, name, H5P_DEFAULT) : H5I_INVALID_HID;
    const bool good =
        attribute >= 0 && is_number(attribute, type) && H5Aread(attribute, type, value) >= 0;

    if (attribute >= 0)
        H5Aclose(attribute);
    return good ? DPT_OK : dpt_fail(err, DPT_BAD_DATA, "%s: lacks its attribute %s", path, name);
}

/* A counter of a file's attributes, and what it can be. */
struct counter {
    const char *name;
    int64_t *value, least;
    const int64_t *most;
    const char *limit;
};

/* Reads and checks a counter: what no run has comes of damage before it was saved, or of somebody's
 * hand; it is told by the name of its attribute. */
static enum dpt_status read_counter(hid_t file, const char *path, const struct counter *c,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(read_number(file, path, c->name, H5T_NATIVE_INT64, c->value, err));
    if (*c->value < c->least)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: its attribute %s is %lld, less than %lld", path,
                         c->name, (long long)*c->value, (long long)c->least));
    if (*c->value > *c->most)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: its attribute %s is %lld, more than %s (%lld)",
                         path, c->name, (long long)*c->value, c->limit, (long long)*c->most));
out:
    return status;
}

/* A text attribute of the file, or "". */
static void read_text(hid_t file, const char *name, char *text, size_t size)
{
    size_t n;
    const char *const *texts = dpt_h5_texts(file, name, &n);

    snprintf(text, size, "%s", texts != NULL && n == 1 && strlen(texts[0]) < size ? texts[0] : "");
    free((void *)texts);
}

/* Reads what is remembered of a monitored value, where the file has it. kind: "plateau". */
static enum dpt_status read_watch(hid_t file, const char *path, const char *kind,
                                  const struct dpt_progress *p, struct dpt_watch *watch,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct {
        const char *name;
        int64_t *value, least;
    } counters[] = {
        {"step", &watch->step, -1}, {"waits", &watch->waits, 0}, {"drops", &watch->drops, 0}};
    char name[64];

    *watch = (struct dpt_watch){.step = -1};
    snprintf(name, sizeof name, "%s_monitor", kind);
    read_text(file, name, watch->monitor, sizeof watch->monitor);
    for (size_t i = 0; watch->monitor[0] != '\0' && i < sizeof counters / sizeof counters[0]; i++) {
        const struct counter counter = {name, counters[i].value, counters[i].least, &p->step,
                                        "step"};

        snprintf(name, sizeof name, "%s_%s", kind, counters[i].name);
        if (counters[i].value != &watch->drops || watch == &p->plateau)
            DPT_TRY(read_counter(file, path, &counter, err));
    }
    snprintf(name, sizeof name, "%s_best", kind);
    if (watch->monitor[0] != '\0')
        DPT_TRY(read_number(file, path, name, H5T_NATIVE_DOUBLE, &watch->best, err));
out:
    return status;
}

/* Reads and checks how far the run was. */
static enum dpt_status read_progress(hid_t file, const char *path, struct dpt_progress *p,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int64_t left = 0; /* steps beside those of whole epochs, at most */
    const struct counter counters[] = {
        {"step", &p->step, 0, &COUNT_MOST, "any run's"},
        {"updates", &p->updates, 0, &p->step, "step"},
        {"samples", &p->samples, 0, &COUNT_MOST, "any run's"},
        {"epoch", &p->epoch, 0, &p->step, "step"},
        {"epoch_step", &p->epoch_step, 0, &left, "step less epoch"},
        {"best_step", &p->best_step, -1, &p->step, "step"},
    };

    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; i++) {
        DPT_TRY(read_counter(file, path, &counters[i], err));
        left = p->step - p->epoch;
    }
    DPT_TRY(read_number(file, path, "best_metric", H5T_NATIVE_DOUBLE, &p->best_metric, err));
    read_text(file, "best_monitor", p->best_monitor, sizeof p->best_monitor);
    if (p->best_monitor[0] != '\0')
        DPT_TRY(read_number(file, path, "best_loss", H5T_NATIVE_DOUBLE, &p->best_loss, err));
    DPT_TRY(read_watch(file, path, "early_stop", p, &p->early_stop, err));
    DPT_TRY(read_watch(file, path, "early_stop_also", p, &p->also, err));
    DPT_TRY(read_watch(file, path, "plateau", p, &p->plateau, err));
out:
    return status;
}

/* What a run in half floats resumes with; another one's checkpoint says nothing of it. */
static enum dpt_status read_scale(hid_t file, const char *path, struct dpt_loss_scale *s,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int64_t good;
    double scale;

    if (H5Aexists(file, "loss_scale") <= 0)
        return DPT_OK;
    DPT_TRY(read_number(file, path, "loss_scale", H5T_NATIVE_DOUBLE, &scale, err));
    DPT_TRY(read_number(file, path, "loss_scale_good", H5T_NATIVE_INT64, &good, err));
    DPT_TRY(read_number(file, path, "loss_scale_overflows", H5T_NATIVE_INT64, &s->overflows, err));
    if (!(scale >= DPT_LOSS_SCALE_LEAST && scale <= DPT_LOSS_SCALE_MOST) || good < 0 ||
        good > DPT_LOSS_SCALE_PATIENCE)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: its loss scale is %g, after %lld steps", path,
                         scale, (long long)good));
    s->scale = (float)scale;
    s->good = (int32_t)good;
out:
    return status;
}

/* The arenas that are being read; tables are [1 + slots][tensors]. */
struct arenas {
    struct dpt_state *s;
    hid_t file;
    const char *path;
    char folder[1 + DPT_MAX_SLOTS][DPT_NAME];
    bool any;
    int64_t *offset; /* of what the ranks read themselves; -1: others */
    uint32_t *crc;   /* of that, as the file has it */
};

static const char *folder_of(const struct arenas *a, int k, const struct dpt_tensor *tensor)
{
    return tensor->state ? "/state" : a->folder[k + 1];
}

/* Reads a tensor, or leaves it to the ranks that keep it, where all see the file and its numbers
 * lie there as they are in memory. */
static enum dpt_status read_tensor(const struct arenas *a, int k, int32_t i, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_state *s = a->s;
    const struct dpt_tensor *tensor = &s->graph->tensors[i];
    const size_t at = (size_t)(k + 1) * (size_t)s->graph->n_tensors + (size_t)i;
    char name[DPT_NAME * 2];
    struct dpt_h5_info info;
    float *to;

    DPT_TRY(find_tensor(a->file, a->path, folder_of(a, k, tensor), tensor, name, &info, err));
    if (s->seen != NULL && *s->seen && info.contiguous && info.has_crc) {
        a->offset[at] = info.offset;
        a->crc[at] = info.crc;
        goto out;
    }
    to = (k < 0 ? s->params : s->slot[k]) + tensor->offset;
    DPT_TRY(read_floats(a->file, a->path, name, &info, to, tensor->count, a->any, err));
    if (s->give != NULL)
        DPT_TRY(s->give(s->owners, k, (size_t)tensor->offset, (size_t)tensor->count, to, err));
out:
    return status;
}

/* Has all ranks read what was left to them, and checks each tensor as a whole. */
static enum dpt_status read_by_owners(const struct arenas *a, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_graph *graph = a->s->graph;
    const size_t tensors = (size_t)graph->n_tensors, sets = tensors * (size_t)(1 + a->s->slots);
    const struct dpt_stretch *done, *end;
    size_t n;

    DPT_TRY(a->s->read(a->s->owners, a->offset, sets, &done, &n, err));
    end = done + n;
    for (size_t i = 0; i < sets; i++) {
        const struct dpt_tensor *tensor = &graph->tensors[i % tensors];
        const int k = (int)(i / tensors) - 1;
        const struct dpt_stretch *bad = NULL;
        char name[DPT_NAME * 2];
        uint32_t crc = 0;

        for (; done < end && done->arena == k && done->tensor == (int32_t)(i % tensors); done++) {
            crc = dpt_crc32_join(crc, done->crc, (uint64_t)done->n * sizeof(float));
            if (bad == NULL && done->not_finite >= 0 && !a->any)
                bad = done;
        }
        snprintf(name, sizeof name, "%s/%s", folder_of(a, k, tensor), tensor->name);
        if (a->offset[i] >= 0)
            DPT_TRY(check_tensor(a->path, name, crc == a->crc[i],
                                 bad != NULL ? bad->not_finite : -1, bad != NULL && bad->is_nan,
                                 err));
    }
out:
    return status;
}

static enum dpt_status read_arenas(struct dpt_state *s, hid_t file, const char *path,
                                   unsigned parts, struct dpt_error *err)
{
    static const char average[] = "/optimizer/" DPT_CHECKPOINT_AVERAGE;
    enum dpt_status status = DPT_OK;
    struct arenas a = {.s = s, .file = file, .path = path, .any = (parts & DPT_LOAD_ANY) != 0};
    size_t sets;

    s->averaged = false;
    if ((parts & DPT_LOAD_AVERAGE) != 0)
        DPT_TRY(dpt_h5_exists(file, path, average, &s->averaged, err));
    if ((parts & DPT_LOAD_ONLY_AVERAGE) != 0 && !s->averaged)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: holds no moving average of the weights: its job had no train.ema",
                         path));
    if ((parts & (DPT_LOAD_PARAMS | DPT_LOAD_SLOTS)) == 0)
        return DPT_OK;
    sets = (size_t)s->graph->n_tensors * (size_t)(1 + s->slots);
    DPT_TRY(DPT_ALLOCATE(a.offset, sets, "a checkpoint's list of contents", err));
    DPT_TRY(DPT_ALLOCATE(a.crc, sets, "a checkpoint's list of contents", err));
    memset(a.offset, -1, sets * sizeof *a.offset);
    snprintf(a.folder[0], sizeof a.folder[0], "%s", s->averaged ? average : "/params");
    for (int k = -1; k < s->slots; k++) {
        if (k >= 0)
            snprintf(a.folder[k + 1], sizeof a.folder[0], "/optimizer/%s", s->slot_names[k]);
        if ((parts & (k < 0 ? DPT_LOAD_PARAMS : DPT_LOAD_SLOTS)) == 0)
            continue;
        for (int32_t i = 0; i < s->graph->n_tensors; i++)
            if (k < 0 || !s->graph->tensors[i].state)
                DPT_TRY(read_tensor(&a, k, i, err));
    }
    if (s->seen != NULL && *s->seen)
        DPT_TRY(read_by_owners(&a, err));
out:
    dpt_free(a.offset);
    dpt_free(a.crc);
    return status;
}

/* The scale of the targets that the model was trained with; it may have none. */
static enum dpt_status read_targets(hid_t file, const char *path, struct dpt_target_scale *scale,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_tensor row = {.n_dims = 1, .dims = {scale->outputs}, .count = scale->outputs};
    const struct {
        const char *name;
        float *to;
    } rows[] = {{"mean", scale->mean}, {"std", scale->std}};
    char transform[16];
    size_t which;

    read_text(file, "target_transform", transform, sizeof transform);
    which = dpt_find(transform, dpt_target_transforms, DPT_TARGET_TRANSFORM_COUNT);
    if (which == DPT_TARGET_TRANSFORM_COUNT && transform[0] != '\0')
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: target_transform is '%s', which is unknown", path,
                         transform));
    scale->transform = transform[0] != '\0' ? (enum dpt_target_transform)which : DPT_TARGETS_PLAIN;
    DPT_TRY(dpt_h5_exists(file, path, "/targets", &scale->used, err));
    for (size_t i = 0; scale->used && i < sizeof rows / sizeof rows[0]; i++) {
        char name[DPT_NAME * 2];
        struct dpt_h5_info info;

        snprintf(row.name, sizeof row.name, "%s", rows[i].name);
        DPT_TRY(find_tensor(file, path, "/targets", &row, name, &info, err));
        DPT_TRY(read_floats(file, path, name, &info, rows[i].to, row.count, false, err));
    }
    for (int32_t k = 0; scale->used && k < scale->outputs; k++)
        if (!(scale->std[k] > 0))
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                             "%s: number %d of /targets/std is %g: no target was divided by that",
                             path, k, (double)scale->std[k]));
out:
    return status;
}

/* What dpt_checkpoint_read does, under HDF5's lock. */
static enum dpt_status read_parts(hid_t file, const char *path, struct dpt_state *state,
                                  unsigned parts, char **job_text, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_progress progress = {0};
    int64_t version, parameters;

    DPT_TRY(read_number(file, path, "format_version", H5T_NATIVE_INT64, &version, err));
    if (version < 1 || version > DPT_CHECKPOINT_FORMAT)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: has format %lld, this dptrain reads formats 1 to %d", path,
                         (long long)version, DPT_CHECKPOINT_FORMAT));
    DPT_TRY(read_arenas(state, file, path, parts, err));
    if ((parts & DPT_LOAD_PARAMS) != 0 && state->targets != NULL && state->targets->outputs > 0)
        DPT_TRY(read_targets(file, path, state->targets, err));
    DPT_TRY(read_number(file, path, "parameters", H5T_NATIVE_INT64, &parameters, err));
    if ((parts & DPT_LOAD_PARAMS) != 0 && parameters != state->graph->parameters)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: its model has %lld parameters, this job's has %lld", path,
                         (long long)parameters, (long long)state->graph->parameters));
    /* Also checked if nobody resumes from them: counters that no run has make the rest doubtful. */
    DPT_TRY(read_progress(file, path, &progress, err));
    if ((parts & DPT_LOAD_PROGRESS) != 0)
        state->progress = progress;
    if ((parts & DPT_LOAD_PROGRESS) != 0 && state->scaled)
        DPT_TRY(read_scale(file, path, &state->scale, err));
    if (job_text != NULL)
        DPT_TRY(dpt_h5_text(file, path, "/job", job_text, err));
out:
    return status;
}

enum dpt_status dpt_checkpoint_open(struct dpt_checkpoint *c, const char *path,
                                    struct dpt_error *err)
{
    hid_t file;
    enum dpt_status status;

    c->path = path;
    c->file = -1;
    status = dpt_h5_open(path, &file, err);
    if (status == DPT_OK)
        c->file = file;
    return status;
}

void dpt_checkpoint_close(struct dpt_checkpoint *c)
{
    if (c->path == NULL || c->file < 0)
        return;
    dpt_h5_enter();
    H5Fclose(c->file);
    dpt_h5_leave();
    c->file = -1;
}

enum dpt_status dpt_checkpoint_read(const struct dpt_checkpoint *c, struct dpt_state *state,
                                    unsigned parts, char **job_text, struct dpt_error *err)
{
    enum dpt_status status;

    dpt_h5_enter();
    status = read_parts(c->file, c->path, state, parts, job_text, err);
    dpt_h5_leave();
    return status;
}

enum dpt_status dpt_checkpoint_text(const struct dpt_checkpoint *c, const char *name, char **text,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    bool exists;

    *text = NULL;
    dpt_h5_enter();
    DPT_TRY(dpt_h5_exists(c->file, c->path, name, &exists, err));
    if (exists)
        status = dpt_h5_text(c->file, c->path, name, text, err);
out:
    dpt_h5_leave();
    return status;
}

const char *dpt_checkpoint_attribute(const struct dpt_checkpoint *c, const char *name, char *text,
                                     size_t size)
{
    dpt_h5_enter();
    read_text(c->file, name, text, size);
    dpt_h5_leave();
    return text;
}

const char *dpt_checkpoint_numerics(const struct dpt_checkpoint *c, char *text, size_t size)
{
    char backend[64], library[128], version[64];

    snprintf(text, size, "%s %s, dptrain %s",
             dpt_checkpoint_attribute(c, "backend", backend, sizeof backend),
             dpt_checkpoint_attribute(c, "library", library, sizeof library),
             dpt_checkpoint_attribute(c, "version", version, sizeof version));
    return text;
}

int64_t dpt_checkpoint_arithmetic(const struct dpt_checkpoint *c)
{
    int64_t version = 1;
    struct dpt_error none;

    dpt_h5_enter();
    if (read_number(c->file, c->path, "numerics", H5T_NATIVE_INT64, &version, &none) != DPT_OK)
        version = 1;
    dpt_h5_leave();
    return version;
}

bool dpt_checkpoint_shape(const struct dpt_checkpoint *c, const char *name, struct dpt_shape *shape)
{
    struct dpt_shape read = {0};
    char text[64], again[40];
    int n;

    dpt_checkpoint_attribute(c, name, text, sizeof text);
    n = sscanf(text, "%" SCNd32 "x%" SCNd32 "x%" SCNd32, &read.c, &read.h, &read.w);
    if (n == 1) {
        read.h = read.w = 1;
        read.flat = true;
    } else if (n != 3) {
        return false;
    }
    *shape = read;
    return read.c > 0 && read.h > 0 && read.w > 0 && dpt_shape_size(&read) <= INT32_MAX &&
           strcmp(dpt_shape_text(&read, again), text) == 0;
}
