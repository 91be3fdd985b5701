#include "cmd/init/job.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    COMMENT = 38, /* column of comments after lines */
    WIDTH = 80,
    IMAGE_SIDE = 4,    /* smaller images are no matter for convolutions */
    SIGNAL_SIDES = 4,  /* numbers so many times as long as their channels are signals */
    SHIFTED_SIDE = 24, /* smaller ones are not shifted */
    MOST_BLOCKS = 5,
    WIDE = 8192,         /* a longer vector is averaged over the image before dense layers */
    FEW_CHANNELS = 16,   /* a mean each */
    FEW_FEATURES = 2048, /* likewise */
    FEWEST = 400,        /* rows of a table: one hidden layer */
    FEW = 600,           /* rows of a table: all are trained on */
    FEW_IMAGES = 1000,   /* images or signals: likewise */
    LITTLE_ROWS = 1500,  /* more decay */
    MANY_ROWS = 15000,   /* an epoch of these is as long as several of fewer */
    SKEWED = 1,          /* a coefficient of skewness */
    STEPS = 2500,        /* that a first run on images or signals is to have, about */
    FEW_STEPS = 1200,    /* on few samples */
};

/* What is chosen by the data. */
struct choice {
    bool image, classes, labels; /* labels: multi-label, each 0 or 1 */
    bool signal;                 /* channels x 1 x length, or 1 x channels x length */
    bool table;                  /* rows of numbers */
    bool validates;              /* samples are held out, or given */
    bool few_amounts;            /* regression targets, with so few rows that smooth is best */
    int64_t samples, batch, epochs;
    int64_t side; /* the shorter one of an image */
    double valid; /* fraction held out; 0: none */
    int blocks;
};

/* Writes a line, with a comment from a column on. */
static void line(struct dpt_str *out, const char *comment, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void line(struct dpt_str *out, const char *comment, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (comment == NULL)
        dpt_str_printf(out, "%s\n", text);
    else if (strlen(text) >= COMMENT || COMMENT + 2 + strlen(comment) > WIDTH)
        dpt_str_printf(out, "%*s# %s\n%s\n", (int)strspn(text, " "), "", comment, text);
    else
        dpt_str_printf(out, "%-*s# %s\n", COMMENT, text, comment);
}

/* Writes a line whose comment names the values that its key takes, from the tables: those that 80
 * columns hold. */
static void choices(const struct dpt_init_job *init, struct dpt_str *out, const char *key,
                    const char *text)
{
    static const char separator[] = " | ", more[] = " | ...";
    const size_t most = 80 - COMMENT - strlen("# ");
    struct dpt_str comment = {0};

    for (size_t i = 0; i < init->keys->n; i++) {
        const struct dpt_word_key *found = &init->keys->at[i];
        const char *at = strcmp(found->path, key) == 0 ? found->values : "";

        for (size_t n; *at != '\0'; at += n + (at[n] != '\0')) {
            n = strcspn(at, " ");
            if (comment.length + strlen(separator) + n +
                    (at[n + strspn(at + n, " ")] != '\0' ? strlen(more) : 0) >
                most) {
                dpt_str_printf(&comment, more);
                break;
            }
            dpt_str_printf(&comment, "%s%.*s", comment.length > 0 ? separator : "", (int)n, at);
        }
    }
    line(out, comment.text, "%s", text);
    dpt_str_release(&comment);
}

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* [N, C, 1, L], or [N, C, L], which is read as images of one channel: of bytes these may be wide
 * images, of other numbers hardly. */
static bool is_signal(const struct dpt_shard_statistics *s)
{
    const struct dpt_shape *shape = &s->shape;

    return !shape->flat && shape->w >= IMAGE_SIDE &&
           (shape->h == 1 || (shape->c == 1 && !s->u8 && shape->w >= SIGNAL_SIDES * shape->h));
}

/* The share of the samples by which the best checkpoint is chosen. If there are few, choosing by
 * some dozen costs more than it brings: with all of them and the last checkpoint ten tables of 178
 * to 569 rows and six sets of 200 to 500 images are better by 0.01 and 0.03 of accuracy or R2; 600
 * and 800 images of MNIST have 0.970 and 0.975 where a fifth held out has 0.961 and 0.966, 700
 * letters 0.993 and 0.990, 600 digits of 8 x 8 0.980 and 0.975. */
static double hold_out(const struct choice *c)
{
    if (c->samples < (c->table ? FEW : FEW_IMAGES))
        return 0;
    if (c->samples >= 20000)
        return 0.05;
    return c->table || c->samples >= 2000 ? 0.1 : 0.15;
}

static struct choice choose(const struct dpt_init_job *init)
{
    const struct dpt_shard_statistics *s = init->statistics;
    struct choice c = {.samples = 4096, .image = true, .classes = true};
    int64_t side = 28, trained;

    if (s != NULL) {
        side = s->shape.h < s->shape.w ? s->shape.h : s->shape.w;
        c.samples = s->samples;
        c.classes = s->classes > 0 || s->probabilities;
        c.labels = s->binary && !s->probabilities;
        c.signal = is_signal(s);
        c.image = !s->shape.flat && side >= IMAGE_SIDE && !c.signal;
        side = c.signal ? s->shape.w : side;
    }
    for (c.blocks = 1; c.blocks < MOST_BLOCKS && side >> (c.blocks + 1) >= IMAGE_SIDE;)
        c.blocks++;
    c.table = s != NULL && !c.image && !c.signal;
    c.few_amounts = c.table && !c.classes && !c.labels && c.samples < FEWEST;
    if (init->valid.length == 0 && s != NULL)
        c.valid = hold_out(&c);
    c.validates = c.valid > 0 || init->valid.length > 0;
    trained = (int64_t)((double)c.samples * (1 - c.valid));
    c.side = side;
    c.batch = 16;
    while (c.batch < 128 && c.batch * 100 < trained)
        c.batch *= 2;
    if (c.batch > trained / 2) /* of a handful of samples */
        c.batch = trained > 1 ? trained / 2 : 1;
    if (s == NULL)
        c.epochs = 5;
    else if (!c.validates)
        c.epochs = clamp(FEW_STEPS * c.batch / (trained + 1), c.table ? 60 : 40, 150);
    else if (c.table)
        c.epochs = c.samples >= MANY_ROWS ? 100 : 300;
    else
        c.epochs = clamp(STEPS * c.batch / (trained + 1) + 1, 3, 100);
    return c;
}

/* --- data ------------------------------------------------------------------------------------- */

/* Writes numbers whose errors are a millionth of `std` at most, also where they are far from 0. */
static void write_numbers(struct dpt_str *out, const char *key, const double *values,
                          const double *std, size_t n)
{
    struct dpt_str list = {0};
    const size_t before = out->length;

    for (size_t i = 0; i < n; i++) {
        const double ratio = fabs(values[i]) / std[i];
        const int digits = 7 + (int)ceil(log10(fmin(fmax(ratio, 1), 1e8)));

        dpt_str_printf(&list, "%s%.*g%s", i == 0 ? "[" : " ", digits, values[i],
                       i + 1 < n ? "," : "]");
    }
    dpt_str_printf(out, "    %s:", key);
    dpt_str_wrap(out, list.text != NULL ? list.text : "", 6, out->length - before, WIDTH);
    out->failed = out->failed || list.failed;
    dpt_str_release(&list);
}

static void write_normalize(const struct dpt_shard_statistics *s, struct dpt_str *out)
{
    const size_t channels = (size_t)s->shape.c;
    const bool each =
        channels <= FEW_CHANNELS || (s->shape.flat && !s->u8 && channels <= FEW_FEATURES);
    double mean = 0, squares = 0, std;
    char digits[32];

    for (size_t c = 0; c < channels; c++)
        mean += s->mean[c] / (double)channels;
    for (size_t c = 0; c < channels; c++)
        squares +=
            (s->std[c] * s->std[c] + (s->mean[c] - mean) * (s->mean[c] - mean)) / (double)channels;
    std = sqrt(squares); /* as none of theirs is 0 */
    dpt_str_printf(out, "  # (x - mean) / std%s; from %s of the samples\n",
                   s->u8 ? ", after bytes were divided by 255" : "",
                   dpt_group_digits(digits, s->scanned));
    if (each && s->zeros_and_ones > 0)
        dpt_str_printf(out, "  # (%s column%s of 0 and 1 stay%s as %s)\n",
                       dpt_group_digits(digits, s->zeros_and_ones),
                       s->zeros_and_ones == 1 ? "" : "s", s->zeros_and_ones == 1 ? "s" : "",
                       s->zeros_and_ones == 1 ? "it is" : "they are");
    dpt_str_printf(out, "  normalize:\n");
    write_numbers(out, "mean", each ? s->mean : &mean, each ? s->std : &std, each ? channels : 1);
    write_numbers(out, "std", each ? s->std : &std, each ? s->std : &std, each ? channels : 1);
}

/* The names of the data sets, in quotes: they may be any. */
static void write_keys(const struct dpt_data_keys *keys, struct dpt_str *out)
{
    dpt_str_printf(out, "  keys: {x: ");
    dpt_str_json(out, keys->x);
    if (keys->y != NULL) {
        dpt_str_printf(out, ", y: ");
        dpt_str_json(out, keys->y);
    }
    dpt_str_printf(out, "}\n");
}

/* Amounts that span orders of magnitude are told apart by their logarithm: those of numbers below 1
 * are no longer told apart by that of 1 more. */
static void write_targets(const struct dpt_init_job *init, struct dpt_str *out)
{
    const struct dpt_target_sums *t = &init->statistics->targets;
    const char *transform = t->least > 0 && t->least < 1 ? "log" : "log1p";

    if (init->log_target) {
        line(out, "trained so; reported in their units",
             "  targets: {normalize: auto, transform: %s}", transform);
        return;
    }
    line(out, "trained so; reported in their units", "  targets: {normalize: auto}");
    if (t->least >= 0 && dpt_target_skew(t) > SKEWED)
        line(out, NULL, "  # Few are large: {normalize: auto, transform: %s} may fit them better.",
             transform);
}

static void write_data(const struct dpt_init_job *init, const struct choice *c, struct dpt_str *out)
{
    const struct dpt_shard_statistics *s = init->statistics;

    line(out, NULL, "data:");
    if (s == NULL) {
        line(out, "or shards: data/train-*.h5, or a list", "  train: synthetic");
        line(out, "never used while training", "  test: synthetic");
        line(out, NULL, "  synthetic: {samples: 4096, shape: [1, 28, 28], classes: 10}");
        line(out, NULL, "  normalize: {mean: [0.5], std: [0.25]}");
    } else {
        line(out, "a file, a glob, or a list of them", "  train: %s", init->train.text);
        if (init->valid.length > 0)
            line(out, "evaluated while it trains", "  valid: %s", init->valid.text);
        else if (c->valid > 0)
            line(out, "held out of train, for early_stop", "  valid: %g", c->valid);
        else
            line(out, "would be held out; few: all are trained on", "  # valid: 0.2");
        if (init->test.length > 0)
            line(out, c->validates ? "never used while training" : "only reported", "  test: %s",
                 init->test.text);
        else
            line(out, "if there is one", "  # test: data/test-*.h5");
        if (init->data_keys.x != NULL)
            write_keys(&init->data_keys, out);
        if (s->nhwc)
            line(out, "channels are last; nchw: first", "  layout: nhwc");
        write_normalize(s, out);
        if (!c->classes && !c->labels)
            write_targets(init, out);
    }
    if (c->image) {
        /* In regression a shift may change the targets; small images lose by it. */
        line(out, NULL,
             "  # More images than there are: random shifts by so many pixels; `flip: true`");
        line(out, NULL, "  # mirrors, if left and right do not matter.");
        line(out, NULL, "  %saugment: {crop_padding: %lld, flip: false}",
             s != NULL && (c->classes || c->labels) && c->side >= SHIFTED_SIDE ? "" : "# ",
             (long long)clamp(c->side / 12, 1, 4));
    }
    choices(init, out, "data.shuffle", "  shuffle: full");
    choices(init, out, "data.cache", "  cache: auto");
}

/* --- the model -------------------------------------------------------------------------------- */

/* Writes the layers after the convolutions, whose output has so many channels of so many numbers.
 *
 * Layers for images are initialised as PyTorch's. Accuracies of the test over five splits and
 * seeds, with what is written here, for he, lecun, xavier, pytorch: 360 drawn images of 48 x 48
 * in 4 classes 0.78, 0.85, 0.88, 0.91; 600 of MNIST 0.965, 0.963, 0.952, 0.953; 1 797 digits of 8 x
 * 8 all 0.987; all of MNIST (three seeds) 0.992 with he and pytorch. On five tables they are alike
 * within two standard errors, but for an R2 of 0.991 with he and 0.993 with pytorch. */
static void write_head(const struct choice *c, int64_t channels, int64_t numbers,
                       struct dpt_str *out)
{
    const bool torch = c->image;

    if (channels * numbers > WIDE) {
        line(out, "a number per channel", "    - global_avgpool");
    } else {
        line(out, "one vector", "    - flatten");
        line(out, "more if valid is worse than train", "    - dropout: 0.25");
        line(out, NULL, torch ? "    - dense: {outputs: 128, init: pytorch}" : "    - dense: 128");
        line(out, NULL, "    - relu");
    }
    line(out,
         c->classes  ? "a number per class"
         : c->labels ? "a number per label"
                     : "a number per target",
         torch ? "    - dense: {init: pytorch}" : "    - dense");
}

/* Writes blocks of a convolution, an activation and a pooling, then the layers after them. */
static void write_convolutions(const struct dpt_init_job *init, const struct choice *c,
                               struct dpt_str *out)
{
    const struct dpt_shard_statistics *s = init->statistics;
    const int64_t h = s == NULL ? 28 : s->shape.h, w = s == NULL ? 28 : s->shape.w;
    int64_t channels = c->image && c->blocks >= 4 ? 16 : 32;

    line(out, c->image ? "or linear | mlp | cnn: short forms" : "a list of layers; or linear | mlp",
         "  type: sequential");
    line(out, "`dptrain layers` lists the kinds", "  layers:");
    for (int i = 0; i < c->blocks; i++) {
        if (i > 0)
            channels = clamp(2 * channels, 0, 256);
        if (c->image)
            line(out, i == 0 ? "3x3, the size stays" : NULL,
                 "    - conv: {channels: %lld, kernel: 3, padding: same, init: pytorch}",
                 (long long)channels);
        else if (i == 0 && h > 1)
            line(out, "all channels, 5 of their numbers",
                 "    - conv: {channels: %lld, kernel: [%d, 5], padding: [0, 2]}",
                 (long long)channels, (int)h);
        else
            line(out, i == 0 ? "5 numbers of each channel, the length stays" : NULL,
                 "    - conv1d: {channels: %lld, kernel: 5, padding: same}", (long long)channels);
        /* In so few layers it costs two thirds of the time, and makes nothing better. */
        if (i == 0 && c->image)
            line(out, NULL, "    # A much deeper model needs a `- batchnorm` after each conv.");
        if (i == 0)
            choices(init, out, "model.activation", "    - relu");
        else
            line(out, NULL, "    - relu");
        if (c->image)
            line(out, i == 0 ? "half as high and wide" : NULL, "    - maxpool: 2");
        else
            line(out, i == 0 ? "half as long" : NULL, "    - maxpool: {size: [1, 2]}");
    }
    write_head(c, channels, (c->image ? h >> c->blocks : 1) * (w >> c->blocks), out);
}

static void write_model(const struct dpt_init_job *init, const struct choice *c,
                        struct dpt_str *out)
{
    line(out, NULL, "\nmodel:");
    if (c->image || c->signal) {
        write_convolutions(init, c, out);
        return;
    }
    line(out, "or linear; sequential takes a list of layers", "  type: mlp");
    /* One wide layer overfits very few rows less than two do; two learn more from more rows. */
    line(out, "outputs of the layers before the last",
         c->samples < FEWEST ? "  hidden: [256]" : "  hidden: [256, 128]");
    choices(init, out, "model.activation",
            init->statistics->classes == 2 ? "  activation: silu"
            : c->classes || c->few_amounts ? "  activation: gelu"
                                           : "  activation: relu");
    choices(init, out, "model.init", "  init: pytorch");
    line(out, "more if valid is worse than train",
         c->few_amounts ? "  dropout: 0" : "  dropout: 0.1");
}

/* --- the rest --------------------------------------------------------------------------------- */

/*
 * What tables train with was chosen on 36 of 178 to 58 000 rows, three splits of each, by the mean
 * accuracy or R2. A rate that falls where the loss does (plateau), with many epochs, is better than
 * a cosine over few; an average of the weights (ema) makes the choice of the best checkpoint less a
 * matter of luck; initialisation as PyTorch's, 0.1 of dropout and the decay overfit less.
 *
 * Classes are learned better with smooth activations, and more than two with smoothed labels, as
 * RealMLP has them (Holzmueller, Grinsztajn & Steinwart 2024). Accuracies of five splits with relu
 * and plain labels, and as it is now: digits 0.981, 0.988; DNA 0.949, 0.954; letters 0.970, 0.979;
 * OJ 0.811, 0.825; Pima 0.755, 0.762; attrition 0.885, 0.892; Sonar 0.863, 0.839. Two classes gain
 * nothing from smoothing, and the probabilities of a rare one would be twice as high.
 *
 * Regression works better with relu: an R2 of 0.947 on Bikeshare, with gelu 0.925. With fewer
 * than 400 rows, smoother models are closer to the linear one where that is best: gelu without
 * dropout and twice the decay have 0.849 for Carseats, relu 0.841, ridge regression 0.854; diabetes
 * 0.543, 0.520, 0.537; Credit 0.983, 0.986, 0.952; Auto 0.872, 0.884, 0.814.
 */
static void write_optimizer(const struct dpt_init_job *init, const struct choice *c,
                            struct dpt_str *out)
{
    const bool falls = c->table && c->validates;

    line(out, NULL, "\noptimizer:");
    choices(init, out, "optimizer.type", c->table ? "  type: adamw" : "  type: adam");
    line(out, "the rate; try three times more and less", "  lr: %s",
         falls || c->few_amounts ? "2.0e-3" : "1.0e-3");
    line(out,
         c->table ? "shrinks the weights: more overfits less"
                  : "shrinks the weights; adamw likes 0.01",
         "  weight_decay: %s",
         !c->table                  ? "0"
         : c->few_amounts           ? "1"
         : c->samples < LITTLE_ROWS ? "0.5"
                                    : "0.1");
    line(out, NULL, "\nschedule:");
    choices(init, out, "schedule.type", falls ? "  type: plateau" : "  type: cosine");
    if (falls) {
        line(out, "times so much if the loss on `valid`", "  factor: 0.3");
        line(out, "does not fall in so many evaluations", "  patience: %d",
             c->samples >= MANY_ROWS ? 3 : 6);
    } else {
        line(out, "share in which the rate rises; or steps", "  warmup: 0.05");
    }
}

/* Accuracy may still rise after the loss has stopped falling: few samples are soon certain. */
static void write_length(const struct choice *c, struct dpt_str *out)
{
    const bool either = c->classes && !c->table;

    line(out, NULL, "\ntrain:");
    line(out, c->validates ? "at most; passes over the data" : "passes over the data; or steps: N",
         "  epochs: %lld", (long long)c->epochs);
    if (c->validates) {
        line(out, NULL, "  # Sooner if so many evaluations bring no improvement on `valid`.");
        line(out, NULL, "  early_stop: {patience: %d%s}",
             !c->table                 ? 20
             : c->samples >= MANY_ROWS ? 12
                                       : 25,
             either ? ", monitor: valid.accuracy, also: valid.loss" : "");
    }
    if (c->table)
        line(out, "an average of the weights is used; or null", "  ema: 0.98");
    line(out, "1.0: no step is longer; null: never", "  clip_norm: null");
}

static void write_training(const struct dpt_init_job *init, const struct choice *c,
                           struct dpt_str *out)
{
    dpt_str_printf(out, "\n");
    if (init->statistics != NULL && init->statistics->floats != NULL)
        line(out, NULL,
             "# Labels that are whole numbers are classes; amounts to predict have mse.");
    if (c->table && init->statistics->classes > 2)
        line(out, "smoothed labels: more often right, never quite sure; 0: as they are",
             "loss: {type: cross_entropy, label_smoothing: 0.1}");
    else
        choices(init, out, "loss",
                c->classes  ? "loss: cross_entropy"
                : c->labels ? "loss: binary_cross_entropy"
                            : "loss: mse");
    line(out, NULL, "\nbatch:");
    line(out, "samples per step, over all ranks; or per_rank", "  global: %lld",
         (long long)c->batch);
    line(out, "samples per pass; auto: chosen", "  micro: auto");
    write_optimizer(init, c, out);
    write_length(c, out);
    line(out, NULL, "\neval:");
    line(out, "or 500 steps, never", "  every: 1 epoch");
    line(out, NULL, "\ncheckpoint:");
    line(out, "or 10 min, 500 steps, never", "  every: 1 epoch");
    line(out, "the newest ones; or all", "  keep: 3");
    if (c->validates)
        choices(init, out, "checkpoint.monitor",
                c->classes && !c->table ? "  monitor: valid.accuracy" : "  monitor: valid.loss");
    line(out, NULL, "\nlog:");
    line(out, "a line of loss, accuracy, samples/s; or 50 steps, 10 s", "  every: auto");
    line(out, NULL, "\ncomm:");
    line(out, "reproducible: at any ranks alike", "  reduction: allreduce");
}

/* What the data are, in comments. */
static void write_found(const struct dpt_init_job *init, struct dpt_str *out)
{
    const struct dpt_shard_statistics *s = init->statistics;
    char samples[32], fewest[32], most[32], shape[40];
    int64_t least, greatest;

    if (s == NULL) {
        dpt_str_printf(
            out, "# Made-up images of ten kinds: it trains at once, and shows what a job is.\n");
        return;
    }
    dpt_str_printf(out, "# %s samples of %s %s%s, ", dpt_group_digits(samples, s->samples),
                   dpt_shape_text(&s->shape, shape), s->u8 ? "byte" : "number",
                   dpt_shape_size(&s->shape) == 1 ? "" : "s");
    if (s->classes == 0) {
        dpt_str_printf(out, "%lld %s each%s\n", (long long)s->width,
                       s->probabilities ? "class probabilities"
                       : s->binary      ? "labels"
                       : s->width == 1  ? "target"
                                        : "targets",
                       s->binary && !s->probabilities ? ", 0 or 1" : "");
        return;
    }
    least = greatest = s->counts[0];
    for (int64_t i = 1; i < s->classes; i++) {
        least = s->counts[i] < least ? s->counts[i] : least;
        greatest = s->counts[i] > greatest ? s->counts[i] : greatest;
    }
    if (s->classes == 1)
        dpt_str_printf(out, "1 class of %s sample%s\n", dpt_group_digits(fewest, least),
                       least == 1 ? "" : "s");
    else
        dpt_str_printf(out, "%lld classes of %s to %s samples%s\n", (long long)s->classes,
                       dpt_group_digits(fewest, least), dpt_group_digits(most, greatest),
                       s->counts[0] == 0 ? "; class 0 has none" : "");
}

void dpt_init_job_write(const struct dpt_init_job *init, struct dpt_str *out)
{
    const struct choice c = choose(init);
    const char *path = init->path == NULL ? "JOB.yaml" : init->path;

    dpt_str_printf(out, "# A job for dptrain, written by `dptrain init`.\n#\n");
    write_found(init, out);
    dpt_str_printf(out,
                   "#\n"
                   "# Every key, its bounds and its default: dptrain train --help\n"
                   "# Check this file: dptrain schema --check %s\n"
                   "# Train on all cores: dptrain %s --ranks auto\n\n",
                   path, path);
    line(out, "of the run", "name: %s", init->name);
    line(out, "random seed: the same run again", "seed: 1");
    line(out, "log, metrics and checkpoints", "output: runs/%s", init->name);
    line(out, NULL, "\ndevice:");
    choices(init, out, "device.kind", "  kind: auto");
    line(out, "CPU threads per rank; auto: its cores", "  threads: auto");
    dpt_str_printf(out, "\n");
    write_data(init, &c, out);
    write_model(init, &c, out);
    write_training(init, &c, out);
}
