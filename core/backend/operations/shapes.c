/* Shapes of outputs, for the rows of several operations. */
#include "core/backend/operation.h"

void dpt_shape_same(struct dpt_graph_node *node)
{
    node->out = node->in;
}

void dpt_shape_window(struct dpt_graph_node *node)
{
    node->out.h = dpt_window_extent(&node->window, 0, node->in.h);
    node->out.w = dpt_window_extent(&node->window, 1, node->in.w);
    node->out.flat = false;
}

void dpt_shape_vector(struct dpt_graph_node *node)
{
    node->out =
        (struct dpt_shape){.c = (int32_t)dpt_shape_size(&node->in), .h = 1, .w = 1, .flat = true};
}
