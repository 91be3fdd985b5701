#include <ctype.h>
#include <string.h>

#include "models/layer.h"

/* One or two whole numbers of at least `least` into a pair; errors leave it at ones. */
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
                         "expected one number or [height, width], got %zu numbers", ints.n);
        return true;
    }
    pair->at[0] = (int32_t)ints.at[0];
    pair->at[1] = (int32_t)ints.at[ints.n - 1];
    return true;
}

static const char *const auto_word[] = {"auto", NULL}, *const rules[] = {"same", "valid", NULL};

/* One of the words (*word: its number, and a pair of zeros), or numbers (*word: -1). What starts
 * like a word is told the words rather than that it is no number. */
static bool read_either(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                        const char *const *words, const char *listed, double least,
                        struct dpt_pair *pair, int *word)
{
    const char *text = node->kind == DPT_NODE_SCALAR ? node->text : "";

    *pair = (struct dpt_pair){{0, 0}};
    for (*word = 0; words[*word] != NULL; ++*word)
        if (strcmp(text, words[*word]) == 0)
            return true;
    *word = -1;
    if (!isalpha((unsigned char)text[0]))
        return read_numbers(conf, node, path, least, pair);
    dpt_conf_mistake(conf, node, path, "'%s' is neither a number nor [height, width] nor %s", text,
                     listed);
    return true;
}

bool dpt_read_pair(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path, void *dest)
{
    return read_numbers(conf, node, path, 1, dest);
}

bool dpt_read_pair_or_auto(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                           void *dest)
{
    int word;

    return read_either(conf, node, path, auto_word, "auto", 1, dest, &word);
}

bool dpt_read_padding(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                      void *dest)
{
    struct dpt_padding *padding = dest;
    int word;
    const bool read =
        read_either(conf, node, path, rules, "same nor valid", 0, &padding->pair, &word);

    padding->same = word == 0;
    return read;
}

// clang-format off
#define NUMBERS(least)                                                                             \
    {.name = "numbers", .type = DPT_OPT_INTS, .min = least, .max = DPT_MAX_KERNEL}

static const struct dpt_option pair[] = {NUMBERS(1), {0}};
static const struct dpt_option pair_or_auto[] = {
    NUMBERS(1), {.name = "word", .type = DPT_OPT_CHOICE, .choices = auto_word}, {0}};
static const struct dpt_option padding[] = {
    NUMBERS(0), {.name = "word", .type = DPT_OPT_CHOICE, .choices = rules}, {0}};
// clang-format on

const struct dpt_alternatives dpt_pair_alternatives = {.either = pair, .most = 2};
const struct dpt_alternatives dpt_pair_or_auto_alternatives = {.either = pair_or_auto, .most = 2};
const struct dpt_alternatives dpt_padding_alternatives = {.either = padding, .most = 2};
