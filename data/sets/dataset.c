#include "data/sets/dataset.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "data/sets/parts.h"
#include "data/tables/columns.h"

static const struct dpt_comm alone = {.world = {.size = 1}, .node = {.size = 1}, .nodes = 1};

static const char *key_of(const struct dpt_dataset_spec *spec)
{
    return spec->paths == &spec->conf->train   ? "data.train"
           : spec->paths == &spec->conf->valid ? "data.valid"
           : spec->paths == &spec->conf->test  ? "data.test"
                                               : "data";
}

/* All that can be known without reading samples. Collective over comm->world. */
static enum dpt_status describe(struct dpt_dataset *set, const struct dpt_dataset_spec *spec,
                                const struct dpt_comm *comm, struct dpt_error *err)
{
    enum dpt_status status = DPT_ALLOCATE(set->parts, 1, "a data set", err);

    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    set->parts->key = key_of(spec);
    set->parts->verify = spec->conf->verify;
    if (spec->paths->n == 1 && strcmp(spec->paths->at[0], "synthetic") == 0) {
        DPT_TRY(dpt_synthetic_describe(set, spec, err));
    } else {
        DPT_TRY(dpt_dataset_describe_shards(set, spec, comm, err));
    }
    DPT_TRY(dpt_dataset_take_class_weights(set, spec, err));
    DPT_TRY(dpt_fill_prepare(set, spec->conf, err));
out:
    return status;
}

enum dpt_status dpt_dataset_describe(struct dpt_dataset *set, const struct dpt_dataset_spec *spec,
                                     const struct dpt_comm *comm, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    memset(set, 0, sizeof *set);
    DPT_TRY(describe(set, spec, comm != NULL ? comm : &alone, err));
out:
    if (status != DPT_OK)
        dpt_dataset_close(set);
    return status;
}

/* What the job says of caching, as far as it can be obeyed. */
static int cache_of(const struct dpt_dataset *set, const struct dpt_data_conf *conf)
{
    return set->parts->synthetic ? DPT_CACHE_MEMORY : conf->cache;
}

bool dpt_dataset_in_memory(const struct dpt_dataset *set, const struct dpt_data_conf *conf,
                           double available)
{
    const int cache = cache_of(set, conf);
    const double bytes = (double)set->bytes;

    return cache == DPT_CACHE_MEMORY ||
           (cache == DPT_CACHE_AUTO && (available < 0 || bytes <= available / 2));
}

/* Whether the samples have weights: also of a set that is only described. */
static bool is_weighted(const struct dpt_dataset *set)
{
    return set->parts->class_weights != NULL || dpt_dataset_has_weights(set->parts);
}

/* Where kept files begin, and where the last one of each shard ends. */
static double offset_bytes(const struct dpt_dataset *set)
{
    return set->files ? ((double)set->samples + (double)set->parts->n_shards) * sizeof(int64_t) : 0;
}

double dpt_dataset_target_bytes(const struct dpt_dataset *set)
{
    const bool classes = set->target == DPT_TARGET_CLASS;
    const int words = (classes ? 1 : set->target_width) + is_weighted(set);

    return (double)set->samples * words * sizeof(float) + offset_bytes(set);
}

void dpt_dataset_warn_unused(const struct dpt_dataset *set, struct dpt_log *log)
{
    const struct dpt_dataset_parts *parts = set->parts;
    char dims[DPT_DIMS_TEXT];

    if (parts->n_shards > 0 && parts->shards->matlab)
        dpt_log_info(log, "%s: MATLAB's, so dimensions are read in its order: /%s is %s",
                     parts->shards->path, parts->shards->images.name,
                     dpt_dims_text(parts->shards->images.info.n_dims,
                                   parts->shards->images.info.dims, dims));
    /* Most sets' shards are alike: each kind is told once, by the first file that is so. */
    for (size_t i = 0; i < parts->n_shards; i++) {
        const char *unused = parts->shards[i].unused;
        size_t same = 0;
        bool told = unused[0] == '\0';

        for (size_t k = 0; k < i && !told; k++)
            told = strcmp(parts->shards[k].unused, unused) == 0;
        for (size_t k = i + 1; k < parts->n_shards && !told; k++)
            same += strcmp(parts->shards[k].unused, unused) == 0;
        if (!told)
            dpt_log_warn(log,
                         "%s: %s %s not used (known: /images or /x, /labels or /y, /weights or "
                         "/mask)%s",
                         parts->shards[i].path, unused, strchr(unused, ',') != NULL ? "are" : "is",
                         same > 0 ? ", nor in the other files" : "");
    }
}

/* Makes room for the images in the node's memory if they are to be there. Collective over the node.
 */
static enum dpt_status place_images(struct dpt_dataset *set, const struct dpt_dataset_spec *spec,
                                    const struct dpt_group *node, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int cache = cache_of(set, spec->conf);
    const double bytes = (double)set->bytes;
    double available = dpt_memory_available();

    DPT_TRY(dpt_group_broadcast(node, 0, &available, sizeof available, err));
    if (!dpt_dataset_in_memory(set, spec->conf, available))
        return DPT_OK;
    if (available >= 0 && bytes > available)
        DPT_TRY(dpt_fail(err, DPT_RANK,
                         "%s: %.1f GB of samples do not fit in this node's free memory (%.1f GB)%s",
                         set->parts->key, bytes / 1e9, available / 1e9,
                         set->parts->synthetic ? "" : ": data.cache: none reads them when needed"));
    status = dpt_shared_open(&set->parts->images, node, (size_t)bytes, err);
    if (status == DPT_OK)
        set->memory = set->parts->images.bytes;
    else if (cache == DPT_CACHE_AUTO) /* there is no room after all: they are read when needed */
        status = DPT_OK;
out:
    return status;
}

/* Moves where kept files begin from the first rank's memory to the node's. Collective over the
 * node; the others may read it once all have returned. */
static enum dpt_status place_offsets(struct dpt_dataset *set, const struct dpt_group *node,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_dataset_parts *parts = set->parts;
    int64_t *to;

    if (!set->files)
        return DPT_OK;
    DPT_TRY(dpt_shared_open(&parts->offsets, node, (size_t)offset_bytes(set), err));
    to = parts->offsets.bytes;
    for (size_t i = 0; i < parts->n_shards; i++) {
        struct dpt_shard *shard = &parts->shards[i];
        const size_t n = (size_t)shard->samples + 1;

        if (node->rank == 0)
            memcpy(to, shard->offsets, n * sizeof *to);
        free(shard->offsets);
        shard->offsets = to;
        to += n;
    }
out:
    return status;
}

/* Makes room for what the node's memory is to hold. Collective over the node. */
static enum dpt_status place(struct dpt_dataset *set, const struct dpt_dataset_spec *spec,
                             const struct dpt_group *node, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_dataset_parts *parts = set->parts;
    const size_t width = set->target == DPT_TARGET_CLASS ? 1 : (size_t)set->target_width;

    DPT_TRY(dpt_shared_open(&parts->targets, node, (size_t)set->samples * width * 4, err));
    if (set->target == DPT_TARGET_CLASS)
        set->labels = parts->targets.bytes;
    else
        set->targets = parts->targets.bytes;
    if (is_weighted(set)) {
        DPT_TRY(dpt_shared_open(&parts->weighed, node, (size_t)set->samples * sizeof(float), err));
        set->weights = parts->weighed.bytes;
    }
    DPT_TRY(place_offsets(set, node, err));
    DPT_TRY(place_images(set, spec, node, err));
    parts->check_finite = set->memory == NULL && !set->u8;
out:
    return status;
}

/* What follows from the labels. Collective over the node. */
static enum dpt_status finish(struct dpt_dataset *set, const struct dpt_group *node,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_dataset_parts *parts = set->parts;

    if (set->target == DPT_TARGET_CLASS) {
        int32_t most = 0;

        for (int64_t i = 0; i < set->samples; i++)
            most = set->labels[i] > most ? set->labels[i] : most;
        set->target_width = most + 1;
    }
    if (parts->class_weights != NULL)
        DPT_TRY(dpt_group_agree(node, node->rank == 0 ? dpt_dataset_weigh(set, err) : DPT_OK, err));
    if (parts->label_weights != NULL) /* of each rank for itself */
        DPT_TRY(dpt_group_agree(node, dpt_dataset_weigh_labels(set, err), err));
out:
    return status;
}

enum dpt_status dpt_dataset_open(struct dpt_dataset *set, const struct dpt_dataset_spec *spec,
                                 const struct dpt_comm *comm, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    memset(set, 0, sizeof *set);
    DPT_TRY(dpt_group_agree(&comm->world, describe(set, spec, comm, err), err));
    DPT_TRY(dpt_group_agree(&comm->world, place(set, spec, &comm->node, err), err));
    if (!set->parts->synthetic)
        DPT_TRY(dpt_dataset_read(set, spec, comm, err));
    else
        DPT_TRY(
            dpt_group_agree(&comm->world, dpt_synthetic_fill(set, spec, &comm->node, err), err));
    DPT_TRY(dpt_group_agree(&comm->world, finish(set, &comm->node, err), err));
out:
    if (status != DPT_OK)
        dpt_dataset_close(set);
    return status;
}

const char *dpt_dataset_changed(const struct dpt_dataset *set)
{
    struct dpt_dataset_parts *parts = set->parts;

    /* Asked after each step, of thousands of shards. */
    if (parts == NULL || !atomic_load(&parts->changed))
        return NULL;
    atomic_store(&parts->changed, false);
    for (size_t i = 0; i < parts->n_shards; i++) {
        struct dpt_shard *shard = &parts->shards[i];
        int change = DPT_SHARD_CHANGED;

        if (!atomic_compare_exchange_strong(&shard->change, &change, DPT_SHARD_TOLD))
            continue;
        atomic_store(&parts->changed, true); /* there may be more */
        return shard->path;
    }
    return NULL;
}

const char *dpt_dataset_shared(const struct dpt_dataset *a, const struct dpt_dataset *b)
{
    for (size_t i = 0; i < a->parts->n_shards; i++)
        for (size_t k = 0; k < b->parts->n_shards; k++) {
            const struct dpt_shard *one = &a->parts->shards[i], *other = &b->parts->shards[k];

            if (dpt_shard_compare_files(one, other) == 0)
                return other->path;
        }
    return NULL;
}

void dpt_dataset_close(struct dpt_dataset *set)
{
    struct dpt_dataset_parts *parts = set->parts;

    if (parts == NULL)
        return;
    dpt_shared_close(&parts->images);
    dpt_shared_close(&parts->targets);
    dpt_shared_close(&parts->weighed);
    for (size_t i = 0; i < parts->n_shards; i++) {
        if (parts->offsets.bytes != NULL) /* they are the node's */
            parts->shards[i].offsets = NULL;
        dpt_shard_close(&parts->shards[i]);
    }
    dpt_shared_close(&parts->offsets);
    dpt_free(parts->shards);
    dpt_free(parts->scale);
    dpt_free(parts->shift);
    dpt_free(parts->centre);
    dpt_free(parts->rest);
    dpt_free(parts->weights);
    dpt_free(parts->biases);
    dpt_free(parts->positive);
    dpt_free(parts);
    memset(set, 0, sizeof *set);
}

const struct dpt_shard *dpt_dataset_shard(const struct dpt_dataset *set, int64_t sample)
{
    size_t low = 0, high = set->parts->n_shards;

    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;

        if (set->parts->shards[middle].first <= sample)
            low = middle;
        else
            high = middle;
    }
    return &set->parts->shards[low];
}

enum dpt_status dpt_dataset_check_targets(const struct dpt_dataset *set, int32_t outputs,
                                          struct dpt_error *err)
{
    const struct dpt_dataset_parts *parts = set->parts;

    if (set->target_width == outputs ||
        (set->target == DPT_TARGET_CLASS && set->target_width < outputs))
        return DPT_OK;
    if (parts->synthetic)
        return dpt_fail(err, DPT_BAD_JOB, "data.synthetic.%s is %d, the model has %d output%s",
                        set->target == DPT_TARGET_CLASS ? "classes" : "outputs", set->target_width,
                        outputs, outputs == 1 ? "" : "s");
    if (set->target == DPT_TARGET_VECTOR)
        return dpt_fail(
            err, DPT_BAD_JOB, "the model has %d output%s, /%s of %s has %d number%s per sample",
            outputs, outputs == 1 ? "" : "s", parts->shards[0].labels.name, parts->shards[0].path,
            set->target_width, set->target_width == 1 ? "" : "s");
    for (int64_t i = 0; set->labels != NULL && i < set->samples; i++)
        if (set->labels[i] >= outputs) {
            const struct dpt_shard *shard = dpt_dataset_shard(set, i);

            return dpt_fail(err, DPT_BAD_DATA,
                            "%s: /%s[%lld] is %d, the model has %d output%s (0 to %d)", shard->path,
                            shard->labels.name, (long long)(i - shard->first), set->labels[i],
                            outputs, outputs == 1 ? "" : "s", outputs - 1);
        }
    return DPT_OK;
}

/* The labels of a shard that were seen. */
struct seen {
    const struct dpt_shard *shard;
    int64_t classes;
};

static enum dpt_status see_labels(void *arg, int64_t row, int64_t n, const void *raw,
                                  struct dpt_error *err)
{
    struct seen *seen = arg;
    const struct dpt_shard *shard = seen->shard;
    char text[32];

    for (int64_t i = 0; i < n; i++) {
        const int64_t label = dpt_field_int(&shard->labels, raw, (size_t)i);

        if (label < 0 || label >= DPT_MOST_CLASSES)
            return dpt_fail(
                err, DPT_BAD_DATA, "%s: /%s[%lld] is %s, no class (0 to %d)%s", shard->path,
                shard->labels.name, (long long)(row + i),
                dpt_field_show(&shard->labels, raw, (size_t)i, text), DPT_MOST_CLASSES - 1,
                dpt_shard_whole(shard) ? "" : "; `loss: mse` learns regression targets");
        seen->classes = label >= seen->classes ? label + 1 : seen->classes;
    }
    return DPT_OK;
}

/* Sees the labels of this rank's part of the shards. */
static enum dpt_status see_shards(const struct dpt_dataset_parts *parts,
                                  const struct dpt_group *world, struct seen *seen,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t ranks = (size_t)world->size, rank = (size_t)world->rank;

    for (size_t i = parts->n_shards * rank / ranks; i < parts->n_shards * (rank + 1) / ranks; i++) {
        struct dpt_shard *shard = &parts->shards[i];

        DPT_TRY(dpt_shard_attach(shard, err));
        seen->shard = shard;
        DPT_TRY(dpt_field_scan(&shard->labels, 0, shard->samples, see_labels, seen, NULL, err));
        dpt_shard_detach(shard);
    }
out:
    return status;
}

enum dpt_status dpt_dataset_count_outputs(struct dpt_dataset *set, const struct dpt_comm *comm,
                                          int64_t *outputs, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_dataset_parts *parts = set->parts;
    const struct dpt_group *world = comm != NULL ? &comm->world : &alone.world;
    struct seen seen = {.classes = set->target_width};
    double most;

    if (set->target == DPT_TARGET_CLASS && parts->named != NULL &&
        (int64_t)parts->named->names.n > seen.classes)
        seen.classes = (int64_t)parts->named->names.n;
    if (set->target == DPT_TARGET_CLASS)
        status = see_shards(parts, world, &seen, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    DPT_TRY(dpt_group_max(world, (double)seen.classes, &most, err));
    *outputs = (int64_t)most;
out:
    return status;
}

enum dpt_status dpt_dataset_check_classes(const struct dpt_dataset *set,
                                          const struct dpt_dataset **named, struct dpt_error *err)
{
    const struct dpt_shard *mine = set->parts->named, *other;
    enum dpt_status status = DPT_OK;

    if (mine == NULL)
        return DPT_OK;
    other = *named != NULL ? (*named)->parts->named : mine;
    DPT_TRY(dpt_class_names_check(&mine->names, mine->path, &other->names, other->path, err));
    if (*named == NULL || mine->names.n > other->names.n)
        *named = set;
out:
    return status;
}

const char *const *dpt_dataset_class_names(const struct dpt_dataset *set, size_t *n)
{
    const struct dpt_shard *named = set->parts->named;

    *n = named != NULL ? named->names.n : 0;
    return named != NULL ? named->names.at : NULL;
}

const char *dpt_dataset_columns(const struct dpt_dataset *set, const char **from)
{
    const struct dpt_shard *table = set->parts->table;

    if (from != NULL)
        *from = table != NULL ? table->path : NULL;
    return table != NULL ? table->columns : NULL;
}

enum dpt_status dpt_dataset_check_columns(const struct dpt_dataset *set, const char *columns,
                                          const char *from, struct dpt_error *err)
{
    const struct dpt_shard *table = set->parts->table;

    return table == NULL || columns == NULL
               ? DPT_OK
               : dpt_columns_check(table->columns, table->path, columns, from, err);
}

bool dpt_dataset_normal(const struct dpt_dataset *set, const float **scale, const float **shift)
{
    *scale = set->parts->scale;
    *shift = set->parts->shift;
    return set->parts->centre == NULL;
}

const char *dpt_dataset_where(const struct dpt_dataset *set, int64_t sample, char *buf)
{
    if (set->parts->synthetic) {
        snprintf(buf, 256, "synthetic sample %lld", (long long)sample);
    } else {
        const struct dpt_shard *shard = dpt_dataset_shard(set, sample);

        snprintf(buf, 256, "%.200s, sample %lld", shard->file, (long long)(sample - shard->first));
    }
    return buf;
}

const float *dpt_dataset_true_weights(const struct dpt_dataset *set)
{
    return set->parts->weights;
}

const float *dpt_dataset_true_biases(const struct dpt_dataset *set)
{
    return set->parts->biases;
}
