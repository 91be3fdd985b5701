/* Tests how the device's kernels add up rows (struct dpt_cuda_cut): in the documented order, by all
 * threads of the last block, and without loss if a channel's mean is far from zero; and how they
 * add up what several ranks have, and the norm, where bits count. */
#include "core/backend/tests/net.h"

#include "core/backend/cuda/tests/tensor.h"
#include "core/base/sum_of_squares.h"
#include "core/comm/sums/tree.h"

enum { MOST_WIDE = 64 };

/* Rows of one micro-batch, and room for the partial sums of whichever kernel sums them. */
struct rows {
    enum type type;
    struct device_tensor x, dy;
    struct dpt_cuda_cut cut;
    double *partial;
    uint32_t *counter;
    float *made[4];
};

static void rows_open(struct rows *r, enum type type, int32_t channels, int32_t area,
                      struct draw *d)
{
    const struct dpt_shape shape = {channels, area, 1, false};

    *r = (struct rows){.type = type};
    r->x = tensor_make(type, 1, &shape), r->dy = tensor_make(type, 1, &shape);
    for (size_t i = 0; i < tensor_elements(&r->x); i++) {
        const bool real = i % r->x.pitch < r->x.c;

        element_put(type, r->x.at, i, real ? (float)draw_normal(d) : 0);
        element_put(type, r->dy.at, i, real ? (float)draw_normal(d) : 0);
    }
    r->cut = dpt_cuda_bias_back_cut(area, (int32_t)r->x.pitch, lanes_of[type]);
    r->partial = dpt_alloc_array(2 * (size_t)r->cut.chunks * r->x.pitch, sizeof *r->partial);
    r->counter = dpt_alloc_array((size_t)r->cut.groups, sizeof *r->counter);
    for (int k = 0; k < 4; k++)
        r->made[k] = dpt_alloc_array(5 * r->x.pitch, sizeof(float));
}

static void rows_close(struct rows *r)
{
    for (int k = 0; k < 4; k++)
        dpt_free(r->made[k]);
    dpt_free(r->x.at), dpt_free(r->dy.at), dpt_free(r->partial), dpt_free(r->counter);
}

static void run_bias(const struct rows *r)
{
    dpt_emulate(OF(r->type, bias_back),
                &(struct dpt_cuda_bias_back_args){.dy = r->dy.at,
                                                  .dbias = r->made[0],
                                                  .partial = r->partial,
                                                  .counter = r->counter,
                                                  .rows = (int64_t)r->x.pixels,
                                                  .pitch = (int32_t)r->x.pitch,
                                                  .channels = (int32_t)r->x.c});
}

/* A binary tree over n sums, n a power of 2, `apart` from each other. */
static double tree(double *sum, size_t n, size_t apart)
{
    for (size_t half = n / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            sum[i * apart] += sum[(i + half) * apart];
    return sum[0];
}

/* A channel's sum of one chunk of rows. */
static double chunk_sum(const struct rows *r, size_t channel, size_t first, size_t last)
{
    const size_t lines = DPT_CUDA_THREADS / (size_t)r->cut.columns;
    double sum[DPT_CUDA_THREADS] = {0};

    for (size_t line = 0; line < lines; line++)
        for (size_t row = first + line; row < last; row += DPT_CUDA_SUM_ROWS * lines) {
            float some = 0;

            for (size_t k = row; k < last && k < row + DPT_CUDA_SUM_ROWS * lines; k += lines)
                some += tensor_get(&r->dy, k * r->dy.pitch + channel);
            sum[line] += (double)some;
        }
    return tree(sum, lines, 1);
}

/* The bits that follow from the order in kernels.h, computed without the kernel. */
static void in_the_documented_order(void **state)
{
    int64_t most = 0;

    (void)state;
    for (int seed = 0; seed < 30; seed++) {
        struct draw d = {(uint64_t)seed + 100};
        struct rows r;
        size_t stripes, chunk;

        rows_open(&r, (enum type)(seed % TYPES), draw_int(&d, 1, seed % 4 ? 70 : 300),
                  draw_int(&d, 1, seed % 3 ? 3000 : 40000), &d);
        run_bias(&r);
        most = r.cut.chunks > most ? r.cut.chunks : most;
        stripes = DPT_CUDA_THREADS / (size_t)(r.cut.columns * lanes_of[r.type]);
        chunk = (size_t)r.cut.chunk;
        for (size_t c = 0; c < r.x.c; c++) {
            double sum[DPT_CUDA_THREADS] = {0};

            for (size_t i = 0; i < (size_t)r.cut.chunks; i++)
                sum[i % stripes] += chunk_sum(
                    &r, c, i * chunk, (i + 1) * chunk < r.x.pixels ? (i + 1) * chunk : r.x.pixels);
            assert_true((float)tree(sum, stripes, 1) == r.made[0][c]);
        }
        rows_close(&r);
    }
    assert_true(most > 100);
}

static void run_statistics(const struct rows *r)
{
    struct dpt_cuda_control control = {.count = 1};

    dpt_emulate(OF(r->type, batchnorm_statistics),
                &(struct dpt_cuda_batchnorm_args){.x = r->x.at,
                                                  .statistics = r->made[0],
                                                  .means = r->made[1],
                                                  .variances = r->made[2],
                                                  .partial = r->partial,
                                                  .counter = r->counter,
                                                  .control = &control,
                                                  .rows = (int64_t)r->x.pixels,
                                                  .area = (int32_t)r->x.pixels,
                                                  .pitch = (int32_t)r->x.pitch,
                                                  .channels = (int32_t)r->x.c});
}

static void run_gradients(const struct rows *r)
{
    struct dpt_cuda_control control = {.count = 1};

    dpt_emulate(OF(r->type, batchnorm_weights),
                &(struct dpt_cuda_batchnorm_args){.x = r->x.at,
                                                  .dy = r->dy.at,
                                                  .statistics = r->made[0],
                                                  .dweight = r->made[1],
                                                  .dbias = r->made[2],
                                                  .partial = r->partial,
                                                  .counter = r->counter,
                                                  .control = &control,
                                                  .rows = (int64_t)r->x.pixels,
                                                  .area = (int32_t)r->x.pixels,
                                                  .pitch = (int32_t)r->x.pitch,
                                                  .channels = (int32_t)r->x.c});
}

/* PReLU's weights; their rows are divided by a cut of their own. */
static void run_scales(const struct rows *r)
{
    const struct dpt_cuda_cut cut =
        dpt_cuda_scales_cut((int64_t)r->x.pixels, (int64_t)r->x.pitch / lanes_of[r->type]);
    double *partial = dpt_alloc_array(2 * (size_t)cut.chunks * r->x.pitch, sizeof *partial);
    uint32_t *counter = dpt_alloc_array((size_t)cut.groups, sizeof *counter);

    assert_true(cut.chunks > 60);
    dpt_emulate(OF(r->type, prelu_weights),
                &(struct dpt_cuda_scales_args){.counted = {.blocks = cut.groups * cut.chunks},
                                               .x = r->x.at,
                                               .dy = r->dy.at,
                                               .dweight = r->made[0],
                                               .partial = partial,
                                               .counter = counter,
                                               .n = 1,
                                               .channels = (int32_t)r->x.c,
                                               .pitch = (int32_t)r->x.pitch,
                                               .area = (int32_t)r->x.pixels,
                                               .weight_area = 1,
                                               .groups = 1,
                                               .chunks = (int32_t)cut.chunks});
    dpt_free(partial), dpt_free(counter);
}

/* No thread of a last block reads more than its share of the partial sums, and every thread reads
 * some. */
static void by_all_threads_of_the_last_block(void **state)
{
    static void (*const runs[])(const struct rows *r) = {run_bias, run_statistics, run_gradients,
                                                         run_scales};
    static const int sums[] = {1, 2, 2, 1};

    (void)state;
    for (int type = 0; type < TYPES; type++) {
        struct draw d = {(uint64_t)type + 200};
        struct rows r;

        rows_open(&r, (enum type)type, 8 * lanes_of[type] - 1, 70000, &d);
        assert_true(r.cut.groups == 1 && r.cut.chunks > 200);
        assert_true(r.cut.chunks <= DPT_CUDA_SUM_BLOCKS);
        for (size_t k = 0; k < sizeof runs / sizeof runs[0]; k++) {
            const uint32_t share = DPT_CUDA_SUM_BLOCKS * MOST_WIDE / DPT_CUDA_THREADS + 8;

            memset(emulated_fresh, 0, sizeof emulated_fresh);
            runs[k](&r);
            for (int t = 0; t < DPT_CUDA_THREADS; t++)
                if (emulated_fresh[t] == 0 || emulated_fresh[t] > share * (uint32_t)sums[k])
                    fail_msg("%s, sum %zu: thread %d reads %u partial sums", type_names[type], k, t,
                             emulated_fresh[t]);
        }
        rows_close(&r);
    }
}

/* Means 3000 times the deviation: a variance in floats has all digits of the numbers. */
static void of_channels_far_from_zero(void **state)
{
    struct draw d = {300};
    struct rows r;

    (void)state;
    rows_open(&r, F32, 6, 20000, &d);
    for (size_t i = 0; i < tensor_elements(&r.x); i++)
        ((float *)r.x.at)[i] += 3000;
    run_statistics(&r);
    for (size_t c = 0; c < r.x.c; c++) {
        double mean = 0, variance = 0;

        for (size_t i = 0; i < r.x.pixels; i++)
            mean += (double)tensor_get(&r.x, i * r.x.pitch + c) / (double)r.x.pixels;
        for (size_t i = 0; i < r.x.pixels; i++)
            variance += pow((double)tensor_get(&r.x, i * r.x.pitch + c) - mean, 2) /
                        ((double)r.x.pixels - 1);
        assert_true(fabs((double)r.made[1][c] - mean) <= 1e-7 * mean);
        assert_true(fabs((double)r.made[2][c] - variance) <= 1e-6 * variance);
    }
    rows_close(&r);
}

/* Random ranks with random runs of micro-batches, of which one makes the sum, of a slice or of some
 * that lie apart: the tree's bits, from blocks that lie in its sum, in its blocks, in what was
 * merged and in what it received. */
static void ranks_along_the_tree(void **state)
{
    enum { RANKS = 9, MOST = 12, FLOATS = 144 };

    (void)state;
    for (int seed = 0; seed < 200; seed++) {
        struct draw d = {(uint64_t)seed + 900};
        const int ranks = draw_int(&d, 1, RANKS), own = draw_int(&d, 0, ranks - 1);
        const int slices = draw_int(&d, 1, 3), merged_ones = draw_int(&d, 0, 2);
        const int64_t width = 4 * draw_int(&d, 1, 8), first = 4 * draw_int(&d, 0, 4);
        const int64_t skip = width + 4 * draw_int(&d, 0, 2), all = slices * width;
        struct dpt_cuda_leaf *leaf = dpt_alloc_array(RANKS * MOST, sizeof *leaf);
        float *sum = dpt_alloc_array(FLOATS, 4), *blocks = dpt_alloc_array(MOST * FLOATS, 4),
              *merged = dpt_alloc_array(MOST * FLOATS, 4),
              *received = dpt_alloc_array(RANKS * MOST * FLOATS, 4),
              *made = dpt_alloc_array(FLOATS, 4), *to = first == 0 && slices == 1 ? sum : made,
              values[RANKS * MOST][FLOATS];
        int32_t begin[RANKS + 1] = {0};
        struct dpt_tree tree;
        int n = 0, got = 0;

        for (int r = 0; r < ranks; r++)
            begin[r + 1] = begin[r] + draw_int(&d, r == 0, MOST);
        dpt_tree_begin(&tree, begin[ranks]);
        for (int r = 0; r < ranks; r++) {
            struct dpt_block block[DPT_TREE_BLOCKS];
            const int of = dpt_tree_blocks(begin[r], begin[r + 1], begin[ranks], block);

            for (int k = 0; k < of; k++, n++) {
                const int before = tree.n;
                const enum dpt_cuda_place place = r != own          ? DPT_CUDA_RECEIVED
                                                  : k < merged_ones ? DPT_CUDA_IN_MERGED
                                                  : k == of - 1     ? DPT_CUDA_IN_SUM
                                                                    : DPT_CUDA_IN_BLOCKS;

                for (int64_t i = 0; i < all; i++) {
                    const int64_t in_arena = first + i / width * skip + i % width;
                    float *const at[] = {[DPT_CUDA_IN_SUM] = sum + in_arena,
                                         [DPT_CUDA_IN_BLOCKS] = blocks + k * FLOATS + in_arena,
                                         [DPT_CUDA_IN_MERGED] = merged + k * FLOATS + i,
                                         [DPT_CUDA_RECEIVED] = received + got * all + i};

                    *at[place] = values[n][i] = (float)draw_normal(&d);
                }
                leaf[n] = (struct dpt_cuda_leaf){place, r != own ? got++ : k, 0, 0};
                dpt_tree_push(&tree, block[k], values[n], (size_t)all, NULL, NULL);
                leaf[n].merges = before + 1 - tree.n;
            }
        }
        assert_int_equal(tree.n, 1);
        dpt_cuda_link_leaves(leaf, n);
        dpt_emulate(DPT_CUDA_K_tree, &(struct dpt_cuda_tree_args){.leaf = leaf,
                                                                  .sum = sum,
                                                                  .blocks = blocks,
                                                                  .merged = merged,
                                                                  .received = received,
                                                                  .to = to,
                                                                  .first = first,
                                                                  .width = width,
                                                                  .stride = FLOATS,
                                                                  .skip = skip,
                                                                  .apart = FLOATS,
                                                                  .n = n,
                                                                  .slices = slices});
        assert_memory_equal(to, tree.value[0], (size_t)all * 4);
        dpt_free(leaf), dpt_free(made), dpt_free(sum), dpt_free(blocks), dpt_free(merged);
        dpt_free(received);
    }
}

/* A gradient cut into chunks of random lengths, and how its norm is made. */
struct chunked {
    struct dpt_cuda_chunk *chunk;
    int64_t chunks, n;
    float *gradient, *statistics;
    double *partial;
};

static void open_chunked(struct chunked *c, struct draw *d, int64_t most, int64_t state)
{
    int64_t at = 0;

    c->chunks = draw_int(d, 1, (int32_t)most);
    c->chunk = dpt_alloc_array((size_t)c->chunks, sizeof *c->chunk);
    for (int64_t k = 0; k < c->chunks; k++) {
        const int32_t n = draw_int(d, 1, 100) + (k % 7 == 0 ? 900 : 0);

        c->chunk[k] = (struct dpt_cuda_chunk){at, n, (int32_t)k};
        at += n;
    }
    c->n = (at + 15) / 16 * 16;
    c->chunk[c->chunks - 1].n += (int32_t)(c->n - at);
    c->gradient = dpt_alloc_array((size_t)c->n, 4);
    c->statistics = dpt_alloc_array((size_t)state, 4);
    c->partial = dpt_alloc_array((size_t)(c->chunks + 2 + dpt_cuda_chunk_blocks(c->chunks)), 8);
    for (int64_t i = 0; i < c->n; i++)
        c->gradient[i] = (float)draw_normal(d);
    for (int64_t i = 0; i < state; i++)
        c->statistics[i] = (float)draw_normal(d);
}

static void close_chunked(struct chunked *c)
{
    dpt_free(c->chunk), dpt_free(c->gradient), dpt_free(c->statistics), dpt_free(c->partial);
}

/* Adds up and decides as ranks do that have random chunks each: the doubles that they tell each
 * other are summed, of all chunks if these are told by themselves. */
static void decide_in_parts(struct draw *d, const struct dpt_cuda_norm_args *whole,
                            enum dpt_cuda_shared shared)
{
    enum { RANKS = 3 };
    const bool each = shared == DPT_CUDA_SHARED_CHUNKS;
    struct dpt_cuda_norm_args last = *whole;
    double *told = dpt_alloc_array((size_t)whole->chunks + 2, 8);
    int8_t *rank = dpt_alloc_array((size_t)whole->chunks, 1);

    for (int64_t k = 0; k < whole->chunks; k++)
        rank[k] = (int8_t)draw_int(d, 0, RANKS - 1);
    for (int r = 0; r < RANKS; r++) {
        struct dpt_cuda_norm_args own = *whole;
        struct dpt_cuda_chunk *list = dpt_alloc_array((size_t)whole->chunks, sizeof *list);
        uint32_t counter = 0;

        own.chunk = list, own.listed = 0, own.shared = shared, own.counter = &counter;
        for (int64_t k = 0; k < whole->chunks; k++) {
            if (rank[k] != r)
                continue;
            list[own.listed] = whole->chunk[k];
            list[own.listed].number = (int32_t)(each ? k : own.listed);
            own.listed++;
        }
        own.chunks = each ? whole->chunks : own.listed;
        memset(own.partial, 0, (size_t)(whole->chunks + 2) * 8);
        dpt_emulate(DPT_CUDA_K_norm_chunks, &own);
        for (int64_t k = each ? 0 : own.chunks; k < own.chunks + 2; k++)
            told[each ? k : k - own.chunks] += own.partial[k];
        last.chunks = each ? own.chunks : 0;
        last.shared = shared;
        dpt_free(list);
    }
    last.partial = told;
    dpt_emulate(DPT_CUDA_K_norm_decide, &last);
    dpt_free(told), dpt_free(rank);
}

/* The norm of chunks: dpt_sum_of_squares of each, added in their order where it clips, by one rank
 * or by several, with the same bits if these hear of all chunks. State that is not finite, a
 * gradient, or a weight before, withholds the update. */
static void norms_of_chunks(void **state)
{
    enum { CHUNKS = 1300, STATE = 32 };

    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct draw d = {seed};
        const float tail[16] = {
            [DPT_CUDA_TAIL_LOSS] = 1, [DPT_CUDA_TAIL_SAMPLES] = 3, [DPT_CUDA_TAIL_WEIGHT] = 3};
        const struct dpt_cuda_rates rates = {.update = 7};
        const int broken = seed % 6;
        const bool each = broken != 1 || seed % 4 == 1; /* of chunks all ranks hear */
        struct dpt_cuda_state told = {.loss_scale = 1, .unsound = broken == 5}, alone;
        double shown;
        double want = 0, scale = 1.0 / 3;
        uint32_t counter = 0;
        struct dpt_cuda_norm_args norm = {.tail = tail,
                                          .rates = &rates,
                                          .state = &told,
                                          .counter = &counter,
                                          .state_n = STATE,
                                          .clip = broken == 1 ? 0 : 0.5,
                                          .ordered = broken != 1};
        struct chunked c;

        open_chunked(&c, &d, seed % 3 == 0 ? CHUNKS : 30, STATE);
        if (broken == 3)
            c.gradient[draw_int(&d, 0, (int32_t)c.n - 1)] = INFINITY;
        if (broken == 4)
            c.statistics[draw_int(&d, 0, STATE - 1)] = NAN;
        for (int64_t k = 0; k < c.chunks; k++)
            want += dpt_sum_of_squares(c.gradient + c.chunk[k].begin, (size_t)c.chunk[k].n);
        want = sqrt(want) * scale;
        norm.gradient = c.gradient, norm.partial = c.partial, norm.n = c.n;
        norm.statistics = c.statistics;
        norm.chunk = c.chunk, norm.listed = norm.chunks = c.chunks;
        alone = told;
        norm.state = &alone;
        dpt_emulate(DPT_CUDA_K_norm_chunks, &norm);
        dpt_emulate(DPT_CUDA_K_norm_in_order,
                    &(struct dpt_cuda_shown_args){c.partial, tail, &shown, c.chunks});
        norm.state = &told;
        decide_in_parts(&d, &norm, each ? DPT_CUDA_SHARED_CHUNKS : DPT_CUDA_SHARED_SUM);
        assert_int_equal(told.withheld, alone.withheld);
        if (each && broken < 3)
            assert_memory_equal(&told, &alone, sizeof alone);
        assert_int_equal(told.withheld, broken >= 3 ? DPT_CUDA_WITHHELD : 0);
        if (broken == 1) {
            assert_true(fabs(told.norm - want) <= 1e-12 * want);
            assert_true(told.scale == (float)scale);
            assert_true(shown == want);
        } else if (broken < 3) {
            assert_true(told.norm == want);
            assert_true(told.scale == (float)(want > 0.5 ? scale * (0.5 / want) : scale));
        }
        close_chunked(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_the_documented_order),
                                       cmocka_unit_test(by_all_threads_of_the_last_block),
                                       cmocka_unit_test(of_channels_far_from_zero),
                                       cmocka_unit_test(ranks_along_the_tree),
                                       cmocka_unit_test(norms_of_chunks)};

    return cmocka_run_group_tests(tests, NULL, dpt_emulate_end);
}
