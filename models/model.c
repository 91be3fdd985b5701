#include "models/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/layer.h"

const struct dpt_variant *const dpt_model_variants[] = {
    &dpt_model_linear,       &dpt_model_mlp,        &dpt_model_cnn,
    &dpt_model_lenet,        &dpt_model_vgg,        &dpt_model_resnet,
    &dpt_model_mobilenet_v2, &dpt_model_sequential, NULL};

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
        return dpt_fail(err, DPT_BAD_JOB, "model: samples of %d x %d x %d numbers; must be 1 to %d",
                        (int)input->c, (int)input->h, (int)input->w, DPT_MAX_SIZE);
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

/* Each value but the last is read, or what stands before it would learn nothing. */
static enum dpt_status check_readers(struct dpt_builder *b, struct dpt_error *err)
{
    const struct dpt_graph *g = b->graph;
    enum dpt_status status = DPT_OK;
    bool *read = NULL;
    int32_t k = 0;

    DPT_TRY(DPT_ALLOCATE(read, (size_t)g->n_nodes, "the model's layers", err));
    for (k = 0; k < g->n_nodes; k++)
        for (int32_t i = 0; i < g->nodes[k].n_inputs; i++)
            read[g->nodes[k].inputs[i]] = true;
    for (k = 0; k < g->n_nodes - 1 && read[k]; k++) {
    }
    if (k < g->n_nodes - 1) {
        b->here = b->places[k];
        DPT_TRY(dpt_builder_fail(b, err,
                                 "no layer reads its output: join it (`add: %s`), read it (`from: "
                                 "%s`) or leave it out",
                                 b->here.name, b->here.name));
    }
out:
    dpt_free(read);
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
        .region = &region,
        .model = model,
        .all = &list,
    };
    enum dpt_status status;

    *graph = (struct dpt_graph){0};
    if (!type->expand(model->options, input, &list))
        DPT_TRY(dpt_fail_memory(err, "the model's layers", 0));
    if (list.n == 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB, "model: it has no layers"));
    DPT_TRY(add_input(&builder, input, err));
    DPT_TRY(dpt_builder_layers(&builder, &list, type->listed ? "model.layers" : NULL, err));
    DPT_TRY(check_readers(&builder, err));
    DPT_TRY(check_whole(&builder, err));
out:
    dpt_region_release(&region);
    free(builder.places);
    if (status != DPT_OK)
        dpt_graph_release(graph);
    return status;
}

int64_t *dpt_model_outputs(const struct dpt_variant_value *model, struct dpt_conf_node **node)
{
    const struct dpt_model_type *type = model->variant->impl;
    const struct dpt_sequential_options *listed = model->options;
    const struct dpt_option *row = model->variant->options;
    const struct dpt_layer *last;

    if (!type->listed) {
        while (strcmp(row->name, "outputs") != 0)
            row++;
        *node = dpt_conf_get(model->at, row->name);
        return (int64_t *)(void *)((char *)model->options + row->offset);
    }
    last = &listed->layers.at[listed->layers.n - 1];
    if (last->type != &dpt_layer_dense)
        return NULL;
    *node = dpt_conf_get(last->at->items[0], "outputs");
    return &((struct dpt_dense_options *)last->options)->outputs;
}

int32_t dpt_graph_outputs(const struct dpt_graph *graph)
{
    return (int32_t)dpt_shape_size(&graph->nodes[graph->n_nodes - 1].out);
}
