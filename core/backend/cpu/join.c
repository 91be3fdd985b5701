/* Joins of two values, in a layout that both have. */
#include "core/backend/cpu/program.h"

const struct dpt_cpu_op dpt_cpu_add = {.shares = true};
const struct dpt_cpu_op dpt_cpu_multiply = {.shares = true};
const struct dpt_cpu_op dpt_cpu_concat = {.shares = true};
