#include "core/plan/cost.h"

#include <math.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/vector.h"
#include "core/train/team.h"

enum { WORD = sizeof(float) };
/* The side of a square product that is large enough for full speed and small enough for several in
 * a moment. It is no power of two, which would make rows fall into the same lines of the cache. */
enum { SIDE = 720 };
/* Bytes of the loop's arrays; the last size is what a node's threads share, at least as much each
 * as the size before it. */
enum { LEAST_MAIN = 16 << 20, SHARED_MAIN = 256 << 20 };

static const double sizes[DPT_MACHINE_SIZES] = {48e3, 400e3, 1.6e6, 6.4e6};
static const double product_seconds = 0.15, loop_seconds = 0.03;

struct measuring {
    struct dpt_trainer *t;
    const struct dpt_backend *backend; /* whose product is measured */
    bool bf16;                         /* also that in bf16 */
    double main_bytes;
    struct dpt_machine *each; /* [threads] */
    bool loop;                /* the memory, else the product */
};

/* What both clocks showed when something began. */
struct began {
    double own, wall;
};

static struct began begin_now(void)
{
    return (struct began){.own = dpt_thread_seconds(), .wall = dpt_now()};
}

/* amount, divided by the seconds since then. They are CPU time, which other programs on the machine
 * do not lengthen, or the wall clock's if a virtual machine's CPU time stood still. */
static double rate_since(const struct began *began, double amount)
{
    const double own = dpt_thread_seconds() - began->own, wall = dpt_now() - began->wall;

    return amount / (own > 0 ? own : fmax(wall, 1e-9));
}

/* Takes the best of as many products as fit into the time, at least two, since the first one warms
 * up. */
static enum dpt_status repeat_product(const struct measuring *m, enum dpt_precision precision,
                                      const float *a, const float *b, float *c, double *flops,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const double until = dpt_now() + product_seconds;

    for (int i = 0; i < 2 || dpt_now() < until; i++) {
        const struct began began = begin_now();

        DPT_TRY(m->backend->gemm(precision, SIDE, SIDE, SIDE, a, b, c, err));
        *flops = fmax(*flops, rate_since(&began, 2.0 * SIDE * SIDE * SIDE));
    }
out:
    return status;
}

static enum dpt_status measure_product(const struct measuring *m, struct dpt_machine *own,
                                       struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    float *a = NULL, *b;

    DPT_TRY(DPT_ALLOCATE(a, (size_t)3 * SIDE * SIDE, "measuring the machine", err));
    b = a + SIDE * SIDE;
    for (int i = 0; i < 2 * SIDE * SIDE; i++)
        a[i] = (float)(i % 7) * 0.25f;
    DPT_TRY(repeat_product(m, DPT_PRECISION_FP32, a, b, b + SIDE * SIDE, &own->fp32, err));
    if (m->bf16)
        DPT_TRY(repeat_product(m, DPT_PRECISION_BF16, a, b, b + SIDE * SIDE, &own->bf16, err));
out:
    dpt_free(a);
    return status;
}

/* McCalpin's triad (STREAM, 1995). */
DPT_VECTOR static void triad(size_t n, float s, const float *restrict b, const float *restrict c,
                             float *restrict a)
{
    for (size_t i = 0; i < n; i++)
        a[i] = b[i] + s * c[i];
}

static enum dpt_status measure_loop(const struct measuring *m, struct dpt_machine *own,
                                    struct dpt_error *err)
{
    const size_t floats = dpt_round_up((size_t)(m->main_bytes / 3 / sizeof(float)), sizeof(float));
    enum dpt_status status = DPT_OK;
    float *a = NULL;

    DPT_TRY(DPT_ALLOCATE(a, 3 * floats, "measuring the machine", err));
    for (size_t i = 0; i < 3 * floats; i++) /* touches every page */
        a[i] = 1;
    for (int k = 0; k < DPT_MACHINE_SIZES; k++) {
        const double bytes = k < DPT_MACHINE_SIZES - 1 ? sizes[k] : m->main_bytes;
        const size_t n = dpt_round_up((size_t)(bytes / 3 / sizeof(float)), sizeof(float));
        const int rounds = (int)fmax(1, 4e6 / bytes); /* they take some hundred microseconds
                                                       * together */
        const double until = dpt_now() + loop_seconds;

        own->memory[k].bytes = bytes;
        for (int i = 0; i < 2 || dpt_now() < until; i++) {
            const struct began began = begin_now();

            for (int round = 0; round < rounds; round++)
                triad(n, (float)round, a + n, a + 2 * n, a);
            own->memory[k].rate =
                fmax(own->memory[k].rate, rate_since(&began, rounds * 12.0 * (double)n));
        }
    }
out:
    dpt_free(a);
    return status;
}

static void measure_part(void *arg, int thread)
{
    const struct measuring *m = arg;
    struct dpt_worker *worker = &m->t->team.workers[thread];

    worker->status = (m->loop ? measure_loop : measure_product)(m, &m->each[thread], &worker->err);
}

/* The mean over all threads of all ranks. */
static enum dpt_status average(const struct measuring *m, struct dpt_machine *machine,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    double sums[2 + DPT_MACHINE_SIZES] = {0};
    const struct dpt_job *job = m->t->job;
    const double threads = (double)m->t->layout.all_threads;

    for (int i = 0; i < m->t->layout.threads; i++) {
        sums[0] += m->each[i].fp32;
        sums[1] += m->each[i].bf16;
        for (int k = 0; k < DPT_MACHINE_SIZES; k++)
            sums[2 + k] += m->each[i].memory[k].rate;
    }
    DPT_TRY(dpt_group_sum_doubles(&m->t->comm->world, sums, sums, sizeof sums / sizeof *sums, err));
    machine->fp32 = fmax(machine->fp32, sums[0] / threads);
    machine->bf16 = fmax(machine->bf16, sums[1] / threads);
    machine->flops = machine->bf16 > 0 && job != NULL && job->device.precision == DPT_PRECISION_BF16
                         ? machine->bf16
                         : machine->fp32;
    for (int k = 0; k < DPT_MACHINE_SIZES; k++) {
        machine->memory[k].bytes = m->each[0].memory[k].bytes;
        machine->memory[k].rate = fmax(machine->memory[k].rate, sums[2 + k] / threads);
    }
out:
    return status;
}

enum dpt_status dpt_machine_measure(struct dpt_trainer *t, struct dpt_machine *machine,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &t->comm->world;
    struct measuring m = {.t = t, .backend = t->backend};
    int64_t threads = t->layout.threads;

    for (size_t i = 0; dpt_backends[i] != NULL; i++) /* the machine's limit, not the backend's */
        if (dpt_backends[i]->gemm != NULL) {
            m.backend = dpt_backends[i];
            break;
        }
    m.bf16 = m.backend->bf16 != NULL && m.backend->bf16() != NULL;
    dpt_comm_note(t->comm, 0, "measuring the machine");
    DPT_TRY(dpt_group_sum_ints(&t->comm->node, &threads, &threads, 1, err));
    m.main_bytes = fmax(LEAST_MAIN, (double)SHARED_MAIN / (double)threads);
    status = DPT_ALLOCATE(m.each, (size_t)t->layout.threads, "measuring the machine", err);
    DPT_TRY(dpt_group_agree(world, status, err)); /* also makes all begin at once */
    if (m.backend->gemm != NULL)
        status = dpt_trainer_run(t, measure_part, &m, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    m.loop = true;
    DPT_TRY(dpt_group_agree(world, dpt_trainer_run(t, measure_part, &m, err), err));
    DPT_TRY(average(&m, machine, err));
out:
    dpt_free(m.each);
    return status;
}

double dpt_machine_bandwidth(const struct dpt_machine *machine, double bytes)
{
    int k = 0;
    double low, high, part;

    while (k < DPT_MACHINE_SIZES && machine->memory[k].bytes < bytes)
        k++;
    if (k == 0 || k == DPT_MACHINE_SIZES)
        return machine->memory[k == 0 ? 0 : k - 1].rate;
    low = log(machine->memory[k - 1].bytes);
    high = log(machine->memory[k].bytes);
    part = (log(bytes) - low) / (high - low);
    return machine->memory[k - 1].rate * (1 - part) + machine->memory[k].rate * part;
}

/* --- the network ------------------------------------------------------------------------------ */

double dpt_fabric_allreduce(const struct dpt_fabric *f, double n, int p, double add)
{
    const double message = f->latency + 2 * f->overhead, word = WORD / f->bandwidth;
    const double rounds = floor(log2(p) + 1e-9), power = pow(2, rounds);
    /* If p is no power of two, the ranks that are left over first send their numbers to a
     * neighbour, and get the sum from it. */
    const double fold = power < p ? 2 * (message + n * word) + n * add : 0;
    const double doubling = rounds * (message + n * (word + add));
    const double halving =
        2 * rounds * message + (power - 1) / power * n * (2 * word + add); /* Rabenseifner */

    return p > 1 ? fold + fmin(doubling, halving) : 0;
}

double dpt_fabric_tree(const struct dpt_fabric *f, double n, int p, double blocks, double add)
{
    const double message = f->latency + 2 * f->overhead, word = WORD / f->bandwidth;
    const double phases = ceil(log2(p)), more = blocks > 1 ? ceil(log2(blocks)) + 1 : 0;
    /* What the busiest node sends, in gradients: SCALE.md. */
    const double sent = fmin(blocks, 1 + blocks / 2);

    if (p <= 1)
        return 0;
    return (2 * phases + more) * message + (p - 1.0) / p * n * ((sent + 1) * word + sent * add);
}

double dpt_fabric_slices(const struct dpt_fabric *f, double n, int p, double add)
{
    const double message = f->latency + 2 * f->overhead, word = WORD / f->bandwidth;

    if (p <= 1)
        return 0;
    return ((p - 1 + ceil(log2(p))) * message + (p - 1.0) / p * n * (2 * word + add)) / 2;
}
