#include "core/train/job/fault.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/base/memory.h"
#include "core/conf/option.h"

/* The rank's action: a signal to itself, an error, or a function. */
struct dpt_fault_action {
    const char *name;
    int signal;
    enum dpt_status status;
    const char *text;
    enum dpt_status (*run)(const struct dpt_fault *fault, float *params, int64_t n,
                           struct dpt_error *err);
    bool gradient;   /* it strikes later in the step */
    bool evaluation; /* it strikes in an evaluation */
};

#define ACTION(function)                                                                           \
    static enum dpt_status function(const struct dpt_fault *fault, float *params, int64_t n,       \
                                    struct dpt_error *err)
#define UNUSED ((void)fault, (void)params, (void)n, (void)err)

ACTION(leave)
{
    UNUSED;
    _exit(0);
}

ACTION(hang)
{
    UNUSED;
    while (pause() != 0)
        ;
    return DPT_OK;
}

/* Forbids the process more memory, and tries an allocation larger than the rest of the heap. */
ACTION(starve)
{
    enum { MUCH = 64 << 20 };
    const struct rlimit none = {0, 0};
    void *p;

    UNUSED;
    if (setrlimit(RLIMIT_AS, &none) != 0)
        return dpt_fail_errno(err, DPT_INTERNAL, "RLIMIT_AS");
    p = dpt_alloc(MUCH);
    if (p == NULL)
        return dpt_fail_memory(err, "a trial, as DPTRAIN_FAULT asks", MUCH);
    dpt_free(p);
    return DPT_OK;
}

static void flip(float *x)
{
    enum { BIT = 12 };
    uint32_t bits;

    memcpy(&bits, x, sizeof bits);
    bits ^= 1U << BIT;
    memcpy(x, &bits, sizeof bits);
}

ACTION(flip_weight)
{
    if (fault->word >= n)
        return dpt_fail(err, DPT_USAGE, "DPTRAIN_FAULT: there are %lld weights", (long long)n);
    flip(&params[fault->word]);
    return DPT_OK;
}

static const struct dpt_fault_action actions[] = {
    {.name = "kill", .signal = SIGKILL},
    {.name = "exit", .run = leave},
    {.name = "stop", .signal = SIGSTOP},
    {.name = "hang", .run = hang},
    {.name = "read", .status = DPT_IO, .text = "reading failed"},
    {.name = "memory", .run = starve},
    {.name = "memory-evaluation", .run = starve, .evaluation = true},
    {.name = "fail", .status = DPT_INTERNAL, .text = "an error"},
    {.name = "flip-weight", .run = flip_weight},
    {.name = "flip-gradient", .gradient = true},
};

static enum dpt_status misread(const char *text, struct dpt_error *err)
{
    return dpt_fail(err, DPT_USAGE,
                    "DPTRAIN_FAULT=%s: kill, exit, stop, hang, read, memory, memory-evaluation, "
                    "fail, flip-weight or flip-gradient is wanted, with :rank=R:step=S and perhaps "
                    ":word=W or :exchange=E",
                    text);
}

enum dpt_status dpt_fault_read(struct dpt_fault *fault, struct dpt_error *err)
{
    const char *text = getenv("DPTRAIN_FAULT");
    const struct {
        const char *key;
        int64_t *value;
    } keys[] = {{"rank=", &fault->rank},
                {"step=", &fault->step},
                {"word=", &fault->word},
                {"exchange=", &fault->exchange}};
    enum { KEYS = sizeof keys / sizeof *keys };
    char copy[128], *rest = copy, *part;

    *fault = (struct dpt_fault){.rank = -1, .step = -1};
    if (text == NULL || text[0] == '\0')
        return DPT_OK;
    snprintf(copy, sizeof copy, "%s", text);
    part = strsep(&rest, ":");
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++)
        if (strcmp(part, actions[i].name) == 0)
            fault->action = &actions[i];
    while ((part = strsep(&rest, ":")) != NULL) {
        size_t i = 0;

        while (i < KEYS && strncmp(part, keys[i].key, strlen(keys[i].key)) != 0)
            i++;
        if (i == KEYS || !dpt_parse_int(part + strlen(keys[i].key), keys[i].value))
            return misread(text, err);
    }
    if (fault->action == NULL || fault->rank < 0 || fault->step < 0 || fault->word < 0 ||
        fault->exchange < 0)
        return misread(text, err);
    return DPT_OK;
}

bool dpt_fault_strikes(const struct dpt_fault *fault, int rank, int64_t step)
{
    return fault->action != NULL && fault->rank == rank && fault->step == step;
}

bool dpt_fault_strikes_gradients(const struct dpt_fault *fault)
{
    return fault->action != NULL && fault->action->gradient;
}

static enum dpt_status strike(const struct dpt_fault *fault, float *params, int64_t n,
                              struct dpt_error *err)
{
    const struct dpt_fault_action *action = fault->action;

    if (action->signal != 0)
        raise(action->signal);
    if (action->status != DPT_OK)
        return dpt_fail(err, action->status, "%s, as DPTRAIN_FAULT asks", action->text);
    return action->run != NULL ? action->run(fault, params, n, err) : DPT_OK;
}

enum dpt_status dpt_fault_strike(const struct dpt_fault *fault, int rank, int64_t step, int64_t at,
                                 float *params, int64_t n, struct dpt_error *err)
{
    if (!dpt_fault_strikes(fault, rank, step) ||
        at != (fault->action->evaluation ? DPT_FAULT_EVALUATION : fault->exchange))
        return DPT_OK;
    return strike(fault, params, n, err);
}

void dpt_fault_strike_gradient(const struct dpt_fault *fault, int rank, int64_t step,
                               float *gradient, int64_t begin, int64_t end)
{
    if (dpt_fault_strikes_gradients(fault) && dpt_fault_strikes(fault, rank, step) &&
        fault->word >= begin && fault->word < end)
        flip(&gradient[fault->word]);
}
