/*
 * channels: loops over a sample in any layout, for layers that have numbers of their own for each
 * channel.
 *
 * A sample lies [blocks][pixels][block]; arrays by channel are filled up to whole blocks, with
 * zeros in tensors of the arena. Private to this folder.
 */
#ifndef DPT_BACKEND_CPU_CHANNELS_H
#define DPT_BACKEND_CPU_CHANNELS_H

#include "core/backend/cpu/kernels.h"
#include "core/backend/cpu/program.h"

struct dpt_channels {
    int64_t blocks, pixels, block;
};

/* Of a node's input, whose layout is known. */
static inline struct dpt_channels dpt_channels_of(const struct dpt_cpu_node *node)
{
    const int32_t block = dpt_layout_block(node->x_layout, node->in.c);
    const int64_t pixels = (int64_t)node->in.h * node->in.w;

    if (block == 1 && pixels == 1) /* a vector is one block */
        return (struct dpt_channels){1, 1, node->in.c};
    return (struct dpt_channels){(node->in.c + block - 1) / block, pixels, block};
}

/* Of arrays by channel; of a sample. */
static inline int64_t dpt_channels_width(const struct dpt_channels *s)
{
    return s->blocks * s->block;
}

static inline int64_t dpt_channels_floats(const struct dpt_channels *s)
{
    return s->blocks * s->pixels * s->block;
}

/*
 * Runs of a sample: BODY(lanes, stride, n, same, channel, at): n times `lanes` numbers, a stride
 * apart, the first one at `at`; of the channels from `channel` on, or (same) all of that one.
 * lanes, same and often stride are constants, so that an inlined function has vectors of them.
 * Where planes lie apart, 16 pixels are the lanes.
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

/* A loop over lanes stays one until the compiler makes vectors of it: GCC 12 at -O3 takes it apart
 * first, and is many times slower. */
#if defined(__GNUC__) && !defined(__clang__)
#define DPT_EACH_LANE(c, lanes) _Pragma("GCC unroll 1") for (int c = 0; c < (lanes); c++)
#else
#define DPT_EACH_LANE(c, lanes) for (int c = 0; c < (lanes); c++)
#endif

/* The numbers of a run's lanes, of an array by channel. */
#define DPT_CHANNEL_LANES(type, name, array)                                                       \
    type name[DPT_LANES];                                                                          \
    DPT_EACH_LANE(c, lanes)                                                                        \
    name[c] = (array)[same ? channel : channel + c]

#endif
