/*
 * Describing a data set of shards: rank 0 looks which files there are, and each header is read by
 * one rank, which tells the others what it found. Ten thousand files are more than a file server
 * answers for if each of thousands of ranks asks for each.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "data/sets/parts.h"
#include "data/tables/columns.h"

enum { LEAST = 8, FEW = 4 }; /* shards of a rank that reads headers, and of a guess */

/* Only the shard that names the most classes is kept with its names: there may be thousands of
 * shards. */
static enum dpt_status compare_names(struct dpt_dataset_parts *parts, struct dpt_shard *shard,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_shard *named = parts->named;

    if (shard->names.n == 0)
        return DPT_OK;
    if (named != NULL)
        DPT_TRY(dpt_class_names_check(&shard->names, shard->path, &named->names, named->path, err));
    if (named == NULL || shard->names.n > named->names.n) {
        parts->named = shard;
        shard = named;
    }
    if (shard != NULL)
        dpt_class_names_release(&shard->names);
out:
    return status;
}

/* All were read alike from tables, where they were made of such; one of them keeps how. */
static enum dpt_status compare_columns(struct dpt_dataset_parts *parts, struct dpt_shard *shard,
                                       struct dpt_error *err)
{
    const struct dpt_shard *table = parts->table;
    enum dpt_status status = DPT_OK;

    if (shard->columns == NULL)
        return DPT_OK;
    if (table == NULL) {
        parts->table = shard;
        return DPT_OK;
    }
    status = dpt_columns_check(shard->columns, shard->path, table->columns, table->path, err);
    free(shard->columns);
    shard->columns = NULL;
    return status;
}

/* --- which files there are -------------------------------------------------------------------- */

/* The list of files, as rank 0 finds it. Collective. */
static enum dpt_status find_paths(const struct dpt_dataset_spec *spec, const char *key,
                                  const struct dpt_group *world, char ***paths,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, found = DPT_OK;
    struct dpt_str list = {0}; /* each with its NUL */
    int64_t bytes = -1;        /* rank 0 failed */
    size_t n = 0;
    char *text = NULL;

    *paths = NULL;
    if (world->rank == 0)
        found = dpt_paths_find(spec->paths, key, paths, err);
    for (char **path = *paths; path != NULL && *path != NULL; path++)
        dpt_str_add(&list, *path, strlen(*path) + 1);
    if (list.failed)
        found = dpt_fail_memory(err, "the list of files", (double)list.length);
    if (found == DPT_OK)
        bytes = (int64_t)list.length;
    DPT_TRY(dpt_group_broadcast(world, 0, &bytes, sizeof bytes, err));
    if (bytes < 0) { /* the others look, too, so that who has no such files is told */
        if (world->rank != 0)
            found = dpt_paths_find(spec->paths, key, paths, err);
        DPT_TRY(dpt_group_agree(world, found, err));
    }
    if (world->rank != 0)
        found = DPT_ALLOCATE(text, (size_t)bytes, "the list of files", err);
    DPT_TRY(dpt_group_agree(world, found, err));
    DPT_TRY(dpt_group_broadcast(world, 0, text != NULL ? text : list.text, (size_t)bytes, err));
    for (char *at = text; text != NULL && at < text + bytes && found == DPT_OK;
         at += strlen(at) + 1)
        found = dpt_paths_add(paths, &n, &at, 1, err);
    DPT_TRY(dpt_group_agree(world, found, err));
out:
    dpt_str_release(&list);
    dpt_free(text);
    return status;
}

/* --- what they hold --------------------------------------------------------------------------- */

/* The shards of a set, and who describes them. */
struct survey {
    struct dpt_dataset *set;
    const struct dpt_comm *comm;
    const struct dpt_shard_spec *how;
    char *const *paths; /* [n] */
    size_t n;
    int ranks, apart; /* so many describe, so far apart, that all nodes have some */
    struct report *reports;
};

/* What a rank found. */
struct report {
    uint64_t bytes; /* of the packed shards */
    uint64_t bad;   /* the first shard that it could not describe; n: none */
};

/* The shards [*begin, *end) that a rank of the world describes. */
static void block_of(const struct survey *s, int rank, size_t *begin, size_t *end)
{
    const size_t ranks = (size_t)s->ranks, number = (size_t)(rank / s->apart);
    const bool some = rank % s->apart == 0 && number < ranks;

    *begin = some ? s->n * number / ranks : 0;
    *end = some ? s->n * (number + 1) / ranks : 0;
}

/* Describes this rank's block. *bad: the shard at which that failed, if it did. */
static enum dpt_status describe_block(const struct survey *s, struct dpt_shard_pack *pack,
                                      uint64_t *bad, struct dpt_error *err)
{
    size_t begin, end;

    *bad = s->n;
    block_of(s, s->comm->world.rank, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        struct dpt_shard shard;

        *bad = i;
        if (dpt_shard_open(&shard, s->paths[i], s->how, err) != DPT_OK)
            return err->status;
        dpt_shard_pack(pack, &shard);
        dpt_shard_close(&shard);
        if (pack->bytes.failed)
            return dpt_fail_memory(err, "what shards hold", (double)pack->bytes.length);
    }
    *bad = s->n;
    return DPT_OK;
}

/* Adds the next shard of the set, as another rank or this one has described it. */
static enum dpt_status add_shard(const struct survey *s, int rank, const char **at,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_dataset *set = s->set;
    struct dpt_dataset_parts *parts = set->parts;
    const struct dpt_comm *comm = s->comm;
    struct dpt_shard *shard = &parts->shards[parts->n_shards];

    /* Where kept files begin, one rank of a node is to know: the others see it there (place_offsets
     * in dataset.c). */
    DPT_TRY(dpt_shard_unpack(shard, s->paths[parts->n_shards], comm->node.rank == 0, at, err));
    parts->n_shards++;
    shard->elsewhere =
        comm->hosts != NULL && strcmp(comm->hosts[rank], comm->hosts[comm->world.rank]) != 0;
    shard->first = set->samples;
    shard->start = set->bytes;
    set->samples += shard->samples;
    set->bytes += shard->files ? shard->images.info.bytes : 0;
    DPT_TRY(dpt_shard_check_alike(shard, &parts->shards[0], err));
    DPT_TRY(compare_names(parts, shard, err));
    DPT_TRY(compare_columns(parts, shard, err));
out:
    return status;
}

/* Gives all ranks the shards before the first bad one. Collective. */
static enum dpt_status share(const struct survey *s, const struct dpt_shard_pack *pack,
                             uint64_t bad, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, mine;
    const struct dpt_group *world = &s->comm->world;
    uint64_t most = 0;
    char *room = NULL;

    for (int rank = 0; rank < world->size; rank++)
        most = s->reports[rank].bytes > most ? s->reports[rank].bytes : most;
    mine = DPT_ALLOCATE(room, (size_t)most, "what shards hold", err);
    DPT_TRY(dpt_group_agree(world, mine, err));
    for (int rank = 0; rank < world->size; rank++) {
        const uint64_t bytes = s->reports[rank].bytes;
        const char *at = room;
        size_t begin, end;

        block_of(s, rank, &begin, &end);
        if (bytes == 0)
            continue;
        if (rank == world->rank)
            memcpy(room, pack->bytes.text, (size_t)bytes);
        DPT_TRY(dpt_group_broadcast(world, rank, room, (size_t)bytes, err));
        /* A rank that fails here still takes part. */
        for (size_t i = begin; i < end && i < bad && mine == DPT_OK; i++)
            mine = add_shard(s, rank, &at, err);
    }
    DPT_TRY(dpt_group_agree(world, mine, err));
out:
    dpt_free(room);
    return status;
}

/* Fails with what is wrong with a shard, once the ranks beside the one that said so have looked,
 * too: on nodes with disks of their own it may be there. Collective. */
static enum dpt_status tell_bad(const struct survey *s, size_t bad, enum dpt_status mine,
                                struct dpt_error *err)
{
    struct dpt_shard shard;

    if (mine == DPT_OK) {
        mine = dpt_shard_open(&shard, s->paths[bad], s->how, err);
        if (mine == DPT_OK)
            dpt_shard_close(&shard);
    }
    return dpt_group_agree(&s->comm->world, mine, err);
}

struct listed {
    const struct dpt_shard *shard;
};

static int compare_files(const void *a, const void *b)
{
    const struct dpt_shard *x = ((const struct listed *)a)->shard;
    const struct dpt_shard *y = ((const struct listed *)b)->shard;
    const int order = dpt_shard_compare_files(x, y);

    return order != 0 ? order : (x > y) - (x < y);
}

/* A file named twice, also by another name, would give its samples twice the weight. */
static enum dpt_status check_twice(const struct dpt_dataset_parts *parts, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = parts->n_shards;
    struct listed *all;

    DPT_TRY(DPT_ALLOCATE(all, n, "the list of files", err));
    for (size_t i = 0; i < n; i++)
        all[i].shard = &parts->shards[i];
    qsort(all, n, sizeof *all, compare_files);
    for (size_t i = 1; i < n; i++)
        if (dpt_shard_compare_files(all[i - 1].shard, all[i].shard) == 0)
            DPT_TRY(dpt_fail(err, DPT_BAD_JOB, "%s: '%s' and '%s' are the same file", parts->key,
                             all[i - 1].shard->path, all[i].shard->path));
out:
    dpt_free(all);
    return status;
}

/* Reads all headers, one rank each. Collective. */
static enum dpt_status survey(struct survey *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, mine;
    const struct dpt_group *world = &s->comm->world;
    struct dpt_shard_pack pack = {0};
    struct report report;
    uint64_t bad = s->n;

    s->ranks = s->n / LEAST < (size_t)world->size ? (int)(s->n / LEAST) : world->size;
    s->ranks = s->ranks > 0 ? s->ranks : 1;
    s->apart = world->size / s->ranks;
    status = DPT_ALLOCATE(s->reports, (size_t)world->size, "what shards hold", err);
    if (status == DPT_OK)
        status = DPT_ALLOCATE(s->set->parts->shards, s->n, "the shards", err);
    DPT_TRY(dpt_group_agree(world, status, err));
    mine = describe_block(s, &pack, &report.bad, err);
    report.bytes = pack.bytes.failed ? 0 : pack.bytes.length;
    DPT_TRY(dpt_group_allgather(world, &report, s->reports, sizeof report, err));
    for (int rank = 0; rank < world->size; rank++)
        bad = s->reports[rank].bad < bad ? s->reports[rank].bad : bad;
    DPT_TRY(share(s, &pack, bad, err));
    DPT_TRY(dpt_group_agree(world, check_twice(s->set->parts, err), err));
    if (bad < s->n) {
        if (report.bad != bad)
            mine = DPT_OK; /* what it says is for later */
        DPT_TRY(tell_bad(s, (size_t)bad, mine, err));
    }
out:
    dpt_free(s->reports);
    dpt_shard_pack_release(&pack);
    return status;
}

/* Has some of the files, evenly spread, stand for all. */
static void take_few(struct survey *s, char **paths)
{
    for (size_t i = 0; i < FEW; i++) {
        char *const other = paths[i];

        paths[i] = paths[s->n * i / FEW];
        paths[s->n * i / FEW] = other;
    }
    s->n = FEW;
}

enum dpt_status dpt_dataset_describe_shards(struct dpt_dataset *set,
                                            const struct dpt_dataset_spec *spec,
                                            const struct dpt_comm *comm, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_dataset_parts *parts = set->parts;
    const struct dpt_shard_spec how = {.classes = spec->classes,
                                       .need_labels = true,
                                       .keys = spec->conf->keys,
                                       .layout = spec->conf->layout};
    struct survey s = {.set = set, .comm = comm, .how = &how};
    const struct dpt_shard *first;
    char **paths = NULL;
    size_t all;

    DPT_TRY(find_paths(spec, parts->key, &comm->world, &paths, err));
    while (paths[s.n] != NULL)
        s.n++;
    s.paths = paths;
    all = s.n;
    if (spec->conf->few && all > FEW)
        take_few(&s, paths);
    DPT_TRY(survey(&s, err));
    set->samples = (int64_t)((__int128)set->samples * (int64_t)all / (int64_t)s.n);
    set->bytes = (int64_t)((__int128)set->bytes * (int64_t)all / (int64_t)s.n);
    if (set->samples == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: %s%s no sample", parts->key, paths[0],
                         s.n == 1 ? " holds" : " and the others hold"));
    first = &parts->shards[0];
    set->shape = first->shape;
    set->u8 = dpt_shard_u8(first);
    set->nhwc = first->nhwc && set->shape.c > 1;
    set->files = first->files;
    set->stride = (size_t)dpt_shape_size(&set->shape) * (set->u8 ? 1 : sizeof(float));
    if (!set->files)
        set->bytes = set->samples * (int64_t)set->stride;
    set->target = first->target;
    set->target_width = first->target_width;
out:
    dpt_paths_release(paths);
    return status;
}
