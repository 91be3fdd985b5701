#include "core/train/setup/state_file.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/memory.h"
#include "core/train/setup/kept.h"
#include "core/train/setup/state.h"

/* Data sets of tensors; a table of them has a row for each arena. */
static size_t count_sets(const struct dpt_trainer *t)
{
    return (size_t)t->model.graph.n_tensors * (size_t)(1 + t->arenas.slots);
}

enum dpt_status dpt_state_file_open(struct dpt_trainer *t, struct dpt_error *err)
{
    static const char what[] = "a checkpoint's list of contents";
    enum dpt_status status = DPT_OK;
    struct dpt_state_file *f = &t->file;
    const size_t sets = count_sets(t), ranks = (size_t)t->comm->world.size;
    int units = 1;

    if (!t->layout.streams)
        return DPT_OK;
    for (int k = 0; k < t->layout.stages; k++)
        units = t->layout.stage[k].units > units ? t->layout.stage[k].units : units;
    /* Each end of a rank's slice of a unit cuts one tensor of each arena in two. */
    f->most =
        sets * (size_t)t->layout.tensor + ranks * (size_t)units * (size_t)(1 + t->arenas.slots);
    DPT_TRY(DPT_ALLOCATE(f->offset, sets, what, err));
    DPT_TRY(DPT_ALLOCATE(f->own, sets + 1, what, err));
    DPT_TRY(DPT_ALLOCATE(f->from, sets + 1, what, err));
    if (t->comm->world.rank == 0)
        DPT_TRY(DPT_ALLOCATE(f->all, f->most, what, err));
out:
    return status;
}

void dpt_state_file_forget(struct dpt_trainer *t)
{
    if (t->file.open)
        close(t->file.fd);
    t->file.seen = t->file.open = false;
}

static void drop_copy(struct dpt_state_file *f)
{
    dpt_unreserve(f->copy, f->copy_bytes);
    f->copy = NULL;
}

void dpt_state_file_release(struct dpt_trainer *t)
{
    dpt_thread_end(&t->file.thread);
    drop_copy(&t->file);
    dpt_state_file_forget(t);
    dpt_free(t->file.offset);
    dpt_free(t->file.own);
    dpt_free(t->file.from);
    dpt_free(t->file.all);
    t->file = (struct dpt_state_file){0};
}

/* All ranks open rank 0's file. same: out, whether this rank's system numbers it as rank 0's. */
static enum dpt_status see(struct dpt_trainer *t, const struct dpt_shared_file *file, bool *same,
                           struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_state_file *f = &t->file;
    const struct dpt_group *world = &t->comm->world;
    double blind = 0; /* counted from behind: the first rank that does not see it is told */
    double page = 0;
    int first;

    dpt_state_file_forget(t);
    if (world->rank == 0)
        f->file = *file;
    DPT_TRY(dpt_group_broadcast(world, 0, &f->file, sizeof f->file, err));
    DPT_TRY(dpt_group_max(world, (double)sysconf(_SC_PAGESIZE), &page, err));
    f->block = (int64_t)page;
    f->fd = dpt_shared_file_open(&f->file, same);
    f->open = f->seen = f->fd >= 0;
    DPT_TRY(dpt_group_max(world, f->seen ? 0 : world->size - world->rank, &blind, err));
    if (blind <= 0)
        return DPT_OK;
    first = world->size - (int)blind;
    dpt_state_file_forget(t);
    if (!f->told)
        dpt_log_info(t->log,
                     "rank %d (%s) does not see %s: all of it goes through rank 0, which takes "
                     "longer",
                     first, dpt_comm_host(t->comm, first), f->file.path);
    f->told = true;
out:
    return status;
}

static int by_place(const void *a, const void *b)
{
    const struct dpt_stretch *x = a, *y = b;

    if (x->arena != y->arena)
        return x->arena < y->arena ? -1 : 1;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

/* Rank 0 gets what each rank lists: f->all, in order. n: of f->own. */
static enum dpt_status collect(struct dpt_trainer *t, size_t n, size_t *total,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_state_file *f = &t->file;
    const struct dpt_group *world = &t->comm->world;
    struct dpt_sending sending;
    uint64_t count = n;

    if (world->rank != 0) {
        DPT_TRY(dpt_group_send(world, 0, &count, sizeof count, &sending, err));
        DPT_TRY(dpt_group_sent(world, &sending, err));
        if (n == 0)
            return DPT_OK;
        DPT_TRY(dpt_group_send(world, 0, f->own, n * sizeof *f->own, &sending, err));
        return dpt_group_sent(world, &sending, err);
    }
    memcpy(f->all, f->own, n * sizeof *f->own);
    *total = n;
    for (int r = 1; r < world->size; r++) {
        DPT_TRY(dpt_group_receive(world, r, &count, sizeof count, err));
        if (count > f->most - *total)
            return dpt_fail(err, DPT_INTERNAL, "rank %d has more parts of tensors than there are",
                            r);
        if (count > 0)
            DPT_TRY(dpt_group_receive(world, r, f->all + *total, count * sizeof *f->all, err));
        *total += count;
    }
    qsort(f->all, *total, sizeof *f->all, by_place);
out:
    return status;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Bytes after which a rank that syncs does so: soon enough that nobody takes it for hung. */
static const int64_t SYNC = 64 << 20;

static enum dpt_status sync_file(const struct dpt_state_file *f, struct dpt_error *err)
{
    if (TEMP_FAILURE_RETRY(fsync(f->fd)) != 0)
        return dpt_fail_errno(err, DPT_IO, "%s", f->file.path);
    dpt_file_moved();
    return DPT_OK;
}

/* Lists the blocks of a data set, whole pages, that are wholly this rank's. *own: out, n is 0:
 * there are none; *from: out, where they are. */
static void find_blocks(const struct dpt_trainer *t, int k, int32_t i, int64_t to,
                        struct dpt_stretch *own, const float **from)
{
    const struct dpt_tensor *tensor = &t->model.graph.tensors[i];
    const int64_t word = sizeof(float), block = t->file.block;
    const struct dpt_keeper me = {.replica = dpt_trainer_replicas(t)->world.rank, .shares = true};
    float *x;
    const struct dpt_range has = dpt_trainer_own_floats(
        t, k, (size_t)tensor->offset, (size_t)(tensor->offset + tensor->count), &me, &x);
    const int64_t first = to + (has.first - tensor->offset) * word;
    const int64_t begin = (first + block - 1) / block * block;
    const int64_t end = (to + (has.last - tensor->offset) * word) / block * block;

    *own = (struct dpt_stretch){.arena = k,
                                .tensor = i,
                                .at = (begin - to) / word,
                                .n = end > begin ? (end - begin) / word : 0,
                                .not_finite = -1};
    *from = x + (begin - first) / word;
}

/* Lists this rank's blocks. Returns how many floats they are. */
static size_t list_own(struct dpt_trainer *t)
{
    struct dpt_state_file *f = &t->file;
    const size_t tensors = (size_t)t->model.graph.n_tensors;
    size_t floats = 0;

    f->n = 0;
    for (size_t i = 0; i < count_sets(t); i++) {
        if (f->offset[i] < 0)
            continue;
        find_blocks(t, (int)(i / tensors) - 1, (int32_t)(i % tensors), f->offset[i], &f->own[f->n],
                    &f->from[f->n]);
        floats += (size_t)f->own[f->n].n;
        f->n += f->own[f->n].n > 0;
    }
    return floats;
}

/* Writes the blocks that are listed. */
static enum dpt_status write_own(struct dpt_state_file *f, int32_t tensors, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int64_t since = 0; /* bytes since it was synced */

    for (size_t i = 0; i < f->n; i++) {
        struct dpt_stretch *own = &f->own[i];
        const int64_t begin = f->offset[(own->arena + 1) * tensors + own->tensor];

        for (int64_t at = 0, some; at < own->n; at += some) {
            const int64_t word = sizeof **f->from, to = begin + (own->at + at) * word;
            uint32_t crc;

            some = own->n - at < SYNC / word ? own->n - at : SYNC / word;
            DPT_TRY(dpt_shared_file_write(&f->file, f->fd, f->from[i] + at, some, to, &crc, err));
            own->crc = dpt_crc32_join(own->crc, crc, (uint64_t)(some * word));
            since += some * word;
            if (f->syncs && since >= SYNC)
                DPT_TRY(sync_file(f, err));
            since = since >= SYNC ? 0 : since;
        }
    }
    if (f->syncs && f->n > 0)
        DPT_TRY(sync_file(f, err));
out:
    return status;
}

/* --- writing beside the training -------------------------------------------------------------- */

/* Whether this rank may copy what it writes: where the copies of the node's ranks take at most half
 * of what is free, since as much again is the system's until it is on the disk. */
static bool has_room(const struct dpt_trainer *t, size_t bytes)
{
    return (double)bytes * t->comm->node.size <= dpt_memory_available() / 2;
}

struct copying {
    struct dpt_state_file *f;
    size_t floats;
    int threads;
};

/* Copies a thread's part of the blocks. */
static void copy_share(void *arg, int thread)
{
    const struct copying *c = arg;
    size_t begin, end, at = 0;

    dpt_thread_part(c->floats, thread, c->threads, &begin, &end);
    for (size_t i = 0; i < c->f->n; i++) {
        const size_t next = at + (size_t)c->f->own[i].n, first = begin > at ? begin : at,
                     last = end < next ? end : next;

        if (first < last)
            memcpy(c->f->copy + first, c->f->from[i] + (first - at),
                   (last - first) * sizeof *c->f->copy);
        at = next;
    }
}

/* Copies this rank's blocks, which are written from there. */
static void copy_own(struct dpt_trainer *t, size_t floats)
{
    struct dpt_state_file *f = &t->file;
    struct copying copying = {f, floats, dpt_pool_threads(t->team.pool)};
    const float *at = f->copy;

    dpt_pool_run(t->team.pool, copy_share, &copying);
    for (size_t i = 0; i < f->n; i++) {
        f->from[i] = at;
        at += f->own[i].n;
    }
}

static void *write_copy(void *trainer)
{
    struct dpt_trainer *t = trainer;
    struct dpt_state_file *f = &t->file;

    f->status = write_own(f, t->model.graph.n_tensors, &f->err);
    pthread_mutex_lock(&f->thread.lock);
    f->writes = false;
    pthread_cond_broadcast(&f->thread.done);
    pthread_mutex_unlock(&f->thread.lock);
    return NULL;
}

/* Copies this rank's blocks, if all ranks have room. Collective. */
static enum dpt_status write_later(struct dpt_trainer *t, size_t floats, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_state_file *f = &t->file;
    const size_t bytes = floats * sizeof *f->copy;
    double lacks = 0;

    if (f->copy_bytes != bytes || !has_room(t, bytes))
        drop_copy(f);
    f->copy_bytes = bytes;
    if (f->copy == NULL && has_room(t, bytes))
        f->copy = dpt_reserve(bytes);
    DPT_TRY(dpt_group_max(&t->comm->world, f->copy == NULL, &lacks, err));
    f->pending = lacks <= 0;
    if (!f->pending) {
        dpt_log_detail(t->log, "training waits while %s is written: there is no memory for a copy",
                       f->file.path);
        return DPT_OK;
    }
    f->status = DPT_OK;
    copy_own(t, floats);
out:
    return status;
}

void dpt_state_file_begin(struct dpt_trainer *t)
{
    struct dpt_state_file *f = &t->file;

    f->writes = f->pending;
    if (!f->pending || dpt_thread_start(&f->thread, write_copy, t) == 0)
        return;
    f->status = write_own(f, t->model.graph.n_tensors, &f->err); /* the training waits for it */
    f->writes = false;
}

static bool is_writing(const void *file)
{
    const struct dpt_state_file *f = file;

    return f->writes;
}

bool dpt_state_file_writes(struct dpt_trainer *t, double seconds)
{
    struct dpt_state_file *f = &t->file;

    return f->writes && (seconds <= 0 || dpt_thread_await(&f->thread, is_writing, f, seconds));
}

enum dpt_status dpt_state_file_end(struct dpt_trainer *t, size_t *n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_state_file *f = &t->file;

    *n = 0;
    dpt_thread_end(&f->thread);
    dpt_lend(f->copy, f->copy_bytes);
    f->pending = false;
    if (f->status != DPT_OK)
        *err = f->err;
    DPT_TRY(dpt_group_agree(&t->comm->world, f->status, err));
    DPT_TRY(collect(t, f->n, n, err));
out:
    return status;
}

enum dpt_status dpt_state_file_write(struct dpt_trainer *t, const struct dpt_shared_file *file,
                                     const int64_t *offset, bool later, size_t *n,
                                     struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_state_file *f = &t->file;
    const struct dpt_group *world = &t->comm->world;
    bool same = false, first = world->rank == 0;
    size_t floats;

    *n = 0;
    DPT_TRY(see(t, file, &same, err));
    if (!f->seen)
        return DPT_OK;
    if (world->rank == 0)
        memcpy(f->offset, offset, count_sets(t) * sizeof *offset);
    DPT_TRY(dpt_group_broadcast(world, 0, f->offset, count_sets(t) * sizeof *f->offset, err));
    /* A system writes all of a file that it has in memory, whoever put it there. */
    DPT_TRY(dpt_group_broadcast(&t->comm->node, 0, &first, sizeof first, err));
    f->syncs = !first || !same;
    floats = list_own(t);
    if (later)
        DPT_TRY(write_later(t, floats, err));
    if (!f->pending)
        DPT_TRY(dpt_group_agree(world, write_own(f, t->model.graph.n_tensors, err), err));
    DPT_TRY(collect(t, f->n, n, err));
out:
    /* It stays open until the next save: on NFS closing it waits until it is on the disk, which
     * rank 0's fsync has done by then. */
    f->seen = false;
    return status;
}

/* --- reading ---------------------------------------------------------------------------------- */

enum dpt_status dpt_state_file_verify(struct dpt_trainer *t, const struct dpt_shared_file *file,
                                      int64_t size, uint32_t *crc, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_state_file *f = &t->file;
    const struct dpt_group *world = &t->comm->world;
    struct dpt_stretch *own = &f->own[0];
    size_t n = 0;
    bool same;

    DPT_TRY(see(t, file, &same, err));
    if (!f->seen)
        return DPT_OK;
    DPT_TRY(dpt_group_broadcast(world, 0, &size, sizeof size, err));
    *own = (struct dpt_stretch){.at = size / world->size * world->rank};
    own->n = (world->rank + 1 < world->size ? own->at + size / world->size : size) - own->at;
    DPT_TRY(dpt_group_agree(
        world, dpt_shared_file_crc(f->file.path, f->fd, own->at, own->at + own->n, &own->crc, err),
        err));
    DPT_TRY(collect(t, 1, &n, err));
    if (world->rank == 0)
        *crc = 0;
    for (size_t i = 0; i < n; i++)
        *crc = dpt_crc32_join(*crc, f->all[i].crc, (uint64_t)f->all[i].n);
out:
    return status;
}

/* Reads this rank's share of a data set, and lists it, unless another part's ranks do. */
static enum dpt_status read_share(struct dpt_trainer *t, int k, int32_t i, int64_t from, size_t *n,
                                  struct dpt_error *err)
{
    struct dpt_state_file *f = &t->file;
    const struct dpt_graph *graph = &t->model.graph;
    const struct dpt_tensor *tensor = &graph->tensors[i];
    const struct dpt_keeper me = {t->mesh.part, dpt_trainer_replicas(t)->world.rank, true};
    struct dpt_stretch *own = &f->own[*n];
    enum dpt_status status;
    struct dpt_range has;
    int64_t bad = 0;
    float *to;

    has = dpt_trainer_own_floats(t, k, (size_t)tensor->offset,
                                 (size_t)(tensor->offset + tensor->count), &me, &to);
    if (has.last <= has.first)
        return DPT_OK;
    *own = (struct dpt_stretch){
        .arena = k, .tensor = i, .at = has.first - tensor->offset, .n = has.last - has.first};
    status = dpt_shared_file_read(&f->file, f->fd, to, own->n, from + own->at * (int64_t)sizeof *to,
                                  &own->crc, err);
    while (status == DPT_OK && bad < own->n && isfinite(to[bad]))
        bad++;
    own->not_finite = bad < own->n ? own->at + bad : -1;
    own->is_nan = status == DPT_OK && bad < own->n && isnan(to[bad]);
    *n += t->mesh.part == 0 || dpt_graph_divided(graph, i) != NULL;
    return status;
}

/* Gives each replica what the others have read, if all of them have the tensor. */
static enum dpt_status share_tensor(struct dpt_trainer *t, int k, int32_t i, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_tensor *tensor = &t->model.graph.tensors[i];
    const struct dpt_group *replicas = &dpt_trainer_replicas(t)->world;
    const bool divided = !tensor->state && dpt_trainer_owners(t, k) > 1;

    for (int r = 0; r < replicas->size && !divided && t->units.weights.bytes == NULL; r++) {
        float *x;
        const struct dpt_range has = dpt_trainer_own_floats(
            t, k, (size_t)tensor->offset, (size_t)(tensor->offset + tensor->count),
            &(struct dpt_keeper){t->mesh.part, r, true}, &x);

        if (has.last > has.first)
            DPT_TRY(dpt_group_broadcast(replicas, r, x, (size_t)(has.last - has.first) * sizeof *x,
                                        err));
    }
out:
    return status;
}

enum dpt_status dpt_state_file_read(struct dpt_trainer *t, const int64_t *offset, size_t sets,
                                    size_t *n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK, result = DPT_OK;
    struct dpt_state_file *f = &t->file;
    const struct dpt_group *world = &t->comm->world;
    const size_t tensors = (size_t)t->model.graph.n_tensors;
    size_t own = 0;

    *n = 0;
    memset(f->offset, -1, count_sets(t) * sizeof *f->offset);
    if (world->rank == 0)
        memcpy(f->offset, offset, sets * sizeof *offset);
    DPT_TRY(dpt_group_broadcast(world, 0, f->offset, count_sets(t) * sizeof *f->offset, err));
    for (int k = DPT_PARAMS; k < t->arenas.slots; k++)
        for (int32_t i = 0; i < t->model.graph.n_tensors; i++) {
            const int64_t from = f->offset[(size_t)(k + 1) * tensors + (size_t)i];

            if (from < 0)
                continue;
            if (result == DPT_OK)
                result = read_share(t, k, i, from, &own, err);
            DPT_TRY(share_tensor(t, k, i, result == DPT_OK ? err : &(struct dpt_error){0}));
        }
    DPT_TRY(dpt_group_agree(world, result, err));
    DPT_TRY(collect(t, own, n, err));
out:
    return status;
}
