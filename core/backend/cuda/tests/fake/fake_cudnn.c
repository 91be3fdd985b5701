/*
 * The fake cuDNN: descriptors with their attributes, as its graph API has them, and the execution
 * of plans. A table lists the attributes that a descriptor may have, and must have to be finalized.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/tests/fake/fake_cudnn.h"

enum { TEXT = 400, MOST = 64 };

static __thread char last[TEXT];

const char *fake_last(void)
{
    return last;
}

cudnnStatus_t fake_refuse(cudnnStatus_t status, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    vsnprintf(last, sizeof last, format, list);
    va_end(list);
    return status;
}

void cudnnGetLastErrorString(char *text, size_t bytes)
{
    snprintf(text, bytes, "%s", last);
    *last = '\0';
}

/* --- the table -------------------------------------------------------------------------------- */

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#define ROW(descriptor, attribute, kind, must)                                                     \
    {                                                                                              \
        CUDNN_BACKEND_##descriptor##_DESCRIPTOR, CUDNN_ATTR_##attribute, CUDNN_TYPE_##kind, must   \
    }
#define CONVOLUTION(descriptor, attribute)                                                         \
    ROW(descriptor, attribute##_ALPHA, FLOAT, true),                                               \
        ROW(descriptor, attribute##_BETA, FLOAT, true),                                            \
        ROW(descriptor, attribute##_CONV_DESC, BACKEND_DESCRIPTOR, true)
static const struct row {
    cudnnBackendDescriptorType_t descriptor;
    int name;
    cudnnBackendAttributeType_t type;
    bool must;
} rows[] = {
    ROW(TENSOR, TENSOR_UNIQUE_ID, INT64, true),
    ROW(TENSOR, TENSOR_DATA_TYPE, DATA_TYPE, true),
    ROW(TENSOR, TENSOR_DIMENSIONS, INT64, true),
    ROW(TENSOR, TENSOR_STRIDES, INT64, true),
    ROW(TENSOR, TENSOR_BYTE_ALIGNMENT, INT64, true),
    ROW(TENSOR, TENSOR_IS_VIRTUAL, BOOLEAN, false),
    ROW(CONVOLUTION, CONVOLUTION_COMP_TYPE, DATA_TYPE, true),
    ROW(CONVOLUTION, CONVOLUTION_CONV_MODE, CONVOLUTION_MODE, true),
    ROW(CONVOLUTION, CONVOLUTION_SPATIAL_DIMS, INT64, true),
    ROW(CONVOLUTION, CONVOLUTION_PRE_PADDINGS, INT64, true),
    ROW(CONVOLUTION, CONVOLUTION_POST_PADDINGS, INT64, true),
    ROW(CONVOLUTION, CONVOLUTION_FILTER_STRIDES, INT64, true),
    ROW(CONVOLUTION, CONVOLUTION_DILATIONS, INT64, true),
    CONVOLUTION(OPERATION_CONVOLUTION_FORWARD, OPERATION_CONVOLUTION_FORWARD),
    ROW(OPERATION_CONVOLUTION_FORWARD, OPERATION_CONVOLUTION_FORWARD_X, BACKEND_DESCRIPTOR, true),
    ROW(OPERATION_CONVOLUTION_FORWARD, OPERATION_CONVOLUTION_FORWARD_W, BACKEND_DESCRIPTOR, true),
    ROW(OPERATION_CONVOLUTION_FORWARD, OPERATION_CONVOLUTION_FORWARD_Y, BACKEND_DESCRIPTOR, true),
    CONVOLUTION(OPERATION_CONVOLUTION_BACKWARD_DATA, OPERATION_CONVOLUTION_BWD_DATA),
    ROW(OPERATION_CONVOLUTION_BACKWARD_DATA, OPERATION_CONVOLUTION_BWD_DATA_DX, BACKEND_DESCRIPTOR,
        true),
    ROW(OPERATION_CONVOLUTION_BACKWARD_DATA, OPERATION_CONVOLUTION_BWD_DATA_W, BACKEND_DESCRIPTOR,
        true),
    ROW(OPERATION_CONVOLUTION_BACKWARD_DATA, OPERATION_CONVOLUTION_BWD_DATA_DY, BACKEND_DESCRIPTOR,
        true),
    CONVOLUTION(OPERATION_CONVOLUTION_BACKWARD_FILTER, OPERATION_CONVOLUTION_BWD_FILTER),
    ROW(OPERATION_CONVOLUTION_BACKWARD_FILTER, OPERATION_CONVOLUTION_BWD_FILTER_X,
        BACKEND_DESCRIPTOR, true),
    ROW(OPERATION_CONVOLUTION_BACKWARD_FILTER, OPERATION_CONVOLUTION_BWD_FILTER_DW,
        BACKEND_DESCRIPTOR, true),
    ROW(OPERATION_CONVOLUTION_BACKWARD_FILTER, OPERATION_CONVOLUTION_BWD_FILTER_DY,
        BACKEND_DESCRIPTOR, true),
    ROW(POINTWISE, POINTWISE_MODE, POINTWISE_MODE, true),
    ROW(POINTWISE, POINTWISE_MATH_PREC, DATA_TYPE, true),
    ROW(POINTWISE, POINTWISE_NAN_PROPAGATION, NAN_PROPOGATION, false),
    ROW(OPERATION_POINTWISE, OPERATION_POINTWISE_PW_DESCRIPTOR, BACKEND_DESCRIPTOR, true),
    ROW(OPERATION_POINTWISE, OPERATION_POINTWISE_XDESC, BACKEND_DESCRIPTOR, true),
    ROW(OPERATION_POINTWISE, OPERATION_POINTWISE_BDESC, BACKEND_DESCRIPTOR, false),
    ROW(OPERATION_POINTWISE, OPERATION_POINTWISE_YDESC, BACKEND_DESCRIPTOR, true),
    ROW(OPERATIONGRAPH, OPERATIONGRAPH_OPS, BACKEND_DESCRIPTOR, true),
    ROW(OPERATIONGRAPH, OPERATIONGRAPH_HANDLE, HANDLE, true),
    ROW(ENGINEHEUR, ENGINEHEUR_OPERATION_GRAPH, BACKEND_DESCRIPTOR, true),
    ROW(ENGINEHEUR, ENGINEHEUR_MODE, HEUR_MODE, true),
    ROW(ENGINE, ENGINE_OPERATION_GRAPH, BACKEND_DESCRIPTOR, true),
    ROW(ENGINE, ENGINE_GLOBAL_INDEX, INT64, true),
    ROW(KNOB_CHOICE, KNOB_CHOICE_KNOB_TYPE, KNOB_TYPE, true),
    ROW(KNOB_CHOICE, KNOB_CHOICE_KNOB_VALUE, INT64, true),
    ROW(ENGINECFG, ENGINECFG_ENGINE, BACKEND_DESCRIPTOR, true),
    ROW(ENGINECFG, ENGINECFG_KNOB_CHOICES, BACKEND_DESCRIPTOR, false),
    ROW(EXECUTION_PLAN, EXECUTION_PLAN_ENGINE_CONFIG, BACKEND_DESCRIPTOR, true),
    ROW(EXECUTION_PLAN, EXECUTION_PLAN_HANDLE, HANDLE, true),
    ROW(VARIANT_PACK, VARIANT_PACK_UNIQUE_IDS, INT64, true),
    ROW(VARIANT_PACK, VARIANT_PACK_DATA_POINTERS, VOID_PTR, true),
    ROW(VARIANT_PACK, VARIANT_PACK_WORKSPACE, VOID_PTR, true),
    ROW(DEVICEPROP, DEVICEPROP_HANDLE, HANDLE, true),
};
#pragma GCC diagnostic pop

enum { ROWS = sizeof rows / sizeof *rows };

static size_t size_of(cudnnBackendAttributeType_t type)
{
    switch ((int)type) {
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_CHAR:
        return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return 8;
    default:
        return 4; /* enumerations and floats */
    }
}

/* --- descriptors ------------------------------------------------------------------------------ */

struct fake_descriptor *fake_descriptor_of(cudnnBackendDescriptor_t given)
{
    struct fake_descriptor *d = given;

    return d != NULL && d->magic == FAKE_MAGIC ? d : NULL;
}

static struct fake_attribute *find(const struct fake_descriptor *d, int name)
{
    struct fake_attribute *a = d->attributes;

    while (a != NULL && (int)a->name != name)
        a = a->next;
    return a;
}

const void *fake_value(const struct fake_descriptor *d, int name, int64_t *count)
{
    const struct fake_attribute *a = find(d, name);

    *count = a != NULL ? a->count : 0;
    return a != NULL ? a->value : NULL;
}

const struct fake_descriptor *fake_part(const struct fake_descriptor *d, int name, int64_t i)
{
    int64_t count;
    const void *value = fake_value(d, name, &count);
    struct fake_descriptor *part = NULL;

    if (i < count)
        memcpy(&part, (const char *)value + i * (int64_t)sizeof part, sizeof part);
    return part;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *made)
{
    struct fake_descriptor *d;
    bool known = type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR;

    FAKE(cudnnBackendCreateDescriptor, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "%d",
         (int)type);
    for (int i = 0; i < ROWS; i++)
        known |= rows[i].descriptor == type;
    if (!known)
        return FAKE_WRONG(NOT_SUPPORTED, "descriptors of type %d are not known here", (int)type);
    d = calloc(1, sizeof *d);
    if (d == NULL)
        return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    d->magic = FAKE_MAGIC;
    d->type = type;
    *made = d;
    return CUDNN_STATUS_SUCCESS;
}

static void clear(struct fake_descriptor *d)
{
    while (d->attributes != NULL) {
        struct fake_attribute *next = d->attributes->next;

        free(d->attributes);
        d->attributes = next;
    }
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t given)
{
    struct fake_descriptor *d = fake_descriptor_of(given);

    FAKE(cudnnBackendDestroyDescriptor, CUDNN_STATUS_INTERNAL_ERROR, "%d",
         d != NULL ? (int)d->type : -1);
    if (given == NULL)
        return CUDNN_STATUS_SUCCESS;
    if (d == NULL)
        return FAKE_WRONG(BAD_PARAM, "what is destroyed is no descriptor");
    clear(d);
    d->magic = 0;
    free(d);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t put(struct fake_descriptor *d, int name, cudnnBackendAttributeType_t type,
                         int64_t count, const void *values)
{
    struct fake_attribute **link = &d->attributes, *a;
    const size_t bytes = (size_t)count * size_of(type);

    while (*link != NULL && (int)(*link)->name != name)
        link = &(*link)->next;
    a = *link;
    if (a != NULL) {
        *link = a->next;
        free(a);
    }
    a = calloc(1, sizeof *a + bytes);
    if (a == NULL)
        return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    a->name = (cudnnBackendAttributeName_t)name;
    a->type = type;
    a->count = count;
    if (bytes > 0)
        memcpy(a->value, values, bytes);
    a->next = d->attributes;
    d->attributes = a;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t given,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values)
{
    struct fake_descriptor *d = fake_descriptor_of(given);
    const struct row *row = rows;

    FAKE(cudnnBackendSetAttribute, CUDNN_STATUS_BAD_PARAM, "%d", (int)name);
    if (d == NULL || values == NULL || count < 0)
        return FAKE_WRONG(BAD_PARAM_NULL_POINTER, "an attribute of nothing, or without a value");
    if (d->finalized)
        return FAKE_WRONG(BAD_PARAM, "attribute %d of a finalized descriptor", (int)name);
    while (row < rows + ROWS && (row->descriptor != d->type || row->name != (int)name))
        row++;
    if (row == rows + ROWS)
        return FAKE_WRONG(NOT_SUPPORTED, "attribute %d of a descriptor of type %d", (int)name,
                          (int)d->type);
    if (row->type != type)
        return FAKE_WRONG(BAD_PARAM_ATTRIBUTE_TYPE, "attribute %d is not of type %d", (int)name,
                          (int)type);
    for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < count; i++) {
        const struct fake_descriptor *part = fake_descriptor_of(((void *const *)values)[i]);

        if (part == NULL || !part->finalized)
            return FAKE_WRONG(BAD_PARAM_NOT_FINALIZED, "attribute %d is not finalized", (int)name);
    }
    return put(d, (int)name, type, count, values);
}

/* --- finalizing ------------------------------------------------------------------------------- */

static cudnnStatus_t finalize_config(struct fake_descriptor *d)
{
    int64_t n = 0, count;

    d->meaning = fake_part(d, CUDNN_ATTR_ENGINECFG_ENGINE, 0)->meaning;
    d->meaning.choice.n_knobs = 0;
    fake_value(d, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, &n);
    for (int64_t i = 0; i < n; i++) {
        const struct fake_descriptor *knob = fake_part(d, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, i);

        if (i == FAKE_KNOBS)
            return fake_refuse(CUDNN_STATUS_NOT_SUPPORTED, "%lld knobs", (long long)n);
        d->meaning.choice.knob[i].type = *(const cudnnBackendKnobType_t *)fake_value(
            knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, &count);
        d->meaning.choice.knob[i].value =
            *(const int64_t *)fake_value(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, &count);
        d->meaning.choice.n_knobs++;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_engine(struct fake_descriptor *d)
{
    int64_t count;
    const int64_t number = *(const int64_t *)fake_value(d, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, &count);
    const int row = fake_engine_row(number);

    if (row < 0)
        return fake_refuse(CUDNN_STATUS_NOT_SUPPORTED, "there is no engine %lld",
                           (long long)number);
    d->meaning = fake_part(d, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, 0)->meaning;
    d->meaning.choice = (struct fake_choice){.engine = row};
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize(struct fake_descriptor *d)
{
    struct fake_choice choices[MOST];
    cudnnBackendHeurMode_t mode;
    int64_t count;

    switch ((int)d->type) {
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        d->meaning.graph = true;
        return fake_graph_meaning(d, &d->meaning.conv);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        d->meaning = fake_part(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 0)->meaning;
        mode = *(const cudnnBackendHeurMode_t *)fake_value(d, CUDNN_ATTR_ENGINEHEUR_MODE, &count);
        if (fake_heuristics_crash(&d->meaning.conv, mode))
            return FAKE_WRONG(INTERNAL_ERROR, "heuristics that crash for such padding");
        return fake_offers(&d->meaning.conv, mode, choices, MOST) > 0
                   ? CUDNN_STATUS_SUCCESS
                   : fake_refuse(CUDNN_STATUS_NOT_SUPPORTED, "no engine does this");
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
        return finalize_engine(d);
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
        return finalize_config(d);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        d->meaning = fake_part(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 0)->meaning;
        return fake_plan(&d->meaning.conv, &d->meaning.choice, &d->meaning.workspace);
    default:
        return CUDNN_STATUS_SUCCESS;
    }
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t given)
{
    struct fake_descriptor *d = fake_descriptor_of(given);
    cudnnStatus_t status;

    FAKE(cudnnBackendFinalize, CUDNN_STATUS_INTERNAL_ERROR, "%d", d != NULL ? (int)d->type : -1);
    if (d == NULL || d->finalized)
        return FAKE_WRONG(BAD_PARAM, "what is finalized is no descriptor, or was finalized before");
    for (int i = 0; i < ROWS; i++) {
        if (rows[i].descriptor == d->type && rows[i].must && find(d, rows[i].name) == NULL)
            return FAKE_WRONG(BAD_PARAM, "a descriptor of type %d without attribute %d",
                              (int)d->type, rows[i].name);
    }
    status = finalize(d);
    d->finalized = status == CUDNN_STATUS_SUCCESS;
    return status;
}

/* --- asking ----------------------------------------------------------------------------------- */

/* Writes at most `most` values of an attribute to `to`; returns their number, < 0: unknown. */
typedef int64_t answer(const struct fake_descriptor *d, int64_t most, void *to);

/* Fills descriptors that the caller made. */
static void fill_part(void *const *parts, int64_t i, const struct fake_meaning *meaning)
{
    struct fake_descriptor *part = fake_descriptor_of(parts[i]);

    if (part == NULL)
        return;
    part->meaning = *meaning;
    part->finalized = true;
}

static int64_t offers(const struct fake_descriptor *d, int64_t most, void *to)
{
    struct fake_choice choices[MOST];
    int64_t count;
    const cudnnBackendHeurMode_t mode =
        *(const cudnnBackendHeurMode_t *)fake_value(d, CUDNN_ATTR_ENGINEHEUR_MODE, &count);
    const int n = fake_offers(&d->meaning.conv, mode, choices, MOST);

    for (int64_t i = 0; i < n && i < most; i++) {
        struct fake_meaning meaning = d->meaning;

        meaning.choice = choices[i];
        fill_part(to, i, &meaning);
    }
    return n;
}

static int64_t config_engine(const struct fake_descriptor *d, int64_t most, void *to)
{
    if (most > 0)
        fill_part(to, 0, &d->meaning);
    return 1;
}

static int64_t config_knobs(const struct fake_descriptor *d, int64_t most, void *to)
{
    const struct fake_choice *c = &d->meaning.choice;

    for (int64_t i = 0; i < c->n_knobs && i < most; i++) {
        struct fake_descriptor *part = fake_descriptor_of(((void **)to)[i]);

        if (part == NULL)
            continue;
        put(part, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &c->knob[i].type);
        put(part, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &c->knob[i].value);
        part->finalized = true;
    }
    return c->n_knobs;
}

static int64_t engine_number(const struct fake_descriptor *d, int64_t most, void *to)
{
    if (most > 0)
        *(int64_t *)to = fake_engine_number(d->meaning.choice.engine);
    return 1;
}

static int64_t engine_notes(const struct fake_descriptor *d, int64_t most, void *to)
{
    const unsigned notes = fake_engine_notes(d->meaning.choice.engine, &d->meaning.conv);
    int64_t n = 0;

    for (int i = 0; i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++) {
        if ((notes >> i & 1) && n < most)
            ((cudnnBackendNumericalNote_t *)to)[n++] = (cudnnBackendNumericalNote_t)i;
    }
    return n;
}

static int64_t no_notes(const struct fake_descriptor *d, int64_t most, void *to)
{
    (void)d, (void)most, (void)to;
    return 0;
}

static int64_t plan_workspace(const struct fake_descriptor *d, int64_t most, void *to)
{
    if (most > 0)
        *(int64_t *)to = d->meaning.workspace;
    return 1;
}

static int64_t as_text(const char *text, int64_t most, void *to)
{
    const int64_t n = (int64_t)strlen(text) + 1;

    if (most > 0)
        memcpy(to, text, (size_t)(n < most ? n : most));
    return n;
}

static int64_t plan_text(const struct fake_descriptor *d, int64_t most, void *to)
{
    char text[TEXT];

    snprintf(text, sizeof text, "{\"engine\": %lld, \"workspace\": %lld}",
             (long long)fake_engine_number(d->meaning.choice.engine),
             (long long)d->meaning.workspace);
    return as_text(text, most, to);
}

static int64_t device_text(const struct fake_descriptor *d, int64_t most, void *to)
{
    (void)d;
    return as_text("{\"version\": 1, \"name\": \"Fake GPU\", \"computeCapability\": 900}", most,
                   to);
}

static const struct question {
    cudnnBackendDescriptorType_t descriptor;
    int name;
    cudnnBackendAttributeType_t type;
    answer *answer;
} questions[] = {
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_RESULTS,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, offers},
    {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     config_engine},
    {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, config_knobs},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64,
     engine_number},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
     engine_notes},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
     no_notes},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
     CUDNN_TYPE_INT64, plan_workspace},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
     CUDNN_TYPE_CHAR, plan_text},
    {CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
     CUDNN_TYPE_CHAR, device_text},
};

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const given,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested,
                                       int64_t *count, void *values)
{
    const struct fake_descriptor *d = fake_descriptor_of(given);
    const struct question *q = questions, *end = q + sizeof questions / sizeof *questions;
    const void *value;
    int64_t n;

    FAKE(cudnnBackendGetAttribute, CUDNN_STATUS_INTERNAL_ERROR, "%d", (int)name);
    if (d == NULL || !d->finalized)
        return FAKE_WRONG(BAD_PARAM_NOT_FINALIZED, "attribute %d of what is not finalized",
                          (int)name);
    requested = values != NULL ? requested : 0;
    while (q < end && (q->descriptor != d->type || q->name != (int)name))
        q++;
    if (q < end && q->type != type)
        return FAKE_WRONG(BAD_PARAM_ATTRIBUTE_TYPE, "attribute %d is not of type %d", (int)name,
                          (int)type);
    if (q < end) {
        n = q->answer(d, requested, values);
    } else {
        value = fake_value(d, (int)name, &n);
        if (value == NULL)
            return FAKE_WRONG(NOT_SUPPORTED, "attribute %d of type %d is not known", (int)name,
                              (int)d->type);
        if (requested > 0)
            memcpy(values, value, (size_t)(n < requested ? n : requested) * size_of(type));
    }
    if (count != NULL)
        *count = n;
    return CUDNN_STATUS_SUCCESS;
}
