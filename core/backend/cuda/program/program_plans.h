/*
 * program_plans: the convolutions and matrix products of a program, and the plans that are chosen
 * for them (program_math.c, program_plans.c, program_tune.c, program_cache.c). For program*.c only.
 */
#ifndef DPT_BACKEND_CUDA_PROGRAM_PLANS_H
#define DPT_BACKEND_CUDA_PROGRAM_PLANS_H

#include "core/backend/cuda/libraries/context.h"
#include "core/backend/cuda/libraries/matmul.h"

struct dpt_cuda_program;

/* In the cache's file a sign precedes a plan's tag: whether bias and ReLU are fused in it. */
enum { DPT_CUDA_FUSED_TAG = DPT_CUDA_TAG + 2 };

struct dpt_cuda_array_at {
    void *at;
    int64_t bytes;
};

/* The arrays of each pass of a matrix product or convolution: it reads a and b and writes d. */
extern const struct dpt_cuda_roles {
    enum dpt_cuda_array a, b, d;
} dpt_cuda_roles[DPT_CUDA_PASSES];

/* A convolution or matrix product in cuDNN or cuBLASLt, and the plan that was chosen for it. */
struct dpt_cuda_math {
    struct dpt_cuda_math *next;
    const char *name; /* of the layer */
    bool dense;
    enum dpt_cuda_pass pass;
    struct dpt_cuda_array_at array[DPT_CUDA_ARRAYS]; /* bias: NULL if there is none */
    void *workspace;
    struct dpt_cuda_conv conv;
    struct dpt_cuda_plans plans;
    cudnnBackendDescriptor_t bound;
    struct dpt_cuda_gemm gemm;
    struct dpt_cuda_gemms gemms;
    int which; /* the chosen plan's number */
    /* Milliseconds of the fastest deterministic plan and of the fastest other one (INFINITY: there
     * is none); 0: not measured. */
    float ms[2];
    bool bias, relu; /* fused in the plan */
    int64_t needs;   /* bytes of workspace */
    double flops;
};

/* Chooses the plan for a problem. Errors: BAD_JOB (names the layer), RANK. */
enum dpt_status dpt_cuda_choose(struct dpt_cuda_program *p, struct dpt_cuda_math *math,
                                struct dpt_error *err);
/* Binds the plan to its arrays and this workspace. Errors: RANK. */
enum dpt_status dpt_cuda_bind(struct dpt_cuda_math *math, void *workspace, struct dpt_error *err);
/* Enqueues the computation. add: adds to what is there; for dense layers' gradients only. Errors:
 * RANK, INTERNAL. */
enum dpt_status dpt_cuda_run_math(struct dpt_cuda_program *p, struct dpt_cuda_math *math, bool add,
                                  struct dpt_error *err);
void dpt_cuda_math_release(struct dpt_cuda_math *math);
/* The number of plans to choose from; bytes of workspace that plan `which` needs. */
int dpt_cuda_found(const struct dpt_cuda_math *math);
int64_t dpt_cuda_needs(const struct dpt_cuda_math *math, int which);
/*
 * Times the plans of one or two kinds, which compute the same result in the same arrays. For each
 * kind math->which is set to the fastest plan and its ms to that plan's time, INFINITY if none
 * could be captured. The arrays are zero afterwards. Errors: no plan works; RANK.
 */
enum dpt_status dpt_cuda_tune(struct dpt_cuda_program *p, struct dpt_cuda_math *const *kinds,
                              int n_kinds, float *ms, struct dpt_error *err);

/* Finds the last line of a text that begins with the problem and a tab. text: NULL is an empty one.
 * tag: out, the rest of that line, DPT_CUDA_FUSED_TAG bytes. Returns false if there is none. */
bool dpt_cuda_tag_find(const char *text, const char *problem, char *tag);

/* Tags of the plans that were timed, by problem. folder: where they are kept in a file; NULL: only
 * in memory. */
struct dpt_cuda_cache *dpt_cuda_cache_open(const char *folder);
/* Finds a problem's tag, as dpt_cuda_tag_find does. */
bool dpt_cuda_cache_find(const struct dpt_cuda_cache *cache, const char *problem, char *tag);
void dpt_cuda_cache_add(struct dpt_cuda_cache *cache, const char *problem, const char *tag);
/* Adds new tags to the file, and keeps those that other processes have written meanwhile. A file
 * that cannot be written is no error: the next start measures again. */
void dpt_cuda_cache_save(struct dpt_cuda_cache *cache);
void dpt_cuda_cache_close(struct dpt_cuda_cache *cache);

#endif
