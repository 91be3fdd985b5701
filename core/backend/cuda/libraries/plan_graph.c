#include <string.h>

#include "core/backend/cuda/libraries/plan.h"

enum { AXES = 2, DIMS = 4, VECTOR_BYTES = 16 };

/* The tensors between the operations of a fused graph; they are virtual, that is, never stored. */
enum { AFTER_CONV = DPT_CUDA_ARRAYS, AFTER_BIAS };

int64_t dpt_cuda_array_id(enum dpt_cuda_array array)
{
    return 1 + (int64_t)array; /* some functions of cuDNN take an id of 0 for "none" */
}

static const struct {
    cudnnDataType_t type;
    int64_t bytes;
} elements[DPT_PRECISIONS] = {
    [DPT_PRECISION_FP32] = {CUDNN_DATA_FLOAT, 4},
    [DPT_PRECISION_TF32] = {CUDNN_DATA_FLOAT, 4},
    [DPT_PRECISION_BF16] = {CUDNN_DATA_BFLOAT16, 2},
    [DPT_PRECISION_FP16] = {CUDNN_DATA_HALF, 2},
};

int64_t dpt_cuda_pitch(enum dpt_precision precision, int64_t channels)
{
    const int64_t lanes = VECTOR_BYTES / elements[precision].bytes;

    /* Padding gains nothing for grey and colour images in fp32, and the first convolution would
     * multiply by the zeros. */
    if (precision == DPT_PRECISION_FP32 && channels < lanes)
        return channels;
    return (channels + lanes - 1) / lanes * lanes;
}

void dpt_cuda_conv_describe(const struct dpt_graph_node *node, int64_t n,
                            enum dpt_precision precision, int64_t x_pitch, int64_t y_pitch,
                            struct dpt_cuda_conv *conv)
{
    const struct dpt_window *w = &node->window;
    const bool padded = w->groups == 1;

    *conv = (struct dpt_cuda_conv){
        .precision = precision,
        .bias = node->bias >= 0,
        .x_pitch = x_pitch,
        .y_pitch = y_pitch,
        .x = {n, node->in.c, node->in.h, node->in.w},
        .w = {node->out.c, node->in.c / w->groups, w->kernel[0], w->kernel[1]},
        .y = {n, node->out.c, node->out.h, node->out.w},
    };
    if (padded) {
        conv->x[1] = conv->w[1] = x_pitch;
        conv->y[1] = conv->w[0] = y_pitch;
    }
    for (int axis = 0; axis < AXES; axis++) {
        conv->before[axis] = w->before[axis];
        conv->after[axis] = w->after[axis];
        conv->stride[axis] = w->stride[axis];
        conv->dilation[axis] = w->dilation[axis];
    }
}

struct tensor {
    int64_t id;
    const int64_t *dims;
    int64_t pitch;
    cudnnDataType_t type;
    bool is_virtual; /* it lies between two operations and is not stored */
};

/* Describes a tensor in NHWC layout: the channels of a pixel are neighbours. */
static enum dpt_status make_tensor(struct dpt_cuda_plans *plans, const struct tensor *t,
                                   cudnnBackendDescriptor_t *made, struct dpt_error *err)
{
    const int64_t strides[DIMS] = {t->dims[2] * t->dims[3] * t->pitch, 1, t->dims[3] * t->pitch,
                                   t->pitch};
    const int64_t alignment = VECTOR_BYTES;
    const struct dpt_cuda_attribute rows[] = {
        {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &t->id},
        {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &t->type},
        {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, DIMS, t->dims},
        {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, DIMS, strides},
        {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment},
        {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, t->is_virtual, &t->is_virtual},
    };

    return dpt_cuda_build(plans, CUDNN_BACKEND_TENSOR_DESCRIPTOR, DPT_CUDA_ROWS(rows), made, err);
}

static enum dpt_status make_window(struct dpt_cuda_plans *plans, const struct dpt_cuda_conv *conv,
                                   cudnnBackendDescriptor_t *made, struct dpt_error *err)
{
    const cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t axes = AXES;
    const struct dpt_cuda_attribute rows[] = {
        {CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums},
        {CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode},
        {CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &axes},
        {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, AXES, conv->before},
        {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, AXES, conv->after},
        {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, AXES, conv->stride},
        {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, AXES, conv->dilation},
    };

    return dpt_cuda_build(plans, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, DPT_CUDA_ROWS(rows), made,
                          err);
}

/* The descriptor of each pass and the names of its attributes. */
static const struct {
    cudnnBackendDescriptorType_t operation;
    cudnnBackendAttributeName_t window, x, w, y, alpha, beta;
} passes[DPT_CUDA_PASSES] = {
    [DPT_CUDA_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [DPT_CUDA_BACKWARD_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [DPT_CUDA_BACKWARD_FILTER] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

static enum dpt_status make_convolution(struct dpt_cuda_plans *plans,
                                        const struct dpt_cuda_conv *conv, enum dpt_cuda_pass pass,
                                        const struct tensor *result, cudnnBackendDescriptor_t *made,
                                        cudnnBackendDescriptor_t *y, struct dpt_error *err)
{
    const cudnnDataType_t type = elements[conv->precision].type;
    const struct tensor given[] = {
        {dpt_cuda_array_id(DPT_CUDA_X), conv->x, conv->x_pitch, type, false},
        {dpt_cuda_array_id(DPT_CUDA_W), conv->w, conv->w[1], type, false},
    };
    cudnnBackendDescriptor_t x, w, window;
    const float one = 1, zero = 0;
    const struct dpt_cuda_attribute rows[] = {
        {passes[pass].window, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &window},
        {passes[pass].x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x},
        {passes[pass].w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w},
        {passes[pass].y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, y},
        {passes[pass].alpha, CUDNN_TYPE_FLOAT, 1, &one},
        {passes[pass].beta, CUDNN_TYPE_FLOAT, 1, &zero},
    };
    enum dpt_status status = DPT_OK;

    DPT_TRY(make_tensor(plans, &given[0], &x, err));
    DPT_TRY(make_tensor(plans, &given[1], &w, err));
    DPT_TRY(make_tensor(plans, result, y, err));
    DPT_TRY(make_window(plans, conv, &window, err));
    DPT_TRY(dpt_cuda_build(plans, passes[pass].operation, DPT_CUDA_ROWS(rows), made, err));
out:
    return status;
}

/* Describes y = x + b or y = max(x, 0), in fp32. A maximum of a NaN is to be a NaN: else NaNs in a
 * layer's weights would become zeros that look valid. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored                                                                     \
    "-Wdeprecated-declarations" /* the attribute's type; none replaces it */
static enum dpt_status make_pointwise(struct dpt_cuda_plans *plans, cudnnPointwiseMode_t mode,
                                      cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t b,
                                      cudnnBackendDescriptor_t y, cudnnBackendDescriptor_t *made,
                                      struct dpt_error *err)
{
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const cudnnNanPropagation_t nan = CUDNN_PROPAGATE_NAN;
    cudnnBackendDescriptor_t function;
    const struct dpt_cuda_attribute function_rows[] = {
        {CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode},
        {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type},
        {CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, 1, &nan},
    };
    const struct dpt_cuda_attribute rows[] = {
        {CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &function},
        {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x},
        {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, b != NULL, &b},
        {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y},
    };
    enum dpt_status status = DPT_OK;

    DPT_TRY(dpt_cuda_build(plans, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, DPT_CUDA_ROWS(function_rows),
                           &function, err));
    DPT_TRY(dpt_cuda_build(plans, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, DPT_CUDA_ROWS(rows),
                           made, err));
out:
    return status;
}

#pragma GCC diagnostic pop

/* Adds the operations that follow a forward convolution: its bias and ReLU. */
static enum dpt_status add_epilogue(struct dpt_cuda_plans *plans, const struct dpt_cuda_conv *conv,
                                    cudnnBackendDescriptor_t y, cudnnBackendDescriptor_t *made,
                                    int *n, struct dpt_error *err)
{
    const int64_t bias_dims[DIMS] = {1, conv->y[1], 1, 1};
    const struct tensor last = {dpt_cuda_array_id(DPT_CUDA_Y), conv->y, conv->y_pitch,
                                elements[conv->precision].type, false};
    const struct tensor middle = {1 + AFTER_BIAS, conv->y, conv->y_pitch, CUDNN_DATA_FLOAT, true};
    /* Engines for 16-bit tensors accept a bias of the same type only. */
    const struct tensor bias = {dpt_cuda_array_id(DPT_CUDA_BIAS), bias_dims, conv->y[1],
                                elements[conv->precision].type, false};
    cudnnBackendDescriptor_t b, next;
    enum dpt_status status = DPT_OK;

    if (conv->bias) {
        DPT_TRY(make_tensor(plans, &bias, &b, err));
        DPT_TRY(make_tensor(plans, conv->relu ? &middle : &last, &next, err));
        DPT_TRY(make_pointwise(plans, CUDNN_POINTWISE_ADD, y, b, next, &made[(*n)++], err));
        y = next;
    }
    if (conv->relu) {
        DPT_TRY(make_tensor(plans, &last, &next, err));
        DPT_TRY(make_pointwise(plans, CUDNN_POINTWISE_RELU_FWD, y, NULL, next, &made[(*n)++], err));
    }
out:
    return status;
}

enum dpt_status dpt_cuda_conv_graph(struct dpt_cuda_plans *plans,
                                    const struct dpt_cuda_device *device,
                                    const struct dpt_cuda_conv *conv, enum dpt_cuda_pass pass,
                                    struct dpt_error *err)
{
    const bool more = pass == DPT_CUDA_FORWARD && (conv->bias || conv->relu);
    const struct tensor result = {more ? 1 + AFTER_CONV : dpt_cuda_array_id(DPT_CUDA_Y), conv->y,
                                  conv->y_pitch,
                                  more ? CUDNN_DATA_FLOAT : elements[conv->precision].type, more};
    cudnnBackendDescriptor_t operations[3], y;
    enum dpt_status status = DPT_OK;
    int n = 1;

    DPT_TRY(make_convolution(plans, conv, pass, &result, &operations[0], &y, err));
    if (more)
        DPT_TRY(add_epilogue(plans, conv, y, operations, &n, err));
    plans->bias = more && conv->bias;
    plans->relu = more && conv->relu;
    {
        const struct dpt_cuda_attribute rows[] = {
            {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, n, operations},
            dpt_cuda_device_row(DPT_CUDA_TO_GRAPH, device),
        };

        DPT_TRY(dpt_cuda_build(plans, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, DPT_CUDA_ROWS(rows),
                               &plans->graph, err));
    }
out:
    return status;
}
