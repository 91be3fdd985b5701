#include "data/tables/idx.h"

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

enum dpt_status dpt_idx_open(struct dpt_idx *idx, const char *path,
                             const struct dpt_convert_job *job, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int64_t all = 1;
    uint8_t b[4];

    DPT_TRY(dpt_input_open(&idx->in, path, job, err));
    DPT_TRY(dpt_input_exact(&idx->in, b, sizeof b, err));
    DPT_TRY(check_magic(path, b, err));
    idx->n_dims = b[3];
    idx->sample = 1;
    for (int i = 0; i < idx->n_dims; i++) {
        DPT_TRY(dpt_input_exact(&idx->in, b, sizeof b, err));
        idx->dims[i] = (int64_t)b[0] << 24 | (int64_t)b[1] << 16 | (int64_t)b[2] << 8 | b[3];
        if (idx->dims[i] == 0)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: dimension %d is 0", path, i + 1));
        if (__builtin_mul_overflow(all, idx->dims[i], &all))
            DPT_TRY(
                dpt_fail(err, DPT_BAD_DATA, "%s: its dimensions are larger than any file", path));
        idx->sample *= i > 0 ? idx->dims[i] : 1;
    }
    DPT_TRY(dpt_input_promise(&idx->in, all, err));
out:
    return status;
}
