#include "core/backend/backend.h"

#include <string.h>

const struct dpt_backend *const dpt_backends[] = {
#if defined(DPT_WITH_ONEDNN) && DPT_WITH_ONEDNN
    &dpt_backend_cpu,
#endif
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

enum dpt_status dpt_backend_find_plain(const struct dpt_backend *backend,
                                       const struct dpt_program_spec *spec,
                                       const struct dpt_batch *batch, const float *params,
                                       struct dpt_nonfinite *bad, struct dpt_error *err)
{
    struct dpt_program_spec plain = *spec;
    enum dpt_status status = DPT_OK;
    void *program = NULL;

    plain.plain = true;
    plain.threads = plain.in_flight = 1;
    plain.team = NULL;
    DPT_TRY(backend->open(&plain, &program, err));
    DPT_TRY(backend->refresh(program, 0, params, err));
    DPT_TRY(backend->find_nonfinite(program, 0, batch, params, bad, err));
out:
    backend->close(program);
    return status;
}
