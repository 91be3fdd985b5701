#include "core/conf/option.h"

struct walk {
    dpt_setting_visit *visit;
    void *arg;
    struct dpt_str path;
};

bool dpt_conf_is_setting(const struct dpt_conf_node *node)
{
    if (node->kind == DPT_NODE_MAP)
        return node->n == 0;
    for (size_t i = 0; node->kind == DPT_NODE_LIST && i < node->n; i++)
        if (node->items[i]->kind != DPT_NODE_SCALAR)
            return false;
    return true;
}

static void walk(struct walk *w, const struct dpt_conf_node *node, enum dpt_effect above)
{
    const size_t length = w->path.length;
    const enum dpt_effect effect =
        node->row == NULL || node->row->effect == DPT_EFFECT_AS_ABOVE ? above : node->row->effect;

    if (dpt_conf_is_setting(node)) {
        if (!w->path.failed)
            w->visit(w->arg, length > 0 ? w->path.text : "", node, effect);
        return;
    }
    for (size_t i = 0; i < node->n && !w->path.failed; i++) {
        if (node->kind == DPT_NODE_MAP)
            dpt_str_printf(&w->path, "%s%s", length > 0 ? "." : "", node->keys[i]);
        else
            dpt_str_printf(&w->path, "[%zu]", i);
        if (w->path.failed)
            return;
        walk(w, node->items[i], effect);
        w->path.length = length;
        w->path.text[length] = '\0';
    }
}

bool dpt_conf_settings(const struct dpt_conf_node *root, dpt_setting_visit *visit, void *arg)
{
    struct walk w = {.visit = visit, .arg = arg};
    bool good;

    walk(&w, root, DPT_EFFECT_AS_ABOVE);
    good = !w.path.failed;
    dpt_str_release(&w.path);
    return good;
}

void dpt_conf_setting_text(const struct dpt_conf_node *setting, struct dpt_str *out)
{
    enum { SHOWN = 400 };
    char shown[6 * SHOWN + 8];

    if (setting->kind == DPT_NODE_SCALAR) {
        dpt_show_text(shown, setting->text, SHOWN);
        dpt_str_printf(out, "%s", shown);
        return;
    }
    dpt_str_printf(out, "%s", setting->kind == DPT_NODE_MAP ? "{" : "[");
    for (size_t i = 0; i < setting->n; i++) {
        dpt_str_printf(out, "%s", i == 0 ? "" : ", ");
        dpt_conf_setting_text(setting->items[i], out);
    }
    dpt_str_printf(out, "%s", setting->kind == DPT_NODE_MAP ? "}" : "]");
}
