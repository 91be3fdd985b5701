/* Operations on each number by itself, or with no work; and joins. */
#include "core/backend/operation.h"

const struct dpt_operation dpt_operation_input = {
    .name = "input",
    .kind = DPT_CLASS_NOTHING,
    .traits = DPT_EXACT,
    .shape = dpt_shape_same,
    .reached = {1, 1, 0},
    .onnx = {{.type = "Identity"}},
};

static void vector_of_all(struct dpt_graph_node *node)
{
    dpt_shape_vector(node, dpt_shape_size(&node->in));
}

const struct dpt_operation dpt_operation_flatten = {
    .name = "flatten",
    .kind = DPT_CLASS_NOTHING,
    .traits = DPT_EXACT | DPT_FUSED,
    .shape = vector_of_all,
    .reached = {0.1, 0.1, 0.2e-6},
    .onnx = {{.type = "Flatten", .attribute = {{.name = "axis", .number = 1}}}},
};

const struct dpt_operation dpt_operation_dropout = {
    .name = "dropout",
    .kind = DPT_CLASS_POINTWISE,
    .keeps = DPT_KEEPS_MASK,
    .traits = DPT_EXACT,
    .attributes = {"rate"},
    .shape = dpt_shape_same,
    .reached = {0.02, 0.3, 0.5e-6},
    .onnx = {{.type = "Identity"}}, /* when a model is used */
};

static void channels_of_both(struct dpt_graph_node *node)
{
    node->out = node->in;
    node->out.c += node->other.c;
}

#define JOIN(name_, keeps_, shape_, onnx_type, ...)                                                \
    const struct dpt_operation dpt_operation_##name_ = {                                           \
        .name = #name_,                                                                            \
        .kind = DPT_CLASS_JOIN,                                                                    \
        .keeps = keeps_,                                                                           \
        .traits = DPT_EXACT,                                                                       \
        .shape = shape_,                                                                           \
        .reached = {0.4, 0.4, 0.3e-6},                                                             \
        .onnx = {{.type = onnx_type, .with = {{.source = DPT_ONNX_OTHER}}, __VA_ARGS__}},          \
    }
JOIN(add, DPT_KEEPS_NOTHING, dpt_shape_same, "Add");
JOIN(multiply, DPT_KEEPS_INPUT, dpt_shape_same, "Mul");
JOIN(concat, DPT_KEEPS_NOTHING, channels_of_both, "Concat",
     .attribute = {{.name = "axis", .number = 1}});

#define DPT_ATTRIBUTE(k, text, otherwise, least, most, help) [k] = text
#define X(C, NAME, name_, summary, keeps_, traits_, forward, backward, options, onnx_)             \
    const struct dpt_operation dpt_operation_##name_ = {                                           \
        .name = #name_,                                                                            \
        .kind = DPT_CLASS_POINTWISE,                                                               \
        .keeps = DPT_KEEPS_##keeps_,                                                               \
        .traits = traits_,                                                                         \
        .attributes = {DPT_BARE options},                                                          \
        .shape = dpt_shape_same,                                                                   \
        .reached = {forward, backward, 0.3e-6},                                                    \
        .onnx = {DPT_BARE onnx_},                                                                  \
    };
DPT_ACTIVATIONS(X, 0)
