#include <string.h>

#include "models/layer.h"

/* One or two whole numbers of at least `least` into a pair; mistakes leave it at ones. */
static bool read_numbers(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                         double least, struct dpt_pair *pair)
{
    const struct dpt_option row = {
        .name = "pair", .type = DPT_OPT_INTS, .min = least, .max = DPT_MAX_KERNEL};
    const size_t mistakes = conf->n_mistakes;
    struct dpt_ints ints = {0};

    *pair = (struct dpt_pair){{1, 1}};
    if (!dpt_option_read(conf, node, path, &row, &ints))
        return false;
    if (conf->n_mistakes != mistakes)
        return true;
    if (ints.n != 1 && ints.n != 2) {
        dpt_conf_mistake(conf, node, path,
                         "one number or [height, width] is wanted, not %zu numbers", ints.n);
        return true;
    }
    pair->at[0] = (int32_t)ints.at[0];
    pair->at[1] = (int32_t)ints.at[ints.n - 1];
    return true;
}

static bool is_word(const struct dpt_conf_node *node, const char *word)
{
    return node->kind == DPT_NODE_SCALAR && strcmp(node->text, word) == 0;
}

/* A scalar that starts like a word, so that it is told the words rather than that it is no number.
 */
static bool is_other_word(const struct dpt_conf_node *node)
{
    return node->kind == DPT_NODE_SCALAR && ((node->text[0] >= 'a' && node->text[0] <= 'z') ||
                                             (node->text[0] >= 'A' && node->text[0] <= 'Z'));
}

bool dpt_read_pair(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path, void *dest)
{
    return read_numbers(conf, node, path, 1, dest);
}

bool dpt_read_pair_or_auto(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                           void *dest)
{
    if (is_word(node, "auto")) {
        *(struct dpt_pair *)dest = (struct dpt_pair){{0, 0}};
        return true;
    }
    if (is_other_word(node)) {
        dpt_conf_mistake(conf, node, path, "'%s' is neither a number nor [height, width] nor auto",
                         node->text);
        return true;
    }
    return read_numbers(conf, node, path, 1, dest);
}

bool dpt_read_padding(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                      void *dest)
{
    struct dpt_padding *padding = dest;

    *padding = (struct dpt_padding){0};
    padding->same = is_word(node, "same");
    if (padding->same || is_word(node, "valid"))
        return true;
    if (is_other_word(node)) {
        dpt_conf_mistake(conf, node, path,
                         "'%s' is neither a number nor [height, width] nor same nor valid",
                         node->text);
        return true;
    }
    return read_numbers(conf, node, path, 0, &padding->pair);
}

// clang-format off
#define NUMBERS(least)                                                                             \
    {.name = "numbers", .type = DPT_OPT_INTS, .min = least, .max = DPT_MAX_KERNEL}

static const char *const auto_word[] = {"auto", NULL}, *const rules[] = {"same", "valid", NULL};

static const struct dpt_option pair[] = {NUMBERS(1), {0}};
static const struct dpt_option pair_or_auto[] = {
    NUMBERS(1), {.name = "word", .type = DPT_OPT_CHOICE, .choices = auto_word}, {0}};
static const struct dpt_option padding[] = {
    NUMBERS(0), {.name = "word", .type = DPT_OPT_CHOICE, .choices = rules}, {0}};
// clang-format on

const struct dpt_alternatives dpt_pair_alternatives = {.either = pair, .most = 2};
const struct dpt_alternatives dpt_pair_or_auto_alternatives = {.either = pair_or_auto, .most = 2};
const struct dpt_alternatives dpt_padding_alternatives = {.either = padding, .most = 2};
