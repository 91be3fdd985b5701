/*
 * activations: functions of one number, a row each. The row holds everything but the arithmetic,
 * which is a line in each backend (ref/pointwise.c, cpu/pointwise_kernels.c,
 * cuda/kernels_pointwise.inc). Operations, layers, kernels and tests are made from this list.
 *
 * X(C, NAME, name, summary, keeps, traits, forward, backward, options, onnx); C is passed on to X.
 * keeps: INPUT or OUTPUT, from which backward computes the derivative. traits: of struct
 * dpt_operation. forward, backward: the fractions that the cpu backend reaches
 * (dpt_operation.reached). options: rows DPT_ATTRIBUTE(k, name, default, least, most, help) in
 * parentheses, whose values kernels find in the node's `attribute[k]`. onnx: steps (struct
 * dpt_onnx_step) in parentheses.
 */
#ifndef DPT_BACKEND_ACTIVATIONS_H
#define DPT_BACKEND_ACTIVATIONS_H

// clang-format off
#define DPT_ACTIVATIONS(X, C)                                                                      \
    X(C, RELU, relu, "max(0, x)",                                                                  \
      OUTPUT, DPT_EXACT | DPT_FUSED, 0.3, 0.3, (), ({.type = "Relu"}))                             \
    X(C, GELU, gelu, "x Phi(x), with erf (Hendrycks & Gimpel 2016)",                               \
      INPUT, 0, 0.1, 0.1, (), /* Gelu itself came with operator set 20 */                          \
      (DPT_ONNX_BY("Div", "scaled", "gelu/sqrt2", 1.41421356237309504880F),                        \
       {.type = "Erf", .result = "erf"}, DPT_ONNX_BY("Add", "shifted", "gelu/one", 1),             \
       {.type = "Mul", .result = "times", .with = {{.source = DPT_ONNX_X}}},                       \
       DPT_ONNX_BY("Mul", NULL, "gelu/half", 0.5F)))                                               \
    X(C, TANH, tanh, "hyperbolic tangent", OUTPUT, 0, 0.1, 0.3, (), ({.type = "Tanh"}))            \
    X(C, SIGMOID, sigmoid, "1 / (1 + exp(-x))", OUTPUT, 0, 0.1, 0.3, (), ({.type = "Sigmoid"}))    \
    X(C, LEAKY_RELU, leaky_relu, "x, or slope x where x < 0 (Maas et al. 2013)",                   \
      OUTPUT, DPT_EXACT, 0.3, 0.3, /* a slope >= 0 keeps the input's sign */ \
      (DPT_ATTRIBUTE(0, "slope", "0.01", 0, 1000, "what values below 0 are multiplied by")),       \
      ({.type = "LeakyRelu", .attribute = {{.name = "alpha", .value = DPT_ONNX_FLOAT}}}))          \
    X(C, SILU, silu, "x / (1 + exp(-x)) (Hendrycks & Gimpel 2016, Ramachandran et al. 2017)",      \
      INPUT, 0, 0.1, 0.1, (),                                                                      \
      ({.type = "Sigmoid", .result = "gate"}, {.type = "Mul", .with = {{.source = DPT_ONNX_X}}}))  \
    X(C, HARDSWISH, hardswish, "x min(max(x + 3, 0), 6) / 6 (Howard et al. 2019)",                 \
      INPUT, DPT_EXACT, 0.3, 0.3, (), ({.type = "HardSwish"}))                                     \
    X(C, RELU6, relu6, "min(max(0, x), 6) (Krizhevsky 2010)",                                      \
      OUTPUT, DPT_EXACT, 0.3, 0.3, (),                                                             \
      ({.type = "Clip", .with = {{DPT_ONNX_NUMBER, "relu6/zero", 0},                               \
                                 {DPT_ONNX_NUMBER, "relu6/six", 6}}}))                             \
    X(C, ELU, elu, "x, or alpha (exp(x) - 1) where x < 0 (Clevert et al. 2015)",                   \
      OUTPUT, 0, 0.1, 0.3, /* an alpha > 0 keeps the input's sign */             \
      (DPT_ATTRIBUTE(0, "alpha", "1", 1e-6, 1000, "how far values below 0 go down")),              \
      ({.type = "Elu", .attribute = {{.name = "alpha", .value = DPT_ONNX_FLOAT}}}))                \
    X(C, SOFTPLUS, softplus, "log(1 + exp(x)) (Dugas et al. 2001)",                                \
      INPUT, 0, 0.1, 0.1, (), ({.type = "Softplus"}))
// clang-format on

/* Removes the parentheses around its argument. */
#define DPT_BARE(...) __VA_ARGS__

#endif
