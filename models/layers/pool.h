/*
 * pool: what maxpool and avgpool share, which is all but the operation.
 */
#ifndef DPT_MODELS_LAYERS_POOL_H
#define DPT_MODELS_LAYERS_POOL_H

#include "models/layer.h"

/* Fill struct dpt_layer_pool_options. */
extern const struct dpt_option dpt_layer_pool_options[];

/* Adds a pool of this operation. Errors: as dpt_layer_type.add. */
enum dpt_status dpt_layer_pool_add(struct dpt_builder *b, const struct dpt_layer *layer,
                                   enum dpt_op op, struct dpt_error *err);

#endif
