/*
 * CIFAR-10, binary version (https://www.cs.toronto.edu/~kriz/cifar.html): records of a label byte
 * and 3 x 32 x 32 pixels, plane by plane, which is the order of a shard.
 */
#include <string.h>

#include "data/sources/source_type.h"
#include "data/tables/input.h"

enum {
    CHANNELS = 3,
    SIDE = 32,
    CLASSES = 10,
    PIXELS = CHANNELS * SIDE * SIDE,
    RECORD = 1 + PIXELS,
    RECORD_CIFAR100 = RECORD + 1,
    BATCH = 256,
};

struct state {
    struct dpt_input in;
    size_t part;                    /* the file that is open */
    int64_t row;                    /* its record that is read next */
    uint8_t records[BATCH][RECORD]; /* as they lie in the file */
};

static enum dpt_status wrong_size(const char *path, int64_t bytes, struct dpt_error *err)
{
    return dpt_fail(
        err, DPT_BAD_DATA,
        "%s: has %lld bytes, no multiple of the %d of a record (1 label, 3 x 32 x 32 pixels)%s",
        path, (long long)bytes, RECORD,
        bytes % RECORD_CIFAR100 == 0 ? ": CIFAR-100, whose records have two labels, is not taken"
                                     : "");
}

static enum dpt_status open_file(struct dpt_source *s, size_t part, struct dpt_error *err)
{
    struct state *state = s->state;

    dpt_input_close(&state->in);
    state->part = part;
    state->row = 0;
    return dpt_input_open(&state->in, s->paths[part], s->spec->stop, err);
}

/* Reads the next records of the open file; *n: out, less than BATCH only at the end. */
static enum dpt_status read_some(struct state *state, int64_t most, int64_t *n,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_input *in = &state->in;
    size_t got;

    DPT_TRY(dpt_input_some(in, state->records, (size_t)most * RECORD, &got, err));
    /* A tar archive has "ustar" at byte 257 of its first header (POSIX.1-1988). */
    if (state->row == 0 && got > 512 &&
        memcmp((const uint8_t *)state->records + 257, "ustar", 5) == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: is a tar archive: unpack it (tar -xf) and give data_batch_1.bin …",
                         in->path));
    if (state->row == 0 && gzdirect(in->gz) && in->size % RECORD != 0)
        DPT_TRY(wrong_size(in->path, in->size, err));
    if (got % RECORD != 0)
        DPT_TRY(wrong_size(in->path, in->read, err));
    *n = (int64_t)(got / RECORD);
    for (int64_t i = 0; i < *n; i++)
        if (state->records[i][0] >= CLASSES)
            DPT_TRY(dpt_fail(
                err, DPT_BAD_DATA, "%s: the label of record %lld is %d, not 0 to 9%s", in->path,
                (long long)(state->row + i), (int)state->records[i][0],
                state->row + i == 0 ? ": check that this is the binary version of CIFAR-10" : ""));
    state->row += *n;
out:
    return status;
}

/* Reads all files once: how many records they have, and that these are good. */
static enum dpt_status open_source(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;
    int64_t n;

    for (size_t i = 0; i < s->n_parts; i++) {
        DPT_TRY(open_file(s, i, err));
        do
            DPT_TRY(read_some(state, BATCH, &n, err));
        while (n == BATCH);
        s->parts[i].samples = state->row;
        if (state->row == 0)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: is empty", s->paths[i]));
    }
    DPT_TRY(open_file(s, 0, err));
    s->layout.u8 = true;
    s->layout.shape = (struct dpt_shape){CHANNELS, SIDE, SIDE, false};
    s->info.truth = DPT_TRUTH_CLASS;
    s->info.classes = CLASSES;
out:
    return status;
}

static void close_source(void *state)
{
    dpt_input_close(&((struct state *)state)->in);
}

static enum dpt_status read_rows(struct dpt_source *s, const struct dpt_source_rows *rows,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct state *state = s->state;

    if (state->part != rows->part || rows->row < state->row)
        DPT_TRY(open_file(s, rows->part, err));
    DPT_TRY(dpt_input_skip(&state->in, (rows->row - state->row) * RECORD, err));
    state->row = rows->row;
    for (int64_t at = 0, some; at < rows->n; at += some) {
        const int64_t want = rows->n - at < BATCH ? rows->n - at : BATCH;

        DPT_TRY(read_some(state, want, &some, err));
        if (some < want)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: changed while it was read", state->in.path));
        for (int64_t i = 0; i < some; i++) {
            memcpy(rows->stored + (size_t)(at + i) * PIXELS, state->records[i] + 1, PIXELS);
            rows->classes[at + i] = state->records[i][0];
        }
    }
out:
    return status;
}

const struct dpt_source_format dpt_source_cifar10 = {
    .name = "cifar10",
    .inputs = "FILE...",
    .summary = "CIFAR-10, binary version (data_batch_1.bin …), unpacked from its tar.gz",
    .details = "Becomes uint8 [N,3,32,32] with labels 0 to 9, the files one after another as they "
               "are given.",
    .state = sizeof(struct state),
    .open = open_source,
    .close = close_source,
    .read = read_rows,
};
