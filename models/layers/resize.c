/* Layers that give planes another size. */
#include "models/layer.h"

#define MODES(X) X(NEAREST, "nearest") X(BILINEAR, "bilinear")
enum { MODES(DPT_LIST_NAME) };

// clang-format off
static const struct dpt_option adaptive_options[] = {
    DPT_LAYER_NAME_ROW,
    DPT_PAIR_ROW("size", struct dpt_resize_options, by, NULL, "height and width of the output"),
    {0},
};

static const struct dpt_option upsample_options[] = {
    DPT_LAYER_NAME_ROW,
    DPT_PAIR_ROW("scale", struct dpt_resize_options, by, NULL, "factor of height and width"),
    {.name = "mode", .type = DPT_OPT_CHOICE, .offset = offsetof(struct dpt_resize_options, mode),
     .fallback = "nearest", .choices = DPT_CHOICES(MODES),
     .help = "nearest: repeat each number; bilinear: interpolate between the four nearest"},
    {0},
};
// clang-format on

static enum dpt_status add(struct dpt_builder *b, const struct dpt_layer *layer,
                           struct dpt_error *err)
{
    const struct dpt_resize_options *o = layer->options;
    struct dpt_graph_node node = dpt_builder_node(b);
    enum dpt_status status;
    char shape[40];

    node.out.h = o->by.at[0];
    node.out.w = o->by.at[1];
    if (node.op == DPT_OP_UPSAMPLE) {
        if ((int64_t)node.in.h * o->by.at[0] > DPT_MAX_SIZE ||
            (int64_t)node.in.w * o->by.at[1] > DPT_MAX_SIZE)
            return dpt_builder_fail(b, err, "makes planes of %s more than %d numbers high or wide",
                                    dpt_shape_text(&node.in, shape), DPT_MAX_SIZE);
        node.window = (struct dpt_window){.kernel = {o->by.at[0], o->by.at[1]},
                                          .stride = {1, 1},
                                          .dilation = {1, 1},
                                          .groups = 1};
        node.op = o->mode == BILINEAR ? DPT_OP_BILINEAR : DPT_OP_UPSAMPLE;
    }
    DPT_TRY(dpt_builder_add(b, &node, err));
out:
    return status;
}

DPT_LAYER(ADAPTIVE_AVGPOOL, adaptive_avgpool, adaptive_options, struct dpt_resize_options,
          .summary = "means over as many parts of each plane as there are outputs, overlapping if "
                     "these do not divide it",
          .main = "size", .planes = true, .add = add);

DPT_LAYER(UPSAMPLE, upsample, upsample_options, struct dpt_resize_options,
          .summary = "enlargement of each plane by a whole factor, nearest or bilinear",
          .main = "scale", .planes = true, .add = add);
