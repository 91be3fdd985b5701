/*
 * A trial of the sum on a node, with threads in place of ranks.
 *
 * Its time does not follow from its bytes alone: what one core writes and another reads has to go
 * from cache to cache or to memory, and that also slows down what reads the sum. So the sum is
 * tried, as core/comm/sums/hierarchical_allreduce.c makes it: round after round, gradients are made
 * from the sum, as an update and the next step would, given to the others in slices, and added up.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/nontemporal.h"
#include "core/base/sort.h"
#include "core/base/vector.h"
#include "core/plan/plan.h"
#include "core/train/reduction/gradient_reduction.h"

/* Floats of all buffers together (the time of more is proportional); rounds at most and at least;
 * barriers that are timed together. */
enum { FLOATS_MOST = 16 << 20, MOST = 400, LEAST = 15, BARRIERS = 32, CHUNK = 1024 };

static const double seconds = 0.15; /* for each kind of rounds */
/* The part of the additional time for making a gradient from shared memory that is left in a step,
 * where products and updates of the weights hide the rest: from `dptrain bench` on 2 ranks. */
static const double seen = 0.33;

struct member {
    float *gradient, *own; /* own: a sum that no other thread touches */
    float *given;          /* the gradient, for the others */
    double made, added;    /* seconds */
    int core;
} __attribute__((aligned(DPT_ALIGN)));

struct sums {
    struct dpt_pool *pool;
    int threads;
    size_t n, stride; /* floats of a gradient; from one array to the next */
    float *result;
    struct member *members;
    bool apart;        /* each thread for itself, or all together */
    bool over;         /* set by the first thread between two barriers */
    double each[MOST]; /* seconds of a round, the mean over the threads */
    int rounds;
    double start;
};

DPT_VECTOR static void make(size_t n, const float *restrict sum, float *restrict gradient)
{
    for (size_t i = 0; i < n; i++)
        gradient[i] = 0.5F * sum[i] + 1.0F;
}

DPT_VECTOR static void add(size_t n, const float *restrict gradient, float *restrict sum)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += gradient[i];
}

/* Gives the others all but this thread's own slice. */
static void give(const struct sums *s, int thread, size_t begin, size_t end)
{
    const struct member *me = &s->members[thread];

    dpt_copy_nontemporal(me->given, me->gradient, begin);
    dpt_copy_nontemporal(me->given + end, me->gradient + end, s->n - end);
    dpt_nontemporal_fence();
}

static void take(const struct sums *s, int thread, size_t begin, size_t end)
{
    _Alignas(DPT_ALIGN) float sum[CHUNK];

    for (size_t at = begin, n; at < end; at += n) {
        n = end - at < CHUNK ? end - at : CHUNK;
        memcpy(sum, s->members[thread].gradient + at, n * sizeof *sum);
        for (int i = 0; i < s->threads; i++)
            if (i != thread)
                add(n, s->members[i].given + at, sum);
        dpt_copy_nontemporal(s->result + at, sum, n);
    }
    dpt_nontemporal_fence();
}

/* One thread's part of a round; the times are those of its core alone. */
static void work(struct sums *s, int thread)
{
    struct member *me = &s->members[thread];
    const double start = dpt_thread_seconds();
    double then;
    size_t begin, end;

    me->core = sched_getcpu();
    make(s->n, s->apart ? me->own : s->result, me->gradient);
    me->made = dpt_thread_seconds() - start;
    dpt_thread_part(s->n, thread, s->threads, &begin, &end);
    then = dpt_thread_seconds();
    if (!s->apart)
        give(s, thread, begin, end);
    me->added = dpt_thread_seconds() - then;
    dpt_pool_barrier(s->pool);
    then = dpt_thread_seconds();
    if (!s->apart)
        take(s, thread, begin, end);
    me->added += dpt_thread_seconds() - then;
    dpt_pool_barrier(s->pool);
}

/* Whether the round counts: with two threads on one core it would not measure two cores. */
static bool all_on_cores_of_their_own(const struct sums *s)
{
    for (int i = 0; i < s->threads; i++)
        for (int k = 0; k < i; k++)
            if (s->members[i].core == s->members[k].core)
                return false;
    return true;
}

static void record(struct sums *s, double seconds_of_round)
{
    if (all_on_cores_of_their_own(s) && s->rounds < MOST)
        s->each[s->rounds++] = seconds_of_round;
    s->over =
        s->rounds == MOST || dpt_now() - s->start > (s->rounds < LEAST ? 3 * seconds : seconds);
}

static void add_rounds(void *arg, int thread)
{
    struct sums *s = arg;

    while (!s->over) {
        work(s, thread);
        if (thread == 0) {
            double sum = 0;

            for (int i = 0; i < s->threads; i++)
                sum += seen * s->members[i].made + (s->apart ? 0 : s->members[i].added);
            record(s, sum / s->threads);
        }
        dpt_pool_barrier(s->pool);
    }
}

static void barrier_rounds(void *arg, int thread)
{
    struct sums *s = arg;

    while (!s->over) {
        double start;

        s->members[thread].core = sched_getcpu();
        dpt_pool_barrier(s->pool);
        start = dpt_now();
        for (int i = 0; i < BARRIERS; i++)
            dpt_pool_barrier(s->pool);
        if (thread == 0)
            record(s, (dpt_now() - start) / BARRIERS);
        dpt_pool_barrier(s->pool);
    }
}

/* The lower quartile, as in other trials; 0: there was no round that counts. */
static double typical(struct sums *s, void (*rounds)(void *arg, int thread), bool apart)
{
    s->apart = apart;
    s->over = false;
    s->rounds = 0;
    s->start = dpt_now();
    dpt_pool_run(s->pool, rounds, s);
    if (s->rounds == 0)
        return 0;
    dpt_sort(s->each, (size_t)s->rounds);
    return s->each[s->rounds / 4];
}

static enum dpt_status open_sums(struct sums *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(DPT_ALLOCATE(s->members, (size_t)s->threads, "a trial of the sum", err));
    DPT_TRY(DPT_ALLOCATE(s->result, s->n, "a trial of the sum", err));
    for (int i = 0; i < s->threads; i++) {
        struct member *m = &s->members[i];

        DPT_TRY(DPT_ALLOCATE(m->gradient, 3 * s->stride, "a trial of the sum", err));
        m->own = m->gradient + s->stride;
        m->given = m->own + s->stride;
    }
    DPT_TRY(dpt_pool_open(&s->pool, s->threads, true, err));
out:
    return status;
}

static void close_sums(struct sums *s)
{
    dpt_pool_close(s->pool);
    for (int i = 0; s->members != NULL && i < s->threads; i++)
        dpt_free(s->members[i].gradient);
    dpt_free(s->members);
    dpt_free(s->result);
}

enum dpt_status dpt_trial_sum(size_t floats, int threads, struct dpt_trial *trial,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t most = FLOATS_MOST / (3 * (size_t)threads + 1);
    struct sums s = {.threads = threads, .n = floats < most ? floats : most};
    double together, apart;

    s.stride = dpt_round_up(s.n, sizeof(float));
    trial->sum = trial->barrier = 0;
    if (threads < 2)
        return DPT_OK;
    DPT_TRY(open_sums(&s, err));
    trial->barrier = typical(&s, barrier_rounds, false);
    together = typical(&s, add_rounds, false);
    apart = typical(&s, add_rounds, true);
    if (together > 0 && apart > 0)
        trial->sum = (together > apart ? together - apart : 0) * ((double)floats / (double)s.n);
out:
    close_sums(&s);
    return status;
}
