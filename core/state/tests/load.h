/* load: a checkpoint from its path into a state. */
#ifndef DPT_STATE_TESTS_LOAD_H
#define DPT_STATE_TESTS_LOAD_H

#include "core/state/checkpoint.h"

static inline enum dpt_status load(struct dpt_state *state, const char *path, unsigned parts,
                                   char **job_text, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_checkpoint c = {0};

    DPT_TRY(dpt_checkpoint_verify(path, err));
    DPT_TRY(dpt_checkpoint_open(&c, path, err));
    DPT_TRY(dpt_checkpoint_read(&c, state, parts, job_text, err));
out:
    dpt_checkpoint_close(&c);
    return status;
}

#endif
