/*
 * build: for tests: a model from YAML text, read as the job reads it.
 */
#ifndef DPT_MODELS_TESTS_BUILD_H
#define DPT_MODELS_TESTS_BUILD_H

#include <string.h>

#include "core/backend/operation.h"
#include "models/model.h"

/* Reads the text, which begins with `model:`. *conf owns what *model points to; release it also on
 * failure. */
static inline enum dpt_status read_model(struct dpt_conf *conf, const char *text,
                                         struct dpt_variant_value *model, struct dpt_error *err)
{
    const struct dpt_option table[] = {{.name = "model",
                                        .type = DPT_OPT_VARIANT,
                                        .variants = dpt_model_variants,
                                        .help = "tested"},
                                       {0}};
    enum dpt_status status = dpt_conf_parse(conf, "job.yaml", text, strlen(text), err);

    *model = (struct dpt_variant_value){0};
    if (status != DPT_OK)
        return status;
    if (!dpt_options_read(conf, conf->root, "", table, model))
        return dpt_fail_memory(err, "the test", 0);
    return dpt_conf_validation_result(conf, err);
}

/* The graph of a model for samples of c x h x w, or of c numbers where h is 0. Release it, also
 * after a failure. */
static inline enum dpt_status build_model(const char *text, int32_t c, int32_t h, int32_t w,
                                          struct dpt_graph *graph, struct dpt_error *err)
{
    const struct dpt_shape input = {c, h > 0 ? h : 1, h > 0 ? w : 1, h == 0};
    struct dpt_variant_value model;
    struct dpt_conf conf;
    enum dpt_status status = read_model(&conf, text, &model, err);

    *graph = (struct dpt_graph){0};
    if (status == DPT_OK)
        status = dpt_model_build(&model, &input, graph, err);
    dpt_conf_release(&conf);
    return status;
}

/* Builds a model that must be valid. */
static inline void must_build(const char *text, int32_t c, int32_t h, int32_t w,
                              struct dpt_graph *graph)
{
    struct dpt_error err;

    if (build_model(text, c, h, w, graph, &err) != DPT_OK)
        fail_msg("%s\n%s", text, err.text);
}

#endif
