#include "data/sets/augment.h"

#include <math.h>
#include <string.h>

#include "core/base/memory.h"
#include "core/base/rng.h"
#include "data/pictures/transform.h"
#include "data/sets/parts.h"

/* What a sample must be for a transform. */
enum takes {
    TAKES_ANY,      /* rows of numbers too */
    TAKES_CHANNELS, /* images and signals */
    TAKES_PICTURES, /* higher and wider than one pixel */
    TAKES_COLOURS,  /* and of three channels */
    TAKES_BYTES,    /* and stored as bytes, so that the white level is known */
};

/* A sample on its way. */
struct run {
    const struct dpt_augment *augment;
    const struct dpt_dataset *set;
    const struct dpt_augment_key *key;
    /* The shape that the first of the moves takes; later ones take the set's. */
    const struct dpt_shape *from;
    float *scratch; /* of the transform alone */
    /* What resized_crop takes instead of floats, where it is not NULL; and its scratch. */
    const struct dpt_picture *picture;
    float *lines;
};

/* One of `move` and `change` is given. */
struct transform {
    const char *options; /* of data.augment, for messages */
    enum takes takes;
    bool light; /* values are light from 0, not normalised */
    /* Makes the sample, [c][h][w], in other memory; or in place. */
    void (*move)(const struct run *r, const float *from, float *to);
    void (*change)(const struct run *r, float *image);
    /* Floats of scratch; NULL: none. */
    size_t (*scratch)(const struct dpt_dataset *set);
};

/* --- what the job wants ----------------------------------------------------------------------- */

#define WANTED(name, condition)                                                                    \
    static bool name##_wanted(const struct dpt_augment *a)                                         \
    {                                                                                              \
        return condition;                                                                          \
    }

WANTED(resized_crop, a->crop_area.n > 0)
WANTED(move, a->crop_padding > 0 || a->flip)
WANTED(vertical_flip, a->vertical_flip)
WANTED(affine, a->rotate > 0 || a->shift > 0 || a->shear > 0 ||
                   (a->scale.n == 2 && (a->scale.at[0] != 1 || a->scale.at[1] != 1)))
WANTED(brightness, a->brightness > 0)
WANTED(contrast, a->contrast > 0)
WANTED(saturation, a->saturation > 0)
WANTED(hue, a->hue > 0)
WANTED(erase, a->erase > 0)
WANTED(noise, a->noise > 0)
#undef WANTED

/* --- random numbers --------------------------------------------------------------------------- */

void dpt_augment_words(const struct dpt_augment_key *key, int transform, uint32_t number,
                       uint32_t word[4])
{
    dpt_random4(key->seed, DPT_RANDOM_TRANSFORM, (uint64_t)key->epoch << 8 | (uint64_t)transform,
                (uint64_t)key->sample << 24 | number, word);
}

double dpt_augment_between(uint32_t word, double least, double most)
{
    return least + (most - least) * ((word + 0.5) / 4294967296.0);
}

#define X(NAME, name, key) KEY_##NAME = (key),
enum keys { DPT_TRANSFORM_LIST(X) };
#undef X

/* 0 … n - 1 of a random word; n is tiny, so the bias of 2^-32 n is of no account. */
static int32_t below(uint32_t word, int64_t n)
{
    return (int32_t)(((uint64_t)word * (uint64_t)n) >> 32);
}

/*
 * A part of random area and ratio (one side by the other) anywhere in the image, as torchvision
 * and Zhong et al. 2017 (algorithm 1) try for it: ten times, then false. tall: the ratio is that of
 * the height by the width. A whole side is too long where `less`.
 */
static bool draw_box(const struct run *r, int key, const struct dpt_reals *area,
                     const struct dpt_reals *ratio, bool tall, bool less, const struct dpt_shape *s,
                     struct dpt_box *box)
{
    uint32_t word[4];

    for (uint32_t attempt = 0; attempt < 10; attempt++) {
        double pixels, sides, wide, high;

        dpt_augment_words(r->key, key, attempt, word);
        pixels = dpt_augment_between(word[0], area->at[0], area->at[1]) * s->h * s->w;
        sides = exp(dpt_augment_between(word[1], log(ratio->at[0]), log(ratio->at[1])));
        wide = rint(sqrt(tall ? pixels / sides : pixels * sides));
        high = rint(sqrt(tall ? pixels * sides : pixels / sides));
        if (wide < 1 || high < 1 || wide > s->w - less || high > s->h - less)
            continue;
        box->width = (int32_t)wide;
        box->height = (int32_t)high;
        box->top = below(word[2], s->h - box->height + 1);
        box->left = below(word[3], s->w - box->width + 1);
        return true;
    }
    return false;
}

/* --- where pixels go -------------------------------------------------------------------------- */

/* Szegedy et al. 2015, section 6, as torchvision does it: where no part fits, the largest in the
 * middle whose ratio is allowed. */
static void resized_crop_move(const struct run *r, const float *from, float *to)
{
    const struct dpt_shape *s = r->from, *made = &r->set->shape;
    const double *ratio = r->augment->crop_ratio.at, sides = (double)s->w / s->h;
    struct dpt_box box;

    if (!draw_box(r, KEY_RESIZED_CROP, &r->augment->crop_area, &r->augment->crop_ratio, false,
                  false, s, &box)) {
        const double high = sides < ratio[0] ? rint(s->w / ratio[0]) : s->h;
        const double wide = sides > ratio[1] ? rint(s->h * ratio[1]) : s->w;

        box = dpt_box_middle(s, high > 1 ? (int32_t)high : 1, wide > 1 ? (int32_t)wide : 1);
    }
    if (r->picture != NULL)
        dpt_picture_resize_bytes(r->picture, box, r->set->parts->scale, r->set->parts->shift, to,
                                 made, r->lines);
    else
        dpt_picture_resize(from, s, box, to, made->h, made->w, r->scratch);
}

static size_t resized_crop_scratch(const struct dpt_dataset *set)
{
    return dpt_picture_resize_scratch(set->stored.w, set->shape.w);
}

/* Where the window begins in an image that is so much higher and wider than it. */
static struct dpt_steps_move draw_move(const struct dpt_augment *augment,
                                       const struct dpt_augment_key *key, int32_t higher,
                                       int32_t wider)
{
    const int32_t padding = (int32_t)augment->crop_padding;
    uint32_t word[4];

    dpt_random4(key->seed, DPT_RANDOM_AUGMENT, (uint64_t)key->epoch, (uint64_t)key->sample, word);
    return (struct dpt_steps_move){
        .top = (int16_t)(below(word[0], 2 * (int64_t)padding + higher + 1) - padding),
        .left = (int16_t)(below(word[1], 2 * (int64_t)padding + wider + 1) - padding),
        .flip = augment->flip && (word[2] & 1) != 0};
}

struct dpt_steps_move dpt_augment_draw(const struct dpt_augment *augment, uint64_t seed,
                                       int64_t epoch, int64_t sample)
{
    return draw_move(augment, &(struct dpt_augment_key){seed, epoch, sample}, 0, 0);
}

/* out[x] = row[x + by], mirrored where flipped; `outside` where there is no such pixel. n: of the
 * row; width: of out. */
static void shift_row(const float *row, int32_t n, int32_t width, int32_t by, bool flip,
                      float outside, float *out)
{
    const int32_t begin = by < 0 ? -by : 0, end = n - by < width ? n - by : width;

    for (int32_t x = 0; x < begin; x++)
        out[flip ? width - 1 - x : x] = outside;
    for (int32_t x = end; x < width; x++)
        out[flip ? width - 1 - x : x] = outside;
    if (!flip)
        memcpy(out + begin, row + begin + by, (size_t)(end - begin) * sizeof *out);
    else
        for (int32_t x = begin; x < end; x++)
            out[width - 1 - x] = row[x + by];
}

static void move_move(const struct run *r, const float *from, float *to)
{
    const struct dpt_shape *shape = &r->set->shape, *old_shape = r->from;
    const int32_t height = shape->h, width = shape->w;
    const struct dpt_steps_move move =
        draw_move(r->augment, r->key, old_shape->h - height, old_shape->w - width);

    for (int32_t c = 0; c < shape->c; c++) {
        const float *plane = from + (size_t)c * (size_t)old_shape->h * (size_t)old_shape->w;
        const float outside = r->set->parts->shift[c];

        for (int32_t y = 0; y < height; y++, to += width) {
            const int32_t old = y + move.top;

            if (old >= 0 && old < old_shape->h)
                shift_row(plane + (size_t)old * (size_t)old_shape->w, old_shape->w, width,
                          move.left, move.flip != 0, outside, to);
            else
                for (int32_t x = 0; x < width; x++)
                    to[x] = outside;
        }
    }
}

static void vertical_flip_move(const struct run *r, const float *from, float *to)
{
    const struct dpt_shape *s = &r->set->shape;
    uint32_t word[4];

    dpt_augment_words(r->key, KEY_VERTICAL_FLIP, 0, word);
    if ((word[0] & 1) != 0)
        dpt_picture_upside_down(from, s, to);
    else
        memcpy(to, from, (size_t)dpt_shape_size(s) * sizeof *to);
}

static void affine_move(const struct run *r, const float *from, float *to)
{
    const struct dpt_shape *s = &r->set->shape;
    const struct dpt_augment *a = r->augment;
    uint32_t word[4], more[4];
    struct dpt_affine affine;

    dpt_augment_words(r->key, KEY_AFFINE, 0, word);
    dpt_augment_words(r->key, KEY_AFFINE, 1, more);
    affine = dpt_affine_of(dpt_augment_between(word[0], -a->rotate, a->rotate),
                           rint(dpt_augment_between(word[1], -a->shift, a->shift) * s->w),
                           rint(dpt_augment_between(word[2], -a->shift, a->shift) * s->h),
                           dpt_augment_between(word[3], a->scale.at[0], a->scale.at[1]),
                           dpt_augment_between(more[0], -a->shear, a->shear));
    dpt_picture_affine(from, s, &affine, r->set->parts->shift, to, r->scratch);
}

static size_t affine_scratch(const struct dpt_dataset *set)
{
    return dpt_picture_affine_scratch(&set->shape);
}

/* --- light and colour ------------------------------------------------------------------------- */

/* A factor about 1, not below 0. */
static float draw_factor(const struct run *r, int key, double by)
{
    uint32_t word[4];

    dpt_augment_words(r->key, key, 0, word);
    return (float)dpt_augment_between(word[0], by < 1 ? 1 - by : 0, 1 + by);
}

#define FACTOR(NAME, name)                                                                         \
    static void name##_change(const struct run *r, float *image)                                   \
    {                                                                                              \
        dpt_picture_##name(image, &r->set->shape, draw_factor(r, KEY_##NAME, r->augment->name),    \
                           r->set->u8 ? 1 : INFINITY);                                             \
    }

FACTOR(BRIGHTNESS, brightness)
FACTOR(CONTRAST, contrast)
FACTOR(SATURATION, saturation)
#undef FACTOR

static void hue_change(const struct run *r, float *image)
{
    uint32_t word[4];

    dpt_augment_words(r->key, KEY_HUE, 0, word);
    dpt_picture_hue(image, &r->set->shape,
                    (float)dpt_augment_between(word[0], -r->augment->hue, r->augment->hue));
}

/* --- after the normalisation ----------------------------------------------------------------- */

static void erase_change(const struct run *r, float *image)
{
    const struct dpt_augment *a = r->augment;
    enum { OFTEN = 255 }; /* after the numbers of the rectangle */
    struct dpt_box box;
    uint32_t word[4];

    dpt_augment_words(r->key, KEY_ERASE, OFTEN, word);
    if (dpt_augment_between(word[0], 0, 1) < a->erase &&
        draw_box(r, KEY_ERASE, &a->erase_area, &a->erase_ratio, true, true, &r->set->shape, &box))
        dpt_picture_erase(image, &r->set->shape, box, 0);
}

static void noise_change(const struct run *r, float *image)
{
    const size_t n = (size_t)dpt_shape_size(&r->set->shape);
    const float deviation = (float)r->augment->noise;
    float noise[DPT_NORMAL_BLOCK];

    for (size_t i = 0; i < n; i += DPT_NORMAL_BLOCK) {
        const size_t some = n - i < DPT_NORMAL_BLOCK ? n - i : DPT_NORMAL_BLOCK;

        /* Four numbers are one draw of dpt_augment_words. */
        dpt_random_normal_block(r->key->seed, DPT_RANDOM_TRANSFORM,
                                (uint64_t)r->key->epoch << 8 | KEY_NOISE,
                                ((uint64_t)r->key->sample << 24) + i / 4, noise);
        for (size_t k = 0; k < some; k++)
            image[i + k] += deviation * noise[k];
    }
}

/* --- the table -------------------------------------------------------------------------------- */

static const struct transform
    resized_crop = {.options = "crop_area",
                    .takes = TAKES_PICTURES,
                    .move = resized_crop_move,
                    .scratch = resized_crop_scratch},
    move = {.options = "crop_padding and flip", .takes = TAKES_CHANNELS, .move = move_move},
    vertical_flip = {.options = "vertical_flip",
                     .takes = TAKES_PICTURES,
                     .move = vertical_flip_move},
    affine = {.options = "rotate, shift, scale and shear",
              .takes = TAKES_PICTURES,
              .move = affine_move,
              .scratch = affine_scratch},
    brightness = {.options = "brightness",
                  .takes = TAKES_CHANNELS,
                  .light = true,
                  .change = brightness_change},
    contrast = {.options = "contrast",
                .takes = TAKES_CHANNELS,
                .light = true,
                .change = contrast_change},
    saturation = {.options = "saturation",
                  .takes = TAKES_COLOURS,
                  .light = true,
                  .change = saturation_change},
    hue = {.options = "hue", .takes = TAKES_BYTES, .light = true, .change = hue_change},
    erase = {.options = "erase", .takes = TAKES_PICTURES, .change = erase_change},
    noise = {.options = "noise", .takes = TAKES_ANY, .change = noise_change};

static const struct {
    const struct transform *type;
    bool (*wanted)(const struct dpt_augment *augment);
} transforms[] = {
#define X(NAME, name, key) {&name, name##_wanted},
    DPT_TRANSFORM_LIST(X)
#undef X
};
enum { TRANSFORMS = sizeof transforms / sizeof *transforms };

bool dpt_augment_mixes(const struct dpt_augment *augment)
{
    return augment->mixup > 0 || augment->cutmix > 0;
}

bool dpt_augment_wanted(const struct dpt_augment *augment)
{
    for (int i = 0; i < TRANSFORMS; i++)
        if (transforms[i].wanted(augment))
            return true;
    return dpt_augment_mixes(augment);
}

bool dpt_augment_only_moves(const struct dpt_augment *augment)
{
    for (int i = 0; i < TRANSFORMS; i++)
        if (transforms[i].type != &move && transforms[i].wanted(augment))
            return false;
    return !dpt_augment_mixes(augment);
}

/* Whether the samples are what a transform takes, and in words what that is. */
static bool fits(enum takes takes, const struct dpt_dataset *set, const char **what)
{
    const struct dpt_shape *s = &set->shape;

    *what = "images [channels, height, width]";
    if (takes >= TAKES_CHANNELS && s->flat)
        return false;
    *what = "images higher and wider than one pixel";
    if (takes >= TAKES_PICTURES && (s->h < 2 || s->w < 2))
        return false;
    *what = "images of three channels: red, green and blue";
    if (takes >= TAKES_COLOURS && s->c != 3)
        return false;
    *what = "images of bytes, whose white level is known";
    return takes < TAKES_BYTES || set->u8;
}

static enum dpt_status check_takes(enum takes takes, const char *options,
                                   const struct dpt_dataset *set, struct dpt_error *err)
{
    const char *what;
    char text[40];

    if (fits(takes, set, &what))
        return DPT_OK;
    if (set->shape.flat)
        return dpt_fail(err, DPT_BAD_JOB,
                        "data.augment: %s: only for %s; the samples of %s are rows of %d numbers",
                        options, what, set->parts->key, set->shape.c);
    return dpt_fail(err, DPT_BAD_JOB, "data.augment: %s: only for %s; the images of %s are %s %s",
                    options, what, set->parts->key, dpt_shape_text(&set->shape, text),
                    set->u8 ? "bytes" : "numbers");
}

enum dpt_status dpt_augment_check(const struct dpt_augment *augment, const struct dpt_dataset *set,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_shape *shape = &set->shape;
    char text[40];

    for (int i = 0; i < TRANSFORMS; i++)
        if (transforms[i].wanted(augment))
            DPT_TRY(check_takes(transforms[i].type->takes, transforms[i].type->options, set, err));
    if (augment->cutmix > 0)
        DPT_TRY(check_takes(TAKES_PICTURES, "cutmix", set, err));
    if (augment->crop_padding > 0 &&
        (augment->crop_padding >= shape->h || augment->crop_padding >= shape->w))
        status = dpt_fail(err, DPT_BAD_JOB,
                          "data.augment.crop_padding is %lld, the images of %s are %s: it must be "
                          "smaller than they are high and wide",
                          (long long)augment->crop_padding, set->parts->key,
                          dpt_shape_text(shape, text));
out:
    return status;
}

/* --- a sample --------------------------------------------------------------------------------- */

/* What the first of the moves takes: where it cuts out a part by itself, more than the middle that
 * data.crop leaves. */
static const struct dpt_shape *first_shape(const struct dpt_augment *augment,
                                           const struct dpt_dataset *set)
{
    if (!set->views)
        return &set->shape;
    return resized_crop_wanted(augment) ? &set->stored
           : augment->crop_padding > 0  ? &set->parts->resized
                                        : &set->shape;
}

/* Floats of an image before that move. */
static size_t first_size(const struct dpt_augment *augment, const struct dpt_dataset *set)
{
    const struct dpt_shape *first = first_shape(augment, set);

    return first != &set->shape ? (size_t)dpt_shape_size(first) : 0;
}

size_t dpt_augment_scratch(const struct dpt_augment *augment, const struct dpt_dataset *set)
{
    size_t most = dpt_fill_scratch(set);

    for (int i = 0; i < TRANSFORMS; i++) {
        const struct transform *type = transforms[i].type;
        const size_t floats =
            type->scratch != NULL && transforms[i].wanted(augment) ? type->scratch(set) : 0;

        most = floats > most ? floats : most;
    }
    return (size_t)dpt_shape_size(&set->shape) + first_size(augment, set) + most;
}

/* The way from normalised numbers to light, and back. */
static void normalise(const struct dpt_dataset *set, float *image, bool light)
{
    const size_t n = (size_t)set->shape.h * (size_t)set->shape.w;

    for (int32_t c = 0; c < set->shape.c; c++, image += n) {
        const float scale = set->parts->scale[c] * (set->u8 ? 255.0F : 1.0F);
        const float shift = set->parts->shift[c], inverse = 1 / scale;

        if (light)
            for (size_t i = 0; i < n; i++)
                image[i] = (image[i] - shift) * inverse;
        else
            for (size_t i = 0; i < n; i++)
                image[i] = image[i] * scale + shift;
    }
}

/* Makes a sample of `stored`, or of the run's image. */
static void make_sample(struct run *r, const uint8_t *stored, float *out, float *scratch)
{
    const struct dpt_augment *augment = r->augment;
    const struct dpt_dataset *set = r->set;
    float *image = out, *other = scratch, *first = scratch + dpt_shape_size(&set->shape);
    bool light = false, begun = r->from == &set->shape;

    r->scratch = first + first_size(augment, set);
    /* Each move goes to the other memory, the first from `first` where that is another shape; the
     * last one is to end in `out`. */
    for (int i = 0, moves = 0; i < TRANSFORMS; i++)
        if (transforms[i].type->move != NULL && transforms[i].wanted(augment) &&
            (begun || moves++ > 0)) {
            float *const swapped = image;

            image = other;
            other = swapped;
        }
    if (begun)
        dpt_fill_sample(set, stored, image, r->scratch);
    else if (r->from == &set->stored)
        dpt_fill_stored(set, stored, first);
    else if (r->picture == NULL)
        dpt_fill_resized(set, stored, first, r->scratch);
    for (int i = 0; i < TRANSFORMS; i++) {
        const struct transform *type = transforms[i].type;

        if (!transforms[i].wanted(augment))
            continue;
        if (light != type->light) {
            light = type->light;
            normalise(set, image, light);
        }
        if (type->change != NULL) {
            type->change(r, image);
        } else if (!begun) {
            type->move(r, first, image);
            begun = true;
            r->from = &set->shape;
        } else {
            type->move(r, image, other);
            other = image;
            image = image == out ? scratch : out;
        }
    }
    if (light)
        normalise(set, image, false);
}

void dpt_augment_sample(const struct dpt_augment *augment, const struct dpt_dataset *set,
                        const struct dpt_augment_key *key, const uint8_t *stored, float *out,
                        float *scratch)
{
    struct run r = {.augment = augment, .set = set, .key = key, .from = first_shape(augment, set)};

    make_sample(&r, stored, out, scratch);
}

bool dpt_augment_takes_pictures(const struct dpt_augment *augment, const struct dpt_dataset *set)
{
    return set->files && resized_crop_wanted(augment);
}

enum dpt_status dpt_augment_picture(const struct dpt_augment *augment,
                                    const struct dpt_dataset *set,
                                    const struct dpt_augment_key *key,
                                    const struct dpt_picture *picture, float *out, float *scratch,
                                    struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_shape shape = {set->shape.c, picture->height, picture->width, false};
    struct run r = {augment, set, key, .from = &shape, .picture = picture};

    DPT_TRY(DPT_ALLOCATE(r.lines, dpt_picture_resize_bytes_scratch(picture->width, set->shape.w),
                         "a part of an image", err));
    make_sample(&r, NULL, out, scratch);
out:
    dpt_free(r.lines);
    return status;
}
