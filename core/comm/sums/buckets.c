#include "core/comm/sums/buckets.h"

#include <pthread.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/base/pool.h"

struct writer {
    size_t from; /* it writes no more floats from this one on */
    bool counts;
};

struct dpt_buckets {
    struct dpt_buckets_spec spec;
    struct dpt_thread thread; /* its lock is over all that follows */
    struct writer *writers;
    int count, begun, done;
    int early; /* that had begun before the round's dpt_buckets_release */
};

static size_t end_of(const struct dpt_buckets *b, int bucket)
{
    return b->spec.n - (size_t)bucket * b->spec.most;
}

static size_t begin_of(const struct dpt_buckets *b, int bucket)
{
    const size_t end = end_of(b, bucket);

    return end > b->spec.most ? end - b->spec.most : 0;
}

/* Whether all writers are past the next bucket. */
static bool is_ready(const struct dpt_buckets *b)
{
    if (b->begun == b->count)
        return false;
    for (int i = 0; i < b->spec.writers; i++)
        if (b->writers[i].from > begin_of(b, b->begun))
            return false;
    return true;
}

static void *serve(void *arg)
{
    struct dpt_buckets *b = arg;

    pthread_mutex_lock(&b->thread.lock);
    while (!b->thread.stop) {
        int bucket;

        if (!is_ready(b)) {
            pthread_cond_wait(&b->thread.work, &b->thread.lock);
            continue;
        }
        bucket = b->begun++;
        pthread_mutex_unlock(&b->thread.lock);
        b->spec.work(b->spec.arg, begin_of(b, bucket), end_of(b, bucket));
        pthread_mutex_lock(&b->thread.lock);
        b->done++;
        pthread_cond_signal(&b->thread.done);
    }
    pthread_mutex_unlock(&b->thread.lock);
    return NULL;
}

/* Nobody has passed anything. */
static void begin_round(struct dpt_buckets *b)
{
    for (int i = 0; i < b->spec.writers; i++)
        b->writers[i] = (struct writer){.from = b->spec.n};
    b->begun = b->done = 0;
}

enum dpt_status dpt_buckets_open(struct dpt_buckets **buckets, const struct dpt_buckets_spec *spec,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_buckets *b;
    int code;

    *buckets = NULL;
    DPT_TRY(DPT_ALLOCATE(b, 1, "the reduction", err));
    *buckets = b;
    b->spec = *spec;
    b->count = (int)((spec->n + spec->most - 1) / spec->most);
    DPT_TRY(DPT_ALLOCATE(b->writers, (size_t)spec->writers, "the reduction", err));
    begin_round(b);
    code = dpt_thread_start(&b->thread, serve, b);
    if (code != 0)
        DPT_TRY(dpt_fail(err, DPT_RANK, "cannot start the thread that sums between nodes: %s",
                         strerror(code)));
out:
    if (status != DPT_OK) {
        dpt_buckets_close(*buckets);
        *buckets = NULL;
    }
    return status;
}

void dpt_buckets_close(struct dpt_buckets *b)
{
    if (b == NULL)
        return;
    dpt_thread_end(&b->thread);
    dpt_free(b->writers);
    dpt_free(b);
}

int dpt_buckets_count(const struct dpt_buckets *b)
{
    return b->count;
}

static void pass(struct dpt_buckets *b, int writer, size_t from, bool counts)
{
    struct writer *w = &b->writers[writer];

    if (w->from == b->spec.n)
        w->counts = counts;
    if (from < w->from)
        w->from = from;
    if (is_ready(b))
        pthread_cond_signal(&b->thread.work);
}

void dpt_buckets_pass(struct dpt_buckets *b, int writer, size_t from, bool counts)
{
    pthread_mutex_lock(&b->thread.lock);
    pass(b, writer, from, counts);
    pthread_mutex_unlock(&b->thread.lock);
}

/* Without the lock: once a bucket has begun no pass changes it any more in this round. */
bool dpt_buckets_counts(const struct dpt_buckets *b, int writer)
{
    return b->writers[writer].counts;
}

void dpt_buckets_release(struct dpt_buckets *b, const bool *counts)
{
    pthread_mutex_lock(&b->thread.lock);
    b->early = b->begun;
    for (int i = 0; i < b->spec.writers; i++)
        pass(b, i, 0, counts[i]);
    pthread_mutex_unlock(&b->thread.lock);
}

void dpt_buckets_await(struct dpt_buckets *b, int n)
{
    pthread_mutex_lock(&b->thread.lock);
    while (b->done < n)
        pthread_cond_wait(&b->thread.done, &b->thread.lock);
    pthread_mutex_unlock(&b->thread.lock);
}

int dpt_buckets_rewind(struct dpt_buckets *b)
{
    int early;

    pthread_mutex_lock(&b->thread.lock);
    early = b->early;
    begin_round(b);
    pthread_mutex_unlock(&b->thread.lock);
    return early;
}
