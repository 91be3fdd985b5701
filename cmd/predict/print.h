/*
 * predict_print: one line a sample, for a person.
 */
#ifndef DPT_CMD_PREDICT_PRINT_H
#define DPT_CMD_PREDICT_PRINT_H

#include "core/train/predict.h"

/* Where samples and classes have their names from; all borrowed. */
struct dpt_predict_told {
    const struct dpt_source *source;
    const char *const *classes; /* [n_classes], or NULL */
    size_t n_classes;
};

/* "three.png: 3, probability 0.9931", to stdout. i: which of them. */
void dpt_predict_print(const struct dpt_predict_told *told, const struct dpt_predicted *d,
                       int32_t i);

#endif
