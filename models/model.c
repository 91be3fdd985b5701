#include "models/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/layer.h"

const struct dpt_variant *const dpt_model_variants[] = {
    &dpt_model_linear, &dpt_model_mlp, &dpt_model_cnn, &dpt_model_sequential, NULL};

static bool name_is_given(const struct dpt_layer_list *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->at[i].name != NULL && strcmp(list->at[i].name, name) == 0)
            return true;
    return false;
}

/* The name of layer `index`: the user's, or its type and the first free number from *number on. */
static void name_layer(struct dpt_builder *b, const struct dpt_layer_list *list, int *number)
{
    const struct dpt_layer *layer = &list->at[b->index];

    if (layer->name != NULL) {
        snprintf(b->name, sizeof b->name, "%s", layer->name);
        return;
    }
    do {
        snprintf(b->name, sizeof b->name, "%s%d", layer->type->name, ++*number);
    } while (name_is_given(list, b->name));
}

static enum dpt_status add_input(struct dpt_builder *b, const struct dpt_shape *input,
                                 struct dpt_error *err)
{
    struct dpt_graph_node node = {.op = DPT_OP_INPUT,
                                  .name = "input",
                                  .in = *input,
                                  .out = *input,
                                  .weight = -1,
                                  .bias = -1,
                                  .mean = -1,
                                  .variance = -1};

    if (input->c < 1 || input->h < 1 || input->w < 1 ||
        (int64_t)input->h * input->w > DPT_MAX_SIZE || dpt_shape_size(input) > DPT_MAX_SIZE)
        return dpt_fail(err, DPT_BAD_JOB,
                        "model: samples of %d x %d x %d numbers; 1 to %d are wanted", (int)input->c,
                        (int)input->h, (int)input->w, DPT_MAX_SIZE);
    return dpt_graph_add(b->graph, &node, &b->last, err);
}

/* What only the whole model shows. The place is that of the last layer. */
static enum dpt_status check_whole(const struct dpt_builder *b, struct dpt_error *err)
{
    const struct dpt_shape *last = dpt_builder_shape(b);
    char shape[40];

    if (!last->flat)
        return dpt_builder_fail(b, err,
                                "the last layer gives %s, a loss needs a flat output: end "
                                "with `flatten`, or with `flatten` and `dense`",
                                dpt_shape_text(last, shape));
    if (b->graph->parameters == 0)
        return dpt_builder_fail(b, err,
                                "no layer up to this last one has weights, so there is "
                                "nothing to train: add `dense` or `conv`");
    return DPT_OK;
}

static enum dpt_status check_input(const struct dpt_builder *b, struct dpt_error *err)
{
    char shape[40];

    if (!b->layer->type->planes || !dpt_builder_shape(b)->flat)
        return DPT_OK;
    return dpt_builder_fail(b, err, "needs channels x height x width, gets %s: %s",
                            dpt_shape_text(dpt_builder_shape(b), shape),
                            b->last == 0 ? "the data are flat vectors, only `dense` fits them"
                                         : "put it before `flatten` and `dense`");
}

static enum dpt_status add_layers(struct dpt_builder *b, const struct dpt_layer_list *list,
                                  struct dpt_error *err)
{
    int numbers[DPT_OP_COUNT] = {0};
    enum dpt_status status = DPT_OK;

    for (b->index = 0; b->index < list->n; b->index++) {
        b->layer = &list->at[b->index];
        name_layer(b, list, &numbers[b->layer->type->op]);
        DPT_TRY(check_input(b, err));
        DPT_TRY(b->layer->type->add(b, b->layer, err));
    }
    b->index = list->n - 1;
    DPT_TRY(check_whole(b, err));
out:
    return status;
}

enum dpt_status dpt_model_build(const struct dpt_variant_value *model,
                                const struct dpt_shape *input, struct dpt_graph *graph,
                                struct dpt_error *err)
{
    const struct dpt_model_type *type = model->variant->impl;
    struct dpt_region region = {0};
    struct dpt_layer_list list = {.region = &region};
    struct dpt_builder builder = {
        .graph = graph,
        .model = model,
        .prefix = type->listed ? "model.layers" : NULL,
    };
    enum dpt_status status;

    *graph = (struct dpt_graph){0};
    if (!type->expand(model->options, input, &list))
        DPT_TRY(dpt_fail_memory(err, "the model's layers", 0));
    if (list.n == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB, "model: it has no layers"));
    DPT_TRY(add_input(&builder, input, err));
    DPT_TRY(add_layers(&builder, &list, err));
out:
    dpt_region_release(&region);
    if (list.room > 0)
        free(list.at);
    if (status != DPT_OK)
        dpt_graph_release(graph);
    return status;
}

int32_t dpt_graph_outputs(const struct dpt_graph *graph)
{
    return (int32_t)dpt_shape_size(&graph->nodes[graph->n_nodes - 1].out);
}
