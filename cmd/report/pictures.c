/* Images of samples, made small for the page. */
#include <math.h>

#include "cmd/report/report.h"

/* All images of a page together, in bytes before they are packed. */
static const double BUDGET = 360e3;

static double of_channel(const struct dpt_reals *values, int channel, double fallback)
{
    return values->n == 0 ? fallback : values->at[values->n == 1 ? 0 : channel];
}

/* The mean of a square of one channel, `side` pixels per side. */
static double mean_of(const struct dpt_shape *shape, const float *input, int channel, int y, int x,
                      int side)
{
    double sum = 0;

    for (int i = 0; i < side; i++)
        for (int k = 0; k < side; k++)
            sum += (double)input[((size_t)channel * (size_t)shape->h + (size_t)(y * side + i)) *
                                     (size_t)shape->w +
                                 (size_t)(x * side + k)];
    return sum / (side * side);
}

/* Draws normalised floats as bytes. Floats that were bytes were divided by 255; the scale of others
 * is unknown, so they are stretched. */
static void draw(const struct dpt_page_predictions *v, const struct dpt_trainer *t,
                 const struct dpt_dataset *set, const float *input, uint8_t *pixels)
{
    const struct dpt_normalize *normalize = &t->job->data.normalize;
    const int side = set->shape.w / v->width, n = v->width * v->height * v->channels;
    double value[n], low = INFINITY, high = -INFINITY;

    for (int i = 0; i < n; i++) {
        const int c = i % v->channels, x = i / v->channels % v->width;
        const int y = i / v->channels / v->width;

        value[i] = mean_of(&set->shape, input, c, y, x, side) * of_channel(&normalize->std, c, 1) +
                   of_channel(&normalize->mean, c, 0);
        low = fmin(low, value[i]);
        high = fmax(high, value[i]);
    }
    if (set->u8) {
        low = 0;
        high = 1;
    }
    for (int i = 0; i < n; i++) {
        const double share = (value[i] - low) / fmax(high - low, 1e-12);

        pixels[i] = (uint8_t)lround(255 * fmin(fmax(share, 0), 1));
    }
}

/* Pixels of the drawn images, and how many of them there is room for. */
static void choose_size(const struct dpt_page *r, struct dpt_page_predictions *v,
                        const struct dpt_shape *shape)
{
    const int32_t larger = shape->w > shape->h ? shape->w : shape->h;
    const int32_t side = (larger + DPT_PAGE_SIDE - 1) / DPT_PAGE_SIDE;
    double most;

    v->width = shape->w / side;
    v->height = shape->h / side;
    v->channels = shape->c == 3 ? 3 : 1;
    if (v->width == 0 || v->height == 0) { /* a strip */
        v->width = v->height = 0;
        return;
    }
    most = BUDGET / (double)r->runs.n / (v->width * v->height * v->channels);
    if (most < v->n_wrong)
        v->n_wrong = (int)most;
}

enum dpt_status dpt_page_pictures(struct dpt_page *r, struct dpt_page_predictions *v,
                                  struct dpt_trainer *t, const struct dpt_split *split,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_sampler each =
        split->sampler; /* one sample per step, so that a position is a step */
    struct dpt_loader *loader = NULL;
    struct dpt_step_view view;
    struct dpt_batch batch = {0};

    if (split->set->shape.flat || split->set->shape.w < 2 || split->set->shape.h < 2)
        return DPT_OK;
    choose_size(r, v, &split->set->shape);
    if (v->width == 0 || v->n_wrong == 0)
        return DPT_OK;
    each.global = each.micro = 1;
    DPT_TRY(dpt_loader_open(&loader, &split->form, &each, 0, 1, err));
    for (int i = 0; i < v->n_wrong; i++) {
        struct dpt_page_wrong *wrong = &v->wrong[i];

        wrong->pixels = dpt_region_alloc(&r->region, (size_t)v->width * (size_t)v->height *
                                                         (size_t)v->channels);
        if (wrong->pixels == NULL)
            DPT_TRY(dpt_fail_memory(err, "the images", 0));
        DPT_TRY(dpt_loader_seek(loader, 0, wrong->position, err));
        DPT_TRY(dpt_loader_next(loader, &view, err));
        DPT_TRY(dpt_loader_fill(loader, &view, 0, &t->team.workers[0].buffer, &batch, err));
        draw(v, t, split->set, batch.input, wrong->pixels);
    }
out:
    dpt_loader_close(loader);
    return status;
}
