/*
 * Images as samples: files, or folders of them; for shards one folder with a sub-folder per class.
 * Each thread that predicts decodes those of its own micro-batches.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/rng.h"
#include "core/base/str.h"
#include "data/sources/pictures_state.h"

/* --- to become shards ------------------------------------------------------------------------- */

static enum dpt_status take_size(struct dpt_source *s, struct dpt_error *err)
{
    struct dpt_picture_format *layout = &((struct dpt_pictures *)s->state)->layout;
    const char *text = s->spec->option[DPT_SOURCE_SIZE];
    int end = 0;

    if (text == NULL)
        return DPT_OK;
    if (sscanf(text, "%6dx%6d%n", &layout->height, &layout->width, &end) != 2 ||
        text[end] != '\0' || layout->height < 1 || layout->width < 1 ||
        layout->height > DPT_PICTURE_SIDE || layout->width > DPT_PICTURE_SIDE)
        return dpt_fail(err, DPT_USAGE, "--size %s: must be height and width, as in 32x32", text);
    return DPT_OK;
}

/* Stores them in an order drawn by --shuffle. */
static enum dpt_status shuffle(struct dpt_source *s, struct dpt_error *err)
{
    struct dpt_picture_list *list = &((struct dpt_pictures *)s->state)->list;
    const char *text = s->spec->option[DPT_SOURCE_SHUFFLE];
    struct dpt_picture_entry *drawn;
    uint64_t seed;
    char *end;

    if (text == NULL)
        return DPT_OK;
    seed = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0')
        return dpt_fail(err, DPT_USAGE, "--shuffle %s: must be a whole number from 0 on", text);
    drawn = malloc(list->n * sizeof *drawn);
    if (drawn == NULL)
        return dpt_fail_memory(err, "the list of images", (double)list->n * sizeof *drawn);
    for (size_t i = 0; i < list->n; i++)
        drawn[i] = list->entries[dpt_permute(seed, DPT_RANDOM_SHUFFLE, 0, list->n, i)];
    free(list->entries);
    list->entries = drawn;
    list->capacity = list->n;
    return DPT_OK;
}

/* Another set's form and classes. */
static enum dpt_status take_like(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_picture_format *layout = &((struct dpt_pictures *)s->state)->layout;
    const char *path = s->spec->option[DPT_SOURCE_LIKE];
    const struct dpt_shape *shape = &s->like.shape;
    const bool table = s->spec->option[DPT_SOURCE_TABLE] != NULL;
    char text[40];

    if (path == NULL)
        return DPT_OK;
    if (layout->height > 0 || layout->channels > 0)
        DPT_TRY(dpt_fail(err, DPT_USAGE,
                         "--like decides size and colour; leave --size and --grey out"));
    DPT_TRY(dpt_source_model_of(&s->like, path, !table, &s->region, err));
    if (!s->like.u8 || shape->flat || (shape->c != 1 && shape->c != 3))
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "--like: %s holds samples of %s %s, which are not images", path,
                         dpt_shape_text(shape, text), s->like.u8 ? "uint8" : "float32"));
    if (s->like.n_classes == 0 && !table)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "--like: %s does not name its classes", path));
    *layout =
        (struct dpt_picture_format){.channels = shape->c, .height = shape->h, .width = shape->w};
out:
    return status;
}

/* Each image needs a class, and each class an image. */
static enum dpt_status check_list(const struct dpt_source *s, struct dpt_error *err)
{
    const struct dpt_picture_list *list = &((struct dpt_pictures *)s->state)->list;
    const char *folder = s->paths[0];

    if (list->classes.n == 0)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: holds images, but no sub-folders: a sub-folder per class is needed, "
                        "as in %s/cat/1.png and %s/dog/1.png; or --labels FILE, a CSV file that "
                        "has their labels",
                        folder, folder, folder);
    for (size_t i = 0; i < list->n; i++)
        if (list->entries[i].class < 0)
            return dpt_fail(
                err, DPT_BAD_DATA,
                "%s: lies beside the sub-folders of the classes: move it into one of them",
                list->entries[i].path);
    if (list->empty != NULL)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: holds no image (" DPT_PICTURE_ENDS "), so there is nothing to learn "
                        "this class from; remove the sub-folder or fill it",
                        list->empty);
    if (list->classes.n == 1 && s->spec->log != NULL && s->info.classes < 2)
        dpt_log_warn(s->spec->log, "%s: one class only, '%s': there is nothing to learn", folder,
                     list->class_names[0]);
    return DPT_OK;
}

/* The class numbers of the sub-folders. */
static enum dpt_status number_classes(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_pictures *state = s->state;
    const struct dpt_picture_list *list = &state->list;
    const bool like = s->like.n_classes > 0;
    const char *const *names = like ? s->like.classes : list->class_names;
    const size_t n = like ? s->like.n_classes : list->classes.n;
    size_t longest = 1;

    DPT_TRY(DPT_ALLOCATE(state->classes, list->classes.n, "the classes", err));
    for (size_t i = 0; i < list->classes.n; i++) {
        state->classes[i] = (int32_t)dpt_find(list->class_names[i], names, n);
        if (state->classes[i] == (int32_t)n)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s/%s: is no class of %s", s->paths[0],
                             list->class_names[i], s->spec->option[DPT_SOURCE_LIKE]));
    }
    for (size_t k = 0; k < n; k++)
        longest = strlen(names[k]) > longest ? strlen(names[k]) : longest;
    if (n * longest > DPT_CLASS_NAME_BYTES)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: %zu sub-folders with names of up to %zu bytes are too many for names "
                         "of classes",
                         s->paths[0], n, longest));
    s->info.truth = DPT_TRUTH_CLASS;
    s->info.classes = (int64_t)n;
    s->info.class_names = names;
out:
    return status;
}

/* Finds the size and colour that were not given: one size for all, colour where any has it. */
static enum dpt_status find_form(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_pictures *state = s->state;
    struct dpt_picture_format *layout = &state->layout;
    const bool size = layout->height == 0, colour = layout->channels == 0;
    struct dpt_picture one = {0};
    double shown = 0;

    for (size_t i = 0; (size || colour) && i < state->list.n; i++) {
        const char *path = state->list.entries[i].path;

        if (s->spec->stop != NULL && *s->spec->stop != 0)
            DPT_TRY(dpt_fail(err, DPT_STOPPED, "stopped; nothing was written"));
        status = dpt_picture_read(&one, path, true, err);
        DPT_TRY(status == DPT_BAD_DATA ? dpt_pictures_tell_bad(s, err) : status);
        if (colour && one.channels > layout->channels)
            layout->channels = one.channels;
        if (size && i == 0) {
            layout->height = one.height;
            layout->width = one.width;
        }
        if (size && (one.height != layout->height || one.width != layout->width))
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                             "%s is %d high and %d wide, %s %d high and %d wide: --size %dx%d "
                             "makes all of one size",
                             state->list.entries[0].path, layout->height, layout->width, path,
                             one.height, one.width, layout->height, layout->width));
        dpt_log_live_count(s->spec->log, &shown, "looking at images", (int64_t)i,
                           (int64_t)state->list.n);
    }
out:
    if (s->spec->log != NULL)
        dpt_log_live(s->spec->log, NULL);
    return status;
}

/* Looks at how large the files are that are to be kept. */
static enum dpt_status find_sizes(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_pictures *state = s->state;
    struct stat info;

    if (s->spec->option[DPT_SOURCE_KEEP_FILES] == NULL)
        return DPT_OK;
    DPT_TRY(DPT_ALLOCATE(state->sizes, state->list.n, "the files' sizes", err));
    for (size_t i = 0; i < state->list.n; i++) {
        /* One that cannot be looked at is told when its turn comes to be read. */
        state->sizes[i] = stat(state->list.entries[i].path, &info) == 0 ? info.st_size : 0;
    }
    s->info.sizes = state->sizes;
out:
    return status;
}

static enum dpt_status open_to_convert(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_pictures *state = s->state;

    if (s->n_paths != 1)
        DPT_TRY(
            dpt_fail(err, DPT_USAGE, "pictures takes one folder; %zu inputs given", s->n_paths));
    DPT_TRY(take_size(s, err));
    state->layout.channels = s->spec->option[DPT_SOURCE_GREY] != NULL ? 1 : 0;
    DPT_TRY(take_like(s, err));
    DPT_TRY(dpt_pictures_fit(s, err));
    DPT_TRY(dpt_picture_list_folder(&state->list, s->paths[0], err));
    if (s->spec->option[DPT_SOURCE_TABLE] != NULL)
        DPT_TRY(dpt_pictures_labels(s, err));
    DPT_TRY(dpt_pictures_skip_bad(s, err));
    DPT_TRY(shuffle(s, err));
    if (state->table.state != NULL) {
        DPT_TRY(dpt_pictures_labels_end(s, err));
    } else {
        DPT_TRY(number_classes(s, err));
        DPT_TRY(check_list(s, err));
    }
    DPT_TRY(find_form(s, err));
    DPT_TRY(find_sizes(s, err));
    dpt_pictures_doubt(s);
    if (s->spec->log != NULL)
        dpt_picture_list_log(&state->list, s->spec->log);
    s->layout.shape = (struct dpt_shape){state->layout.channels, state->layout.height,
                                         state->layout.width, false};
out:
    return status;
}

/* --- for prediction -------------------------------------------------------------------------- */

/* The model's number of a class by its sub-folder's name; -1: none. */
static int32_t class_of(const struct dpt_source *s, const struct dpt_picture_list *list, size_t i)
{
    const struct dpt_source_model *model = &s->spec->model;
    const char *name = list->class_names[i];
    char *end;
    long number;

    if (model->n_classes > 0) {
        const size_t known = dpt_find(name, model->classes, model->n_classes);

        return known < model->n_classes ? (int32_t)known : -1;
    }
    number = strtol(name, &end, 10);
    if (name[0] >= '0' && name[0] <= '9' && *end == '\0' && number < s->spec->outputs)
        return (int32_t)number;
    return list->classes.n == (size_t)s->spec->outputs ? (int32_t)i : -1;
}

/* Sub-folders are labels where the model knows every one of them: by its name, by a number or,
 * where no names are known and there are as many as classes, by their order. */
static enum dpt_status find_truth(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_pictures *state = s->state;
    const struct dpt_picture_list *list = &state->list;

    for (size_t i = 0; i < list->n; i++)
        if (list->entries[i].class < 0)
            return DPT_OK;
    if (!s->spec->classes || list->classes.n == 0)
        return DPT_OK;
    DPT_TRY(DPT_ALLOCATE(state->classes, list->classes.n, "the classes", err));
    for (size_t i = 0; i < list->classes.n; i++) {
        state->classes[i] = class_of(s, list, i);
        if (state->classes[i] < 0) {
            dpt_log_info(
                s->spec->log,
                "the sub-folders do not have the names of the model's classes ('%s' is none), so "
                "they are not used as labels",
                list->class_names[i]);
            return DPT_OK;
        }
    }
    s->info.truth = DPT_TRUTH_CLASS;
out:
    return status;
}

/* One line about what happens to images of another size or colour; by the first of them. */
static enum dpt_status tell_scaling(const struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_pictures *state = s->state;
    const struct dpt_picture_format *layout = &state->layout;
    struct dpt_picture p = {0};

    status = dpt_picture_read(&p, state->list.entries[0].path, true, err);
    DPT_TRY(status == DPT_BAD_DATA && s->rank == 0 ? dpt_pictures_tell_bad(s, err) : status);
    if (p.width != layout->width || p.height != layout->height || p.channels != layout->channels)
        dpt_log_info(s->spec->log,
                     "%s is %d wide and %d high%s: %s %d wide and %d high%s, as the model takes it",
                     state->list.entries[0].name, p.width, p.height,
                     p.channels == layout->channels ? ""
                     : p.channels == 1              ? ", in grey"
                                                    : ", in colour",
                     layout->fit == DPT_PICTURE_CROP  ? "cropped to"
                     : layout->fit == DPT_PICTURE_PAD ? "padded to"
                                                      : "made",
                     layout->width, layout->height,
                     p.channels == layout->channels ? ""
                     : layout->channels == 1        ? ", in grey"
                                                    : ", in colour");
    dpt_picture_list_log(&state->list, s->spec->log);
    dpt_pictures_doubt(s);
    if (s->spec->model.seen && !s->spec->model.u8)
        dpt_log_warn(s->spec->log,
                     "the job's training data are float32, not bytes; images are divided by 255, "
                     "which may not be what was done to those");
out:
    return status;
}

/* What images are to be made: what the model takes, or what the training data were before
 * data.resize and data.crop; what is not known of that, data.resize would have made the same. */
static enum dpt_status choose_shape(const struct dpt_source *s, struct dpt_shape *shape,
                                    struct dpt_error *err)
{
    const struct dpt_source_model *model = &s->spec->model;
    const struct dpt_data_conf *conf = s->spec->conf;

    *shape = s->spec->shape != NULL ? *s->spec->shape : model->shape;
    if (s->spec->shape != NULL)
        return DPT_OK;
    if (dpt_data_views(conf) && (model->stored.h > 0 || conf->resize.n == 0)) {
        shape->h = model->stored.h;
        shape->w = model->stored.w;
    } else if (conf->resize.n > 0) {
        shape->h = (int32_t)conf->resize.at[0];
        shape->w = (int32_t)conf->resize.at[conf->resize.n - 1];
    }
    if (!model->known || shape->h == 0)
        return dpt_fail(
            err, DPT_BAD_DATA,
            "the size of images%s is unknown, as the job's training data are missing: give "
            "--shape C,H,W, as in 1,28,28",
            conf->crop.n > 0 ? " before data.crop" : "");
    return DPT_OK;
}

static enum dpt_status open_to_predict(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_pictures *state = s->state;
    struct dpt_shape chosen, *shape = &chosen;
    struct stat info;
    char text[40];

    DPT_TRY(choose_shape(s, shape, err));
    if (shape->flat || (shape->c != 1 && shape->c != 3))
        DPT_TRY(dpt_fail(
            err, DPT_BAD_DATA,
            "the model takes samples of %s, which are not images: give their size by --shape "
            "1,H,W or 3,H,W",
            dpt_shape_text(shape, text)));
    state->layout = (struct dpt_picture_format){shape->c, shape->h, shape->w,
                                                s->spec->option[DPT_SOURCE_INVERT] != NULL,
                                                DPT_PICTURE_STRETCH};
    DPT_TRY(dpt_pictures_fit(s, err));
    for (size_t i = 0; i < s->n_paths; i++) {
        if (stat(s->paths[i], &info) == 0 && S_ISDIR(info.st_mode))
            DPT_TRY(dpt_picture_list_folder(&state->list, s->paths[i], err));
        else
            DPT_TRY(dpt_picture_list_add(&state->list, s->paths[i], err));
    }
    DPT_TRY(dpt_pictures_skip_bad(s, err));
    s->layout.shape = *shape;
    DPT_TRY(find_truth(s, err));
    DPT_TRY(tell_scaling(s, err));
out:
    return status;
}

static enum dpt_status open_source(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_pictures *state = s->state;

    s->n_parts = 1;
    DPT_TRY(dpt_pictures_check_options(s, err));
    DPT_TRY((s->spec->convert ? open_to_convert : open_to_predict)(s, err));
    s->parts[0].samples = (int64_t)state->list.n;
    s->layout.u8 = true;
out:
    return status;
}

static void close_source(void *arg)
{
    struct dpt_pictures *state = arg;

    dpt_picture_list_release(&state->list);
    dpt_str_release(&state->told);
    dpt_free(state->classes);
    dpt_free(state->sizes);
    dpt_pictures_labels_close(state);
    dpt_free(state->row_classes);
    dpt_free(state->row_targets);
}

static enum dpt_status read_rows(struct dpt_source *s, const struct dpt_source_rows *rows,
                                 struct dpt_error *err)
{
    const struct dpt_pictures *state = s->state;

    const size_t width = (size_t)s->info.width;

    (void)err;
    for (int64_t i = 0; i < rows->n; i++) {
        const struct dpt_picture_entry *entry = &state->list.entries[rows->row + i];

        if (rows->classes != NULL)
            rows->classes[i] =
                entry->row >= 0 ? state->row_classes[entry->row] : state->classes[entry->class];
        if (rows->targets != NULL)
            memcpy(rows->targets + (size_t)i * width, state->row_targets + entry->row * width,
                   width * sizeof(float));
    }
    return DPT_OK;
}

static enum dpt_status render(const struct dpt_source *s, int64_t sample, uint8_t *stored,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_pictures *state = s->state;
    struct dpt_picture picture = {0};

    status = dpt_picture_read(&picture, state->list.entries[sample].path, false, err);
    DPT_TRY(status == DPT_BAD_DATA && s->spec->convert ? dpt_pictures_tell_bad(s, err) : status);
    DPT_TRY(dpt_picture_shape(&picture, &state->layout, stored, err));
out:
    dpt_picture_release(&picture);
    return status;
}

/* A file that cannot be decoded is told now, not while a job trains. */
static enum dpt_status keep_file(struct dpt_source *s, int64_t sample, char **bytes, size_t *n,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_pictures *state = s->state;
    const char *path = state->list.entries[sample].path;
    struct dpt_picture picture = {0};

    status = dpt_picture_file(path, bytes, n, err);
    if (status == DPT_OK)
        status = dpt_picture_decode(&picture, path, (const uint8_t *)*bytes, *n, false, err);
    DPT_TRY(status == DPT_BAD_DATA ? dpt_pictures_tell_bad(s, err) : status);
    if ((int64_t)*n != state->sizes[sample])
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: changed while it was read", path));
out:
    dpt_picture_release(&picture);
    return status;
}

static const char *name(const struct dpt_source *s, int64_t sample)
{
    return ((const struct dpt_pictures *)s->state)->list.entries[sample].name;
}

const struct dpt_source_format dpt_source_pictures = {
    .name = "pictures",
    .help = DPT_PICTURE_FORMATS " files, or folders of them",
    .inputs = "FOLDER",
    .summary = "a folder of files (" DPT_PICTURE_FORMATS "), with a sub-folder per class",
    .details = "FOLDER/CLASS/... with images at any depth become uint8 [N,C,H,W], grey if all "
               "are grey, in the order of their names. The sub-folders' names, sorted (numbers "
               "by their value), are the classes, an attribute of /labels. Transparent is "
               "white; JPEG, PNG, TIFF and WebP are turned upright as they say; of several "
               "images in a GIF or TIFF the first counts; --size stretches, unless --fit is "
               "given, which is kept for predict and --like. --keep-files stores the files "
               "themselves, uint8 /files and /offsets, which training decodes to the same. All "
               "images that cannot be read are listed, the first if there are many, or left out "
               "by --skip-bad. A test set goes with --like TRAINSHARD, so that its classes have "
               "the same numbers. With --labels FILE a CSV file has a row per image instead: "
               "its path in FOLDER or its name, with or without its suffix, and its label, "
               "which is read as csv reads labels. Images without a row are left out; rows "
               "without an image are an error, or left out by --skip-bad.",
    .options = 1ull << DPT_SOURCE_SIZE | 1ull << DPT_SOURCE_GREY | 1ull << DPT_SOURCE_LIKE |
               1ull << DPT_SOURCE_SHUFFLE | 1ull << DPT_SOURCE_INVERT | 1ull << DPT_SOURCE_FIT |
               1ull << DPT_SOURCE_SKIP_BAD | 1ull << DPT_SOURCE_KEEP_FILES |
               1ull << DPT_SOURCE_TABLE | DPT_PICTURES_TABLE_OPTIONS,
    .is = dpt_picture_is,
    .state = sizeof(struct dpt_pictures),
    .open = open_source,
    .close = close_source,
    .read = read_rows,
    .render = render,
    .file = keep_file,
    .sample_name = name,
    .tell_bad = dpt_pictures_tell_bad,
};
