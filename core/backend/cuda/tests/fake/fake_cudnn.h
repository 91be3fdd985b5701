/*
 * fake_cudnn: the fake cuDNN's descriptors, and its engines. For the fake libcudnn only.
 */
#ifndef DPT_BACKEND_CUDA_TESTS_FAKE_CUDNN_H
#define DPT_BACKEND_CUDA_TESTS_FAKE_CUDNN_H

#include "core/backend/cuda/tests/fake/fake_conv.h"

#pragma GCC visibility push(default)
#include <cudnn_graph.h>
#pragma GCC visibility pop

enum { FAKE_KNOBS = 40, FAKE_MAGIC = 0x64656373 };

struct fake_attribute {
    struct fake_attribute *next;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    unsigned char value[];
};

/* An engine with its knobs. */
struct fake_choice {
    int engine; /* row of the table */
    int n_knobs;
    struct {
        cudnnBackendKnobType_t type;
        int64_t value;
    } knob[FAKE_KNOBS];
};

/* What finalizing makes of the attributes; copied from descriptor to descriptor. */
struct fake_meaning {
    bool graph; /* conv is set */
    struct fake_conv conv;
    struct fake_choice choice;
    int64_t workspace;
};

struct fake_descriptor {
    uint64_t magic;
    cudnnBackendDescriptorType_t type;
    bool finalized;
    struct fake_attribute *attributes;
    struct fake_meaning meaning;
};

/* The value of an attribute, or NULL. */
const void *fake_value(const struct fake_descriptor *d, int name, int64_t *count);
/* The descriptor that an attribute names. */
const struct fake_descriptor *fake_part(const struct fake_descriptor *d, int name, int64_t i);
/* Gives the reason for a refusal, and returns it. */
__attribute__((format(printf, 2, 3))) cudnnStatus_t fake_refuse(cudnnStatus_t status,
                                                                const char *format, ...);

/* As fake_refuse, for errors of the caller: it is reported on stderr. */
#define FAKE_WRONG(status, ...)                                                                    \
    (fake_refuse(CUDNN_STATUS_##status, __VA_ARGS__), fakegpu_complain("cuDNN: %s", fake_last()),  \
     CUDNN_STATUS_##status)

/* The reason for which the calling thread was last refused. */
const char *fake_last(void);
/* NULL: it is none, or was destroyed. */
struct fake_descriptor *fake_descriptor_of(cudnnBackendDescriptor_t given);

/* --- engines: fake_engines.c ------------------------------------------------------------------ */

/* An operation graph as one convolution. */
cudnnStatus_t fake_graph_meaning(const struct fake_descriptor *graph, struct fake_conv *conv);
/* Choices that heuristics of a mode offer, at most `most`. */
int fake_offers(const struct fake_conv *conv, cudnnBackendHeurMode_t mode,
                struct fake_choice *choices, int most);
/* Whether cuDNN from 9.12 on reads through a null pointer there. */
bool fake_heuristics_crash(const struct fake_conv *conv, cudnnBackendHeurMode_t mode);
/* Row of the engine with that number, or -1. */
int fake_engine_row(int64_t number);
int64_t fake_engine_number(int row);
unsigned fake_engine_notes(int row, const struct fake_conv *conv);
/* Whether the engine really makes a plan for this, and with how much workspace. */
cudnnStatus_t fake_plan(const struct fake_conv *conv, const struct fake_choice *choice,
                        int64_t *workspace);
void fake_plan_order(const struct fake_choice *choice, struct fake_order *order);

#endif
