/*
 * channels: loops over a sample in any layout, for layers with parameters for each channel.
 *
 * A sample is stored as [blocks][pixels][block]; arrays by channel are padded to whole blocks, with
 * zeros in the arena's tensors. Private to this folder.
 */
#ifndef DPT_BACKEND_CPU_CHANNELS_H
#define DPT_BACKEND_CPU_CHANNELS_H

#include "core/backend/cpu/fp32/kernels.h"
#include "core/backend/cpu/program/program.h"

struct dpt_channels {
    int64_t blocks, pixels, block;
};

/* The layout of a node's input. */
static inline struct dpt_channels dpt_channels_of(const struct dpt_cpu_node *node)
{
    const int32_t block = dpt_layout_block(node->x_layout, node->in.c);
    const int64_t pixels = (int64_t)node->in.h * node->in.w;

    if (block == 1 && pixels == 1) /* a vector is one block */
        return (struct dpt_channels){1, 1, node->in.c};
    return (struct dpt_channels){(node->in.c + block - 1) / block, pixels, block};
}

/* Floats of an array by channel, and of a sample, padding included. */
static inline int64_t dpt_channels_width(const struct dpt_channels *s)
{
    return s->blocks * s->block;
}

static inline int64_t dpt_channels_floats(const struct dpt_channels *s)
{
    return s->blocks * s->pixels * s->block;
}

/*
 * Splits a sample into runs and expands BODY(lanes, stride, n, same, channel, at) for each: n
 * vectors of `lanes` numbers, `stride` apart, from offset `at` on. They belong to the channels from
 * `channel` on or, with `same`, all to that one. lanes, same and often stride are constants, so
 * that inlined functions are vectorised. In planar layouts 16 pixels are the lanes.
 */
#define DPT_CHANNEL_RUNS(s, BODY)                                                                  \
    for (int64_t b_ = 0; b_ < (s)->blocks; b_++) {                                                 \
        const int64_t at_ = b_ * (s)->pixels * (s)->block, block_ = (s)->block;                    \
                                                                                                   \
        if (block_ == 1) {                                                                         \
            const int64_t whole_ = (s)->pixels / DPT_LANES;                                        \
                                                                                                   \
            BODY(DPT_LANES, DPT_LANES, whole_, true, b_, at_);                                     \
            BODY(1, 1, (s)->pixels - whole_ * DPT_LANES, true, b_, at_ + whole_ * DPT_LANES);      \
            continue;                                                                              \
        }                                                                                          \
        for (int64_t c_ = 0; c_ < block_;) {                                                       \
            if (block_ == 16 || block_ - c_ >= 16) {                                               \
                BODY(16, block_, (s)->pixels, false, b_ *block_ + c_, at_ + c_);                   \
                c_ += 16;                                                                          \
            } else if (block_ - c_ >= 8) {                                                         \
                BODY(8, block_, (s)->pixels, false, b_ *block_ + c_, at_ + c_);                    \
                c_ += 8;                                                                           \
            } else {                                                                               \
                BODY(1, block_, (s)->pixels, false, b_ *block_ + c_, at_ + c_);                    \
                c_++;                                                                              \
            }                                                                                      \
        }                                                                                          \
    }

/* Loads the values of a run's lanes from an array by channel. */
#define DPT_CHANNEL_LANES(type, name, array)                                                       \
    type name[DPT_LANES];                                                                          \
    DPT_EACH_LANE(c, lanes)                                                                        \
    name[c] = (array)[same ? channel : channel + c]

/* --- what resizes planes, a row of outputs at a time ------------------------------------------ */

/* The floats of a row of the table of where each column's numbers lie, which follows a row of
 * inputs in the scratch memory. */
enum { DPT_RESIZE_COLUMN = 4 };

struct dpt_cpu_resize;

/* The functions go from x to y, and from dy to dx, all of which is written. */
struct dpt_cpu_resizer {
    void (*forward)(const struct dpt_cpu_resize *s, const float *x, float *scratch, float *y);
    void (*backward)(const struct dpt_cpu_resize *s, const float *dy, float *scratch, float *dx);
};
extern const struct dpt_cpu_resizer dpt_cpu_bilinear_resizer;

struct dpt_cpu_resize {
    const struct dpt_cpu_resizer *resizer;
    int64_t planes, block; /* of all samples; channels that lie side by side */
    int32_t in[2], out[2]; /* rows and columns */
    int32_t factor[2];     /* an upsampling's */
};

#endif
