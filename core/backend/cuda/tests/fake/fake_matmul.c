/* Products by plain loops, summed in fp32, each sum in the order that its algorithm has. */
#include <stdlib.h>

#include "core/backend/cuda/tests/fake/fake_matmul.h"

int64_t fake_product_m(const struct fake_product *p)
{
    return p->a_turned ? p->a.cols : p->a.rows;
}

int64_t fake_product_n(const struct fake_product *p)
{
    return p->b_turned ? p->b.rows : p->b.cols;
}

int64_t fake_product_k(const struct fake_product *p)
{
    return p->a_turned ? p->a.rows : p->a.cols;
}

static size_t offset_of(const struct fake_matrix *m, int64_t row, int64_t col)
{
    return (size_t)(m->by_rows ? row * m->ld + col : col * m->ld + row);
}

size_t fake_matrix_bytes(const struct fake_matrix *m)
{
    return (offset_of(m, m->rows - 1, m->cols - 1) + 1) * fake_size(m->type);
}

static float *floats(int64_t n)
{
    float *at = calloc((size_t)n, sizeof *at);

    if (at == NULL)
        abort();
    return at;
}

/* As [depth][lines]: for A its rows, for B its columns. */
static float *read_factor(const struct fake_product *p, const struct fake_matrix *m, const void *at,
                          bool transposed, int64_t lines, int64_t depth)
{
    float *to = floats(lines * depth);

    for (int64_t k = 0; k < depth; k++) {
        for (int64_t i = 0; i < lines; i++) {
            float f = fake_get(m->type, at, transposed ? offset_of(m, k, i) : offset_of(m, i, k));

            to[k * lines + i] = p->tf32 && m->type == FAKE_F32 ? fake_to_tf32(f) : f;
        }
    }
    return to;
}

/* One part of the sums of a column of D. */
static void sum_part(const struct fake_product *p, const float *a, const float *b, int64_t m,
                     int64_t n, int64_t first, int64_t last, float *restrict sum)
{
    for (int64_t i = 0; i < m; i++)
        sum[i] = 0;
    for (int64_t i = first; i < last; i++) {
        const int64_t k = p->down ? last - 1 - (i - first) : i;
        const float *restrict from = a + k * m;
        const float scale = b[k * n];

        for (int64_t r = 0; r < m; r++)
            sum[r] += from[r] * scale;
    }
}

/* The sums of a column: its parts, and how they meet. */
static void sum_column(const struct fake_product *p, const float *a, const float *b, int64_t m,
                       int64_t n, float *part, float *sum)
{
    const int64_t depth = fake_product_k(p), each = (depth + p->split - 1) / p->split;

    for (int64_t i = 0; i < m; i++)
        sum[i] = 0;
    for (int s = 0; s < p->split; s++) {
        const int64_t which = (int64_t)(((uint64_t)s + p->noise) % (uint64_t)p->split);
        const int64_t first = which * each < depth ? which * each : depth;
        const int64_t last = first + each < depth ? first + each : depth;

        sum_part(p, a, b, m, n, first, last, part);
        for (int64_t i = 0; i < m; i++) {
            float f = part[i];

            if (p->split > 1 && p->scheme == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)
                fake_put(p->d.type, &f, 0, f), f = fake_get(p->d.type, &f, 0);
            sum[i] += f;
        }
    }
}

static void mark(const struct fake_product *p, int64_t row, int64_t col, bool set)
{
    unsigned char *byte = (unsigned char *)p->aux + (col * p->aux_ld + row) / 8;
    const unsigned bit = 1u << (row % 8);

    *byte = (unsigned char)(set ? *byte | bit : *byte & ~bit);
}

static bool marked(const struct fake_product *p, int64_t row, int64_t col)
{
    return ((const unsigned char *)p->aux)[(col * p->aux_ld + row) / 8] >> (row % 8) & 1;
}

/* Applies the epilogue to a sum. */
static float finish(const struct fake_product *p, int64_t row, int64_t col, float sum, float alpha,
                    float beta)
{
    float f = alpha * sum;

    if (beta != 0)
        f += beta * fake_get(p->c.type, p->at_c, offset_of(&p->c, row, col));
    if (p->epilogue & FAKE_ADDS_BIAS)
        f += fake_get(p->d.type, p->bias, (size_t)row);
    if (p->epilogue & FAKE_RELU) {
        if (p->epilogue & FAKE_AUX)
            mark(p, row, col, f > 0);
        f = f > 0 ? f : 0; /* also of NaN, since cuBLASLt does not promise to keep it */
    }
    if (p->epilogue & FAKE_DRELU)
        f = marked(p, row, col) ? f : 0;
    return f;
}

/* A bias's gradient: over the depth of a factor. */
static void sum_factor(const struct fake_product *p, const float *factor, int64_t lines,
                       int64_t depth)
{
    for (int64_t i = 0; i < lines; i++) {
        float sum = 0;

        for (int64_t k = 0; k < depth; k++)
            sum += factor[k * lines + i];
        fake_put(p->d.type, p->bias, (size_t)i, sum);
    }
}

void fake_product_run(void *gemm)
{
    const struct fake_product *p = gemm;
    const int64_t m = fake_product_m(p), n = fake_product_n(p), depth = fake_product_k(p);
    const float alpha = p->alpha_at != NULL ? *p->alpha_at : p->alpha;
    const float beta = p->beta_at != NULL ? *p->beta_at : p->beta;
    float *a = read_factor(p, &p->a, p->at_a, p->a_turned, m, depth);
    float *b = read_factor(p, &p->b, p->at_b, !p->b_turned, n, depth);
    float *part = floats(m), *sum = floats(m), *rows = floats(m);

    if (p->workspace_bytes > 0)
        memset(p->workspace, 0xff, p->workspace_bytes);
    if (p->epilogue == CUBLASLT_EPILOGUE_BGRADA)
        sum_factor(p, a, m, depth);
    if (p->epilogue == CUBLASLT_EPILOGUE_BGRADB)
        sum_factor(p, b, n, depth);
    for (int64_t col = 0; col < n; col++) {
        sum_column(p, a, b + col, m, n, part, sum);
        for (int64_t row = 0; row < m; row++) {
            const float f = finish(p, row, col, sum[row], alpha, beta);

            rows[row] += f;
            fake_put(p->d.type, p->at_d, offset_of(&p->d, row, col), f);
        }
    }
    for (int64_t row = 0; p->epilogue & FAKE_SUMS_D && row < m; row++)
        fake_put(p->d.type, p->bias, (size_t)row, rows[row]);
    free(a);
    free(b);
    free(part);
    free(sum);
    free(rows);
}
