#include "core/backend/cpu/fp32/gemm.h"

#include <stddef.h>
#include <string.h>

#include "core/base/vector.h"

/* The products if there is next to nothing to compute: no packing, no tiles. The order of the
 * additions is that of the rows and columns. */

DPT_VECTOR void dpt_small_forward(const struct dpt_gemm *p, const float *restrict x,
                                  const float *restrict w, const float *bias, float *restrict y)
{
    const int64_t inputs = p->inputs, outputs = p->outputs;

    for (int64_t row = 0; row < p->rows; row++, x += inputs, y += outputs) {
        for (int64_t o = 0; o < outputs; o++) {
            float sum = 0;

            for (int64_t i = 0; i < inputs; i++)
                sum += x[i] * w[o * inputs + i];
            y[o] = bias != NULL ? sum + bias[o] : sum;
        }
    }
}

/* The gradient of one output's weights and bias, kept near while the rows go by. */
static void output_gradient(const struct dpt_gemm *p, const float *dy, const float *x, int64_t o,
                            int64_t rows, float *restrict dw, float *restrict db)
{
    const int64_t inputs = p->inputs, outputs = p->outputs;
    float sums[DPT_SMALL] = {0}, sum = 0;

    for (int64_t row = 0; row < rows; row++) {
        const float d = dy[row * outputs + o];

        for (int64_t i = 0; i < inputs; i++)
            sums[i] += d * x[row * inputs + i];
        sum += d;
    }
    for (int64_t i = 0; i < inputs; i++)
        dw[i] += sums[i];
    *db += sum;
}

/* The gradient of one output's weights and bias, with sums by sub-batches. */
static void output_sub_batches(const struct dpt_gemm *p, const float *dy, const float *x, int64_t o,
                               float *dw, float *db)
{
    enum { WIDTH = DPT_SMALL + 1 };
    float sums[DPT_SUB_BATCH_LEVELS * WIDTH] = {0}, *last = sums;
    const int64_t sub_batch = p->sub_batch;
    int top = 0;

    for (int64_t row = 0, done = 1; row < p->rows; row += sub_batch, done++) {
        last = sums + (int64_t)top * WIDTH;
        memset(last, 0, WIDTH * sizeof *last);
        output_gradient(p, dy + row * p->outputs, x + row * p->inputs, o, sub_batch, last,
                        last + DPT_SMALL);
        top = dpt_sub_batches_join(sums, WIDTH, top + 1, done, 1);
    }
    dpt_sub_batches_join(sums, WIDTH, top, 0, 1);
    for (int64_t i = 0; i < p->inputs; i++)
        dw[i] += sums[i];
    *db += sums[DPT_SMALL];
}

void dpt_small_backward(const struct dpt_gemm *p, const float *dy, const float *x, const float *w,
                        bool add, float *dw, float *db, float *dx)
{
    const int64_t inputs = p->inputs, outputs = p->outputs;
    const bool several = dpt_gemm_sub_batch(p) < p->rows;
    float unused = 0;

    for (int64_t o = 0; o < outputs; o++) {
        for (int64_t i = 0; i < inputs && !add; i++)
            dw[o * inputs + i] = 0;
        if (db != NULL && !add)
            db[o] = 0;
        if (several)
            output_sub_batches(p, dy, x, o, dw + o * inputs, db != NULL ? db + o : &unused);
        else
            output_gradient(p, dy, x, o, p->rows, dw + o * inputs, db != NULL ? db + o : &unused);
    }
    for (int64_t row = 0; dx != NULL && row < p->rows; row++) {
        for (int64_t i = 0; i < inputs; i++)
            dx[row * inputs + i] = 0;
        for (int64_t o = 0; o < outputs; o++)
            for (int64_t i = 0; i < inputs; i++)
                dx[row * inputs + i] += dy[row * outputs + o] * w[o * inputs + i];
    }
}
