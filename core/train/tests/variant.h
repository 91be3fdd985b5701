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

/* Whether a case, "adam" or "{type: adam, eps: 1e-3}", is one of a variant, and sets its option;
 * NULL: whatever it sets. */
static inline bool is_case_of(const char *text, const char *variant, const char *option)
{
    const char *at = text[0] == '{' ? text + strlen("{type: ") : text;
    const size_t n = strlen(variant);
    char word[64];

    snprintf(word, sizeof word, " %s: ", option != NULL ? option : "");
    return strncmp(at, variant, n) == 0 && (at[n] == '\0' || at[n] == ',' || at[n] == '}') &&
           (option == NULL || strstr(at, word) != NULL);
}

/*
 * Fails where a variant has no case among the n texts, or one of its options none that sets it: its
 * values were compared with nobody's. but: the options that are tested otherwise, " lr groups ".
 */
static inline void assert_all_have_cases(const struct dpt_variant *const *variants,
                                         const char *const *texts, size_t n, const char *but,
                                         const char *script)
{
    for (; *variants != NULL; variants++) {
        const struct dpt_variant *v = *variants;
        const struct dpt_option *o = v->options;
        bool last;

        do {
            const char *option = o->name;
            size_t k = 0;
            char word[64];

            last = option == NULL;
            snprintf(word, sizeof word, " %s ", last ? "" : option);
            while (k < n && !is_case_of(texts[k], v->name, option))
                k++;
            if (k == n && (last || strstr(but, word) == NULL))
                fail_msg("%s has no case of %s%s%s", script, v->name, last ? "" : " that sets ",
                         last ? "" : option);
            o += !last;
        } while (!last);
    }
}

#endif
