/*
 * Compares ways to sum the ranks' gradients: mpirun -np 2 build/tests/bench_reduce [largest]
 *
 * largest: floats, 25000000 by default.
 *
 * - allreduce: MPI_Allreduce on floats, any order
 * - hierarchy: in rank order, in shared memory on a node (core/comm/sums/hierarchical_allreduce.h)
 * - large: likewise, in the way of sums that no cache holds
 * - window: the tree, in shared memory (core/comm/sums/deterministic_allreduce.h)
 * - messages: the tree, slices sent to their owners
 * - doubling: the tree, by recursive doubling of whole arrays between pairs of ranks (powers of two
 *   only)
 * - fixed: 64-bit fixed point around a common exponent, MPI_Allreduce on integers: exact, any order
 *
 * Prints a Markdown table: microseconds per sum, median of the rounds, the ways in turn; one block
 * per rank.
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/comm/sums/deterministic_allreduce.h"
#include "core/comm/sums/hierarchical_allreduce.h"

enum { ROUNDS = 15, WAYS = 7 };

struct bench {
    struct dpt_comm comm;
    size_t n;
    bool spin;
    struct dpt_hierarchical_allreduce *hierarchy, *large;
    struct dpt_deterministic_allreduce *window, *messages;
    float *mine, *sum;
    int64_t *fixed;
    int32_t *first;
};

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((double)(i % 1013) - 506.0) * 1e-3f;
}

static void allreduce(struct bench *b)
{
    struct dpt_error err;

    dpt_group_sum_floats(&b->comm.world, b->mine, b->sum, b->n, &err);
}

static void hierarchy(struct bench *b)
{
    static const bool filled = true;
    struct dpt_error err;

    dpt_hierarchical_sum(b->hierarchy, &filled, NULL, &err);
}

static void large(struct bench *b)
{
    static const bool filled = true;
    struct dpt_error err;

    dpt_hierarchical_begin(b->large);
    dpt_hierarchical_sum(b->large, &filled, NULL, &err);
}

static void tree(struct bench *b, struct dpt_deterministic_allreduce *d)
{
    struct dpt_tree tree;
    struct dpt_error err;

    dpt_tree_begin(&tree, b->comm.world.size);
    dpt_tree_push(&tree, (struct dpt_block){b->comm.world.rank, 0}, dpt_deterministic_buffer(d, 0),
                  b->n, NULL, NULL);
    dpt_deterministic_publish(d, &tree, NULL, NULL, 0, &err);
    dpt_deterministic_sum(d, &tree, b->first, &err);
}

static void window(struct bench *b)
{
    if (b->window != NULL)
        tree(b, b->window);
}

static void messages(struct bench *b)
{
    tree(b, b->messages);
}

static void doubling(struct bench *b)
{
    const int rank = b->comm.world.rank, ranks = b->comm.world.size;

    if ((ranks & (ranks - 1)) != 0)
        return;
    memcpy(b->sum, b->mine, b->n * sizeof(float));
    for (int bit = 1; bit < ranks; bit *= 2) {
        float *other = b->mine + b->n;

        MPI_Sendrecv(b->sum, (int)b->n, MPI_FLOAT, rank ^ bit, 0, other, (int)b->n, MPI_FLOAT,
                     rank ^ bit, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (size_t i = 0; i < b->n; i++)
            b->sum[i] += other[i];
    }
}

/* The largest magnitude gets 62 bits less those for the ranks; what is 2^-62 of it is lost. */
static void fixed(struct bench *b)
{
    float most = 0;
    int exponent;
    double up;

    for (size_t i = 0; i < b->n; i++)
        most = fmaxf(most, fabsf(b->mine[i]));
    MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
    frexpf(most, &exponent);
    up = ldexp(1, 62 - 10 - exponent);
    for (size_t i = 0; i < b->n; i++)
        b->fixed[i] = (int64_t)((double)b->mine[i] * up);
    MPI_Allreduce(MPI_IN_PLACE, b->fixed, (int)b->n, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    for (size_t i = 0; i < b->n; i++)
        b->sum[i] = (float)((double)b->fixed[i] / up);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void measure(struct bench *b)
{
    static void (*const ways[WAYS])(struct bench *) = {allreduce, hierarchy, large, window,
                                                       messages,  doubling,  fixed};
    double seconds[WAYS][ROUNDS];
    const int repeats = b->n < 10000 ? 1000 : b->n < 100000 ? 50 : b->n < 1000000 ? 10 : 1;

    for (int round = -2; round < ROUNDS; round++)
        for (int w = 0; w < WAYS; w++) {
            double start;

            MPI_Barrier(MPI_COMM_WORLD);
            start = dpt_now();
            for (int i = 0; i < repeats; i++)
                ways[w](b);
            MPI_Barrier(MPI_COMM_WORLD);
            if (round >= 0)
                seconds[w][round] = (dpt_now() - start) / repeats;
        }
    if (b->comm.world.rank != 0)
        return;
    printf("| %zu |", b->n);
    for (int w = 0; w < WAYS; w++) {
        qsort(seconds[w], ROUNDS, sizeof(double), by_value);
        printf(" %.*f |", b->n < 10000 ? 2 : 0, seconds[w][ROUNDS / 2] * 1e6);
    }
    printf("\n");
    fflush(stdout);
}

static void one_size(struct bench *b, size_t n)
{
    struct dpt_hierarchical_spec spec = {
        .n = n, .buffers = 1, .hierarchical = true, .spin = b->spin, .large = SIZE_MAX};
    struct dpt_deterministic_spec tree = {.n = n, .buffers = 1, .spin = b->spin};
    struct dpt_error err;

    b->n = n;
    b->mine = dpt_alloc_array(2 * n, sizeof(float));
    b->sum = dpt_alloc_array(n, sizeof(float));
    b->fixed = dpt_alloc_array(n, sizeof(int64_t));
    if (dpt_hierarchical_open(&b->hierarchy, &b->comm, &spec, NULL, &err) != DPT_OK)
        MPI_Abort(MPI_COMM_WORLD, 1);
    spec.large = 1;
    if (dpt_hierarchical_open(&b->large, &b->comm, &spec, NULL, &err) != DPT_OK)
        MPI_Abort(MPI_COMM_WORLD, 1);
    tree.way = DPT_DETERMINISTIC_WINDOW;
    if (dpt_deterministic_open(&b->window, &b->comm, &tree, &err) != DPT_OK)
        b->window = NULL;
    tree.way = DPT_DETERMINISTIC_MESSAGES;
    if (dpt_deterministic_open(&b->messages, &b->comm, &tree, &err) != DPT_OK ||
        dpt_deterministic_reserve(b->messages, b->first, &err) != DPT_OK)
        MPI_Abort(MPI_COMM_WORLD, 1);
    fill(b->mine, n);
    fill(dpt_hierarchical_buffer(b->hierarchy, 0), n);
    fill(dpt_hierarchical_buffer(b->large, 0), n);
    if (b->window != NULL)
        fill(dpt_deterministic_buffer(b->window, 0), n);
    fill(dpt_deterministic_buffer(b->messages, 0), n);
    measure(b);
    dpt_hierarchical_close(b->hierarchy);
    dpt_hierarchical_close(b->large);
    dpt_deterministic_close(b->window);
    dpt_deterministic_close(b->messages);
    dpt_free(b->mine);
    dpt_free(b->sum);
    dpt_free(b->fixed);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {32, 1024, 60362, 421642, 1 << 20, 1 << 22, 25000000};
    const size_t most = argc > 1 ? strtoull(argv[1], NULL, 10) : SIZE_MAX;
    struct bench b = {0};
    struct dpt_error err;

    if (dpt_comm_open(&b.comm, &err) != DPT_OK)
        return 1;
    if (b.comm.world.size < 2) {
        fprintf(stderr, "bench_reduce: start it on two or more ranks\n");
        return 2;
    }
    b.spin = sysconf(_SC_NPROCESSORS_ONLN) >= b.comm.node.size;
    b.first = dpt_alloc_array((size_t)b.comm.world.size + 1, sizeof *b.first);
    for (int r = 0; r <= b.comm.world.size; r++)
        b.first[r] = r;
    if (b.comm.world.rank == 0)
        printf(
            "%d ranks\n\n| floats | allreduce | hierarchy | large | window | messages | doubling | "
            "fixed |\n"
            "|---|---|---|---|---|---|---|---|\n",
            b.comm.world.size);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && sizes[i] <= most; i++)
        one_size(&b, sizes[i]);
    dpt_free(b.first);
    dpt_comm_close(&b.comm);
    return 0;
}
