#include "core/train/checkpoint_model.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/memory.h"
#include "models/model.h"

/* The job's text as the struct. */
static enum dpt_status read_job(struct dpt_checkpoint_model *m, const char *text,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_conf_parse(&m->conf, m->path, text, strlen(text), err));
    if (!dpt_options_read(&m->conf, m->conf.root, "", dpt_job_options, &m->job))
        DPT_TRY(dpt_fail_memory(err, "a checkpoint's job", 0));
    DPT_TRY(dpt_conf_validation_result(&m->conf, err));
out:
    return status;
}

static enum dpt_status find_shape(const struct dpt_checkpoint_model *m,
                                  const struct dpt_checkpoint *file, const struct dpt_shape *given,
                                  struct dpt_shape *shape, struct dpt_error *err)
{
    char have[40], want[40];

    if (!dpt_checkpoint_input(file, shape)) {
        if (given == NULL)
            return dpt_fail(err, DPT_BAD_DATA,
                            "%s: does not say which shape its samples have, since an older dptrain "
                            "made it: --input-shape says it",
                            m->path);
        *shape = *given;
    } else if (given != NULL && memcmp(given, shape, sizeof *shape) != 0) {
        return dpt_fail(err, DPT_BAD_DATA, "%s: its samples are %s, not %s", m->path,
                        dpt_shape_text(shape, have), dpt_shape_text(given, want));
    }
    return DPT_OK;
}

enum dpt_status dpt_checkpoint_model_open(struct dpt_checkpoint_model *m, const char *path,
                                          const struct dpt_shape *shape, bool any,
                                          struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_checkpoint file = {0};
    struct dpt_state state = {0};
    struct dpt_shape input;
    char *text = NULL;

    *m = (struct dpt_checkpoint_model){0};
    dpt_checkpoint_resolve(path, m->path);
    DPT_TRY(dpt_checkpoint_verify(m->path, err));
    DPT_TRY(dpt_checkpoint_open(&file, m->path, err));
    DPT_TRY(dpt_checkpoint_read(&file, &state, DPT_LOAD_PROGRESS, &text, err));
    DPT_TRY(read_job(m, text, err));
    DPT_TRY(find_shape(m, &file, shape, &input, err));
    DPT_TRY(dpt_model_build(&m->job.model, &input, &m->graph, err));
    m->params = dpt_alloc_array((size_t)m->graph.floats, sizeof *m->params);
    if (m->params == NULL)
        DPT_TRY(dpt_fail_memory(err, "the parameters", (double)m->graph.floats * sizeof(float)));
    state.graph = &m->graph;
    state.params = m->params;
    DPT_TRY(
        dpt_checkpoint_read(&file, &state, DPT_LOAD_PARAMS | (any ? DPT_LOAD_ANY : 0), NULL, err));
    m->progress = state.progress;
out:
    free(text);
    dpt_checkpoint_close(&file);
    if (status != DPT_OK)
        dpt_checkpoint_model_close(m);
    return status;
}

void dpt_checkpoint_model_close(struct dpt_checkpoint_model *m)
{
    dpt_free(m->params);
    dpt_graph_release(&m->graph);
    dpt_conf_release(&m->conf);
    *m = (struct dpt_checkpoint_model){0};
}
