#include "core/backend/cuda/kernels.h"

#include <math.h>

enum { MOST_CHUNKS = 1024, PIXELS = 4 };

static int64_t ceil_div(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

/* One thread for each of n things. */
static bool spread(int64_t n, struct dpt_cuda_grid *grid)
{
    if (n > INT32_MAX)
        return false;
    *grid = (struct dpt_cuda_grid){(uint32_t)ceil_div(n, DPT_CUDA_THREADS), n > 0};
    return true;
}

struct dpt_cuda_cut dpt_cuda_bias_back_cut(int64_t rows, int32_t pitch, int lanes)
{
    const int32_t vectors = pitch / lanes;
    struct dpt_cuda_cut cut = {.columns = 1};
    int64_t tall;

    while (cut.columns < vectors && cut.columns < 32)
        cut.columns *= 2;
    cut.groups = (int32_t)ceil_div(vectors, cut.columns);
    tall = DPT_CUDA_THREADS / cut.columns; /* rows that a block reads at once */
    cut.chunk = 8 * tall;
    if (ceil_div(rows, cut.chunk) > MOST_CHUNKS)
        cut.chunk = ceil_div(ceil_div(rows, MOST_CHUNKS), tall) * tall;
    cut.chunks = ceil_div(rows, cut.chunk);
    return cut;
}

int64_t dpt_cuda_bias_back_partial(int64_t rows, int32_t pitch, int lanes)
{
    return dpt_cuda_bias_back_cut(rows, pitch, lanes).chunks * pitch;
}

/* A kind of launch: its blocks, and the bytes that it moves. element: bytes of the tensor's type.
 */
#define GRID(kind, argument)                                                                       \
    static bool kind##_grid(const void *argument, int lanes, struct dpt_cuda_grid *grid)
#define BYTES(kind, argument) static int64_t kind##_bytes(const void *argument, int64_t element)

GRID(act, argument)
{
    const struct dpt_cuda_act_args *a = argument;

    (void)lanes;
    return spread(a->vectors, grid);
}

BYTES(act, argument)
{
    (void)element;
    return 2 * 16 * ((const struct dpt_cuda_act_args *)argument)->vectors;
}

GRID(act_back, argument)
{
    const struct dpt_cuda_act_back_args *a = argument;

    (void)lanes;
    return spread(a->vectors, grid);
}

BYTES(act_back, argument)
{
    const struct dpt_cuda_act_back_args *a = argument;

    (void)element;
    return (a->add ? 4 : 3) * 16 * a->vectors;
}

GRID(bias, argument)
{
    const struct dpt_cuda_bias_args *a = argument;

    return spread(a->rows * (a->pitch / lanes), grid);
}

BYTES(bias, argument)
{
    const struct dpt_cuda_bias_args *a = argument;

    return (2 * a->rows + 1) * a->pitch * element;
}

GRID(bias_back, argument)
{
    const struct dpt_cuda_bias_back_args *a = argument;
    const struct dpt_cuda_cut cut = dpt_cuda_bias_back_cut(a->rows, a->pitch, lanes);

    *grid = (struct dpt_cuda_grid){(uint32_t)cut.chunks, (uint32_t)cut.groups};
    return a->rows * (a->pitch / lanes) <= INT32_MAX && cut.groups <= UINT16_MAX;
}

BYTES(bias_back, argument)
{
    const struct dpt_cuda_bias_back_args *a = argument;

    return (a->y != NULL ? 3 : 1) * a->rows * a->pitch * element +
           4 * (2 * dpt_cuda_bias_back_partial(a->rows, a->pitch, (int)(16 / element)) +
                (a->add ? 2 : 1) * a->channels);
}

GRID(pool, argument)
{
    const struct dpt_cuda_pool_args *a = argument;

    return spread((int64_t)a->n * a->oh * a->ow * (a->pitch / lanes), grid);
}

BYTES(pool, argument)
{
    const struct dpt_cuda_pool_args *a = argument;
    const int64_t in = (int64_t)a->n * a->h * a->w * a->pitch;
    const int64_t out = (int64_t)a->n * a->oh * a->ow * a->pitch;

    return (in + out) * element + (a->index != NULL ? 2 * out : 0) +
           (a->y != NULL ? out * element : 0);
}

GRID(pool_back, argument)
{
    const struct dpt_cuda_pool_args *a = argument;

    return spread((int64_t)a->n * a->h * a->w * (a->pitch / lanes), grid);
}

BYTES(pool_back, argument)
{
    const struct dpt_cuda_pool_args *a = argument;
    const int64_t in = (int64_t)a->n * a->h * a->w * a->pitch;

    return pool_bytes(argument, element) + (a->add ? in * element : 0);
}

GRID(dropout, argument)
{
    const struct dpt_cuda_dropout_args *a = argument;

    return spread((int64_t)a->n * ceil_div(a->area, PIXELS) * (a->pitch / lanes), grid);
}

BYTES(dropout, argument)
{
    const struct dpt_cuda_dropout_args *a = argument;

    return (a->add ? 3 : 2) * (int64_t)a->n * a->area * a->pitch * element + 8 * a->n;
}

GRID(loss, argument)
{
    const struct dpt_cuda_loss_args *a = argument;

    (void)lanes;
    *grid = (struct dpt_cuda_grid){(uint32_t)ceil_div(a->n, DPT_CUDA_LOSS_ROWS), a->n > 0};
    return true;
}

BYTES(loss, argument)
{
    const struct dpt_cuda_loss_args *a = argument;
    const int64_t row = (int64_t)a->pitch * element * (a->dy != NULL ? 2 : 1);

    return a->n * (row + 4 * (a->labels != NULL ? 1 : (int64_t)a->outputs));
}

GRID(layout, argument)
{
    const struct dpt_cuda_layout_args *a = argument;

    if (!spread(ceil_div(a->largest, lanes), grid) || a->n > UINT16_MAX)
        return false;
    grid->y = (uint32_t)a->n;
    return true;
}

BYTES(layout, argument)
{
    return ((const struct dpt_cuda_layout_args *)argument)->total * (4 + element);
}

/* A thread for each canonical element: the writes lie side by side. */
GRID(from_layout, argument)
{
    return layout_grid(argument, lanes / lanes, grid);
}

BYTES(from_layout, argument)
{
    const struct dpt_cuda_layout_args *a = argument;

    return a->total * ((a->add ? 8 : 4) + element);
}

static bool gather_grid(const struct dpt_cuda_gather_args *a, int lanes, struct dpt_cuda_grid *grid)
{
    const int64_t vectors = a->pitch % lanes == 0 ? a->pitch / lanes : 1;

    return spread((int64_t)a->n * a->h * a->w * vectors, grid);
}

static int64_t gather_bytes(const struct dpt_cuda_gather_args *a, int64_t from, int64_t to)
{
    return (int64_t)a->n * (a->h * a->w * (a->channels * from + a->pitch * to) + 8 +
                            (a->labels_out != NULL ? 8 : 0) + (a->sample_out != NULL ? 8 : 0));
}

GRID(gather_u8, argument)
{
    return gather_grid(argument, lanes, grid);
}

BYTES(gather_u8, argument)
{
    return gather_bytes(argument, 1, element);
}

GRID(gather_f32, argument)
{
    return gather_grid(argument, lanes, grid);
}

BYTES(gather_f32, argument)
{
    return gather_bytes(argument, 4, element);
}

/* Blocks of many elements: one sum, or none, comes out. */
GRID(scan, argument)
{
    const struct dpt_cuda_scan_args *a = argument;
    const int64_t blocks = ceil_div(a->n, (int64_t)DPT_CUDA_THREADS * lanes * 4);

    *grid = (struct dpt_cuda_grid){(uint32_t)(blocks < 2048 ? blocks : 2048), a->n > 0};
    return true;
}

BYTES(scan, argument)
{
    return ((const struct dpt_cuda_scan_args *)argument)->n * element;
}

GRID(add, argument)
{
    const struct dpt_cuda_add_args *a = argument;

    return spread(ceil_div(a->n, lanes), grid);
}

BYTES(add, argument)
{
    return 3 * element * ((const struct dpt_cuda_add_args *)argument)->n;
}

GRID(norm, argument)
{
    const struct dpt_cuda_norm_args *a = argument;

    (void)lanes;
    *grid = (struct dpt_cuda_grid){(uint32_t)ceil_div(a->n, DPT_CUDA_NORM_CHUNK), a->n > 0};
    return a->n / DPT_CUDA_NORM_CHUNK < INT32_MAX;
}

BYTES(norm, argument)
{
    return element * ((const struct dpt_cuda_norm_args *)argument)->n;
}

#define UPDATE(slots)                                                                              \
    GRID(update_##slots, argument)                                                                 \
    {                                                                                              \
        return spread(ceil_div(((const struct dpt_cuda_update_args *)argument)->n, lanes), grid);  \
    }                                                                                              \
    BYTES(update_##slots, argument)                                                                \
    {                                                                                              \
        const int64_t n = ((const struct dpt_cuda_update_args *)argument)->n;                      \
                                                                                                   \
        return n * element * (3 + 2 * (slots)) + n / 16;                                           \
    }
UPDATE(0)
UPDATE(1)
UPDATE(2)
#undef UPDATE

GRID(tail, argument)
{
    (void)argument, (void)lanes;
    *grid = (struct dpt_cuda_grid){1, 1};
    return true;
}

BYTES(tail, argument)
{
    return ((const struct dpt_cuda_tail_args *)argument)->n * element +
           2 * (int64_t)sizeof(struct dpt_cuda_metric_sums);
}

/* Enough blocks to have many loads on their way, no more: most ranges are short. */
GRID(feed, argument)
{
    const struct dpt_cuda_feed_args *a = argument;
    int64_t largest = 0, blocks;

    for (int32_t i = 0; i < a->n; i++)
        largest = a->feed[i].bytes > largest ? a->feed[i].bytes : largest;
    blocks = ceil_div(largest, (int64_t)DPT_CUDA_THREADS * lanes * 4);
    *grid = (struct dpt_cuda_grid){(uint32_t)(blocks < 1024 ? blocks : 1024), (uint32_t)a->n};
    return a->n <= DPT_CUDA_FEEDS;
}

BYTES(feed, argument)
{
    const struct dpt_cuda_feed_args *a = argument;
    int64_t bytes = 0;

    (void)element;
    for (int32_t i = 0; i < a->n; i++)
        bytes += 2 * a->feed[i].bytes;
    return bytes;
}

static const struct kernel {
    const char *name;
    size_t argument;
    int lanes;
    bool (*grid)(const void *argument, int lanes, struct dpt_cuda_grid *grid);
    int64_t (*bytes)(const void *argument, int64_t element);
} kernels[DPT_CUDA_KERNEL_COUNT] = {
#define X(name, kind, argument, lanes, meets)                                                      \
    {"dpt_cuda_" #name, sizeof(struct dpt_cuda_##argument##_args), lanes, kind##_grid,             \
     kind##_bytes},
    DPT_CUDA_KERNELS(X)
#undef X
};

const char *dpt_cuda_kernel_name(enum dpt_cuda_kernel kernel)
{
    return kernels[kernel].name;
}

size_t dpt_cuda_kernel_argument(enum dpt_cuda_kernel kernel)
{
    return kernels[kernel].argument;
}

bool dpt_cuda_kernel_grid(enum dpt_cuda_kernel kernel, const void *argument,
                          struct dpt_cuda_grid *grid)
{
    const struct kernel *k = &kernels[kernel];

    if (!k->grid(argument, k->lanes, grid))
        return false;
    if (grid->x == 0 || grid->y == 0)
        *grid = (struct dpt_cuda_grid){0};
    return true;
}

int64_t dpt_cuda_kernel_bytes(enum dpt_cuda_kernel kernel, const void *argument)
{
    return kernels[kernel].bytes(argument, 16 / kernels[kernel].lanes);
}

enum dpt_cuda_kernel dpt_cuda_kernel_of_rule(enum dpt_rule_kind rule)
{
#define KERNEL(X, NAME, name, slots) [DPT_RULE_##NAME] = DPT_CUDA_K_##name,
    static const enum dpt_cuda_kernel kernels[DPT_RULE_COUNT] = {
        [DPT_RULE_NONE] = DPT_CUDA_KERNEL_COUNT, DPT_RULES(KERNEL, )};
#undef KERNEL

    return kernels[rule];
}

void dpt_cuda_control_rates(struct dpt_cuda_control *control, int64_t update,
                            const struct dpt_scalars *scalars)
{
    control->update = update;
    control->lr = scalars->lr;
    control->keep = scalars->keep;
    control->rate[0] = scalars->rate[0];
    control->rate[1] = scalars->rate[1];
}
