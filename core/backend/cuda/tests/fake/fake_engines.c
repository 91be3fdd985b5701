/*
 * The fake cuDNN's engines: the graphs that they support, the order of their sums, and their notes.
 * Engine 0 is the general one, as in cuDNN. One is offered and then makes no plan, one sums in less
 * precision, some need workspace, and some give other bits in each run.
 */
#include <string.h>
#include <time.h>

#include "core/backend/cuda/tests/fake/fake_cudnn.h"

#define NOTE(name) (1u << CUDNN_NUMERICAL_NOTE_##name)

enum { OFFERS = 16 };

static const struct engine {
    int64_t number;
    unsigned notes;
    bool fuses, breaks; /* breaks: is offered, but makes no plan */
    int64_t workspace;  /* bytes; times the batch */
    int knobs;
    struct fake_order order;
} engines[] = {
    {.number = 11,
     .notes = NOTE(TENSOR_CORE) | NOTE(NONDETERMINISTIC),
     .workspace = 1024,
     .order = {.tf32 = true}},
    {.number = 15, .notes = NOTE(TENSOR_CORE), .fuses = true, .breaks = true},
    {.number = 13,
     .notes = NOTE(TENSOR_CORE) | NOTE(REDUCED_PRECISION_REDUCTION),
     .fuses = true,
     .order = {.sloppy = true, .tf32 = true}},
    {.number = 5,
     .notes = NOTE(TENSOR_CORE) | NOTE(DOWN_CONVERT_INPUTS),
     .fuses = true,
     .order = {.narrow = true, .start = 2}},
    {.number = 3,
     .notes = NOTE(TENSOR_CORE),
     .fuses = true,
     .workspace = 512,
     .knobs = 2,
     .order = {.tf32 = true, .down = true, .start = 3}},
    {.number = 9, .notes = NOTE(NONDETERMINISTIC), .workspace = 256},
    {.number = 7, .fuses = true, .workspace = 768, .knobs = 1, .order = {.down = true, .start = 5}},
    {.number = 8, .fuses = true, .order = {.start = 7}},
    {.number = 0},
};

enum { ENGINES = sizeof engines / sizeof *engines, GENERAL = ENGINES - 1 };

int fake_engine_row(int64_t number)
{
    for (int i = 0; i < ENGINES; i++) {
        if (engines[i].number == number)
            return i;
    }
    return -1;
}

int64_t fake_engine_number(int row)
{
    return engines[row].number;
}

unsigned fake_engine_notes(int row, const struct fake_conv *conv)
{
    /* 16-bit tensors are not made narrower. */
    const bool half = conv->tensor[FAKE_X].type != FAKE_F32;

    return engines[row].notes & ~(half ? NOTE(DOWN_CONVERT_INPUTS) : 0);
}

/* Whether other engines than the general one support this. */
static bool is_plain(const struct fake_conv *c)
{
    return c->groups == 1 && c->before[0] == c->after[0] && c->before[1] == c->after[1];
}

static bool suits(int row, const struct fake_conv *c)
{
    const bool fused = c->bias || c->relu;
    const bool half = c->tensor[FAKE_X].type != FAKE_F32;

    if (row == GENERAL)
        return !fused;
    if (!is_plain(c) || (fused && !engines[row].fuses))
        return false;
    /* 16-bit tensors have only engines with tensor cores. */
    return !half || engines[row].notes & NOTE(TENSOR_CORE);
}

bool fake_heuristics_crash(const struct fake_conv *conv, cudnnBackendHeurMode_t mode)
{
    int64_t outputs = 1;

    for (int axis = 0; axis < 2; axis++) {
        const int64_t kernel = (conv->tensor[FAKE_W].dims[2 + axis] - 1) * conv->dilation[axis] + 1;
        const int64_t padded = conv->tensor[FAKE_X].dims[2 + axis] + 2 * conv->before[axis];

        outputs *= (padded - kernel) / conv->stride[axis] + 1;
    }
    return conv->pass == FAKE_FILTER && mode == CUDNN_HEUR_MODE_B && outputs <= 0;
}

int fake_offers(const struct fake_conv *conv, cudnnBackendHeurMode_t mode,
                struct fake_choice *choices, int most)
{
    const bool fallback = mode == CUDNN_HEUR_MODE_FALLBACK;
    const int knobs = (int)fakegpu_number("FAKEGPU_KNOBS", 0);
    int n = 0;

    for (int i = 0; i < ENGINES; i++) {
        const int values = engines[i].knobs > 0 ? 2 : 1;

        if (!suits(i, conv) || (i == GENERAL) != fallback)
            continue;
        for (int v = 0; v < values && n < most && n < OFFERS; v++) {
            choices[n] = (struct fake_choice){.engine = i, .n_knobs = engines[i].knobs};
            choices[n].knob[0].type = CUDNN_KNOB_TYPE_TILE_SIZE;
            choices[n].knob[0].value = engines[i].knobs > 0 ? 1 - v : 0;
            choices[n].knob[1].type = CUDNN_KNOB_TYPE_STAGES;
            choices[n].knob[1].value = 4;
            for (int k = 2; engines[i].knobs > 1 && k < knobs && k < FAKE_KNOBS; k++) {
                choices[n].knob[k].type = (cudnnBackendKnobType_t)k;
                choices[n].knob[k].value = 1000000 + k;
                choices[n].n_knobs = k + 1;
            }
            n++;
        }
    }
    return n;
}

cudnnStatus_t fake_plan(const struct fake_conv *conv, const struct fake_choice *choice,
                        int64_t *workspace)
{
    const struct engine *e = &engines[choice->engine];

    if (e->breaks || !suits(choice->engine, conv))
        return CUDNN_STATUS_NOT_SUPPORTED;
    if ((choice->n_knobs > e->knobs && fakegpu_number("FAKEGPU_KNOBS", 0) == 0) ||
        (choice->n_knobs > 0 && (choice->knob[0].value < 0 || choice->knob[0].value > 1)))
        return CUDNN_STATUS_NOT_SUPPORTED;
    *workspace = e->workspace * conv->tensor[FAKE_X].dims[0] * (choice->knob[0].value + 1);
    return CUDNN_STATUS_SUCCESS;
}

/* Another number in each run. */
static uint64_t noise(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (fakegpu_chance() ^ (uint64_t)now.tv_nsec * 0x9E3779B97F4A7C15ull) >> 8;
}

void fake_plan_order(const struct fake_choice *choice, struct fake_order *order)
{
    const struct engine *e = &engines[choice->engine];

    *order = e->order;
    order->start += 11 * (uint64_t)choice->knob[0].value;
    if (e->notes & NOTE(NONDETERMINISTIC))
        order->start += noise();
}

/* --- graphs ----------------------------------------------------------------------------------- */

/* Attributes of the three convolutions, in the order: window, x, w, y, alpha, beta. */
static const struct operation {
    cudnnBackendDescriptorType_t type;
    int names[6];
} operations[] = {
    [FAKE_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                      {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA}},
    [FAKE_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                   {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA}},
    [FAKE_FILTER] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                     {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}},
};

static float factor(const struct fake_descriptor *d, int name)
{
    int64_t count;
    const float *value = fake_value(d, name, &count);

    return value != NULL ? *value : 1;
}

static cudnnStatus_t read_tensor(const struct fake_descriptor *d, struct fake_tensor *t)
{
    int64_t count, strides;
    const cudnnDataType_t *type = fake_value(d, CUDNN_ATTR_TENSOR_DATA_TYPE, &count);
    const bool *passing = fake_value(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, &count);
    const void *dims, *steps;

    t->id = *(const int64_t *)fake_value(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, &count);
    t->alignment = *(const int64_t *)fake_value(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &count);
    t->passing = passing != NULL && *passing;
    dims = fake_value(d, CUDNN_ATTR_TENSOR_DIMENSIONS, &count);
    steps = fake_value(d, CUDNN_ATTR_TENSOR_STRIDES, &strides);
    if (count != 4 || strides != 4)
        return fake_refuse(CUDNN_STATUS_NOT_SUPPORTED, "tensors have 4 dimensions here");
    memcpy(t->dims, dims, sizeof t->dims);
    memcpy(t->strides, steps, sizeof t->strides);
    for (int i = 0; i < 4; i++) {
        if (t->dims[i] <= 0 || t->strides[i] <= 0)
            return fake_refuse(CUDNN_STATUS_BAD_PARAM, "a tensor of no size");
    }
    if (t->strides[1] != 1)
        return fake_refuse(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "tensors are channels-last here");
    if (*type != CUDNN_DATA_FLOAT && *type != CUDNN_DATA_HALF && *type != CUDNN_DATA_BFLOAT16)
        return fake_refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "type %d", (int)*type);
    t->type = *type == CUDNN_DATA_FLOAT ? FAKE_F32 : *type == CUDNN_DATA_HALF ? FAKE_F16 : FAKE_B16;
    return CUDNN_STATUS_SUCCESS;
}

static void read_pair(const struct fake_descriptor *d, int name, int64_t *pair)
{
    int64_t count;
    const int64_t *values = fake_value(d, name, &count);

    for (int i = 0; i < 2 && i < count; i++)
        pair[i] = values[i];
}

static cudnnStatus_t read_convolution(const struct fake_descriptor *d, enum fake_pass pass,
                                      struct fake_conv *c)
{
    const int *names = operations[pass].names;
    const struct fake_descriptor *window = fake_part(d, names[0], 0);
    cudnnStatus_t status;
    int64_t count;

    c->pass = pass;
    read_pair(window, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, c->before);
    read_pair(window, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, c->after);
    read_pair(window, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, c->stride);
    read_pair(window, CUDNN_ATTR_CONVOLUTION_DILATIONS, c->dilation);
    if (*(const cudnnDataType_t *)fake_value(window, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, &count) !=
            CUDNN_DATA_FLOAT ||
        *(const cudnnConvolutionMode_t *)fake_value(window, CUDNN_ATTR_CONVOLUTION_CONV_MODE,
                                                    &count) != CUDNN_CROSS_CORRELATION)
        return fake_refuse(CUDNN_STATUS_NOT_SUPPORTED, "only correlations, summed in float");
    for (int i = FAKE_X; i <= FAKE_Y; i++) {
        status = read_tensor(fake_part(d, names[1 + i], 0), &c->tensor[i]);
        if (status != CUDNN_STATUS_SUCCESS)
            return status;
    }
    c->alpha = factor(d, names[4]);
    c->beta = factor(d, names[5]);
    c->groups = c->tensor[FAKE_X].dims[1] / c->tensor[FAKE_W].dims[1];
    if (c->groups < 1 || !fake_conv_fits(c))
        return fake_refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                           "a convolution's dimensions do not fit together");
    return CUDNN_STATUS_SUCCESS;
}

static bool same_dims(const struct fake_tensor *a, const struct fake_tensor *b)
{
    return memcmp(a->dims, b->dims, sizeof a->dims) == 0;
}

/* y = x + bias or y = max(x, 0), x being the result so far. */
static cudnnStatus_t read_pointwise(const struct fake_descriptor *d, struct fake_conv *c)
{
    const struct fake_descriptor *what =
        fake_part(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 0);
    const struct fake_descriptor *b = fake_part(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, 0);
    int64_t count;
    const cudnnPointwiseMode_t mode =
        *(const cudnnPointwiseMode_t *)fake_value(what, CUDNN_ATTR_POINTWISE_MODE, &count);
    struct fake_tensor x, y, *before = &c->tensor[FAKE_Y], *bias = &c->tensor[FAKE_BIAS];
    cudnnStatus_t status = read_tensor(fake_part(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, 0), &x);

    if (status == CUDNN_STATUS_SUCCESS)
        status = read_tensor(fake_part(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, 0), &y);
    if (status != CUDNN_STATUS_SUCCESS)
        return status;
    if (c->pass != FAKE_FORWARD || x.id != before->id || !before->passing || !same_dims(&x, &y) ||
        before->type != FAKE_F32)
        return fake_refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                           "only what is behind a convolution's virtual float tensor is fused");
    if (mode == CUDNN_POINTWISE_ADD && b != NULL && !c->bias && !c->relu) {
        status = read_tensor(b, bias);
        if (status != CUDNN_STATUS_SUCCESS)
            return status;
        if (bias->type != c->tensor[FAKE_X].type || bias->dims[1] != y.dims[1] ||
            bias->dims[0] * bias->dims[2] * bias->dims[3] != 1)
            return fake_refuse(CUDNN_STATUS_NOT_SUPPORTED,
                               "a bias has the tensors' type, and one element a channel");
        c->bias = true;
    } else if (mode == CUDNN_POINTWISE_RELU_FWD && !c->relu) {
        const cudnnNanPropagation_t *nan =
            fake_value(what, CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, &count);

        c->relu = true;
        c->drops_nan = nan == NULL || *nan != CUDNN_PROPAGATE_NAN;
    } else {
        return fake_refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "pointwise mode %d",
                           (int)mode);
    }
    *before = y;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t fake_graph_meaning(const struct fake_descriptor *graph, struct fake_conv *conv)
{
    cudnnStatus_t status = CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN;
    int64_t n = 0;

    *conv = (struct fake_conv){0};
    fake_value(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, &n);
    for (int64_t i = 0; i < n; i++) {
        const struct fake_descriptor *d = fake_part(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, i);
        int pass = 0;

        while (pass < 3 && operations[pass].type != d->type)
            pass++;
        if (i == 0 && pass < 3)
            status = read_convolution(d, (enum fake_pass)pass, conv);
        else if (i > 0 && d->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
            status = read_pointwise(d, conv);
        else
            status = fake_refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                                 "an operation of type %d", (int)d->type);
        if (status != CUDNN_STATUS_SUCCESS)
            return status;
    }
    for (int i = FAKE_X; i <= FAKE_Y; i++) {
        if (conv->tensor[i].type != conv->tensor[FAKE_X].type || conv->tensor[i].passing)
            return fake_refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE,
                               "tensors of different types, or one that is never stored");
    }
    return status;
}
