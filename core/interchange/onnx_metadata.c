#include "core/interchange/onnx.h"

#include "core/base/proto.h"
#include "data/tables/columns.h"

static void put_property(struct dpt_str *model, const char *key, const char *text)
{
    struct dpt_str entry = {0};

    dpt_proto_text(&entry, 1, key);
    dpt_proto_text(&entry, 2, text != NULL ? text : "");
    dpt_proto_message(model, 14, &entry);
    dpt_str_release(&entry);
}

/* A property whose value was collected; that is empty afterwards. */
static void put_collected(struct dpt_str *model, const char *key, struct dpt_str *text)
{
    put_property(model, key, text->text);
    model->failed = model->failed || text->failed;
    dpt_str_clear(text);
}

/* As dpt_column_feature calls them. */
static void put_features(const struct dpt_columns *columns, struct dpt_str *model,
                         struct dpt_str *text)
{
    const char *before = "[";
    struct dpt_str name = {0};

    for (size_t i = 0; i < columns->n; i++) {
        const struct dpt_column *c = &columns->at[i];

        for (size_t k = 0; k < dpt_column_width(c); k++) {
            dpt_str_clear(&name);
            dpt_column_feature(c, k, &name);
            text->failed = text->failed || name.failed;
            dpt_str_printf(text, "%s", before);
            dpt_str_json(text, name.failed ? "" : name.text);
            before = ", ";
        }
    }
    dpt_str_printf(text, "]");
    dpt_str_release(&name);
    put_collected(model, "features", text);
}

/* What is subtracted from the numbers of features before they are float32, or was from those of
 * labels; nothing where nothing is. */
static void put_offsets(const struct dpt_columns *columns, bool labels, struct dpt_str *model,
                        struct dpt_str *text)
{
    bool any = false;

    for (size_t i = 0; i < (labels ? columns->n_labels : columns->n); i++) {
        const struct dpt_column *c = &columns->at[labels ? columns->labels[i] : i];
        const size_t n = labels ? 1 : dpt_column_width(c);

        for (size_t k = 0; k < n; k++) {
            const double offset = k == 0 ? c->offset : 0;

            any = any || offset != 0;
            dpt_str_printf(text, text->length == 0 ? "[" : ", ");
            dpt_str_number(text, offset);
        }
    }
    dpt_str_printf(text, "]");
    if (any)
        put_collected(model, labels ? "label_offsets" : "feature_offsets", text);
    dpt_str_clear(text);
}

enum dpt_status dpt_onnx_metadata(const struct dpt_model_view *view, struct dpt_str *model,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_columns columns = {0};
    struct dpt_str text = {0};

    dpt_str_printf(&text, "%lld", (long long)view->step);
    put_collected(model, "step", &text);
    dpt_reals_json(&view->normalize->mean, &text);
    put_collected(model, "normalize_mean", &text);
    dpt_reals_json(&view->normalize->std, &text);
    put_collected(model, "normalize_std", &text);
    put_property(model, "input",
                 view->normalized ? "(x - normalize_mean) / normalize_std for each channel; x: "
                                    "bytes divided by 255, or numbers as they are; an empty list: "
                                    "nothing is subtracted or divided"
                 : view->bytes    ? "float32 values of bytes, 0 to 255, as they are: the graph "
                                    "normalises them"
                                  : "numbers as they are, bytes divided by 255: the graph "
                                    "normalises them");
    if (view->n_classes > 0) {
        dpt_texts_json(view->classes, view->n_classes, &text);
        put_collected(model, "classes", &text);
    }
    if (view->columns != NULL) {
        DPT_TRY(dpt_columns_parse(&columns, view->columns, "the checkpoint", err));
        put_features(&columns, model, &text);
        put_offsets(&columns, false, model, &text);
        put_offsets(&columns, true, model, &text);
        put_property(model, "columns", view->columns);
    }
out:
    dpt_columns_release(&columns);
    dpt_str_release(&text);
    return status;
}
