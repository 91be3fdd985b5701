#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/libraries/plan.h"
#include "core/base/memory.h"

#define NOTE(name) (1u << CUDNN_NUMERICAL_NOTE_##name)

/* The notes of engines that compute in a lower precision than was asked for. */
static const unsigned forbidden[DPT_PRECISIONS] = {
    [DPT_PRECISION_FP32] =
        NOTE(TENSOR_CORE) | NOTE(DOWN_CONVERT_INPUTS) | NOTE(REDUCED_PRECISION_REDUCTION),
    [DPT_PRECISION_TF32] = NOTE(DOWN_CONVERT_INPUTS) | NOTE(REDUCED_PRECISION_REDUCTION),
    [DPT_PRECISION_BF16] = NOTE(REDUCED_PRECISION_REDUCTION),
    [DPT_PRECISION_FP16] = NOTE(REDUCED_PRECISION_REDUCTION),
};

/* The best mode comes first: A is a model of the problem and the device, FALLBACK any engine that
 * works at all. */
static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B,
                                               CUDNN_HEUR_MODE_FALLBACK};

enum { MODES = sizeof modes / sizeof *modes, MAX_CONFIGS = 64, MAX_KNOBS = 32 };

/* How many engines were left out for which reason, for the message. */
struct rejected {
    int offered, notes, workspace, unbuilt, unnamed;
};

/* cuDNN returns how many elements there are; it writes at most as many as the array holds. */
static int64_t written(int64_t count, size_t capacity)
{
    return count < (int64_t)capacity ? count : (int64_t)capacity;
}

/* The bit of a note, or 0 for a note of a later cuDNN that has no bit here. */
static unsigned bit_of(unsigned note)
{
    return note < 8 * sizeof note ? 1u << note : 0;
}

static bool is_listed(const struct dpt_cuda_plans *plans, const char *tag)
{
    for (int i = 0; i < plans->n; i++) {
        if (strcmp(plans->plan[i].tag, tag) == 0)
            return true;
    }
    return false;
}

/* Writes the engine and the knobs of a configuration to plan->tag; "" if they do not fit, since a
 * plan that has no name cannot be taken again. */
static enum dpt_status read_tag(struct dpt_cuda_plans *plans, cudnnBackendDescriptor_t config,
                                struct dpt_cuda_plan *plan, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = plans->lib;
    cudnnBackendDescriptor_t knobs[MAX_KNOBS];
    enum dpt_status status = DPT_OK;
    int64_t count = 0, type, value;
    size_t used;

    used = (size_t)snprintf(plan->tag, sizeof plan->tag, "engine=%" PRId64, plan->engine);
    for (int i = 0; i < MAX_KNOBS; i++)
        DPT_TRY(dpt_cuda_make(plans, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &knobs[i], err));
    DPT_CUDNN_TRY(lib, cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                                CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_KNOBS, &count,
                                                knobs));
    for (int64_t i = 0; i < written(count, MAX_KNOBS); i++) {
        cudnnBackendKnobType_t kind = 0;

        DPT_CUDNN_TRY(lib, cudnnBackendGetAttribute(knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                                                    CUDNN_TYPE_KNOB_TYPE, 1, NULL, &kind));
        DPT_CUDNN_TRY(lib, cudnnBackendGetAttribute(knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE,
                                                    CUDNN_TYPE_INT64, 1, NULL, &value));
        type = (int64_t)kind;
        if (used < sizeof plan->tag)
            used += (size_t)snprintf(plan->tag + used, sizeof plan->tag - used,
                                     " %" PRId64 "=%" PRId64, type, value);
    }
    if (used >= sizeof plan->tag || count > MAX_KNOBS)
        plan->tag[0] = '\0';
out:
    return status;
}

/* Reads the engine of a configuration, its notes and its tag. */
static enum dpt_status read_config(struct dpt_cuda_plans *plans, cudnnBackendDescriptor_t config,
                                   struct dpt_cuda_plan *plan, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = plans->lib;
    enum { NOTES = CUDNN_NUMERICAL_NOTE_TYPE_COUNT + 16 };
    cudnnBackendNumericalNote_t notes[NOTES];
    cudnnBackendDescriptor_t engine;
    enum dpt_status status = DPT_OK;
    int64_t count = 0;

    DPT_TRY(dpt_cuda_make(plans, CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine, err));
    DPT_CUDNN_TRY(lib, cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                                CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine));
    DPT_CUDNN_TRY(lib, cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                                CUDNN_TYPE_NUMERICAL_NOTE, NOTES, &count, notes));
    for (int64_t i = 0; i < written(count, NOTES); i++)
        plan->notes |= bit_of((unsigned)notes[i]);
    DPT_CUDNN_TRY(lib, cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
                                                CUDNN_TYPE_INT64, 1, NULL, &plan->engine));
    DPT_TRY(read_tag(plans, config, plan, err));
out:
    return status;
}

/* Finalizes the plan of a configuration. *built is false if the engine does not support the graph,
 * which is not an error: the heuristics offer engines without checking them completely. */
static enum dpt_status finalize(struct dpt_cuda_plans *plans, const struct dpt_cuda_device *device,
                                cudnnBackendDescriptor_t config, struct dpt_cuda_plan *plan,
                                bool *built, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = plans->lib;
    const struct dpt_cuda_attribute rows[] = {
        {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config},
        dpt_cuda_device_row(DPT_CUDA_TO_PLAN, device),
    };
    enum dpt_status status = DPT_OK;

    *built = false;
    DPT_TRY(dpt_cuda_describe(plans, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, DPT_CUDA_ROWS(rows),
                              &plan->plan, err));
    if (lib->cudnnBackendFinalize(plan->plan) != CUDNN_STATUS_SUCCESS)
        goto out;
    DPT_CUDNN_TRY(lib,
                  cudnnBackendGetAttribute(plan->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                           CUDNN_TYPE_INT64, 1, NULL, &plan->workspace));
    *built = true;
out:
    return status;
}

/* Adds the plan of a configuration that the heuristics offer to the list if it is suitable. */
static enum dpt_status consider(struct dpt_cuda_plans *plans, const struct dpt_cuda_device *device,
                                cudnnBackendDescriptor_t config, unsigned refuse, unsigned demand,
                                int64_t workspace, struct rejected *rejected, struct dpt_error *err)
{
    struct dpt_cuda_plan *plan = &plans->plan[plans->n];
    enum dpt_status status = DPT_OK;
    bool built;

    *plan = (struct dpt_cuda_plan){0};
    DPT_TRY(read_config(plans, config, plan, err));
    if (is_listed(plans, plan->tag))
        goto out;
    rejected->offered++;
    if (*plan->tag == '\0') {
        rejected->unnamed++;
        goto out;
    }
    if (plan->notes & refuse || ~plan->notes & demand) {
        rejected->notes++;
        goto out;
    }
    DPT_TRY(finalize(plans, device, config, plan, &built, err));
    if (built && (workspace < 0 || plan->workspace <= workspace)) {
        plans->n++;
        goto out;
    }
    rejected->unbuilt += !built;
    rejected->workspace += built;
    dpt_cuda_unmake(plans, &plan->plan);
out:
    return status;
}

/* Considers what one mode of the heuristics offers, until there are enough plans. */
static enum dpt_status query_heuristics(struct dpt_cuda_plans *plans,
                                        const struct dpt_cuda_device *device,
                                        cudnnBackendHeurMode_t mode, unsigned refuse,
                                        unsigned demand, int64_t workspace,
                                        struct rejected *rejected, struct dpt_error *err)
{
    const struct dpt_cuda_library *lib = plans->lib;
    const struct dpt_cuda_attribute rows[] = {
        {CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &plans->graph},
        {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode},
        dpt_cuda_device_row(DPT_CUDA_TO_HEURISTICS, device),
    };
    cudnnBackendDescriptor_t heuristics, configs[MAX_CONFIGS];
    enum dpt_status status = DPT_OK;
    int64_t count = 0;

    DPT_TRY(dpt_cuda_describe(plans, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, DPT_CUDA_ROWS(rows),
                              &heuristics, err));
    if (lib->cudnnBackendFinalize(heuristics) != CUDNN_STATUS_SUCCESS)
        goto out; /* this mode does not support such a graph */
    for (int i = 0; i < MAX_CONFIGS; i++)
        DPT_TRY(dpt_cuda_make(plans, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configs[i], err));
    if (lib->cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_CONFIGS, &count,
                                      configs) != CUDNN_STATUS_SUCCESS)
        goto out;
    for (int64_t i = 0; i < written(count, MAX_CONFIGS) && plans->n < plans->capacity; i++)
        DPT_TRY(consider(plans, device, configs[i], refuse, demand, workspace, rejected, err));
out:
    return status;
}

static enum dpt_status start(struct dpt_cuda_plans *plans, const struct dpt_cuda_library *lib,
                             int most, struct dpt_error *err)
{
    *plans = (struct dpt_cuda_plans){.lib = lib, .capacity = most};
    /* One more than the list may hold, for the candidate that is being considered. */
    return DPT_ALLOCATE(plans->plan, (size_t)most + 1, "the plans of a convolution", err);
}

/* Mode B of cuDNN 9.12 and later (9.24 still has it) reads through a null pointer for gradients of
 * weights if an axis would have no output with the padding before it on both sides, as its
 * heuristics count outputs. */
static bool crashes(const struct dpt_cuda_conv *conv, enum dpt_cuda_pass pass,
                    cudnnBackendHeurMode_t mode)
{
    bool none = false;

    for (int axis = 0; axis < 2; axis++) {
        const int64_t kernel = (conv->w[2 + axis] - 1) * conv->dilation[axis] + 1;

        none |= conv->x[2 + axis] + 2 * conv->before[axis] - kernel <= -conv->stride[axis];
    }
    return none && pass == DPT_CUDA_BACKWARD_FILTER && mode == CUDNN_HEUR_MODE_B;
}

/* Finds plans for a convolution as it is described; finding none is not an error. */
static enum dpt_status search(const struct dpt_cuda_library *lib,
                              const struct dpt_cuda_device *device,
                              const struct dpt_cuda_conv *conv, enum dpt_cuda_pass pass,
                              const struct dpt_cuda_plan_request *request, int most,
                              struct dpt_cuda_plans *plans, struct rejected *rejected,
                              struct dpt_error *err)
{
    const unsigned refuse =
        forbidden[conv->precision] | (request->reproducible ? NOTE(NONDETERMINISTIC) : 0);
    const unsigned demand = request->varying ? NOTE(NONDETERMINISTIC) : 0;
    enum dpt_status status = DPT_OK;

    DPT_TRY(start(plans, lib, most, err));
    DPT_TRY(dpt_cuda_conv_graph(plans, device, conv, pass, err));
    for (int i = 0; i < MODES && plans->n < most; i++) {
        if (!crashes(conv, pass, modes[i]))
            DPT_TRY(query_heuristics(plans, device, modes[i], refuse, demand, request->workspace,
                                     rejected, err));
    }
out:
    return status;
}

enum dpt_status dpt_cuda_plans_build(const struct dpt_cuda_library *lib,
                                     const struct dpt_cuda_device *device,
                                     const struct dpt_cuda_conv *conv, enum dpt_cuda_pass pass,
                                     const struct dpt_cuda_plan_request *request, int most,
                                     struct dpt_cuda_plans *plans, struct dpt_error *err)
{
    struct dpt_cuda_conv plain = *conv;
    struct rejected rejected = {0};
    enum dpt_status status = DPT_OK;

    plain.bias = plain.relu = false;
    *plans = (struct dpt_cuda_plans){0};
    if (pass == DPT_CUDA_FORWARD && (conv->bias || conv->relu)) {
        /* cuDNN may also refuse the graph itself if no engine fuses bias and ReLU. */
        status = search(lib, device, conv, pass, request, most, plans, &rejected, err);
        if (status == DPT_RANK || (status == DPT_OK && plans->n > 0))
            goto out;
        dpt_cuda_plans_release(plans);
        rejected = (struct rejected){0};
    }
    DPT_TRY(search(lib, device, &plain, pass, request, most, plans, &rejected, err));
    if (plans->n == 0)
        status = dpt_fail(
            err, DPT_BAD_JOB,
            "cuDNN has no plan for this convolution: of %d that it offers, %d are of another "
            "precision or not reproducible, %d cannot do it after all, %d need more workspace, %d "
            "have too many knobs to be named",
            rejected.offered, rejected.notes, rejected.unbuilt, rejected.workspace,
            rejected.unnamed);
out:
    if (status != DPT_OK)
        dpt_cuda_plans_release(plans);
    return status;
}

/* Makes a configuration from the engine and the knobs of a tag. */
static enum dpt_status config_of(struct dpt_cuda_plans *plans, const struct dpt_cuda_device *device,
                                 const char *tag, cudnnBackendDescriptor_t *config,
                                 struct dpt_error *err)
{
    cudnnBackendDescriptor_t engine, knobs[MAX_KNOBS];
    int64_t number, value, n = 0;
    cudnnBackendKnobType_t kind;
    const struct dpt_cuda_attribute engines[] = {
        {CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &plans->graph},
        {CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &number},
        dpt_cuda_device_row(DPT_CUDA_TO_ENGINE, device),
    };
    const struct dpt_cuda_attribute choices[] = {
        {CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &kind},
        {CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &value},
    };
    struct dpt_cuda_attribute rows[] = {
        {CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine},
        {CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, knobs},
    };
    enum dpt_status status = DPT_OK;
    int used, type;

    if (sscanf(tag, "engine=%" SCNd64 "%n", &number, &used) != 1)
        return dpt_fail(err, DPT_BAD_JOB, "'%s' is not the tag of a cuDNN plan", tag);
    DPT_TRY(dpt_cuda_build(plans, CUDNN_BACKEND_ENGINE_DESCRIPTOR, DPT_CUDA_ROWS(engines), &engine,
                           err));
    for (tag += used; sscanf(tag, " %d=%" SCNd64 "%n", &type, &value, &used) == 2; tag += used) {
        if (n == MAX_KNOBS)
            return dpt_fail(err, DPT_BAD_JOB, "the tag of a cuDNN plan has too many knobs");
        kind = (cudnnBackendKnobType_t)type;
        DPT_TRY(dpt_cuda_build(plans, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, DPT_CUDA_ROWS(choices),
                               &knobs[n++], err));
    }
    rows[1].count = n;
    DPT_TRY(dpt_cuda_build(plans, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, DPT_CUDA_ROWS(rows), config,
                           err));
out:
    return status;
}

enum dpt_status dpt_cuda_plans_rebuild(const struct dpt_cuda_library *lib,
                                       const struct dpt_cuda_device *device,
                                       const struct dpt_cuda_conv *conv, enum dpt_cuda_pass pass,
                                       const char *tag, struct dpt_cuda_plans *plans,
                                       struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    cudnnBackendDescriptor_t config;
    bool built;

    DPT_TRY(start(plans, lib, 1, err));
    DPT_TRY(dpt_cuda_conv_graph(plans, device, conv, pass, err));
    DPT_TRY(config_of(plans, device, tag, &config, err));
    DPT_TRY(read_config(plans, config, &plans->plan[0], err));
    DPT_TRY(finalize(plans, device, config, &plans->plan[0], &built, err));
    if (!built)
        DPT_TRY(dpt_fail(err, DPT_BAD_JOB, "cuDNN does not make the plan '%s' here", tag));
    plans->n = 1;
out:
    if (status != DPT_OK)
        dpt_cuda_plans_release(plans);
    return status;
}

enum dpt_status dpt_cuda_plan_bind(struct dpt_cuda_plans *plans, void *const *pointers,
                                   void *workspace, cudnnBackendDescriptor_t *bound,
                                   struct dpt_error *err)
{
    int64_t ids[DPT_CUDA_ARRAYS], n = 0;
    void *given[DPT_CUDA_ARRAYS];

    for (int i = 0; i < DPT_CUDA_ARRAYS; i++) {
        if (pointers[i] != NULL) {
            ids[n] = dpt_cuda_array_id((enum dpt_cuda_array)i);
            given[n++] = pointers[i];
        }
    }
    {
        const struct dpt_cuda_attribute rows[] = {
            {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids},
            {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, given},
            {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace},
        };

        return dpt_cuda_build(plans, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, DPT_CUDA_ROWS(rows),
                              bound, err);
    }
}

bool dpt_cuda_plan_varies(const struct dpt_cuda_plan *plan)
{
    return plan->notes & NOTE(NONDETERMINISTIC);
}

void dpt_cuda_plans_keep(struct dpt_cuda_plans *plans, int which)
{
    for (int i = 0; i < plans->n; i++) {
        if (i != which)
            dpt_cuda_unmake(plans, &plans->plan[i].plan);
    }
    plans->plan[0] = plans->plan[which];
    plans->n = 1;
}

void dpt_cuda_plans_release(struct dpt_cuda_plans *plans)
{
    for (int i = plans->n_made - 1; i >= 0; i--)
        plans->lib->cudnnBackendDestroyDescriptor(plans->made[i]);
    free(plans->made);
    dpt_free(plans->plan);
    *plans = (struct dpt_cuda_plans){0};
}
