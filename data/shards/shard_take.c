/*
 * Shards that are open for reading. Those that are taken stay open afterwards, since most are read
 * again soon; once there are too many, one that was not taken lately is closed ("second chance": a
 * hand goes around, and passes one that was taken since it came by last).
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/memory.h"
#include "data/shards/shard.h"

/* The descriptors that may be open, if that is a small enough part of what the process may have:
 * shuffled samples are read from all shards, and those that stay open are asked for only once.
 * HDF5_MOST: of those that HDF5 reads, which need 0.6 MB and more each. */
enum { MOST = 1 << 14, FRACTION = 4, HDF5_COUNTS = 4, HDF5_MOST = 128 };

static struct {
    pthread_mutex_t lock;
    size_t most; /* 0: not known yet */
    struct {
        struct dpt_shard *shard;
    } * at; /* [n], open */
    size_t n, room;
    size_t counts; /* of all of them */
    size_t hdf5;   /* how many of them HDF5 reads */
    size_t hand;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Opens the fields of a shard; a file that HDF5 is to open is looked at first, and kept open, so
 * that it is no pipe by now. */
static enum dpt_status open_fields(struct dpt_shard *shard, bool strict, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_error why;
    struct stat st;

    dpt_h5_enter();
    shard->attached = true;
    status = dpt_file_open(shard->path, DPT_FILE_READ, DPT_IO, &shard->fd, &why);
    if (status != DPT_OK && shard->elsewhere)
        status = dpt_fail(err, DPT_BAD_DATA,
                          "%s: another node has it: all nodes need the same files", why.text);
    else if (status != DPT_OK)
        *err = why;
    DPT_TRY(status);
    DPT_TRY(dpt_shard_check_mark(shard, strict, err));
    for (size_t i = 0; i < DPT_SHARD_FIELDS; i++) {
        struct dpt_field *field = dpt_shard_field(shard, i);

        field->fd = shard->fd;
        if (field->info.contiguous || field->name == NULL)
            continue;
        st = (struct stat){.st_dev = shard->mark.device, .st_ino = shard->mark.number};
        if (shard->h5 < 0)
            DPT_TRY(dpt_h5_open_known(shard->path, &st, &shard->h5, err));
        DPT_TRY(dpt_field_open(field, shard->h5, err));
    }
out:
    dpt_h5_leave();
    if (status != DPT_OK)
        dpt_shard_detach(shard);
    return status;
}

enum dpt_status dpt_shard_attach(struct dpt_shard *shard, struct dpt_error *err)
{
    return shard->attached ? DPT_OK : open_fields(shard, true, err);
}

void dpt_shard_detach(struct dpt_shard *shard)
{
    if (!shard->attached)
        return;
    dpt_h5_enter();
    for (size_t i = 0; i < DPT_SHARD_FIELDS; i++)
        dpt_field_close(dpt_shard_field(shard, i));
    dpt_h5_close(shard->h5);
    shard->h5 = H5I_INVALID_HID;
    dpt_h5_leave();
    if (shard->fd >= 0)
        close(shard->fd);
    shard->fd = -1;
    shard->attached = false;
}

/* Whether HDF5 reads some of it. */
static bool needs_hdf5(const struct dpt_shard *shard)
{
    const struct dpt_field *fields[DPT_SHARD_FIELDS] = {&shard->images, &shard->labels,
                                                        &shard->weights};

    for (size_t i = 0; i < DPT_SHARD_FIELDS; i++)
        if (fields[i]->name != NULL && !fields[i]->info.contiguous)
            return true;
    return false;
}

/* The descriptors for which one counts: HDF5 has a second one, and others while it opens. */
static size_t count_of(const struct dpt_shard *shard)
{
    return needs_hdf5(shard) ? HDF5_COUNTS : 1;
}

/* How many descriptors may be open. Under the lock. */
static size_t limit(void)
{
    struct rlimit files;

    if (pool.most > 0)
        return pool.most;
    pool.most = MOST;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        return pool.most;
    /* A process may open as many as its administrator allows, if it asks. */
    if (files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
        getrlimit(RLIMIT_NOFILE, &files);
    }
    if (files.rlim_cur < MOST * FRACTION)
        pool.most = files.rlim_cur < FRACTION ? 1 : files.rlim_cur / FRACTION;
    return pool.most;
}

size_t dpt_shard_most(const struct dpt_shard *shard)
{
    size_t most;

    pthread_mutex_lock(&pool.lock);
    most = limit() / count_of(shard);
    pthread_mutex_unlock(&pool.lock);
    most = needs_hdf5(shard) && most > HDF5_MOST ? HDF5_MOST : most;
    return most > 1 ? most / 2 : 1; /* another thread reads other shards */
}

/* Closes the i-th open shard unless it is taken. Under the lock. */
static bool close_one(size_t i)
{
    struct dpt_shard *shard = pool.at[i].shard;
    int takers = 1;

    if (!atomic_compare_exchange_strong(&shard->takers, &takers, 0))
        return false;
    pool.counts -= count_of(shard);
    pool.hdf5 -= needs_hdf5(shard);
    pool.at[i] = pool.at[--pool.n];
    dpt_shard_detach(shard);
    return true;
}

/* Closes one that was not taken lately, or where all were any; false: all are taken now. hdf5: only
 * one that HDF5 reads. Under the lock. */
static bool close_idle(bool hdf5)
{
    for (size_t i = 0; i < 2 * pool.n; i++) {
        struct dpt_shard *shard;

        pool.hand = pool.hand < pool.n ? pool.hand : 0;
        shard = pool.at[pool.hand].shard;
        if ((!hdf5 || needs_hdf5(shard)) && !atomic_exchange(&shard->recent, false) &&
            close_one(pool.hand))
            return true;
        pool.hand++;
    }
    return false;
}

/* Opens a shard, and others are closed for it: also where what else the process has open leaves it
 * less than it should. Under the lock. */
static enum dpt_status open_shard(struct dpt_shard *shard, bool strict, struct dpt_error *err)
{
    enum dpt_status status;

    while (pool.counts + count_of(shard) > limit() && close_idle(false))
        ;
    while (needs_hdf5(shard) && pool.hdf5 >= HDF5_MOST && close_idle(true))
        ;
    do {
        errno = 0;
        status = open_fields(shard, strict, err);
    } while (status != DPT_OK && errno == EMFILE && close_idle(false));
    return status;
}

/* Takes one that is open. */
static bool take_open(struct dpt_shard *shard)
{
    int takers = atomic_load(&shard->takers);

    while (takers > 0)
        if (atomic_compare_exchange_weak(&shard->takers, &takers, takers + 1)) {
            if (!atomic_load_explicit(&shard->recent, memory_order_relaxed))
                atomic_store_explicit(&shard->recent, true, memory_order_relaxed);
            return true;
        }
    return false;
}

enum dpt_status dpt_shard_take(struct dpt_shard *shard, bool strict, bool *opened,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    *opened = false;
    if (take_open(shard))
        return DPT_OK;
    pthread_mutex_lock(&pool.lock);
    if (take_open(shard)) /* another thread opened it meanwhile */
        goto out;
    DPT_GROW(pool.at, &pool.room, pool.n + 1, "the open shards", err);
    DPT_TRY(open_shard(shard, strict, err));
    pool.at[pool.n++].shard = shard;
    pool.counts += count_of(shard);
    pool.hdf5 += needs_hdf5(shard);
    *opened = true;
    atomic_store(&shard->recent, true);
    atomic_store(&shard->takers, 2);
out:
    pthread_mutex_unlock(&pool.lock);
    return status;
}

bool dpt_shard_is_open(const struct dpt_shard *shard)
{
    return atomic_load_explicit(&shard->takers, memory_order_relaxed) > 0;
}

void dpt_shard_release(struct dpt_shard *shard)
{
    atomic_fetch_sub(&shard->takers, 1);
}

void dpt_shard_drop(struct dpt_shard *shard)
{
    if (atomic_load(&shard->takers) == 0)
        return;
    pthread_mutex_lock(&pool.lock);
    for (size_t i = 0; i < pool.n; i++)
        if (pool.at[i].shard == shard) {
            close_one(i);
            break;
        }
    pthread_mutex_unlock(&pool.lock);
}
