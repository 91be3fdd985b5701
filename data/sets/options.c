#include <string.h>

#include "core/backend/backend.h"
#include "data/sets/dataset.h"

/* The members that all rows of a type share; a row's own members follow. Keys are called as the
 * members that they are read into. */
#define ROW(record, member, affects, kind)                                                         \
    .name = #member, .effect = DPT_EFFECT_##affects, .type = DPT_OPT_##kind,                       \
    .offset = offsetof(struct record, member)

static const struct dpt_option keys_options[] = {
    {ROW(dpt_data_keys, x, AS_ABOVE, TEXT), .fallback = "null", .added = true,
     .help = "name of the samples' data set; null: images or x"},
    {ROW(dpt_data_keys, y, AS_ABOVE, TEXT), .fallback = "null", .added = true,
     .help = "name of the labels' or targets' data set; null: labels or y"},
    {0},
};

static const struct dpt_option normalize_options[] = {
    {ROW(dpt_normalize, mean, AS_ABOVE, REALS), .fallback = "[0]",
     .help = "mean to subtract: one number, or one per channel; uint8 is divided by 255 first"},
    {ROW(dpt_normalize, std, AS_ABOVE, REALS), .fallback = "[1]", .min = 1e-37, .max = 1e37,
     .help = "divisor of the rest: one number, or one per channel"},
    {0},
};

static const struct dpt_option given_options[] = {
    {ROW(dpt_normalize, mean, AS_ABOVE, REALS),
     .help = "mean to subtract from targets: one number, or one per output"},
    {ROW(dpt_normalize, std, AS_ABOVE, REALS), .min = 1e-30, .max = 1e30,
     .help = "divisor of the rest: one number, or one per output"},
    {0},
};

/* A word, or the numbers. */
static const struct dpt_option target_forms[] = {
    {ROW(dpt_target_conf, scaled, AS_ABOVE, CHOICE), .choices = DPT_CHOICES(DPT_TARGET_SCALES),
     .help = "scaling of targets by the training set's mean and spread"},
    {ROW(dpt_target_conf, given, AS_ABOVE, SECTION), .rows = given_options,
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
     .fallback = "none",
     .added = true,
     .read = read_targets,
     .value_text = "none, auto, or {mean: ..., std: ...}",
     .alternatives = &target_alternatives,
     .help = "train on (target - mean) / std; auto: from the training targets, per output; "
             "results stay in the targets' units"},
    {ROW(dpt_target_conf, transform, AS_ABOVE, CHOICE), .fallback = "none", .added = true,
     .choices = DPT_CHOICES(DPT_TARGET_TRANSFORMS),
     .help = "train on log(1 + target), or log(target), for amounts over orders of magnitude; "
             "before `normalize`, and undone in results"},
    {0},
};

enum { CLASS_WORD, CLASS_LIST, CLASS_MAP };
static const struct dpt_option class_weight_forms[] = {
    {ROW(dpt_class_weight_conf, how, AS_ABOVE, CHOICE), .choices = DPT_CHOICES(DPT_CLASS_WEIGHTS),
     .help = "equal total weight of each class"},
    {ROW(dpt_class_weight_conf, list, AS_ABOVE, REALS), .min = 0, .max = 1e30,
     .help = "a weight per class"},
    {ROW(dpt_class_weight_conf, named, AS_ABOVE, NAMED), .min = 0, .max = 1e30,
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

#define AUGMENT(member, kind, usual) ROW(dpt_augment, member, AS_ABOVE, kind), .fallback = (usual)
#define SHARE(member, greatest, text)                                                              \
    {                                                                                              \
        AUGMENT(member, REAL, "0"), .min = 0, .max = (greatest), .added = true, .help = (text)     \
    }
#define RANGE(member, usual, least, greatest, text)                                                \
    {                                                                                              \
        AUGMENT(member, REALS, usual), .min = (least), .max = (greatest), .range = true,           \
                                       .added = true, .help = (text)                               \
    }
static const struct dpt_option augment_options[] = {
    {AUGMENT(crop_padding, INT, "0"), .min = 0, .max = 1 << 12,
     .help = "pad by so many black pixels on each side, cut out a random window of the old size"},
    {AUGMENT(flip, BOOL, "false"), .help = "flip each image left to right with probability 1/2"},
    {AUGMENT(vertical_flip, BOOL, "false"), .added = true,
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
    {0},
};

#define SYNTHETIC(member, kind, usual, least, greatest)                                            \
    ROW(dpt_synthetic, member, AS_ABOVE, kind), .fallback = (usual), .min = (least),               \
                                                .max = (greatest)
static const struct dpt_option synthetic_options[] = {
    {SYNTHETIC(samples, INT, "4096", 1, 1e12), .help = "samples of each set that is synthetic"},
    {SYNTHETIC(shape, INTS, "[]", 1, 1 << 24),
     .help = "shape of a sample: [C, H, W] or [D]; empty: [1, 28, 28], for regression [5]"},
    {SYNTHETIC(classes, INT, "10", 1, 1 << 20),
     .help = "number of classes, for classification losses"},
    {SYNTHETIC(outputs, INT, "1", 1, 1 << 20),
     .help = "regression targets, y = w x + b + noise; for loss binary_cross_entropy, "
             "1 if that is positive"},
    {SYNTHETIC(noise, REAL, "0.1", 0, 1e6), .help = "standard deviation of that noise"},
    {0},
};

#define DATA(member, affects, kind, usual)                                                         \
    ROW(dpt_data_conf, member, affects, kind), .fallback = (usual)
#define SECTION(member, table) DATA(member, RESULT, SECTION, "{}"), .rows = (table)
const struct dpt_option dpt_data_options[] = {
    {ROW(dpt_data_conf, train, RESULT, TEXTS),
     .help = "shards: a glob or a list of them; or the word synthetic"},
    {DATA(valid, RESULT, TEXTS, "[]"), .help = "likewise; or a fraction to hold out of train"},
    {DATA(test, NONE_KEPT, TEXTS, "[]"), .help = "likewise; never used while training"},
    {SECTION(keys, keys_options),
     .help = "names of the data sets in HDF5 files of other programs: {x: X_train, y: y_train}"},
    {DATA(layout, RESULT, CHOICE, "auto"), .added = true, .choices = DPT_CHOICES(DPT_LAYOUTS),
     .help = "order of a sample's dimensions: nchw or nhwc; auto: the shards' attribute "
             "`layout`, which always counts, else nchw"},
    {SECTION(normalize, normalize_options), .help = "normalisation of the samples"},
    {SECTION(targets, target_options),
     .help = "scaling of regression targets, with loss " DPT_LOSS_NAMES(DPT_LOSSES_OF_NUMBERS)},
    {DATA(resize, RESULT, INTS, "null"), .min = 2, .max = 1 << 14, .most = 2, .added = true,
     .help = "resize all images to this height and width, or one number for both"},
    {DATA(crop, RESULT, INTS, "null"), .min = 2, .max = 1 << 14, .most = 2, .added = true,
     .help = "cut out the middle, of this height and width, after data.resize; in training "
             "data.augment's crop_area or crop_padding take another part"},
    {DATA(class_weights, RESULT, CUSTOM, "none"), .added = true, .read = read_class_weights,
     .value_text = "none, balanced, {NAME: weight, ...}, or a list, a weight per class",
     .alternatives = &class_weight_alternatives,
     .help = "balanced: weight the training samples of rare classes so that each class counts "
             "the same in total; or a weight for each class, 1 if not named; multi-label: how "
             "much more a label counts if it holds, as PyTorch's pos_weight"},
    {SECTION(augment, augment_options),
     .help = "augmentation of the training samples; the same at any number of ranks"},
    {DATA(shuffle, RESULT, CHOICE, "full"), .choices = DPT_CHOICES(DPT_SHUFFLES),
     .help = "order of an epoch; block: long sequential reads, shuffled within blocks"},
    {DATA(cache, NONE_KEPT, CHOICE, "auto"), .choices = DPT_CHOICES(DPT_CACHES),
     .help =
         "samples in memory, one copy per node, or read when needed; auto: memory if the samples "
         "fit in half of what is free"},
    {DATA(drop_last, RESULT, BOOL, "false"), .help = "leave out the short last step of an epoch"},
    {DATA(verify, NONE_KEPT, BOOL, "true"), .help = "check the checksums of shards that have them"},
    {SECTION(synthetic, synthetic_options), .help = "form of the synthetic samples"},
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
