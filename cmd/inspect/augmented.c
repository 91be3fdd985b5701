/*
 * A sheet of augmented images: what a job's training sees.
 *
 * A row each for the first samples of the first epoch: the image as it is, and as it is in one
 * epoch after another, mixed with whatever stands beside it in that epoch's step. The loader makes
 * them as in training; it is given micro-batches of one sample, which change none.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/inspect/print.h"
#include "cmd/job_command.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/train/setup/parts.h"
#include "data/pictures/picture.h"
#include "data/sets/augment.h"

enum {
    SAMPLES = 8,
    EPOCHS = 7,
    GAP = 2,          /* between images; wider after those that are as they are */
    LEAST_SIDE = 64,  /* smaller images are shown larger */
    MOST_SIDE = 160,  /* and larger ones smaller */
    BACKGROUND = 112, /* a grey that is neither black nor white */
};

static const struct dpt_comm alone = {
    .world = {.size = 1}, .node = {.size = 1}, .leaders = {.size = 1}, .nodes = 1};

struct sheet {
    const struct dpt_job *job;
    struct dpt_dataset set;
    struct dpt_sampler sampler;
    struct dpt_batch_form form, plain;
    int rows;
    int64_t sample[SAMPLES];
    int32_t zoom, shrink; /* pixels of the sheet for one of an image, or the other way round */
    int32_t width, height, channels; /* of an image on the sheet */
    int32_t all_width, all_height;
    uint8_t *pixels; /* [all_height][all_width][channels] */
};

static double of_channel(const struct dpt_reals *values, int32_t channel, double fallback)
{
    return values->n == 0 ? fallback : values->at[values->n == 1 ? 0 : channel];
}

/* The mean light of a square of one channel, as the file has it: bytes / 255, or numbers. */
static double light_at(const struct sheet *s, const float *input, int32_t c, int32_t y, int32_t x)
{
    const struct dpt_normalize *normalize = &s->job->data.normalize;
    const int32_t side = s->shrink;
    double sum = 0;

    for (int32_t i = 0; i < side; i++)
        for (int32_t k = 0; k < side; k++)
            sum += (double)input[((size_t)c * (size_t)s->set.shape.h + (size_t)(y * side + i)) *
                                     (size_t)s->set.shape.w +
                                 (size_t)(x * side + k)];
    return sum / (side * side) * of_channel(&normalize->std, c, 1) +
           of_channel(&normalize->mean, c, 0);
}

/* What is black and white in a row. Bytes say it; of numbers the range of the image as it is. */
static void find_range(const struct sheet *s, const float *input, double range[2])
{
    range[0] = s->set.u8 ? 0 : INFINITY;
    range[1] = s->set.u8 ? 1 : -INFINITY;
    for (int32_t c = 0; !s->set.u8 && c < s->channels; c++)
        for (int32_t y = 0; y < s->set.shape.h / s->shrink; y++)
            for (int32_t x = 0; x < s->set.shape.w / s->shrink; x++) {
                range[0] = fmin(range[0], light_at(s, input, c, y, x));
                range[1] = fmax(range[1], light_at(s, input, c, y, x));
            }
}

static void draw(struct sheet *s, int row, int column, const float *input, const double range[2])
{
    const int32_t top = GAP + row * (s->height + GAP);
    const int32_t left = GAP + column * (s->width + GAP) + (column > 0 ? 2 * GAP : 0);

    for (int32_t y = 0; y < s->height; y++)
        for (int32_t x = 0; x < s->width; x++)
            for (int32_t c = 0; c < s->channels; c++) {
                const double light = light_at(s, input, c, y / s->zoom, x / s->zoom);
                const double share = (light - range[0]) / fmax(range[1] - range[0], 1e-12);

                s->pixels[((size_t)(top + y) * (size_t)s->all_width + (size_t)(left + x)) *
                              (size_t)s->channels +
                          (size_t)c] = (uint8_t)lround(255 * fmin(fmax(share, 0), 1));
            }
}

/* The job's training samples, and the form that training gives them. */
static enum dpt_status open_samples(struct sheet *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_splits data = {0};
    struct dpt_trainer_model model = {.loss = dpt_job_loss(s->job)};
    struct dpt_layout layout = {.job = s->job,
                                .backend = dpt_backends[0],
                                .graph = &model.graph,
                                .ranks = 1,
                                .node_ranks = 1};
    struct dpt_data_conf conf = s->job->data;
    struct dpt_dataset_spec spec = dpt_job_dataset(s->job, &conf.train);

    spec.conf = &conf;
    DPT_TRY(dpt_splits_open(&data, s->job, DPT_PART_TRAIN | DPT_PART_VALID, NULL, NULL, err));
    DPT_TRY(dpt_model_of_splits(&model, s->job, &data, err));
    DPT_TRY(dpt_layout_open(&layout, &data.train.sampler, 0, 1, err));
    DPT_TRY(dpt_splits_plan(&data, &layout, err));
    conf.cache = DPT_CACHE_NONE; /* a few are read, so not all need to be looked at */
    conf.verify = false;
    DPT_TRY(dpt_dataset_open(&s->set, &spec, &alone, err));
    s->sampler = data.train.sampler;
    s->sampler.micro = 1;
    s->sampler.round_robin = 0;
    s->form = s->plain = data.train.form;
    s->form.set = &s->set;
    s->plain = dpt_batch_form_of(&s->set, NULL, 0);
out:
    dpt_layout_close(&layout);
    dpt_graph_release(&model.graph);
    dpt_splits_close(&data);
    return status;
}

/* Sizes in whole pixels, so that nothing is blurred that is not in training. */
static enum dpt_status open_sheet(struct sheet *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_shape *shape = &s->set.shape;
    const int32_t larger = shape->w > shape->h ? shape->w : shape->h;
    char text[40];

    if (shape->flat || shape->w < 2 || shape->h < 2)
        return dpt_fail(err, DPT_BAD_JOB,
                        "--augmented: the samples of data.train (%s) are not images",
                        dpt_shape_text(shape, text));
    s->shrink = (larger + MOST_SIDE - 1) / MOST_SIDE;
    s->zoom = s->shrink == 1 && larger < LEAST_SIDE ? (LEAST_SIDE + larger - 1) / larger : 1;
    s->width = shape->w / s->shrink * s->zoom;
    s->height = shape->h / s->shrink * s->zoom;
    s->channels = shape->c == 3 ? 3 : 1;
    s->rows = s->sampler.samples < SAMPLES ? (int)s->sampler.samples : SAMPLES;
    dpt_sampler_samples(&s->sampler, 0, 0, s->rows, s->sample);
    s->all_width = (1 + EPOCHS) * (s->width + GAP) + 3 * GAP;
    s->all_height = s->rows * (s->height + GAP) + GAP;
    DPT_TRY(DPT_ALLOCATE(s->pixels,
                         (size_t)s->all_width * (size_t)s->all_height * (size_t)s->channels,
                         "the sheet", err));
    memset(s->pixels, BACKGROUND,
           (size_t)s->all_width * (size_t)s->all_height * (size_t)s->channels);
out:
    return status;
}

/* Where the rows' samples are in an epoch; -1: in no step of it, as it is cut short. */
static void find_positions(const struct sheet *s, int64_t epoch, int64_t position[SAMPLES])
{
    enum { AT_ONCE = 1024 };
    const int64_t steps = dpt_sampler_steps(&s->sampler);
    const int64_t end = (steps - 1) * s->sampler.global + dpt_sampler_count(&s->sampler, steps - 1);
    int64_t samples[AT_ONCE];

    for (int k = 0; k < s->rows; k++)
        position[k] = -1;
    for (int64_t first = 0, n; first < end; first += n) {
        n = end - first < AT_ONCE ? end - first : AT_ONCE;
        dpt_sampler_samples(&s->sampler, epoch, first, n, samples);
        for (int64_t i = 0; i < n; i++)
            for (int k = 0; k < s->rows; k++)
                if (samples[i] == s->sample[k])
                    position[k] = first + i;
    }
}

/* Draws a column: the samples of an epoch, in a form. */
static enum dpt_status draw_epoch(struct sheet *s, const struct dpt_batch_form *form, int64_t epoch,
                                  int column, double range[SAMPLES][2], struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_loader *loader = NULL;
    struct dpt_batch_buffer buffer = {0};
    struct dpt_batch batch = {0};
    struct dpt_step_view view;
    int64_t position[SAMPLES];

    find_positions(s, epoch, position);
    DPT_TRY(dpt_loader_open(&loader, form, &s->sampler, 0, 1, err));
    DPT_TRY(dpt_batch_buffer_open(&buffer, form, 1, err));
    for (int k = 0; k < s->rows; k++) {
        if (position[k] < 0)
            continue;
        DPT_TRY(dpt_loader_seek(loader, epoch, position[k] / s->sampler.global, err));
        DPT_TRY(dpt_loader_next(loader, &view, err));
        DPT_TRY(dpt_loader_fill(loader, &view, (int32_t)(position[k] % s->sampler.global), &buffer,
                                &batch, err));
        if (form == &s->plain)
            find_range(s, batch.input, range[k]);
        draw(s, k, column, batch.input, range[k]);
    }
out:
    dpt_batch_buffer_close(&buffer);
    dpt_loader_close(loader);
    return status;
}

static enum dpt_status write_sheet(const struct sheet *s, const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_str png = {0};
    char where[256];

    dpt_picture_write(&png, s->pixels, s->all_width, s->all_height, s->channels);
    if (png.failed)
        DPT_TRY(dpt_fail_memory(err, "the sheet", (double)png.length));
    DPT_TRY(dpt_file_write(path, png.text, png.length, err));
    printf("%s: %d x %d pixels; a row each, as stored and in epochs 1 to %d:\n", path, s->all_width,
           s->all_height, EPOCHS);
    for (int k = 0; k < s->rows; k++)
        printf("  %d  %s\n", k + 1, dpt_dataset_where(&s->set, s->sample[k], where));
out:
    dpt_str_release(&png);
    return status;
}

enum dpt_status dpt_inspect_augmented(struct dpt_cli *cli, const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *ending = strrchr(path, '.');
    struct dpt_conf conf = {0};
    struct dpt_job job;
    struct sheet s = {.job = &job};
    double range[SAMPLES][2];

    if (ending == NULL || strcmp(ending, ".png") != 0)
        return dpt_fail(err, DPT_USAGE,
                        "--augmented %s: the sheet is an image: give a name that ends "
                        "in .png",
                        path);
    DPT_TRY(dpt_job_command_load(cli, &job, &conf, err));
    DPT_TRY(dpt_job_for_ranks(&job, 1, err));
    if (!dpt_augment_wanted(&job.data.augment))
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB,
                         "%s: data.augment sets nothing, so training sees samples as stored; --set "
                         "data.augment.flip=true shows the effect of a key",
                         cli->positional[0]));
    DPT_TRY(dpt_job_command_outputs(cli, &job, &conf, NULL, err));
    DPT_TRY(open_samples(&s, err));
    DPT_TRY(open_sheet(&s, err));
    DPT_TRY(draw_epoch(&s, &s.plain, 0, 0, range, err));
    for (int epoch = 0; epoch < EPOCHS; epoch++)
        DPT_TRY(draw_epoch(&s, &s.form, epoch, 1 + epoch, range, err));
    DPT_TRY(write_sheet(&s, path, err));
out:
    if (status != DPT_OK && cli->n_positional > 0)
        dpt_job_command_name(cli->positional[0], err);
    dpt_free(s.pixels);
    dpt_dataset_close(&s.set);
    dpt_conf_release(&conf);
    return status;
}
