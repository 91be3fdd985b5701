/* The device's kernels; see kernels.h. C and CUDA at once. */
#include "core/backend/cuda/kernels/device.h"

/* Once for each type of tensor. */
#define T         f32
#define V         4
#define ELEMENT   float
#define VECTOR    float4
#define UNPACK    unpack_f32
#define LOAD      load_f32
#define SAVE      store_f32
#define NARROW(f) (f)
#define WIDE(e)   (e)
#include "core/backend/cuda/kernels/kernels_typed.h"
#undef T
#undef V
#undef ELEMENT
#undef VECTOR
#undef UNPACK
#undef LOAD
#undef SAVE
#undef NARROW
#undef WIDE

#define T         b16
#define V         8
#define VECTOR    uint4
#define ELEMENT   b16
#define UNPACK    unpack_b16
#define LOAD      load_b16
#define SAVE      store_b16
#define NARROW(f) ((b16)float_to_b16(f))
#define WIDE(e)   b16_to_float(e)
#include "core/backend/cuda/kernels/kernels_typed.h"

#undef T
#undef ELEMENT
#undef UNPACK
#undef LOAD
#undef SAVE
#undef NARROW
#undef WIDE

#define T         h16
#define ELEMENT   h16
#define UNPACK    unpack_h16
#define LOAD      load_h16
#define SAVE      store_h16
#define NARROW(f) ((h16)float_to_h16(f))
#define WIDE(e)   h16_to_float(e)
#include "core/backend/cuda/kernels/kernels_typed.h"

#include "core/backend/cuda/kernels/kernels_arena.inc"
