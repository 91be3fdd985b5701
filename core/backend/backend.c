#include "core/backend/backend.h"

const char *const dpt_precision_names[DPT_PRECISIONS + 1] = {DPT_PRECISION_LIST(DPT_LIST_WORD)
                                                                 NULL};

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
