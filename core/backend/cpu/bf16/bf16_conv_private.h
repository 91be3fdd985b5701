/*
 * bf16_conv_private: how bf16_conv_plan.c, which lays a convolution out, and bf16_conv.c, which
 * computes it, see one.
 */
#ifndef DPT_BACKEND_CPU_BF16_CONV_PRIVATE_H
#define DPT_BACKEND_CPU_BF16_CONV_PRIVATE_H

#include "core/backend/cpu/bf16/bf16_conv.h"
#include "core/backend/cpu/numbers.h"

enum {
    SIDE = DPT_BF16_SIDE,
    PAIR = 2 * DPT_BF16_SIDE,
    DEPTH = DPT_BF16_DEPTH,
    TILE = DPT_BF16_TILE,
    BAND = 128,           /* the fewest places whose products are kept at a time */
    STACKED = 320,        /* the most places of several samples in a line */
    TOGETHER = 512 << 10, /* bytes of lines that are packed for the weights' gradient at a time */
    MOST_TAPS = 8,        /* of a run */
};

/* Samples as lines of pixels: a line for each phase, which share a geometry. Row j, column i of
 * sample s is the place front + (s * rows + j) * pitch + i; what is not in a sample is zero. */
struct view {
    int32_t lanes;         /* channels of a pixel, padding included */
    int32_t phases;        /* along each axis */
    int32_t samples, rows; /* in a line; rows from one to the next */
    int32_t pitch;
    int64_t front, length; /* length: a multiple of 32 */
    int32_t *table;        /* [phases][phases][length]: which pixel it is; -1: none */
};

/* A kernel's element, as it is read: for place q of the output's grid, place q + at of the view. */
struct tap {
    int32_t number; /* in the kernel, row-major */
    int64_t at;
};

/* 32 numbers, or a multiple of 32, that are read at once: of one tap or, if pixels have fewer
 * lanes, of several taps whose pixels lie side by side. More taps of a 7 x 7 kernel in one tile
 * would change bits, since a tile's even and odd numbers are summed apart. */
struct run {
    int n;
    int32_t number[MOST_TAPS];
};

/* The outputs of one phase. The grid has the view's pitch. */
struct pass {
    int32_t phase[2]; /* of the outputs: row and column of the first one */
    int32_t grid[2];
    int32_t n_taps, n_runs;
    struct tap *taps;
    int64_t *run_at; /* [runs]: where each begins, in bf16 numbers */
    struct run *runs;
    int64_t packed; /* where its weights begin, in tiles */
};

struct dpt_bf16_conv {
    struct dpt_bf16_conv_shape shape;
    const struct dpt_bf16_kernels *kernels;
    int32_t taps;            /* of the kernel */
    int32_t x_phases;        /* of x that are packed */
    struct view x, dy, grid; /* grid: dy in forward's grid, one line, in pairs */
    struct pass forward, *data;
    int32_t n_data;   /* passes */
    int64_t *samples; /* [together]: where a line of the weights' gradient begins */
    int32_t *sums;    /* [in][tap]: where the sums for 32 outputs are in those of its group */
    int32_t stack, lines, together; /* samples in a line; lines, at most, and those at a time */
};

static inline int32_t blocks_of(int32_t channels)
{
    return (int32_t)parts(channels, SIDE);
}

/* Tiles of a pass' packed weights: [pair of blocks of outputs][run][step][2]. */
static inline int64_t steps_of(const struct view *v)
{
    return v->lanes >= DEPTH ? v->lanes / DEPTH : 1;
}

static inline int64_t pass_tiles(const struct pass *p, const struct view *v, int32_t outputs)
{
    return parts(outputs, PAIR) * p->n_runs * steps_of(v) * 2;
}

/* Places of forward's grid that are computed: whole tiles. */
static inline int64_t grid_places(const struct dpt_bf16_conv *conv)
{
    return up(((int64_t)(conv->stack - 1) * conv->x.rows + conv->shape.out[0]) * conv->x.pitch,
              DEPTH);
}

/* Places of x up to the last phase that a tap reads. */
static inline int64_t x_places(const struct dpt_bf16_conv *conv)
{
    return conv->x.length * conv->x_phases;
}

static inline int32_t gradient_tiles(const struct dpt_bf16_conv *conv)
{
    return (int32_t)(2 * parts(conv->shape.out_channels, PAIR));
}

/* Rows of the weights' gradient: [tap][input], or with few inputs [input][tap], for which the
 * planes of a sample are copied for each tap, since a tile of a single tap would be nearly
 * empty. */
static inline bool is_unrolled(const struct dpt_bf16_conv *conv)
{
    return conv->shape.in_channels <= DPT_BF16_FEW;
}

/* From plane to plane. */
static inline int64_t plane_of(const struct dpt_bf16_conv *conv)
{
    return is_unrolled(conv) ? grid_places(conv) : x_places(conv);
}

/* The rows of the weights' gradient are computed in groups: two blocks of inputs with all of their
 * taps; or, with few inputs, all rows. */
static inline int32_t groups_of(const struct dpt_bf16_conv *conv)
{
    return is_unrolled(conv) ? 1 : (int32_t)parts(conv->shape.in_channels, PAIR);
}

/* Blocks of inputs in a group. */
static inline int32_t group_blocks(const struct dpt_bf16_conv *conv, int32_t group)
{
    return (int32_t)least(blocks_of(conv->shape.in_channels) - 2 * group, 2);
}

/* Tiles of 16 rows in a group: [tap][block], or with few inputs [input][tap]. */
static inline int64_t group_tiles(const struct dpt_bf16_conv *conv, int32_t group)
{
    return is_unrolled(conv) ? parts((int64_t)conv->shape.in_channels * conv->taps, SIDE)
                             : (int64_t)conv->taps * group_blocks(conv, group);
}

/* Floats of a group's sums for a pair of blocks of outputs: [pair of tiles][32][32]. */
static inline int64_t group_floats(const struct dpt_bf16_conv *conv)
{
    return parts(group_tiles(conv, 0), 2) * PAIR * PAIR;
}

/* Whether a micro-batch has more lines than are multiplied at a time, so that all sums are kept
 * until the last lines. */
static inline bool keeps_sums(const struct dpt_bf16_conv *conv)
{
    return conv->together < conv->lines;
}

/* Sizes of a line of the weights' gradient, in numbers: its input in planes, and the gradient in
 * tiles. */
static inline int64_t planes_of(const struct dpt_bf16_conv *conv)
{
    return (is_unrolled(conv) ? group_tiles(conv, 0) : blocks_of(conv->shape.in_channels)) * SIDE *
           plane_of(conv);
}

static inline int64_t tiles_of(const struct dpt_bf16_conv *conv)
{
    return grid_places(conv) / DEPTH * gradient_tiles(conv) * TILE;
}

/* Rows of a grid whose products are kept at a time: 8 of them, which are whole tiles if the pitch
 * is even, or several times as many; all rows if a line has several samples. */
static inline int32_t band_of(const struct pass *p, const struct view *v)
{
    return v->samples > 1 ? p->grid[0] : (int32_t)least(up(parts(BAND, v->pitch), 8), p->grid[0]);
}

/* The workspace in its parts. */
struct dpt_bf16_conv_memory {
    uint16_t *line; /* of x in forward, of dy for the gradient of x */
    float *products;
    uint16_t *few;            /* planes before they are copied */
    uint16_t *planes, *tiles; /* [together] */
    float *sums, *bias;
    int64_t end;
};

/* Divides a workspace. */
struct dpt_bf16_conv_memory dpt_bf16_conv_arrange(const struct dpt_bf16_conv *conv, float *scratch);

#endif
