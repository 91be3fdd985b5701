/* How weights begin: one row a way. */
#include <math.h>
#include <string.h>

#include "core/base/rng.h"
#include "core/conf/option.h"
#include "models/layer.h"

/* --- the ways --------------------------------------------------------------------------------- */

/* Normal numbers of tensor k, by their standard deviation. */
static void fill_normal(const struct dpt_tensor *t, uint64_t seed, uint64_t k, double deviation,
                        float *x)
{
    const float factor = (float)deviation;

    dpt_random_normal(seed, DPT_RANDOM_INIT, k, (uint64_t)t->first, (size_t)t->count, x);
    for (int64_t i = 0; i < t->count; i++)
        x[i] *= factor;
}

/* Uniform numbers of tensor k in [-limit, limit]. */
static void fill_uniform(const struct dpt_tensor *t, uint64_t seed, uint64_t k, double limit,
                         float *x)
{
    const float factor = (float)limit;

    dpt_random_uniform(seed, DPT_RANDOM_INIT, k, (uint64_t)t->first, (size_t)t->count, x);
    for (int64_t i = 0; i < t->count; i++)
        x[i] = (2.0f * x[i] - 1.0f) * factor;
}

static bool zero(const struct dpt_tensor *t, uint64_t seed, uint64_t k, float *x)
{
    (void)t, (void)seed, (void)k, (void)x;
    return true;
}

/* A way that fills a tensor with random numbers of this standard deviation or limit. */
#define RANDOM(way, numbers, value)                                                                \
    static bool way(const struct dpt_tensor *t, uint64_t seed, uint64_t k, float *x)               \
    {                                                                                              \
        fill_##numbers(t, seed, k, value, x);                                                      \
        return true;                                                                               \
    }

/* He et al. 2015, "Delving Deep into Rectifiers", equation 10: normal, variance 2 / fan_in. */
RANDOM(he, normal, sqrt(2.0 / (double)t->fan_in))
/* Glorot & Bengio 2010, "Understanding the difficulty of training deep feedforward neural
 * networks", equation 16: uniform, +- sqrt(6 / (fan_in + fan_out)). */
RANDOM(xavier, uniform, sqrt(6.0 / (double)(t->fan_in + t->fan_out)))
/* LeCun et al. 1998, "Efficient BackProp", equation 16: normal, variance 1 / fan_in. */
RANDOM(lecun, normal, sqrt(1.0 / (double)t->fan_in))
/* What PyTorch's nn.Linear and nn.Conv2d begin with: uniform, +- 1 / sqrt(fan_in), weights and
 * biases. */
RANDOM(pytorch, uniform, sqrt(1.0 / (double)t->fan_in))
RANDOM(normal, normal, t->init.value)
RANDOM(uniform, uniform, t->init.value)

/*
 * Saxe, McClelland & Ganguli 2014, "Exact solutions to the nonlinear dynamics of learning in deep
 * linear neural networks", section 3: Q of the QR decomposition of a normal matrix, whose rows are
 * the outputs, with R's diagonal positive; where there are fewer rows than columns, of its
 * transpose.
 */
static bool whole_orthogonal(const struct dpt_tensor *t, uint64_t seed, uint64_t k, float *x)
{
    const int64_t rows = t->dims[0], columns = t->count / rows;
    const bool wide = rows < columns;
    const int64_t n = wide ? rows : columns, length = wide ? columns : rows;
    const int64_t to_next = wide ? columns : 1, along = wide ? 1 : columns;
    double *q = dpt_alloc_array((size_t)t->count, sizeof *q);

    if (q == NULL)
        return false;
    fill_normal(t, seed, k, 1, x);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < length; j++)
            q[i * length + j] = x[i * to_next + j * along];
    dpt_orthonormalize(q, n, length);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < length; j++)
            x[i * to_next + j * along] = (float)q[i * length + j];
    dpt_free(q);
    return true;
}

/* A part of it is a part of the whole one. */
static bool orthogonal(const struct dpt_tensor *t, uint64_t seed, uint64_t k, float *x)
{
    struct dpt_tensor all = *t;
    float *whole;
    bool made;

    if (t->count == t->whole)
        return whole_orthogonal(t, seed, k, x);
    all.count = t->whole;
    all.first = 0;
    whole = dpt_alloc_array((size_t)t->whole, sizeof *whole);
    made = whole != NULL && whole_orthogonal(&all, seed, k, whole);
    if (made)
        memcpy(x, whole + t->first, (size_t)t->count * sizeof *x);
    dpt_free(whole);
    return made;
}

// clang-format off
static const struct dpt_option deviation[] = {
    {.name = "normal", .type = DPT_OPT_REAL, .offset = offsetof(struct dpt_initializer, value),
     .min = 0, .max = 1e6, .help = "standard deviation"},
    {0},
};
static const struct dpt_option limit[] = {
    {.name = "uniform", .type = DPT_OPT_REAL, .offset = offsetof(struct dpt_initializer, value),
     .min = 0, .max = 1e6, .help = "largest absolute value"},
    {0},
};
// clang-format on

/* The ways that need no number, and whether biases begin so, too. */
#define WORDS(X)                                                                                   \
    X(zero, false)                                                                                 \
    X(he, false) X(xavier, false) X(lecun, false) X(pytorch, true) X(orthogonal, false)

static const struct dpt_initializer_type types[] = {
#define X(way, of_biases) {.name = #way, .fill = way, .biases = of_biases},
    WORDS(X)
#undef X
        {.name = "normal", .fill = normal, .options = deviation},
    {.name = "uniform", .fill = uniform, .options = limit},
};

enum { TYPES = sizeof types / sizeof *types };

enum dpt_status dpt_model_init_tensor(const struct dpt_graph *graph, int32_t tensor, uint64_t seed,
                                      float *params, struct dpt_error *err)
{
    const struct dpt_tensor *t = &graph->tensors[tensor];

    if (t->count == 0) /* it is in another part of the model */
        return DPT_OK;
    if (t->init.type != NULL && !t->init.type->fill(t, seed, (uint64_t)tensor, params + t->offset))
        return dpt_fail_memory(err, t->name, (double)t->count * sizeof(double));
    for (int64_t i = 0; t->init.type == NULL && i < t->count; i++)
        params[t->offset + i] = (float)t->init.value;
    return DPT_OK;
}

enum dpt_status dpt_model_init(const struct dpt_graph *graph, uint64_t seed, float *params,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (int32_t k = 0; k < graph->n_tensors && status == DPT_OK; k++)
        status = dpt_model_init_tensor(graph, k, seed, params, err);
    return status;
}

/* --- in the job ------------------------------------------------------------------------------- */

/* `he`, or `{normal: 0.02}`: a word where the way has no option, else a map of the one it has. */
bool dpt_read_initializer(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                          void *dest)
{
    struct dpt_initializer *init = dest;
    const bool map = node->kind == DPT_NODE_MAP && node->n == 1;
    const char *name = map ? node->keys[0] : node->kind == DPT_NODE_SCALAR ? node->text : "";
    const char *names[TYPES];

    for (size_t i = 0; i < TYPES; i++) {
        names[i] = types[i].name;
        if (strcmp(name, names[i]) == 0)
            init->type = &types[i];
    }
    if (name[0] == '\0')
        dpt_conf_mistake(conf, node, path, "expected one of " DPT_INITIALIZER_VALUE_TEXT);
    else if (init->type == NULL)
        dpt_conf_mistake(conf, node, path, "'%s' is none of " DPT_INITIALIZER_VALUE_TEXT "%s",
                         dpt_conf_show(conf, name),
                         dpt_value_suggestion(conf, NULL, name, names, TYPES));
    else if (map == (init->type->options != NULL))
        return !map || dpt_options_read(conf, node, path, init->type->options, init);
    else if (map)
        dpt_conf_mistake(conf, node, path, "%s takes no number: write `init: %s`", name, name);
    else
        dpt_conf_mistake(conf, node, path, "%s requires its %s: write `init: {%s: 0.02}`", name,
                         init->type->options->help, name);
    return !conf->region.failed;
}

static const char *const words[] = {
#define X(way, of_biases) #way,
    WORDS(X)
#undef X
        NULL};

static const struct dpt_option either[] = {
    {.name = "word", .type = DPT_OPT_CHOICE, .choices = words},
    {.name = "normal", .type = DPT_OPT_SECTION, .rows = deviation},
    {.name = "uniform", .type = DPT_OPT_SECTION, .rows = limit},
    {0},
};

const struct dpt_alternatives dpt_initializer_alternatives = {.either = either};
