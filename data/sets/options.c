#include <string.h>

#include "core/backend/backend.h"
#include "data/sets/dataset.h"

#define AT(type, member) .offset = offsetof(struct type, member)

static const struct dpt_option keys_options[] = {
    {.name = "x",
     .type = DPT_OPT_TEXT,
     AT(dpt_data_keys, x),
     .fallback = "null",
     .added = true,
     .help = "name of the samples' data set; null: images or x"},
    {.name = "y",
     .type = DPT_OPT_TEXT,
     AT(dpt_data_keys, y),
     .fallback = "null",
     .added = true,
     .help = "name of the labels' or targets' data set; null: labels or y"},
    {0},
};

static const struct dpt_option normalize_options[] = {
    {.name = "mean",
     .type = DPT_OPT_REALS,
     AT(dpt_normalize, mean),
     .fallback = "[0]",
     .help = "mean to subtract: one number, or one per channel; uint8 is divided by 255 first"},
    {.name = "std",
     .type = DPT_OPT_REALS,
     AT(dpt_normalize, std),
     .fallback = "[1]",
     .min = 1e-37,
     .max = 1e37,
     .help = "divisor of the rest: one number, or one per channel"},
    {0},
};

static const struct dpt_option given_options[] = {
    {.name = "mean",
     .type = DPT_OPT_REALS,
     AT(dpt_normalize, mean),
     .help = "mean to subtract from targets: one number, or one per output"},
    {.name = "std",
     .type = DPT_OPT_REALS,
     AT(dpt_normalize, std),
     .min = 1e-30,
     .max = 1e30,
     .help = "divisor of the rest: one number, or one per output"},
    {0},
};

/* A word, or the numbers. */
static const struct dpt_option target_forms[] = {
    {.name = "scaled",
     .type = DPT_OPT_CHOICE,
     AT(dpt_target_conf, scaled),
     .choices = DPT_CHOICES(DPT_TARGET_SCALES),
     .help = "scaling of targets by the training set's mean and spread"},
    {.name = "given",
     .type = DPT_OPT_SECTION,
     AT(dpt_target_conf, given),
     .rows = given_options,
     .help = "the numbers to scale them by"},
    {0},
};
static const struct dpt_alternatives target_alternatives = {.either = target_forms};

static bool read_targets(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                         void *targets)
{
    struct dpt_target_conf *t = targets;
    const struct dpt_option *form = &target_forms[node->kind == DPT_NODE_MAP];

    if (node->kind == DPT_NODE_MAP)
        t->scaled = DPT_TARGETS_GIVEN;
    return dpt_option_read(conf, node, path, form, (char *)targets + form->offset);
}

static const struct dpt_option target_options[] = {
    {.name = "normalize",
     .type = DPT_OPT_CUSTOM,
     .offset = 0,
     .fallback = "none",
     .added = true,
     .read = read_targets,
     .value_text = "none, auto, or {mean: ..., std: ...}",
     .alternatives = &target_alternatives,
     .help = "train on (target - mean) / std; auto: from the training targets, per output; "
             "results stay in the targets' units"},
    {.name = "transform",
     .type = DPT_OPT_CHOICE,
     AT(dpt_target_conf, transform),
     .fallback = "none",
     .added = true,
     .choices = DPT_CHOICES(DPT_TARGET_TRANSFORMS),
     .help = "train on log(1 + target), or log(target), for amounts over orders of magnitude; "
             "before `normalize`, and undone in results"},
    {0},
};

enum { CLASS_WORD, CLASS_LIST, CLASS_MAP };
static const struct dpt_option class_weight_forms[] = {
    {.name = "how",
     .type = DPT_OPT_CHOICE,
     AT(dpt_class_weight_conf, how),
     .choices = DPT_CHOICES(DPT_CLASS_WEIGHTS),
     .help = "equal total weight of each class"},
    {.name = "list",
     .type = DPT_OPT_REALS,
     AT(dpt_class_weight_conf, list),
     .min = 0,
     .max = 1e30,
     .help = "a weight per class"},
    {.name = "named",
     .type = DPT_OPT_NAMED,
     AT(dpt_class_weight_conf, named),
     .min = 0,
     .max = 1e30,
     .help = "weights by the classes' names or numbers"},
    {0},
};
static const struct dpt_alternatives class_weight_alternatives = {.either = class_weight_forms};

static bool read_class_weights(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                               void *weights)
{
    struct dpt_class_weight_conf *w = weights;
    const bool number = node->kind == DPT_NODE_SCALAR && !node->quoted && node->text[0] != '\0' &&
                        strchr("+-.0123456789", node->text[0]) != NULL;
    const struct dpt_option *form =
        &class_weight_forms[node->kind == DPT_NODE_LIST || number ? CLASS_LIST
                            : node->kind == DPT_NODE_MAP          ? CLASS_MAP
                                                                  : CLASS_WORD];

    w->how = DPT_CLASSES_GIVEN;
    return dpt_option_read(conf, node, path, form, (char *)weights + form->offset);
}

static const struct dpt_option augment_options[] = {
    {.name = "crop_padding",
     .type = DPT_OPT_INT,
     AT(dpt_augment, crop_padding),
     .fallback = "0",
     .min = 0,
     .max = 1 << 12,
     .help = "pad by so many black pixels on each side, cut out a random window of the old size"},
    {.name = "flip",
     .type = DPT_OPT_BOOL,
     AT(dpt_augment, flip),
     .fallback = "false",
     .help = "flip each image left to right with probability 1/2"},
#define SHARE(member, most, text)                                                                  \
    {                                                                                              \
        .name = #member, .type = DPT_OPT_REAL, AT(dpt_augment, member), .fallback = "0", .min = 0, \
        .max = (most), .added = true, .help = (text)                                               \
    }
#define RANGE(member, usual, least, most, text)                                                    \
    {                                                                                              \
        .name = #member, .type = DPT_OPT_REALS, AT(dpt_augment, member), .fallback = (usual),      \
        .min = (least), .max = (most), .range = true, .added = true, .help = (text)                \
    }
    {.name = "vertical_flip",
     .type = DPT_OPT_BOOL,
     AT(dpt_augment, vertical_flip),
     .fallback = "false",
     .added = true,
     .help = "flip each image top to bottom with probability 1/2"},
    RANGE(crop_area, "null", 1e-4, 1,
          "cut out a part of [least, most] of the area, and resize it: [0.08, 1] is usual; "
          "if shards keep the image files, a part of the image in its file"),
    RANGE(crop_ratio, "[0.75, 1.3333333]", 0.01, 100, "with crop_area: its width / height"),
    SHARE(rotate, 180, "turn by up to so many degrees, to both sides"),
    SHARE(shift, 1, "move by up to this share of width and height, in whole pixels"),
    RANGE(scale, "[1, 1]", 0.01, 100, "enlarge by a factor between the two"),
    SHARE(shear, 80, "tilt the vertical edges by up to so many degrees, to both sides"),
    SHARE(brightness, 10, "multiply by 1 - this to 1 + this"),
    SHARE(contrast, 10, "multiply the distance from the mean grey by 1 - this to 1 + this"),
    SHARE(saturation, 10, "multiply the distance from a pixel's grey by 1 - this to 1 + this"),
    SHARE(hue, 0.5, "turn the colour circle by up to so many turns, to both sides"),
    SHARE(erase, 1,
          "set a random rectangle to 0, after the normalisation, in this share of images"),
    RANGE(erase_area, "[0.02, 0.33]", 1e-4, 1, "with erase: the rectangle's share of the area"),
    RANGE(erase_ratio, "[0.3, 3.3]", 0.01, 100, "with erase: its height / width"),
    SHARE(noise, 1e6,
          "add Gaussian noise of this standard deviation to every number, after the "
          "normalisation; also of tables and signals"),
    SHARE(mixup, 1000,
          "blend two samples of a step and their labels by a share of Beta(this, this): 0.2 is "
          "usual"),
    SHARE(cutmix, 1000,
          "put a rectangle of one image of a step into another one, and mix their labels by its "
          "area, which is of Beta(this, this): 1 is usual; with mixup either as often"),
#undef SHARE
#undef RANGE
    {0},
};

static const struct dpt_option synthetic_options[] = {
    {.name = "samples",
     .type = DPT_OPT_INT,
     AT(dpt_synthetic, samples),
     .fallback = "4096",
     .min = 1,
     .max = 1e12,
     .help = "samples of each set that is synthetic"},
    {.name = "shape",
     .type = DPT_OPT_INTS,
     AT(dpt_synthetic, shape),
     .fallback = "[]",
     .min = 1,
     .max = 1 << 24,
     .help = "shape of a sample: [C, H, W] or [D]; empty: [1, 28, 28], for regression [5]"},
    {.name = "classes",
     .type = DPT_OPT_INT,
     AT(dpt_synthetic, classes),
     .fallback = "10",
     .min = 1,
     .max = 1 << 20,
     .help = "number of classes, for classification losses"},
    {.name = "outputs",
     .type = DPT_OPT_INT,
     AT(dpt_synthetic, outputs),
     .fallback = "1",
     .min = 1,
     .max = 1 << 20,
     .help = "regression targets, y = w x + b + noise; for loss binary_cross_entropy, "
             "1 if that is positive"},
    {.name = "noise",
     .type = DPT_OPT_REAL,
     AT(dpt_synthetic, noise),
     .fallback = "0.1",
     .min = 0,
     .max = 1e6,
     .help = "standard deviation of that noise"},
    {0},
};

const struct dpt_option dpt_data_options[] = {
    {.name = "train",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_TEXTS,
     AT(dpt_data_conf, train),
     .help = "shards: a glob or a list of them; or the word synthetic"},
    {.name = "valid",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_TEXTS,
     AT(dpt_data_conf, valid),
     .fallback = "[]",
     .help = "likewise; or a fraction to hold out of train"},
    {.name = "test",
     .effect = DPT_EFFECT_NONE_KEPT,
     .type = DPT_OPT_TEXTS,
     AT(dpt_data_conf, test),
     .fallback = "[]",
     .help = "likewise; never used while training"},
    {.name = "keys",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_SECTION,
     AT(dpt_data_conf, keys),
     .fallback = "{}",
     .rows = keys_options,
     .help = "names of the data sets in HDF5 files of other programs: {x: X_train, y: y_train}"},
    {.name = "layout",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_CHOICE,
     AT(dpt_data_conf, layout),
     .fallback = "auto",
     .added = true,
     .choices = DPT_CHOICES(DPT_LAYOUTS),
     .help = "order of a sample's dimensions: nchw or nhwc; auto: the shards' attribute "
             "`layout`, which always counts, else nchw"},
    {.name = "normalize",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_SECTION,
     AT(dpt_data_conf, normalize),
     .fallback = "{}",
     .rows = normalize_options,
     .help = "normalisation of the samples"},
    {.name = "targets",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_SECTION,
     AT(dpt_data_conf, targets),
     .fallback = "{}",
     .rows = target_options,
     .help = "scaling of regression targets, with loss " DPT_LOSS_NAMES(DPT_LOSSES_OF_NUMBERS)},
    {.name = "resize",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_INTS,
     AT(dpt_data_conf, resize),
     .fallback = "null",
     .min = 2,
     .max = 1 << 14,
     .most = 2,
     .added = true,
     .help = "resize all images to this height and width, or one number for both"},
    {.name = "crop",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_INTS,
     AT(dpt_data_conf, crop),
     .fallback = "null",
     .min = 2,
     .max = 1 << 14,
     .most = 2,
     .added = true,
     .help = "cut out the middle, of this height and width, after data.resize; in training "
             "data.augment's crop_area or crop_padding take another part"},
    {.name = "class_weights",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_CUSTOM,
     AT(dpt_data_conf, class_weights),
     .fallback = "none",
     .added = true,
     .read = read_class_weights,
     .value_text = "none, balanced, {NAME: weight, ...}, or a list, a weight per class",
     .alternatives = &class_weight_alternatives,
     .help = "balanced: weight the training samples of rare classes so that each class counts "
             "the same in total; or a weight for each class, 1 if not named; multi-label: how "
             "much more a label counts if it holds, as PyTorch's pos_weight"},
    {.name = "augment",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_SECTION,
     AT(dpt_data_conf, augment),
     .fallback = "{}",
     .rows = augment_options,
     .help = "augmentation of the training samples; the same at any number of ranks"},
    {.name = "shuffle",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_CHOICE,
     AT(dpt_data_conf, shuffle),
     .fallback = "full",
     .choices = DPT_CHOICES(DPT_SHUFFLES),
     .help = "order of an epoch; block: long sequential reads, shuffled within blocks"},
    {.name = "cache",
     .effect = DPT_EFFECT_NONE_KEPT,
     .type = DPT_OPT_CHOICE,
     AT(dpt_data_conf, cache),
     .fallback = "auto",
     .choices = DPT_CHOICES(DPT_CACHES),
     .help =
         "samples in memory, one copy per node, or read when needed; auto: memory if the samples "
         "fit in half of what is free"},
    {.name = "drop_last",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_BOOL,
     AT(dpt_data_conf, drop_last),
     .fallback = "false",
     .help = "leave out the short last step of an epoch"},
    {.name = "verify",
     .effect = DPT_EFFECT_NONE_KEPT,
     .type = DPT_OPT_BOOL,
     AT(dpt_data_conf, verify),
     .fallback = "true",
     .help = "check the checksums of shards that have them"},
    {.name = "synthetic",
     .effect = DPT_EFFECT_RESULT,
     .type = DPT_OPT_SECTION,
     AT(dpt_data_conf, synthetic),
     .fallback = "{}",
     .rows = synthetic_options,
     .help = "form of the synthetic samples"},
    {0},
};

enum dpt_status dpt_data_keys_take(const char *text, struct dpt_region *region,
                                   struct dpt_data_keys *keys, struct dpt_error *err)
{
    size_t n;

    if (text == NULL)
        return DPT_OK;
    n = strcspn(text, ",");
    if (n == 0 || (text[n] == ',' && (text[n + 1] == '\0' || strchr(text + n + 1, ',') != NULL)))
        return dpt_fail(err, DPT_USAGE,
                        "--keys %s: must be two names, as in --keys X_train,y_train, or the first",
                        text);
    keys->x = dpt_region_strndup(region, text, n);
    keys->y = text[n] == ',' ? text + n + 1 : NULL;
    return keys->x != NULL ? DPT_OK : dpt_fail_memory(err, "the names of arrays", (double)n);
}
