#include "core/backend/backend.h"

#include <string.h>

const struct dpt_backend *const dpt_backends[] = {
    &dpt_backend_cpu,
#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA
    &dpt_backend_cuda,
#endif
    &dpt_backend_ref,
    NULL,
};

const struct dpt_backend *dpt_backend_find(const char *name)
{
    for (size_t i = 0; dpt_backends[i] != NULL; i++) {
        if (strcmp(dpt_backends[i]->name, name) == 0)
            return dpt_backends[i];
    }
    return NULL;
}
