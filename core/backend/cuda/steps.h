/*
 * steps: whole training steps on the GPU (core/backend/steps.h), on top of a program (program.h).
 */
#ifndef DPT_BACKEND_CUDA_STEPS_H
#define DPT_BACKEND_CUDA_STEPS_H

#include "core/backend/steps.h"

extern const struct dpt_backend_steps dpt_cuda_steps;

#endif
