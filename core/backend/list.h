/*
 * list: the tables of the backends in this room. Other rooms find theirs by dpt_backends
 * (backend.h).
 */
#ifndef DPT_BACKEND_LIST_H
#define DPT_BACKEND_LIST_H

#include "core/backend/backend.h"

extern const struct dpt_backend dpt_backend_ref; /* ref/: plain C, any shape */
extern const struct dpt_backend
    dpt_backend_cpu; /* cpu/: oneDNN; built where DPT_WITH_ONEDNN is 1 */
extern const struct dpt_backend dpt_backend_cuda; /* cuda/: built where DPT_WITH_CUDA is 1 */

#endif
