#include "data/tables/array.h"

#include <endian.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum dpt_status read_exact(void *input, void *bytes, size_t n, struct dpt_error *err)
{
    return dpt_input_exact(input, bytes, n, err);
}

enum dpt_status dpt_array_open_npy(struct dpt_array *a, const char *path, const char *name,
                                   const char *shown, const volatile sig_atomic_t *stop,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_npy *npy = &a->npy;
    char file[256];
    size_t length;

    snprintf(file, sizeof file, "%.250s.npy", name != NULL ? name : "");
    DPT_TRY(name != NULL ? dpt_input_open_entry(&a->in, path, file, shown, stop, err)
                         : dpt_input_open(&a->in, path, stop, err));
    path = a->in.path;
    DPT_TRY(dpt_npy_read(path, read_exact, &a->in, &a->npy, &length, err));
    if (npy->kind == 'f' && npy->size == 2)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: holds values of the type '%s'; integers and floats of 32 or 64 bits "
                         "are taken",
                         path, npy->descr));
    /* One dimension has the same order either way, and NumPy then says False; two and more would
     * have to be turned. */
    if (npy->fortran_order && npy->n_dims > 1)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: is in Fortran order; save it again with numpy.save(path, "
                         "numpy.ascontiguousarray(a))",
                         path));
    if (npy->count == 0 || npy->n_dims == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: has no samples", path));
    a->row = npy->count / npy->dims[0];
    a->at = 0;
    DPT_TRY(dpt_input_promise(&a->in, npy->count * npy->size, err));
out:
    return status;
}

/* --- IDX -------------------------------------------------------------------------------------- */

enum { TYPE_U8 = 0x08 };

static const char *type_name(unsigned type)
{
    static const struct {
        unsigned type;
        const char *name;
    } names[] = {
        {0x08, "unsigned bytes"},  {0x09, "signed bytes"}, {0x0B, "16-bit integers"},
        {0x0C, "32-bit integers"}, {0x0D, "floats"},       {0x0E, "doubles"},
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].type == type)
            return names[i].name;
    return NULL;
}

static enum dpt_status check_magic(const char *path, const uint8_t m[4], struct dpt_error *err)
{
    if (m[0] != 0 || m[1] != 0 || type_name(m[2]) == NULL || m[3] == 0)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: is no IDX file: it begins with %02x %02x %02x %02x, images begin with "
                        "00 00 08 03 and labels "
                        "with 00 00 08 01",
                        path, m[0], m[1], m[2], m[3]);
    if (m[2] != TYPE_U8)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: holds %s (IDX type %02x); only unsigned bytes (08) are taken", path,
                        type_name(m[2]), m[2]);
    if (m[3] > DPT_IDX_DIMS)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: has %d dimensions (magic number 00 00 08 %02x); 2 to 4 are taken",
                        path, m[3], m[3]);
    return DPT_OK;
}

enum dpt_status dpt_array_open_idx(struct dpt_array *a, const char *path,
                                   const volatile sig_atomic_t *stop, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_npy *npy = &a->npy;
    uint8_t b[4];

    DPT_TRY(dpt_input_open(&a->in, path, stop, err));
    DPT_TRY(dpt_input_exact(&a->in, b, sizeof b, err));
    DPT_TRY(check_magic(path, b, err));
    *npy = (struct dpt_npy){.descr = "|u1", .kind = 'u', .size = 1, .n_dims = b[3], .count = 1};
    a->at = 0;
    for (int i = 0; i < npy->n_dims; i++) {
        DPT_TRY(dpt_input_exact(&a->in, b, sizeof b, err));
        npy->dims[i] = (int64_t)b[0] << 24 | (int64_t)b[1] << 16 | (int64_t)b[2] << 8 | b[3];
        if (npy->dims[i] == 0)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: dimension %d is 0", path, i + 1));
        if (__builtin_mul_overflow(npy->count, npy->dims[i], &npy->count))
            DPT_TRY(
                dpt_fail(err, DPT_BAD_DATA, "%s: its dimensions are larger than any file", path));
    }
    a->row = npy->count / npy->dims[0];
    DPT_TRY(dpt_input_promise(&a->in, npy->count, err));
out:
    return status;
}

/* --- rows ------------------------------------------------------------------------------------- */

enum dpt_status dpt_array_read(struct dpt_array *a, int64_t row, int64_t n, void *raw,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t bytes = a->row * a->npy.size;

    DPT_TRY(dpt_input_skip(&a->in, (row - a->at) * bytes, err));
    DPT_TRY(dpt_input_exact(&a->in, raw, (size_t)(n * bytes), err));
    a->at = row + n;
    if (a->at == a->npy.dims[0])
        DPT_TRY(dpt_input_end(&a->in, err));
out:
    return status;
}

static uint64_t bits_at(const struct dpt_npy *npy, const uint8_t *at)
{
    uint64_t bits = 0;

    /* The number is read by value, not by place, which is right on machines of either byte order.
     * */
    for (int i = 0; i < npy->size; i++) {
        const bool little = (BYTE_ORDER == LITTLE_ENDIAN) != npy->swapped;

        bits |= (uint64_t)at[i] << 8 * (little ? i : npy->size - 1 - i);
    }
    return bits;
}

double dpt_npy_real(const struct dpt_npy *npy, const uint8_t *at)
{
    const uint64_t bits = bits_at(npy, at);
    const uint32_t low = (uint32_t)bits;
    double d;
    float f;

    if (npy->kind != 'f')
        return (double)dpt_npy_integer(npy, at);
    if (npy->size == 4) {
        memcpy(&f, &low, sizeof f);
        return (double)f;
    }
    memcpy(&d, &bits, sizeof d);
    return d;
}

int64_t dpt_npy_integer(const struct dpt_npy *npy, const uint8_t *at)
{
    const uint64_t bits = bits_at(npy, at);
    const int unused = 64 - 8 * npy->size;

    if (npy->kind == 'f') {
        const double value = dpt_npy_real(npy, at);

        return fabs(value) < 0x1p62 && value == floor(value) ? (int64_t)value : INT64_MIN;
    }
    if (npy->kind == 'i')
        return (int64_t)(bits << unused) >> unused;
    return bits > INT64_MAX ? INT64_MAX : (int64_t)bits;
}

bool dpt_float_merges(double a, double b)
{
    return fabs(a) > 0x1p24 && a != b && (float)a == (float)b && a == floor(a) && b == floor(b);
}

enum dpt_status dpt_array_floats(struct dpt_array *a, const uint8_t *raw, int64_t row, int64_t n,
                                 float *out, struct dpt_error *err)
{
    a->merged = -1;
    for (int64_t i = 0; i < n * a->row; i++) {
        const double value = dpt_npy_real(&a->npy, raw + i * a->npy.size);

        out[i] = (float)value;
        if (i >= a->row && out[i] == out[i - a->row] &&
            dpt_float_merges(value, dpt_npy_real(&a->npy, raw + (i - a->row) * a->npy.size)))
            a->merged = i % a->row;
        if (!isfinite(out[i]))
            return dpt_fail(err, DPT_BAD_DATA, "%s: sample %lld, value %lld is %g: not finite%s",
                            a->in.path, (long long)row + i / a->row, (long long)(i % a->row), value,
                            isfinite(value) ? " as a 32-bit float" : "");
    }
    return DPT_OK;
}
