/* Predictions as an array of NumPy: [N, K], probabilities or what a model of numbers says. */
#include <string.h>

#include "data/sources/predictions_type.h"
#include "data/tables/npy.h"

struct state {
    size_t length; /* of the header */
};

static enum dpt_status begin(struct dpt_predictions *p, struct dpt_error *err)
{
    const int64_t dims[] = {p->format.samples, p->format.outputs};
    struct state *state = p->state;
    char header[DPT_NPY_HEADER];

    state->length = dpt_npy_header(p->format.offsets != NULL ? "<f8" : "<f4", dims, 2, header);
    return dpt_predictions_put(p, header, state->length, 0, err);
}

static enum dpt_status add(struct dpt_predictions *p, const struct dpt_predictions_rows *rows,
                           struct dpt_error *err)
{
    const struct state *state = p->state;
    const bool offset = p->format.offsets != NULL;
    const size_t row = (size_t)p->format.outputs * (offset ? sizeof(double) : sizeof(float));
    const float *floats = rows->probabilities != NULL ? rows->probabilities : rows->values;

    return dpt_predictions_put(p, offset ? (const void *)p->values : floats,
                               (size_t)rows->count * row,
                               (int64_t)(state->length + (size_t)p->done * row), err);
}

const struct dpt_predictions_kind dpt_predictions_npy = {
    .endings = {".npy"},
    .state = sizeof(struct state),
    .begin = begin,
    .add = add,
};
