/*
 * NumPy's array files: one of images or feature vectors, one of labels or targets.
 */
#include <string.h>

#include "core/base/memory.h"
#include "data/tables/npy_file.h"

enum { BATCH_BYTES = 1 << 20, LABEL_MOST = INT32_MAX - 1 };

static enum dpt_status check_images(const struct dpt_npy_file *images, struct dpt_error *err)
{
    const struct dpt_npy *npy = &images->npy;

    if (npy->kind != 'f' && !(npy->kind == 'u' && npy->size == 1))
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: images are of the type '%s'; save them as uint8 "
                        "(a.astype(numpy.uint8)) or float32",
                        images->in.path, npy->descr);
    if (npy->n_dims < 2 || npy->n_dims > 4)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: has %d dimensions; images are [N,D], [N,H,W] or [N,C,H,W]",
                        images->in.path, npy->n_dims);
    return DPT_OK;
}

static enum dpt_status check_labels(const struct dpt_npy_file *images,
                                    const struct dpt_npy_file *labels, struct dpt_error *err)
{
    const struct dpt_npy *npy = &labels->npy;

    if (npy->dims[0] != images->npy.dims[0])
        return dpt_fail(err, DPT_BAD_DATA, "%s has %lld images, but %s has %lld labels",
                        images->in.path, (long long)images->npy.dims[0], labels->in.path,
                        (long long)npy->dims[0]);
    if (npy->n_dims > 2)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: has %d dimensions; labels are [N], targets [N] or [N,K]",
                        labels->in.path, npy->n_dims);
    if (npy->kind != 'f' && labels->row != 1)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: integer labels are [N], these are [N,%lld]; one-hot labels are saved "
                        "as a.argmax(1), targets as "
                        "floats",
                        labels->in.path, (long long)labels->row);
    return DPT_OK;
}

static enum dpt_status set_shape(const struct dpt_npy_file *images,
                                 const struct dpt_convert_job *job, struct dpt_shard_form *form,
                                 struct dpt_error *err)
{
    const char *layout = job->option[DPT_CONVERT_LAYOUT];
    const struct dpt_npy *npy = &images->npy;
    const int64_t *d = npy->dims;

    if (layout != NULL && strcmp(layout, "nchw") != 0 && strcmp(layout, "nhwc") != 0)
        return dpt_fail(err, DPT_USAGE, "--layout %s: must be nchw or nhwc", layout);
    form->nhwc = layout != NULL && strcmp(layout, "nhwc") == 0;
    if (form->nhwc && npy->n_dims != 4)
        return dpt_fail(err, DPT_USAGE, "--layout nhwc: %s has %d dimensions, not 4",
                        images->in.path, npy->n_dims);
    if (layout == NULL && npy->n_dims == 4 && d[1] > 4 && (d[3] == 1 || d[3] == 3) &&
        job->log != NULL)
        dpt_log_warn(job->log,
                     "%s: [%lld,%lld,%lld,%lld] is taken as [N,C,H,W]; if the channels are last, "
                     "give --layout nhwc",
                     images->in.path, (long long)d[0], (long long)d[1], (long long)d[2],
                     (long long)d[3]);
    form->samples = d[0];
    form->u8 = npy->kind == 'u';
    form->n_dims = npy->n_dims == 2 ? 1 : 3;
    form->dims[0] = npy->n_dims == 3 ? 1 : d[1];
    for (int i = 1; i < form->n_dims; i++)
        form->dims[i] = d[npy->n_dims - form->n_dims + i];
    return DPT_OK;
}

/* Where samples are gathered for the writer. */
struct batch {
    int64_t samples;
    uint8_t *raw, *raw_labels; /* as in the files */
    float *floats, *targets;
    int32_t *labels;
};

static enum dpt_status make_batch(struct batch *b, const struct dpt_npy_file *images,
                                  const struct dpt_npy_file *labels, struct dpt_error *err)
{
    const int64_t most = images->row > labels->row ? images->row : labels->row;
    size_t n;

    b->samples = most < BATCH_BYTES / 4 ? BATCH_BYTES / 4 / most : 1;
    n = (size_t)b->samples;
    b->raw = dpt_alloc_array(n * (size_t)images->row, (size_t)images->npy.size);
    b->raw_labels = dpt_alloc_array(n * (size_t)labels->row, (size_t)labels->npy.size);
    b->floats =
        images->npy.kind == 'f' ? dpt_alloc_array(n * (size_t)images->row, sizeof(float)) : NULL;
    b->targets = dpt_alloc_array(n * (size_t)labels->row, sizeof(float));
    b->labels = dpt_alloc_array(n, sizeof *b->labels);
    if (b->raw == NULL || b->raw_labels == NULL || b->targets == NULL || b->labels == NULL ||
        (b->floats == NULL && images->npy.kind == 'f'))
        return dpt_fail_memory(err, "some samples", 12.0 * (double)n * (double)most);
    return DPT_OK;
}

static void free_batch(struct batch *b)
{
    dpt_free(b->raw);
    dpt_free(b->raw_labels);
    dpt_free(b->floats);
    dpt_free(b->targets);
    dpt_free(b->labels);
}

/* Reads the labels of n samples, `first` and on; *largest: out, raised. */
static enum dpt_status read_labels(struct dpt_npy_file *labels, struct batch *b, int64_t first,
                                   int64_t n, int64_t *largest, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t count = n * labels->row;

    DPT_TRY(dpt_input_exact(&labels->in, b->raw_labels, (size_t)(count * labels->npy.size), err));
    if (labels->npy.kind == 'f') {
        DPT_TRY(dpt_npy_floats(labels, b->raw_labels, first * labels->row, count, b->targets, err));
        goto out;
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t value = dpt_npy_integer(&labels->npy, b->raw_labels + i * labels->npy.size);

        if (value < 0 || value > LABEL_MOST)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                             "%s: the label of sample %lld is %lld: no number of a class",
                             labels->in.path, (long long)first + (long long)i, (long long)value));
        b->labels[i] = (int32_t)value;
        *largest = value > *largest ? value : *largest;
    }
out:
    return status;
}

static enum dpt_status read_images(struct dpt_npy_file *images, struct batch *b, int64_t first,
                                   int64_t n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t count = n * images->row;

    DPT_TRY(dpt_input_exact(&images->in, b->raw, (size_t)(count * images->npy.size), err));
    if (images->npy.kind == 'f')
        DPT_TRY(dpt_npy_floats(images, b->raw, first * images->row, count, b->floats, err));
out:
    return status;
}

/* Reads all labels once: they are there, they are good, and the largest is known. */
static enum dpt_status scan_labels(struct dpt_npy_file *labels, struct batch *b, int64_t *largest,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    *largest = 0;
    for (int64_t i = 0; i < labels->npy.dims[0]; i += b->samples) {
        const int64_t left = labels->npy.dims[0] - i;

        DPT_TRY(read_labels(labels, b, i, left < b->samples ? left : b->samples, largest, err));
    }
    DPT_TRY(dpt_input_end(&labels->in, err));
out:
    return status;
}

static enum dpt_status copy_samples(struct dpt_npy_file *images, struct dpt_npy_file *labels,
                                    struct batch *b, struct dpt_shard_writer *writer,
                                    struct dpt_error *err)
{
    const int64_t samples = images->npy.dims[0];
    enum dpt_status status = DPT_OK;
    int64_t largest = 0, n;

    for (int64_t i = 0; i < samples; i += n) {
        n = samples - i < b->samples ? samples - i : b->samples;
        DPT_TRY(read_images(images, b, i, n, err));
        DPT_TRY(read_labels(labels, b, i, n, &largest, err));
        DPT_TRY(dpt_shard_writer_add(writer, b->floats != NULL ? (const void *)b->floats : b->raw,
                                     b->labels, b->targets, n, err));
    }
    DPT_TRY(dpt_input_end(&images->in, err));
out:
    return status;
}

static enum dpt_status run(const struct dpt_convert_job *job, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_npy_file images = {0}, labels = {0};
    struct dpt_shard_form form = {0};
    struct dpt_shard_writer *writer = NULL;
    struct batch batch = {0};
    int64_t largest;

    if (job->n_inputs != 2)
        DPT_TRY(dpt_fail(err, DPT_USAGE, "npy takes two files, images and labels; %zu given",
                         job->n_inputs));
    DPT_TRY(dpt_npy_open(&images, job->inputs[0], job, err));
    DPT_TRY(dpt_npy_open(&labels, job->inputs[1], job, err));
    DPT_TRY(check_images(&images, err));
    DPT_TRY(check_labels(&images, &labels, err));
    DPT_TRY(set_shape(&images, job, &form, err));
    DPT_TRY(make_batch(&batch, &images, &labels, err));
    DPT_TRY(scan_labels(&labels, &batch, &largest, err));
    dpt_input_close(&labels.in);
    DPT_TRY(dpt_npy_open(&labels, job->inputs[1], job, err));
    form.targets = labels.npy.kind == 'f' ? labels.row : 0;
    form.classes = labels.npy.kind == 'f' ? 0 : largest + 1;
    DPT_TRY(dpt_shard_writer_open(&writer, job, &form, err));
    DPT_TRY(copy_samples(&images, &labels, &batch, writer, err));
    DPT_TRY(dpt_shard_writer_commit(writer, err));
out:
    dpt_shard_writer_close(writer);
    dpt_input_close(&images.in);
    dpt_input_close(&labels.in);
    free_batch(&batch);
    return status;
}

const struct dpt_converter dpt_convert_npy = {
    .name = "npy",
    .inputs = "IMAGES.npy LABELS.npy",
    .summary = "NumPy arrays as numpy.save writes them",
    .details = "Images [N,D], [N,H,W], [N,C,H,W] or, with --layout nhwc, [N,H,W,C], of uint8, "
               "float32 or float64 (becomes "
               "float32). Labels: integers [N] are classes, floats [N] or [N,K] are targets.",
    .options = 1u << DPT_CONVERT_LAYOUT,
    .run = run,
};
