/*
 * variant: for tests: a `type:` section from YAML text, read as the job reads it.
 */
#ifndef DPT_TRAIN_TESTS_VARIANT_H
#define DPT_TRAIN_TESTS_VARIANT_H

#include <stdio.h>
#include <string.h>

#include "core/conf/option.h"

/* *conf owns what *value points to; release it also on failure. err: the mistakes. */
static inline enum dpt_status read_variant(struct dpt_conf *conf,
                                           const struct dpt_variant *const *variants,
                                           const char *text, struct dpt_variant_value *value,
                                           struct dpt_error *err)
{
    const struct dpt_option table[] = {
        {.name = "it", .type = DPT_OPT_VARIANT, .variants = variants, .help = "tested"}, {0}};
    char document[1024];
    enum dpt_status status;

    snprintf(document, sizeof document, "it: %s\n", text);
    *conf = (struct dpt_conf){0};
    *value = (struct dpt_variant_value){0};
    status = dpt_conf_parse(conf, "job.yaml", document, strlen(document), err);
    if (status != DPT_OK)
        return status;
    if (!dpt_options_read(conf, conf->root, "", table, value))
        return dpt_fail_memory(err, "the test", 0);
    return dpt_conf_validation_result(conf, err);
}

#endif
