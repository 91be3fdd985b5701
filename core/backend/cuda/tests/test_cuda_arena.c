/* The device's passes over arenas and data sets, run on the host, against plain loops. */
#include "core/backend/tests/net.h"

#include "core/backend/cuda/tests/tensor.h"

static void nonfinite_elements(void **state)
{
    (void)state;
    for (int seed = 0; seed < 60; seed++) {
        struct draw d = {(uint64_t)seed + 100};
        const enum type type = (enum type)(seed % TYPES);
        const int64_t n = draw_int(&d, 1, 20000);
        float *x = random_values(&d, (size_t)n);
        void *y = dpt_alloc((size_t)n * 4);
        uint64_t found = INT64_MAX, want = INT64_MAX;

        for (int k = draw_int(&d, 0, 3); k > 0; k--) {
            const int32_t at = draw_int(&d, 0, (int32_t)n - 1);

            x[at] = k == 1 ? NAN : k == 2 ? INFINITY : -INFINITY;
            want = (uint64_t)at < want ? (uint64_t)at : want;
        }
        for (int64_t i = 0; i < n; i++)
            element_put(type, y, (size_t)i, x[i]);
        dpt_emulate(OF(type, nonfinite), &(struct dpt_cuda_scan_args){y, n, &found});
        assert_true(found == want);
        dpt_free(x), dpt_free(y);
    }
}

/* bf16: nearest, ties to even, against arithmetic in double. */
static void bfloat16(void **state)
{
    struct draw d = {7};

    (void)state;
    for (int i = 0; i < 200000; i++) {
        const uint32_t bits = (uint32_t)draw_bits(&d) & ~(i % 3 ? 0u : 0x7fffu);
        float x, low, high, got;
        uint32_t up = (bits & 0xffff0000u) + 0x10000u, down = bits & 0xffff0000u;

        memcpy(&x, &bits, 4), memcpy(&low, &down, 4), memcpy(&high, &up, 4);
        got = b16_to_float(float_to_b16(x));
        if (isnan(x)) {
            assert_true(isnan(got));
        } else if (isinf(x) || isinf(high)) {
            assert_true(got == low || got == high);
        } else {
            const double below = fabs((double)x - (double)low),
                         above = fabs((double)high - (double)x);
            const bool even = (down >> 16 & 1) == 0;

            assert_true(got == (below < above || (below == above && even) ? low : high));
        }
    }
}

/* Launches a kernel for tensors first … last-1 of a list, and counts its blocks. */
static void convert(enum dpt_cuda_kernel kernel, struct dpt_cuda_layout *list, int first, int last,
                    struct dpt_cuda_layout_args *a, int64_t *blocks)
{
    struct dpt_cuda_grid grid;

    a->list = list + first;
    a->n = last - first;
    a->blocks = 0;
    for (int t = first; t < last; t++)
        a->blocks += dpt_cuda_layout_blocks(kernel, &list[t]);
    assert_true(dpt_cuda_kernel_grid(kernel, a, &grid));
    *blocks += (int64_t)grid.x * grid.y;
    dpt_emulate(kernel, a);
}

/* Canonical to padded and back, in both types; and adding. A list is converted in two parts, by as
 * many blocks as its tensors fill, although they are of very different sizes. */
static void layouts(void **state)
{
    enum { TENSORS = 5 };

    (void)state;
    for (int seed = 0; seed < 60; seed++) {
        struct draw d = {(uint64_t)seed + 200};
        const enum type type = (enum type)(seed % TYPES);
        const int lanes = lanes_of[type];
        struct dpt_cuda_layout list[TENSORS];
        struct dpt_cuda_layout_args a = {0};
        const int cut = draw_int(&d, 1, TENSORS - 1);
        int64_t floats = 0, elements = 0, there = 0, back_again = 0, needed[2] = {0};
        float *arena, *back;
        unsigned char *copies;

        for (int t = 0; t < TENSORS; t++) {
            struct dpt_cuda_layout *l = &list[t];
            int64_t size;

            *l = (struct dpt_cuda_layout){.canonical = floats,
                                          .copy = elements,
                                          .outputs = draw_int(&d, 1, 40),
                                          .inputs = draw_int(&d, 1, 40),
                                          .area = draw_int(&d, 1, 12)};
            /* Now and then without padding, as the weights of a first convolution in fp32. */
            l->padded_inputs =
                seed / TYPES % 3 ? (l->inputs + lanes - 1) / lanes * lanes : l->inputs;
            l->padded_outputs = l->outputs + draw_int(&d, 0, 8);
            floats += ((int64_t)l->outputs * l->inputs * l->area + 15) / 16 * 16;
            size = (int64_t)l->padded_outputs * l->padded_inputs * l->area;
            l->block = (uint32_t)needed[0];
            needed[0] += (size + lanes * DPT_CUDA_THREADS - 1) / (lanes * DPT_CUDA_THREADS);
            elements += (size + 15) / 16 * 16;
        }
        arena = random_values(&d, (size_t)floats);
        back = dpt_alloc_array((size_t)floats, sizeof *back);
        copies = dpt_alloc((size_t)elements * bytes_of[type]);
        memset(copies, 0x55, (size_t)elements * bytes_of[type]);
        a.arena = arena;
        a.copies = copies;
        convert(OF(type, to_layout), list, 0, cut, &a, &there);
        convert(OF(type, to_layout), list, cut, TENSORS, &a, &there);
        assert_int_equal(there, needed[0]);
        for (int t = 0; t < TENSORS; t++) {
            const struct dpt_cuda_layout *l = &list[t];
            int64_t at = l->copy;

            for (int o = 0; o < l->padded_outputs; o++)
                for (int p = 0; p < l->area; p++)
                    for (int i = 0; i < l->padded_inputs; i++, at++) {
                        const float got = element_get(type, copies, (size_t)at);
                        float want =
                            o < l->outputs && i < l->inputs
                                ? arena[l->canonical + ((int64_t)o * l->inputs + i) * l->area + p]
                                : 0;

                        want = rounded(type, want);
                        assert_true(got == want);
                    }
        }
        a.arena = back;
        a.add = 1;
        for (int t = 0; t < TENSORS; t++) {
            const struct dpt_cuda_layout *l = &list[t];

            list[t].block = (uint32_t)needed[1];
            needed[1] += ((int64_t)l->outputs * l->inputs * l->area + DPT_CUDA_THREADS - 1) /
                         DPT_CUDA_THREADS;
        }
        convert(OF(type, from_layout), list, 0, TENSORS, &a, &back_again);
        assert_int_equal(back_again, needed[1]);
        convert(OF(type, from_layout), list, 0, cut, &a, &back_again);
        convert(OF(type, from_layout), list, cut, TENSORS, &a, &back_again);
        for (int t = 0; t < TENSORS; t++) {
            const struct dpt_cuda_layout *l = &list[t];
            const int64_t n = (int64_t)l->outputs * l->inputs * l->area;

            for (int64_t i = l->canonical; i < l->canonical + (n + 15) / 16 * 16; i++) {
                const float v = rounded(type, arena[i]);

                assert_true(back[i] == (i < l->canonical + n ? 2 * v : 0));
            }
        }
        dpt_free(arena), dpt_free(back), dpt_free(copies);
    }
}

/* Slices become rows of the type, one by one, and floats again, but the own one, with the 16 floats
 * each that are not converted. */
static void slices_in_the_type(void **state)
{
    (void)state;
    for (int seed = 0; seed < 60; seed++) {
        struct draw d = {(uint64_t)seed + 300};
        const enum type type = (enum type)(seed % TYPES);
        const int ranks = draw_int(&d, 1, 5), groups = draw_int(&d, 1, 90),
                  own = draw_int(&d, -1, ranks - 1);
        const int64_t width = 16 * groups, n = ranks * width;
        const int64_t row =
            width * (int64_t)bytes_of[type] + 64 * groups; /* if none is converted */
        float *from = random_values(&d, (size_t)n), *to = random_values(&d, (size_t)n);
        float *const before = dpt_alloc_array((size_t)n, sizeof *before);
        void *rows = dpt_alloc((size_t)(ranks * row));
        uint16_t *exact = dpt_alloc_array((size_t)(n / 16), sizeof *exact);
        struct dpt_cuda_slices_args a = {.arena = from,
                                         .rows = rows,
                                         .exact = exact,
                                         .width = width,
                                         .row = row,
                                         .n = 1,
                                         .own = -1};

        memcpy(before, to, (size_t)n * sizeof *to);
        for (int r = 0; r < ranks; r++)
            for (int g = 0, k = 0; g < groups; g++)
                exact[r * groups + g] = (uint16_t)(draw_int(&d, 0, 2) ? DPT_CUDA_NO_COPY : k++);
        for (a.first = 0; a.first < ranks; a.first++)
            dpt_emulate(OF(type, pack), &a);
        a.arena = to, a.first = 0, a.n = ranks, a.own = own;
        dpt_emulate(OF(type, unpack), &a);
        for (int64_t i = 0; i < n; i++)
            assert_true(to[i] == (i / width == own                    ? before[i]
                                  : exact[i / 16] == DPT_CUDA_NO_COPY ? rounded(type, from[i])
                                                                      : from[i]));
        dpt_free(from), dpt_free(to), dpt_free(before), dpt_free(rows), dpt_free(exact);
    }
}

/* The crops and flips of dpt_augment_sample, pixel by pixel. */
static void gathers(void **state)
{
    (void)state;
    for (int seed = 0; seed < 120; seed++) {
        struct draw d = {(uint64_t)seed + 300};
        const enum type type = (enum type)(seed % TYPES);
        const int form = seed / TYPES, lanes = lanes_of[type];
        const bool u8 = form & 1, nhwc = form & 2, moved = form & 4;
        const int32_t c = form % 3 ? draw_int(&d, 1, 4) : draw_int(&d, 1, 30);
        const int32_t h = draw_int(&d, 1, 9), w = draw_int(&d, 1, 9), samples = draw_int(&d, 1, 20);
        const int32_t n = draw_int(&d, 1, 6), count = draw_int(&d, 0, n);
        const int32_t pitch =
            seed % 5 || type != F32 || c >= 4 ? (c + lanes - 1) / lanes * lanes : c;
        const size_t size = (size_t)c * (size_t)h * (size_t)w;
        unsigned char *bytes = dpt_alloc((size_t)samples * size);
        float *floats = random_values(&d, (size_t)samples * size);
        float *scale = random_values(&d, (size_t)c), *shift = random_values(&d, (size_t)c);
        void *out = dpt_alloc((size_t)n * (size_t)(h * w * pitch) * 4);
        int64_t index[32];
        struct dpt_cuda_move moves[6];
        struct dpt_cuda_control control = {.count = count, .first = draw_int(&d, 0, 9)};
        const bool plain = seed % 7 == 2; /* numbers as they are, in order */
        float fed[2][70];
        struct dpt_cuda_gather_args a = {.data = u8 ? (void *)bytes : (void *)floats,
                                         .index = plain ? NULL : index,
                                         .scale = plain ? NULL : scale,
                                         .shift = plain ? NULL : shift,
                                         .moves = moved ? moves : NULL,
                                         .control = &control,
                                         .out = out,
                                         .channel_stride = nhwc ? 1 : h * w,
                                         .pixel_stride = nhwc ? c : 1,
                                         .n = n,
                                         .channels = c,
                                         .h = h,
                                         .w = w,
                                         .pitch = pitch};

        for (size_t i = 0; i < (size_t)samples * size; i++)
            bytes[i] = (unsigned char)draw_bits(&d);
        for (int i = 0; i < 32; i++)
            index[i] = draw_int(&d, 0, samples - 1);
        for (int i = 0; i < n; i++)
            moves[i] = (struct dpt_cuda_move){(int16_t)draw_int(&d, -3, 3),
                                              (int16_t)draw_int(&d, -3, 3), draw_int(&d, 0, 1)};
        if (plain)
            control.first = draw_int(&d, 0, samples), a.n = n < samples ? n : samples,
            control.first = control.first + a.n > samples ? samples - a.n : control.first;
        for (int i = 0; i < 70; i++)
            fed[0][i] = (float)draw_normal(&d), fed[1][i] = 0;
        for (int i = 0; i < seed % 4; i++)
            dpt_cuda_add_feed(&a.feed, &fed[1][20 * i], &fed[0][20 * i], 4 * (size_t)(20 + i));
        dpt_emulate(u8 ? OF(type, gather_u8) : OF(type, gather_f32), &a);
        assert_memory_equal(fed[0], fed[1], a.feed.n > 0 ? (size_t)(21 * a.feed.n - 1) * 4 : 0);
        for (int32_t i = 0; i < a.n; i++) {
            const int64_t row = control.first + i, sample = i >= count ? 0
                                                            : plain    ? row
                                                                       : index[row];

            for (int32_t at = 0; at < h * w * pitch; at++) {
                const int32_t k = at % pitch, x = at / pitch % w, y = at / pitch / w;
                const int32_t from_y = y + (moved ? moves[i].top : 0);
                const int32_t from_x =
                    (moved && moves[i].flip ? w - 1 - x : x) + (moved ? moves[i].left : 0);
                const size_t index = (size_t)i * (size_t)(h * w * pitch) + (size_t)at;
                float want = 0, got;

                if (i < count && k < c) {
                    const bool inside = from_y >= 0 && from_y < h && from_x >= 0 && from_x < w;
                    const size_t source =
                        (size_t)sample * size + (nhwc ? (size_t)((from_y * w + from_x) * c + k)
                                                      : (size_t)((k * h + from_y) * w + from_x));

                    want = plain ? 0 : shift[k];
                    if (inside && plain)
                        want = u8 ? (float)bytes[source] : floats[source];
                    else if (inside)
                        want = (u8 ? (float)bytes[source] : floats[source]) * scale[k] + shift[k];
                }
                got = element_get(type, out, index);
                want = rounded(type, want);
                if (got != want)
                    fail_msg("seed %d: sample %d, place %d is %g, not %g", seed, i, at, (double)got,
                             (double)want);
            }
        }
        dpt_free(bytes), dpt_free(floats), dpt_free(scale), dpt_free(shift), dpt_free(out);
    }
}

static void additions(void **state)
{
    (void)state;
    for (int seed = 0; seed < 10; seed++) {
        struct draw d = {(uint64_t)seed + 400};
        const int64_t n = 4 * draw_int(&d, 1, 2000);
        float *x = random_values(&d, (size_t)n), *y = random_values(&d, (size_t)n);
        float *want = dpt_alloc_array((size_t)n, sizeof *want);

        for (int64_t i = 0; i < n; i++)
            want[i] = y[i] + x[i];
        dpt_emulate(DPT_CUDA_K_add, &(struct dpt_cuda_add_args){x, y, n});
        assert_memory_equal(y, want, (size_t)n * sizeof *y);
        dpt_free(x), dpt_free(y), dpt_free(want);
    }
}

/* Ranges of any length, at any multiple of 4 bytes, one or several at once. */
static void feeds(void **state)
{
    (void)state;
    for (int seed = 0; seed < 40; seed++) {
        struct draw d = {(uint64_t)seed + 600};
        const int ranges = draw_int(&d, 1, DPT_CUDA_FEEDS);
        struct dpt_cuda_feed_args a = {0};
        float *from[DPT_CUDA_FEEDS], *to[DPT_CUDA_FEEDS], *want[DPT_CUDA_FEEDS];
        size_t sizes[DPT_CUDA_FEEDS];

        for (int i = 0; i < ranges; i++) {
            const int32_t n = draw_int(&d, 0, seed % 3 ? 50 : 9000), skip = draw_int(&d, 0, 3);
            const int32_t other = seed % 2 ? skip : draw_int(&d, 0, 3);

            sizes[i] = (size_t)n + 8;
            from[i] = random_values(&d, sizes[i]);
            to[i] = random_values(&d, sizes[i]);
            want[i] = random_values(&d, sizes[i]);
            memcpy(want[i], to[i], sizes[i] * 4);
            memcpy(want[i] + other, from[i] + skip, (size_t)n * 4);
            dpt_cuda_add_feed(&a, to[i] + other, from[i] + skip, 4 * (size_t)n);
        }
        dpt_emulate(DPT_CUDA_K_feed, &a);
        for (int i = 0; i < ranges; i++) {
            assert_memory_equal(to[i], want[i], sizes[i] * 4);
            dpt_free(from[i]), dpt_free(to[i]), dpt_free(want[i]);
        }
    }
}

/* Passes over the arena that also write copies, against the kernels that do nothing else: `norm`
 * reads gradients as from_layout writes them, an optimizer writes parameters as to_layout does. */
static void passes_with_copies(void **state)
{
    static const enum dpt_cuda_type types[TYPES] = {DPT_CUDA_F32, DPT_CUDA_B16, DPT_CUDA_H16};

    (void)state;
    for (int seed = 0; seed < 30; seed++) {
        enum { TENSORS = 5 };
        struct draw d = {(uint64_t)seed + 750};
        const enum type type = (enum type)(seed % TYPES);
        const int lanes = lanes_of[type];
        struct dpt_cuda_layout list[TENSORS];
        int64_t floats = 0, elements = 0;

        for (int t = 0; t < TENSORS; t++) {
            struct dpt_cuda_layout *l = &list[t];

            *l = (struct dpt_cuda_layout){.canonical = floats,
                                          .copy = elements,
                                          .outputs = draw_int(&d, 1, 20),
                                          .inputs = draw_int(&d, 1, 20),
                                          .area = draw_int(&d, 1, 10),
                                          .type = (int32_t)types[type]};
            l->padded_inputs = (l->inputs + lanes - 1) / lanes * lanes;
            l->padded_outputs = l->outputs + draw_int(&d, 0, 8);
            floats += ((int64_t)l->outputs * l->inputs * l->area + 15) / 16 * 16;
            elements += ((int64_t)l->padded_outputs * l->padded_inputs * l->area + 15) / 16 * 16;
        }
        const size_t arena_bytes = (size_t)floats * 4, bytes = (size_t)elements * bytes_of[type];
        uint16_t *number = dpt_alloc_array((size_t)floats / 16, sizeof *number);
        uint16_t *group = dpt_alloc_array((size_t)floats / 16, sizeof *group);
        float *gradient = random_values(&d, (size_t)floats);
        float *want = dpt_alloc_array((size_t)floats, 4);
        float *params = random_values(&d, (size_t)floats), *values = random_values(&d, elements);
        double *partial = dpt_alloc_array((size_t)dpt_cuda_norm_blocks(floats), 8);
        void *at = dpt_alloc(bytes), *wanted = dpt_alloc(bytes);
        const float tail[16] = {[DPT_CUDA_TAIL_LOSS] = 1, [DPT_CUDA_TAIL_WEIGHT] = 2};
        const struct dpt_cuda_rates rates = {.update = 1, .lr = 0.25f, .keep = 1};
        struct dpt_cuda_state told[2] = {{.loss_scale = 8}, {.loss_scale = 8}};
        const int32_t add = seed / 3 % 2, scaled = type == H16;
        const int left_out = draw_int(&d, 0, TENSORS); /* the arena's own is the gradient */
        uint32_t counter = 0;
        struct dpt_cuda_norm_args norm = {.tail = tail,
                                          .rates = &rates,
                                          .partial = partial,
                                          .counter = &counter,
                                          .n = floats,
                                          .scaled = scaled};
        struct dpt_cuda_update_args update = {.params = params,
                                              .gradient = gradient,
                                              .group = group,
                                              .rates = &rates,
                                              .state = &told[0],
                                              .n = floats,
                                              .end = floats};

        for (int64_t i = 0; i < elements; i++)
            element_put(type, at, (size_t)i, values[i]);
        for (int t = 0; t < TENSORS; t++) {
            struct dpt_cuda_layout *l = &list[t];
            const int64_t n = (int64_t)l->outputs * l->inputs * l->area;

            for (int64_t i = l->canonical; i < l->canonical + n; i += 16)
                number[i / 16] = t == left_out ? DPT_CUDA_NO_COPY : (uint16_t)t;
            for (int64_t i = l->canonical + n; i % 16 != 0; i++)
                gradient[i] = params[i] = 0;
            l->block = 0;
        }
        memcpy(want, gradient, arena_bytes);
        for (int t = 0; t < TENSORS; t++) {
            if (t == left_out)
                continue;
            dpt_emulate(OF(type, from_layout),
                        &(struct dpt_cuda_layout_args){
                            .arena = want,
                            .copies = at,
                            .list = &list[t],
                            .n = 1,
                            .blocks = dpt_cuda_layout_blocks(OF(type, from_layout), &list[t]),
                            .add = add,
                            .state = scaled ? &told[0] : NULL});
        }
        norm.gradient = want, norm.state = &told[1];
        dpt_emulate(DPT_CUDA_K_norm, &norm);
        norm.gradient = gradient, norm.state = &told[0];
        norm.copies = (struct dpt_cuda_copies){.list = list, .number = number, .at = at};
        norm.add = add;
        dpt_emulate(DPT_CUDA_K_norm, &norm);
        assert_memory_equal(gradient, want, arena_bytes);
        assert_memory_equal(&told[0], &told[1], sizeof told[0]);

        memset(at, 0, bytes), memset(wanted, 0, bytes);
        update.copies = norm.copies;
        dpt_emulate(DPT_CUDA_K_sgd, &update);
        for (int t = 0; t < TENSORS; t++) {
            const struct dpt_cuda_layout_args one = {
                .arena = params,
                .copies = wanted,
                .list = &list[t],
                .n = 1,
                .blocks = dpt_cuda_layout_blocks(OF(type, to_layout), &list[t])};

            if (t != left_out)
                dpt_emulate(OF(type, to_layout), &one);
        }
        assert_memory_equal(at, wanted, bytes);
        dpt_free(number), dpt_free(group), dpt_free(gradient), dpt_free(want), dpt_free(params);
        dpt_free(values), dpt_free(partial), dpt_free(at), dpt_free(wanted);
    }
}

/* An update that writes what is not finite, be it a parameter or a running statistic, is noted, and
 * the next norm withholds the update after it, although its own gradient and loss are finite. */
static void updates_note_what_is_not_finite(void **state)
{
    enum { N = 4096, STATE = 32 };
    uint16_t group[N / 16] = {0};
    float *params = dpt_alloc_array(N + STATE, 4), *gradient = dpt_alloc_array(N + STATE, 4);
    double partial[2];

    (void)state;
    for (int where = -1; where < N + STATE; where += where < 0 ? 1 : 517) {
        const float tail[16] = {
            [DPT_CUDA_TAIL_LOSS] = 1, [DPT_CUDA_TAIL_SAMPLES] = 2, [DPT_CUDA_TAIL_WEIGHT] = 2};
        const struct dpt_cuda_running running[STATE / 16] = {{0.5f, 0}, {0.5f, 0}};
        const struct dpt_cuda_rates rates = {.update = 7, .lr = 1, .keep = 1};
        struct dpt_cuda_state told = {.loss_scale = 1, .scale = 1};
        uint32_t counter = 0;
        const struct dpt_cuda_update_args update = {.params = params,
                                                    .gradient = gradient,
                                                    .group = group,
                                                    .rates = &rates,
                                                    .state = &told,
                                                    .running = running,
                                                    .tail = tail,
                                                    .whole = 2,
                                                    .n = N,
                                                    .state_n = STATE,
                                                    .end = N + STATE};
        const struct dpt_cuda_norm_args norm = {.gradient = gradient,
                                                .tail = tail,
                                                .rates = &rates,
                                                .state = &told,
                                                .partial = partial,
                                                .counter = &counter,
                                                .n = N,
                                                .state_n = STATE};

        for (int i = 0; i < N + STATE; i++) {
            params[i] = 1;
            gradient[i] = 0.5f;
        }
        if (where >= 0)
            params[where] = where % 2 ? INFINITY : NAN;
        assert_int_equal(dpt_cuda_norm_blocks(N + STATE), 2);
        dpt_emulate(DPT_CUDA_K_sgd, &update);
        assert_int_equal(told.unsound, where >= 0);
        dpt_emulate(DPT_CUDA_K_norm, &norm);
        assert_int_equal(told.withheld, where >= 0 ? DPT_CUDA_WITHHELD : 0);
    }
    dpt_free(params), dpt_free(gradient);
}

/* The least bytes that a launch must move, so that tables of a run's kernels are right. */
static void bytes_are_counted(void **state)
{
    const struct dpt_cuda_act_args act = {.vectors = 100};
    float slot[1];
    const struct dpt_cuda_update_args update = {.slot = {slot, slot}, .n = 1600, .end = 1600};
    const struct dpt_cuda_pool_args pool = {.index = (uint16_t *)4,
                                            .n = 2,
                                            .h = 4,
                                            .w = 4,
                                            .oh = 2,
                                            .ow = 2,
                                            .pitch = 8,
                                            .kernel = {2, 2},
                                            .stride = {2, 2}};
    struct dpt_cuda_pool_args after_relu = pool;
    const struct dpt_cuda_act_args large = {.vectors = INT64_C(1) << 40};
    struct dpt_cuda_grid grid;

    (void)state;
    assert_int_equal(dpt_cuda_kernel_bytes(DPT_CUDA_K_relu_f32, &act), 3200);
    assert_int_equal(dpt_cuda_kernel_bytes(DPT_CUDA_K_adam, &update), 1600 * 28 + 200);
    assert_int_equal(dpt_cuda_kernel_bytes(DPT_CUDA_K_maxpool_b16, &pool),
                     2 * 8 * (16 * 2 + 4 * 2 + 4 * 2));
    after_relu.y = &pool;
    assert_int_equal(dpt_cuda_kernel_bytes(DPT_CUDA_K_maxpool_relu_back_h16, &after_relu),
                     2 * 8 * (16 * 2 + 4 * 2 + 4 * 2 + 4 * 2));
    assert_false(dpt_cuda_kernel_grid(DPT_CUDA_K_relu_f32, &large, &grid));
    assert_string_equal(dpt_cuda_kernel_name(DPT_CUDA_K_gather_u8_b16), "dpt_cuda_gather_u8_b16");
    assert_int_equal(dpt_cuda_kernel_argument(DPT_CUDA_K_adam), sizeof update);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nonfinite_elements),
        cmocka_unit_test(bfloat16),
        cmocka_unit_test(layouts),
        cmocka_unit_test(slices_in_the_type),
        cmocka_unit_test(gathers),
        cmocka_unit_test(additions),
        cmocka_unit_test(feeds),
        cmocka_unit_test(passes_with_copies),
        cmocka_unit_test(updates_note_what_is_not_finite),
        cmocka_unit_test(bytes_are_counted),
    };

    return cmocka_run_group_tests(tests, NULL, dpt_emulate_end);
}
