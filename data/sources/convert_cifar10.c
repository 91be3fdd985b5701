/*
 * CIFAR-10, binary version (https://www.cs.toronto.edu/~kriz/cifar.html): records of a label byte
 * and 3 x 32 x 32 pixels, plane by plane, which is the order of a shard.
 */
#include <string.h>

#include "core/base/memory.h"
#include "data/sources/convert_input.h"

enum {
    CHANNELS = 3,
    SIDE = 32,
    CLASSES = 10,
    PIXELS = CHANNELS * SIDE * SIDE,
    RECORD = 1 + PIXELS,
    RECORD_CIFAR100 = RECORD + 1,
    BATCH = 256,
};

struct buffers {
    uint8_t records[BATCH][RECORD];
    uint8_t pixels[BATCH][PIXELS];
    int32_t labels[BATCH];
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

/* A tar archive has "ustar" at byte 257 of its first header (POSIX.1-1988), whether it was gzipped
 * or not. */
static bool is_tar(const struct buffers *b)
{
    return memcmp((const uint8_t *)b->records + 257, "ustar", 5) == 0;
}

/* Reads a file to its end; its samples go to the writer, where there is one. *samples: out, counted
 * on. */
static enum dpt_status read_file(const char *path, const struct dpt_convert_job *job,
                                 struct buffers *b, struct dpt_shard_writer *writer,
                                 int64_t *samples, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_input in = {0};
    int64_t first = 0; /* record of the file */
    size_t got;

    DPT_TRY(dpt_input_open(&in, path, job, err));
    do {
        DPT_TRY(dpt_input_some(&in, b->records, sizeof b->records, &got, err));
        if (first == 0 && got > 512 && is_tar(b))
            DPT_TRY(dpt_fail(
                err, DPT_BAD_DATA,
                "%s: is a tar archive: unpack it (tar -xf) and give data_batch_1.bin …", path));
        if (first == 0 && gzdirect(in.gz) && in.size % RECORD != 0)
            DPT_TRY(wrong_size(path, in.size, err));
        if (got % RECORD != 0)
            DPT_TRY(wrong_size(path, in.read, err));
        for (size_t i = 0; i < got / RECORD; i++) {
            b->labels[i] = b->records[i][0];
            memcpy(b->pixels[i], b->records[i] + 1, PIXELS);
            if (b->labels[i] >= CLASSES)
                DPT_TRY(dpt_fail(
                    err, DPT_BAD_DATA, "%s: the label of record %lld is %d, not 0 to 9%s", path,
                    (long long)first + (long long)i, (int)b->labels[i],
                    i == 0 && first == 0 ? ": is this the binary version of CIFAR-10?" : ""));
        }
        if (writer != NULL && got > 0)
            DPT_TRY(dpt_shard_writer_add(writer, b->pixels, b->labels, NULL,
                                         (int64_t)(got / RECORD), err));
        first += (int64_t)(got / RECORD);
    } while (got == sizeof b->records);
    if (first == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: is empty", path));
    *samples += first;
out:
    dpt_input_close(&in);
    return status;
}

static enum dpt_status run(const struct dpt_convert_job *job, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_shard_form form = {
        .n_dims = 3,
        .dims = {CHANNELS, SIDE, SIDE},
        .u8 = true,
        .classes = CLASSES,
    };
    struct dpt_shard_writer *writer = NULL;
    struct buffers *b = dpt_alloc(sizeof *b);
    int64_t samples = 0;

    if (b == NULL)
        return dpt_fail_memory(err, "reading", sizeof *b);
    if (job->n_inputs == 0)
        DPT_TRY(dpt_fail(err, DPT_USAGE, "cifar10 takes one file or more; none given"));
    for (size_t i = 0; i < job->n_inputs; i++)
        DPT_TRY(read_file(job->inputs[i], job, b, NULL, &form.samples, err));
    DPT_TRY(dpt_shard_writer_open(&writer, job, &form, err));
    for (size_t i = 0; i < job->n_inputs; i++)
        DPT_TRY(read_file(job->inputs[i], job, b, writer, &samples, err));
    DPT_TRY(dpt_shard_writer_commit(writer, err));
out:
    dpt_shard_writer_close(writer);
    dpt_free(b);
    return status;
}

const struct dpt_converter dpt_convert_cifar10 = {
    .name = "cifar10",
    .inputs = "FILE...",
    .summary = "CIFAR-10, binary version (data_batch_1.bin …), unpacked from its tar.gz",
    .details = "Becomes uint8 [N,3,32,32] with labels 0 to 9, the files one after another as they "
               "are given.",
    .run = run,
};
