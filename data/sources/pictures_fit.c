/* What becomes of images of another shape, which shards and checkpoints keep. */
#include <string.h>

#include "data/sources/pictures_state.h"
#include "data/tables/columns.h"

static const char *const names[] = {DPT_PICTURE_FITS(DPT_LIST_WORD)};

/* What the shards are told. */
static enum dpt_status keep(struct dpt_source *s, const char *fit, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_columns columns = {.fit = fit};
    struct dpt_str text = {0};

    dpt_columns_write(&columns, &text);
    s->info.columns = text.failed ? NULL : dpt_region_strdup(&s->region, text.text);
    if (s->info.columns == NULL)
        DPT_TRY(dpt_fail_memory(err, "what becomes of images", (double)text.length));
out:
    dpt_str_release(&text);
    return status;
}

enum dpt_status dpt_pictures_fit(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_picture_format *layout = &((struct dpt_pictures *)s->state)->layout;
    const struct dpt_source_model *model = s->spec->convert ? &s->like : &s->spec->model;
    const char *asked = s->spec->option[DPT_SOURCE_FIT];
    const char *text = asked != NULL ? asked : model->fit;
    size_t fit;

    if (text == NULL)
        return DPT_OK;
    fit = dpt_find(text, names, DPT_PICTURE_FIT_COUNT);
    if (fit == DPT_PICTURE_FIT_COUNT && asked == NULL)
        DPT_TRY(
            dpt_fail(err, DPT_BAD_DATA,
                     "%s: its images were fitted by '%s', which is none of stretch, crop and pad; "
                     "give --fit",
                     model->fit_of, text));
    if (fit == DPT_PICTURE_FIT_COUNT)
        DPT_TRY(dpt_fail(err, DPT_USAGE, "--fit %s: stretch, crop or pad", text));
    if (layout->height == 0)
        DPT_TRY(
            dpt_fail(err, DPT_USAGE, "--fit %s: no size: give --size HxW, or --like SHARD", text));
    if (asked != NULL && model->fit != NULL && strcmp(asked, model->fit) != 0)
        dpt_log_warn(s->spec->log,
                     "--fit %s: the images of %s were made with --fit %s; without --fit these "
                     "are, too",
                     asked, model->fit_of, model->fit);
    layout->fit = (enum dpt_picture_fit)fit;
    if (s->spec->convert)
        DPT_TRY(keep(s, text, err));
out:
    return status;
}
