/* Joins of two values. */
#include "core/backend/cuda/program.h"

const struct dpt_cuda_op dpt_cuda_add = {0};
const struct dpt_cuda_op dpt_cuda_multiply = {0};
const struct dpt_cuda_op dpt_cuda_concat = {0};
