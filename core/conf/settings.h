/*
 * settings: a tree as a flat list of keys and values, for tables and for comparing.
 *
 * A setting is a scalar, a list of scalars, or an empty list or map: "optimizer.lr", "data.train",
 * "model.layers[3].conv.kernel".
 */
#ifndef DPT_CONF_SETTINGS_H
#define DPT_CONF_SETTINGS_H

#include "core/conf/option.h"

/* path: lives during the visit. effect: what its row says of it, or that of what it stands in. */
typedef void dpt_setting_visit(void *arg, const char *path, const struct dpt_conf_node *setting,
                               enum dpt_effect effect);

/* Whether a node is a setting. */
bool dpt_conf_is_setting(const struct dpt_conf_node *node);
/* Visits the settings below a node, in the order of the tree. False where memory ran out. */
bool dpt_conf_settings(const struct dpt_conf_node *root, dpt_setting_visit *visit, void *arg);

/* Adds a setting's value in one line as a terminal may show it: `0.1`, `[1, 28, 28]`, `{}`. */
void dpt_conf_setting_text(const struct dpt_conf_node *setting, struct dpt_str *out);

#endif
