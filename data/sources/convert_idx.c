/* IDX files: one of images or feature vectors, one of labels. */
#include "core/base/memory.h"
#include "data/tables/idx.h"

enum { BATCH_BYTES = 1 << 20 };

static enum dpt_status check_roles(const struct dpt_idx *images, const struct dpt_idx *labels,
                                   struct dpt_error *err)
{
    const char *a = images->in.path, *b = labels->in.path;

    if (images->n_dims == 1 && labels->n_dims > 1)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: holds labels (magic number 00 00 08 01) and %s images (00 00 08 "
                        "%02x): swapped? Images come "
                        "first",
                        a, b, labels->n_dims);
    if (images->n_dims == 1)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: has magic number 00 00 08 01: labels, where images are wanted", a);
    if (labels->n_dims != 1)
        return dpt_fail(
            err, DPT_BAD_DATA,
            "%s: has magic number 00 00 08 %02x: images, where labels (00 00 08 01) are wanted", b,
            labels->n_dims);
    if (images->dims[0] != labels->dims[0])
        return dpt_fail(err, DPT_BAD_DATA, "%s has %lld images, but %s has %lld labels", a,
                        (long long)images->dims[0], b, (long long)labels->dims[0]);
    return DPT_OK;
}

/* Reads a file of labels to its end: they are all there, and *classes is one more than the largest.
 */
static enum dpt_status scan_labels(struct dpt_idx *labels, uint8_t *buffer, int64_t *classes,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int64_t left = labels->dims[0];

    *classes = 1;
    while (left > 0) {
        const size_t n = left < BATCH_BYTES ? (size_t)left : BATCH_BYTES;

        DPT_TRY(dpt_input_exact(&labels->in, buffer, n, err));
        for (size_t i = 0; i < n; i++)
            *classes = buffer[i] >= *classes ? buffer[i] + 1 : *classes;
        left -= (int64_t)n;
    }
    DPT_TRY(dpt_input_end(&labels->in, err));
out:
    return status;
}

static enum dpt_status copy_samples(struct dpt_idx *images, struct dpt_idx *labels,
                                    struct dpt_shard_writer *writer, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t batch = images->sample < BATCH_BYTES ? BATCH_BYTES / images->sample : 1;
    uint8_t *pixels = dpt_alloc_array((size_t)batch, (size_t)images->sample);
    uint8_t *bytes = dpt_alloc((size_t)batch);
    int32_t *numbers = dpt_alloc_array((size_t)batch, sizeof *numbers);
    int64_t n;

    if (pixels == NULL || bytes == NULL || numbers == NULL)
        DPT_TRY(dpt_fail_memory(err, "reading", (double)batch * (double)images->sample));
    for (int64_t i = 0; i < images->dims[0]; i += n) {
        n = images->dims[0] - i < batch ? images->dims[0] - i : batch;
        DPT_TRY(dpt_input_exact(&images->in, pixels, (size_t)(n * images->sample), err));
        DPT_TRY(dpt_input_exact(&labels->in, bytes, (size_t)n, err));
        for (int64_t k = 0; k < n; k++)
            numbers[k] = bytes[k];
        DPT_TRY(dpt_shard_writer_add(writer, pixels, numbers, NULL, n, err));
    }
    DPT_TRY(dpt_input_end(&images->in, err));
out:
    dpt_free(pixels);
    dpt_free(bytes);
    dpt_free(numbers);
    return status;
}

static void set_form(const struct dpt_idx *images, struct dpt_shard_form *form)
{
    form->samples = images->dims[0];
    form->u8 = true;
    form->n_dims = images->n_dims == 2 ? 1 : 3;
    form->dims[0] = images->n_dims == 3 ? 1 : images->dims[1]; /* [N, H, W] has one channel */
    for (int i = 1; i < form->n_dims; i++)
        form->dims[i] = images->dims[images->n_dims - form->n_dims + i];
}

static enum dpt_status run(const struct dpt_convert_job *job, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_idx images = {0}, labels = {0};
    struct dpt_shard_form form = {0};
    struct dpt_shard_writer *writer = NULL;
    uint8_t *buffer = NULL;

    if (job->n_inputs != 2)
        DPT_TRY(dpt_fail(err, DPT_USAGE, "idx takes two files, images and labels; %zu given",
                         job->n_inputs));
    DPT_TRY(dpt_idx_open(&images, job->inputs[0], job, err));
    DPT_TRY(dpt_idx_open(&labels, job->inputs[1], job, err));
    DPT_TRY(check_roles(&images, &labels, err));
    buffer = dpt_alloc(BATCH_BYTES);
    if (buffer == NULL)
        DPT_TRY(dpt_fail_memory(err, "reading", BATCH_BYTES));
    DPT_TRY(scan_labels(&labels, buffer, &form.classes, err));
    dpt_input_close(&labels.in);
    DPT_TRY(dpt_idx_open(&labels, job->inputs[1], job, err));
    set_form(&images, &form);
    DPT_TRY(dpt_shard_writer_open(&writer, job, &form, err));
    DPT_TRY(copy_samples(&images, &labels, writer, err));
    DPT_TRY(dpt_shard_writer_commit(writer, err));
out:
    dpt_shard_writer_close(writer);
    dpt_input_close(&images.in);
    dpt_input_close(&labels.in);
    dpt_free(buffer);
    return status;
}

const struct dpt_converter dpt_convert_idx = {
    .name = "idx",
    .inputs = "IMAGES LABELS",
    .summary = "IDX files of unsigned bytes, as MNIST's; gzipped or not",
    .details = "Images [N,H,W] become uint8 [N,1,H,W]; [N,C,H,W] and [N,D] stay as they are. "
               "Labels: one byte each.",
    .run = run,
};
