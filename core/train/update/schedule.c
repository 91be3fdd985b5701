#include "core/train/update/schedule.h"

#include <math.h>
#include <string.h>

#define SCALE_RULES(X) X(SCALE_NONE, "none") X(SCALE_LINEAR, "linear") X(SCALE_SQRT, "sqrt")
enum scale_rule { SCALE_RULES(DPT_LIST_NAME) SCALE_RULE_COUNT };

/* The options of every schedule begin with these. */
struct common {
    struct dpt_every warmup; /* steps (below 1: a share of the run), epochs or per cent */
    struct {
        int rule; /* enum scale_rule */
        int64_t base_batch;
    } scale;
};

struct decay_options {
    struct common common;
    double final; /* fraction of the rate that is left at the end */
};

struct polynomial_options {
    struct decay_options decay; /* begins with the common options */
    double power;
};

struct step_options {
    struct common common;
    struct dpt_every every;
    double gamma;
};

struct onecycle_options {
    struct common common;
    double pct_start, div_factor, final_div_factor;
};

struct plateau_options {
    struct common common;
    struct dpt_patience patience;
    double factor, min_lr;
};

/* A moment of a schedule, counted from the end of the warm-up. */
struct moment {
    double step, steps; /* of so many */
    int64_t per_epoch;
};

/* A schedule's factor; 1 at step 0, except for onecycle, which has no warm-up. */
struct schedule_type {
    double (*factor)(const void *options, const struct moment *at);
};

static double constant_factor(const void *options, const struct moment *at)
{
    (void)options, (void)at;
    return 1;
}

/* Returns the steps from one multiplication by gamma to the next. */
static double steps_between(const struct step_options *o, int64_t per_epoch)
{
    const double every =
        o->every.unit == DPT_EPOCHS ? round(o->every.n * (double)per_epoch) : o->every.n;

    return every < 1 ? 1 : every; /* a fraction of an epoch may be shorter than a step */
}

static double step_factor(const void *options, const struct moment *at)
{
    const struct step_options *o = options;

    return pow(o->gamma, floor(at->step / steps_between(o, at->per_epoch)));
}

/* Spreads each drop of `step` over the steps before it, as TensorFlow's ExponentialDecay does. */
static double exponential_factor(const void *options, const struct moment *at)
{
    const struct step_options *o = options;

    return pow(o->gamma, at->step / steps_between(o, at->per_epoch));
}

/* Loshchilov & Hutter 2017, "SGDR", equation 5, without restarts. */
static double cosine_factor(const void *options, const struct moment *at)
{
    const struct decay_options *o = options;

    return o->final + (1 - o->final) * (1 + cos(acos(-1.0) * at->step / at->steps)) / 2;
}

static double linear_factor(const void *options, const struct moment *at)
{
    const struct decay_options *o = options;

    return 1 + (o->final - 1) * at->step / at->steps;
}

/* The "poly" policy of Chen et al. 2017, "DeepLab", section 4.1.1, which ends at `final`. */
static double polynomial_factor(const void *options, const struct moment *at)
{
    const struct polynomial_options *o = options;

    return o->decay.final + (1 - o->decay.final) * pow(1 - at->step / at->steps, o->power);
}

static double half_a_cosine(double from, double to, double share)
{
    return to + (from - to) / 2 * (1 + cos(acos(-1.0) * share));
}

/* Smith & Topin 2018, "Super-Convergence", in two phases, as in PyTorch's OneCycleLR. */
static double onecycle_factor(const void *options, const struct moment *at)
{
    const struct onecycle_options *o = options;
    const double peak = o->pct_start * at->steps - 1, last = at->steps - 1;
    const double begin = 1 / o->div_factor, end = begin / o->final_div_factor;

    if (at->step <= peak && peak > 0)
        return half_a_cosine(begin, 1, at->step / peak);
    return last > peak ? half_a_cosine(1, end, fmin(1, (at->step - peak) / (last - peak))) : 1;
}

/* The warm-up as a number of steps, or with its unit. */
static const struct dpt_option warmup_rows[] = {
    {.name = "number", .type = DPT_OPT_REAL, .max = 1e12},
    {.name = "time",
     .type = DPT_OPT_EVERY,
     .units = 1 << DPT_STEPS | 1 << DPT_EPOCHS | 1 << DPT_PERCENT},
    {0},
};

static const struct dpt_alternatives warmup_forms = {.either = warmup_rows};

static bool read_warmup(struct dpt_conf *conf, struct dpt_conf_node *node, const char *path,
                        void *dest)
{
    const bool scalar = node->kind == DPT_NODE_SCALAR;
    const char *unit = scalar ? node->text + strspn(node->text, "+-.0123456789eE") : "";
    struct dpt_every *warmup = dest;
    double number = 0;

    *warmup = (struct dpt_every){.unit = DPT_STEPS};
    if (scalar && *unit == '\0') {
        if (!dpt_option_read(conf, node, path, &warmup_rows[0], &number))
            return false;
        warmup->n = number;
        return true;
    }
    if (!dpt_option_read(conf, node, path, &warmup_rows[1], warmup))
        return false;
    if (warmup->unit == DPT_PERCENT && warmup->n > 100)
        dpt_conf_mistake(conf, node, path, "%s is more than the whole run", node->text);
    return true;
}

// clang-format off
#define SCALE(member) .offset = offsetof(struct common, member) - offsetof(struct common, scale)

static const struct dpt_option scale_table[] = {
    {.name = "rule", .type = DPT_OPT_CHOICE, SCALE(scale.rule), .fallback = "none",
     .choices = DPT_CHOICES(SCALE_RULES),
     .help = "lr is multiplied by batch.global / base_batch, or its root"},
    {.name = "base_batch", .type = DPT_OPT_INT, SCALE(scale.base_batch), .fallback = "256",
     .min = 1, .max = 1 << 24, .help = "batch.global that lr is meant for"},
    {0},
};

#define COMMON_ROWS                                                                                \
    {.name = "warmup", .type = DPT_OPT_CUSTOM, .offset = offsetof(struct common, warmup),          \
     .fallback = "0", .read = read_warmup, .alternatives = &warmup_forms,                          \
     .value_text = "number of steps, N epochs, or N %",                                            \
     .help = "length of the linear warm-up; a number below 1: a share of the run"},            \
    SCALE_ROW

#define SCALE_ROW                                                                                  \
    {.name = "scale_lr", .type = DPT_OPT_SECTION, .offset = offsetof(struct common, scale),        \
     .fallback = "{}", .rows = scale_table, .bare = "rule",                                        \
     .help = "scaling of lr with the global batch; linear or sqrt alone is its rule"}

static const struct dpt_option constant_table[] = {COMMON_ROWS, {0}};

/* A time would make the run depend on the machine; a schedule that never steps is `constant`. */
#define STEP_ROWS(usual, drop)                                                                     \
    {.name = "every", .type = DPT_OPT_EVERY, .offset = offsetof(struct step_options, every),       \
     .units = 1 << DPT_EPOCHS | 1 << DPT_STEPS, .help = "when lr " drop " by gamma"},              \
    {.name = "gamma", .type = DPT_OPT_REAL, .offset = offsetof(struct step_options, gamma),        \
     .fallback = usual, .min = 0, .max = 1, .help = "factor of each drop"}

static const struct dpt_option
    step_table[] = {STEP_ROWS("0.1", "is multiplied"), COMMON_ROWS, {0}},
    exponential_table[] = {STEP_ROWS("0.95", "has fallen"), COMMON_ROWS, {0}};

#define FINAL_ROW                                                                                  \
    {.name = "final", .type = DPT_OPT_REAL, .offset = offsetof(struct decay_options, final),       \
     .fallback = "0", .min = 0, .max = 1, .help = "share of lr that is left at the end"}

static const struct dpt_option decay_table[] = {FINAL_ROW, COMMON_ROWS, {0}};

static const struct dpt_option polynomial_table[] = {
    {DPT_ROW_REAL(struct polynomial_options, power, "2", 0, 100),
     .help = "1 is a line; more: it falls sooner"},
    FINAL_ROW,
    COMMON_ROWS,
    {0},
};

static const struct dpt_option onecycle_table[] = {
    {DPT_ROW_REAL(struct onecycle_options, pct_start, "0.3", 0, 1),
     .help = "share of the run in which lr rises"},
    {DPT_ROW_REAL(struct onecycle_options, div_factor, "25", 1, 1e12),
     .help = "lr divided by this is the initial rate"},
    {DPT_ROW_REAL(struct onecycle_options, final_div_factor, "1e4", 1, 1e12),
     .help = "initial rate divided by this is the last rate"},
    SCALE_ROW,
    {0},
};

static const struct dpt_option plateau_table[] = {
    {.name = "monitor", .type = DPT_OPT_CHOICE,
     .offset = offsetof(struct plateau_options, patience.monitor), .fallback = "valid.loss",
     .choices = DPT_CHOICES(DPT_MONITORS), .help = "value of data.valid that must improve"},
    {DPT_ROW_REAL(struct plateau_options, factor, "0.1", 0, 1),
     .help = "factor for lr when it does not improve"},
    {.name = "patience", .type = DPT_OPT_INT,
     .offset = offsetof(struct plateau_options, patience.patience), .fallback = "10", .min = 0,
     .max = 1e9,
     .help = "evaluations without improvement to allow; the next lowers lr"},
    {.name = "min_delta", .type = DPT_OPT_REAL,
     .offset = offsetof(struct plateau_options, patience.min_delta), .fallback = "1e-4", .min = 0,
     .max = 1e30, .help = "improvements up to this size do not count"},
    {.name = "relative", .type = DPT_OPT_BOOL,
     .offset = offsetof(struct plateau_options, patience.relative), .fallback = "true",
     .help = "min_delta is a share of the best value"},
    {DPT_ROW_REAL(struct plateau_options, min_lr, "0", 0, 1e30),
     .help = "lr is not lowered below this"},
    COMMON_ROWS,
    {0},
};

// clang-format on

#define SCHEDULE(schedule, factor, table, struct_, text)                                           \
    static const struct schedule_type schedule##_type = {factor};                                  \
    static const struct dpt_variant schedule = {.name = #schedule,                                 \
                                                .summary = text,                                   \
                                                .options = table,                                  \
                                                .size = sizeof(struct_),                           \
                                                .impl = &schedule##_type}

SCHEDULE(constant, constant_factor, constant_table, struct common, "the same rate throughout");
SCHEDULE(step, step_factor, step_table, struct step_options, "multiplied by gamma again and again");
SCHEDULE(exponential, exponential_factor, exponential_table, struct step_options,
         "falls by gamma again and again, a little in each step");
SCHEDULE(cosine, cosine_factor, decay_table, struct decay_options,
         "half a cosine from lr to final x lr (Loshchilov & Hutter 2017)");
SCHEDULE(linear, linear_factor, decay_table, struct decay_options, "a line from lr to final x lr");
SCHEDULE(polynomial, polynomial_factor, polynomial_table, struct polynomial_options,
         "polynomial decay over the run, from lr to final x lr");
SCHEDULE(onecycle, onecycle_factor, onecycle_table, struct onecycle_options,
         "up to lr and down to almost nothing, each half a cosine (Smith & Topin 2018)");
SCHEDULE(plateau, constant_factor, plateau_table, struct plateau_options,
         "lowered when data.valid's loss, or another value, stops improving, as in PyTorch");

const struct dpt_variant *const dpt_schedule_variants[] = {
    &constant, &step, &exponential, &cosine, &linear, &polynomial, &onecycle, &plateau, NULL};

static const struct common no_options;
const struct dpt_variant_value dpt_schedule_none = {.variant = &constant,
                                                    .options = (void *)&no_options};

const struct dpt_patience *dpt_schedule_plateau(const struct dpt_variant_value *schedule)
{
    const struct plateau_options *o = schedule->options;

    return schedule->variant == &plateau ? &o->patience : NULL;
}

bool dpt_schedule_lowers(const struct dpt_patience *how, struct dpt_watch *watch)
{
    if (watch->waits <= how->patience)
        return false;
    watch->waits = 0;
    watch->drops++;
    return true;
}

double dpt_schedule_scale(const struct dpt_variant_value *schedule, double lr, int64_t global)
{
    const struct common *common = schedule->options;
    const double ratio = (double)global / (double)common->scale.base_batch;

    if (common->scale.rule == SCALE_LINEAR)
        return lr * ratio;
    return common->scale.rule == SCALE_SQRT ? lr * sqrt(ratio) : lr;
}

double dpt_schedule_warmup(const struct dpt_variant_value *schedule,
                           const struct dpt_schedule_point *point)
{
    const struct dpt_every *warmup = &((const struct common *)schedule->options)->warmup;
    const double n = warmup->n, all = (double)point->steps;

    if (warmup->unit == DPT_EPOCHS)
        return ceil(n * (double)point->steps_per_epoch);
    if (warmup->unit == DPT_PERCENT)
        return ceil(n * all / 100);
    return ceil(n < 1 ? n * all : n);
}

double dpt_schedule_rate(const struct dpt_variant_value *schedule, double lr,
                         const struct dpt_schedule_point *point)
{
    const struct schedule_type *type = schedule->variant->impl;
    const struct plateau_options *lowers = schedule->options;
    const double step = (double)point->step, warmup = dpt_schedule_warmup(schedule, point);
    const double steps = fmax(1, (double)point->steps - warmup);
    const struct moment at = {fmin(step - warmup, steps), steps, point->steps_per_epoch};

    if (schedule->variant == &plateau) /* min_lr never raises a rate */
        lr = fmax(lr * pow(lowers->factor, (double)point->drops), fmin(lr, lowers->min_lr));
    if (step < warmup)
        return lr * (step + 1) / warmup;
    return lr * type->factor(schedule->options, &at);
}
