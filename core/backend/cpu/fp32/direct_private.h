/*
 * direct_private: where direct.h's passes read and write; shared by its files.
 */
#ifndef DPT_BACKEND_CPU_DIRECT_PRIVATE_H
#define DPT_BACKEND_CPU_DIRECT_PRIVATE_H

#include "core/backend/cpu/fp32/direct.h"

/* What a pass reads, as samples with zeros around them: lines of pixels of one group. */
struct dpt_direct_lines {
    enum dpt_memory_layout layout;     /* of what is copied */
    int32_t channels;                  /* of a group */
    int32_t all;                       /* channels of all groups */
    int32_t in[2], size[2], before[2]; /* of a plane, of one with zeros, of these zeros */
    int64_t pitch;                     /* floats from pixel to pixel */
    int64_t sample;                    /* floats of a sample */
};

/* Outputs of a pass with the same patch: without a stride, or forward, all of them. */
struct dpt_direct_phase {
    int64_t *taps, n_taps; /* numbers of the kernel's taps, in the order of the weights */
    int64_t packed;        /* floats of the weights before this phase's */
};

/* Outputs of a phase with the same taps that read no zeros around the plane; or all of them, which
 * read these, too. */
struct dpt_direct_part {
    int32_t phase;
    int64_t pixels, step;      /* of a sample; floats of y between two side by side */
    int64_t *in_at, *out_at;   /* [pixels]: in a sample's lines, and in a block of its output */
    struct dpt_direct_sum sum; /* over the patch */
};

struct dpt_direct_pass {
    struct dpt_direct_lines lines;
    int32_t outputs, all; /* channels of a group, and of all groups */
    int64_t plane;        /* pixels of the output */
    int32_t samples;      /* in lines at a time */
    int32_t n_phases, n_parts;
    struct dpt_direct_phase *phases;
    struct dpt_direct_part *parts;
    int64_t packed; /* floats of the weights */
};

struct dpt_direct {
    struct dpt_direct_shape shape;
    struct dpt_direct_pass forward, data;
    int64_t rows; /* weights of an output */
    int64_t *row; /* [rows]: where in the lines of forward each begins, [input][tap] */
    int64_t *at;  /* memory of all arrays */
};

/* Floats after the lines, and between arrays, that may be read or written. */
enum { DPT_DIRECT_SLACK = 64 };

#endif
