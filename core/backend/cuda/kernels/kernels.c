#include "core/backend/cuda/kernels/kernels.h"

enum { PIXELS = 4 };

static int64_t ceil_div(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* least: the fewest rows of a chunk. */
static struct dpt_cuda_cut cut_of(int64_t rows, int64_t vectors, int32_t columns, int64_t least)
{
    const int64_t tall = DPT_CUDA_THREADS / columns; /* rows that a block reads at once */
    struct dpt_cuda_cut cut = {.columns = columns, .groups = (int32_t)ceil_div(vectors, columns)};
    const int64_t most = ceil_div(DPT_CUDA_SUM_BLOCKS, cut.groups);

    cut.chunk = ceil_div(ceil_div(rows, most), tall) * tall;
    cut.chunk = cut.chunk > least ? cut.chunk : least;
    cut.chunks = ceil_div(rows, cut.chunk);
    return cut;
}

struct dpt_cuda_cut dpt_cuda_bias_back_cut(int64_t rows, int32_t pitch, int lanes)
{
    const int32_t vectors = pitch / lanes;
    int32_t columns = 1;

    while (columns < vectors && columns < DPT_CUDA_SUM_COLUMNS)
        columns *= 2;
    return cut_of(rows, vectors, columns, DPT_CUDA_SUM_ROWS * (DPT_CUDA_THREADS / columns));
}

/* Up to 1024 rows are one chunk, as are the samples of a norm with a weight for each number. */
struct dpt_cuda_cut dpt_cuda_scales_cut(int64_t rows, int64_t vectors)
{
    enum { LEAST = 1024 };

    return cut_of(rows, vectors, DPT_CUDA_SUM_COLUMNS, LEAST);
}

int64_t dpt_cuda_norm_blocks(int64_t floats)
{
    const int64_t rounds = ceil_div(floats, DPT_CUDA_NORM_ROUND);

    return ceil_div(rounds, ceil_div(rounds, DPT_CUDA_NORM_BLOCKS));
}

int64_t dpt_cuda_chunk_blocks(int64_t chunks)
{
    const int64_t blocks = ceil_div(chunks, DPT_CUDA_THREADS / 32);

    return blocks > 1 ? smaller(blocks, 2 * DPT_CUDA_NORM_BLOCKS) : 1;
}

void dpt_cuda_link_leaves(struct dpt_cuda_leaf *leaf, int n)
{
    int32_t top = -1;

    for (int i = 0; i < n; i++) {
        leaf[i].below = -1;
        if (i > 0 && leaf[i].merges == 0) { /* what is there by now waits */
            leaf[i - 1].below = top;
            top = i - 1;
        }
        for (int32_t m = 1; m < leaf[i].merges; m++)
            top = leaf[top].below;
    }
}

/* The amount of work of a launch. */
struct work {
    int64_t lanes, element;  /* given: elements in 16 bytes, bytes of an element */
    int64_t threads;         /* at most INT32_MAX */
    int64_t blocks, columns; /* blocks 0: as many as the threads need */
    int64_t bytes;           /* memory traffic */
};

/* Defines a kind of launch: a function that computes `work` from the kernel's argument. */
#define WORK(kind, argument)                                                                       \
    static void kind##_of(const struct argument *a, struct work *w);                               \
    static void kind##_work(const void *a, struct work *w)                                         \
    {                                                                                              \
        kind##_of(a, w);                                                                           \
    }                                                                                              \
    static void kind##_of(const struct argument *a, struct work *w)

WORK(counted, dpt_cuda_counted)
{
    w->blocks = a->blocks;
    w->bytes = a->bytes;
}

WORK(act, dpt_cuda_act_args)
{
    w->threads = a->vectors;
    w->bytes = 2 * 16 * a->vectors;
}

WORK(act_back, dpt_cuda_act_back_args)
{
    w->threads = a->vectors;
    w->bytes = 3 * 16 * a->vectors;
}

WORK(bias, dpt_cuda_bias_args)
{
    w->threads = a->rows * (a->pitch / w->lanes);
    w->bytes = (2 * a->rows + 1) * a->pitch * w->element;
}

WORK(bias_back, dpt_cuda_bias_back_args)
{
    const struct dpt_cuda_cut cut = dpt_cuda_bias_back_cut(a->rows, a->pitch, (int)w->lanes);

    w->threads = a->rows * (a->pitch / w->lanes);
    w->blocks = cut.chunks;
    w->columns = cut.groups;
    w->bytes = (a->y != NULL ? 3 : 1) * a->rows * a->pitch * w->element +
               16 * cut.chunks * a->pitch + 4 * (a->add ? 2 : 1) * a->channels;
}

static int64_t pool_bytes(const struct dpt_cuda_pool_args *a, int64_t element)
{
    const int64_t in = (int64_t)a->n * a->h * a->w * a->pitch;
    const int64_t out = (int64_t)a->n * a->oh * a->ow * a->pitch;

    return (in + out) * element + (a->index != NULL ? 2 * out : 0) +
           (a->y != NULL ? out * element : 0);
}

WORK(pool, dpt_cuda_pool_args)
{
    w->threads = (int64_t)a->n * a->oh * a->ow * (a->pitch / w->lanes);
    w->bytes = pool_bytes(a, w->element);
}

WORK(pool_back, dpt_cuda_pool_args)
{
    w->threads = (int64_t)a->n * a->h * a->w * (a->pitch / w->lanes);
    w->bytes = pool_bytes(a, w->element);
}

WORK(window_back, dpt_cuda_pool_args)
{
    pool_back_of(a, w);
    if (DPT_CUDA_POOL_TILED(a))
        w->threads = (int64_t)a->n * ceil_div(a->h, a->stride[0]) * ceil_div(a->w, a->stride[1]) *
                     (a->pitch / w->lanes);
}

WORK(dropout, dpt_cuda_dropout_args)
{
    w->threads = (int64_t)a->n * ceil_div(a->area, PIXELS) * (a->pitch / w->lanes);
    w->bytes = 2 * (int64_t)a->n * a->area * a->pitch * w->element + 8 * a->n;
}

WORK(loss, dpt_cuda_loss_args)
{
    const int64_t row = (int64_t)a->pitch * w->element * (a->dy != NULL ? 2 : 1);

    w->blocks = ceil_div(a->n, DPT_CUDA_LOSS_ROWS);
    w->bytes = a->n * (row + 4 * (a->labels != NULL ? 1 : (int64_t)a->outputs));
}

WORK(layout, dpt_cuda_layout_args)
{
    w->blocks = a->blocks;
    w->bytes = a->total * (4 + w->element);
}

WORK(from_layout, dpt_cuda_layout_args)
{
    w->blocks = a->blocks;
    w->bytes = a->total * ((a->add ? 8 : 4) + w->element);
}

WORK(slices, dpt_cuda_slices_args)
{
    w->threads = a->n * a->width / w->lanes;
    w->bytes = a->n * a->width * (4 + w->element);
}

/* There are enough blocks to keep many loads in flight, but no more, since most ranges are
 * short. */
void dpt_cuda_add_feed(struct dpt_cuda_feed_args *a, void *to, const void *from, size_t bytes)
{
    const int64_t blocks = smaller(ceil_div((int64_t)bytes, DPT_CUDA_THREADS * 16 * 4), 1024);

    if (bytes == 0)
        return;
    a->feed[a->n++] = (struct dpt_cuda_feed){.from = from, .to = to, .bytes = (int64_t)bytes};
    a->blocks = blocks > a->blocks ? (int32_t)blocks : a->blocks;
}

static int64_t feed_bytes(const struct dpt_cuda_feed_args *a)
{
    int64_t bytes = 0;

    for (int32_t i = 0; i < a->n; i++)
        bytes += 2 * a->feed[i].bytes;
    return bytes;
}

WORK(feed, dpt_cuda_feed_args)
{
    w->blocks = (int64_t)a->n * a->blocks;
    w->bytes = feed_bytes(a);
}

static void gather(const struct dpt_cuda_gather_args *a, int64_t from, struct work *w)
{
    const int64_t pixels = (int64_t)a->h * a->w;

    w->threads = a->n * pixels * (a->pitch % w->lanes == 0 ? a->pitch / w->lanes : 1);
    w->blocks = (int64_t)a->feed.n * a->feed.blocks + ceil_div(w->threads, DPT_CUDA_THREADS);
    w->bytes =
        a->n * (pixels * (a->channels * from + a->pitch * w->element) + 8) + feed_bytes(&a->feed);
}

WORK(gather_u8, dpt_cuda_gather_args)
{
    gather(a, 1, w);
}

WORK(gather_f32, dpt_cuda_gather_args)
{
    gather(a, 4, w);
}

WORK(batchnorm, dpt_cuda_batchnorm_args)
{
    w->threads = a->rows * (a->pitch / w->lanes);
    w->bytes = (2 + (a->dy != NULL) + (a->with != NULL)) * a->rows * a->pitch * w->element;
}

WORK(batchnorm_sums, dpt_cuda_batchnorm_args)
{
    const struct dpt_cuda_cut cut = dpt_cuda_bias_back_cut(a->rows, a->pitch, (int)w->lanes);

    w->blocks = cut.chunks;
    w->columns = cut.groups;
    w->bytes = (1 + (a->dy != NULL) + (a->with != NULL) + (a->joined != NULL) + (a->dz != NULL)) *
               a->rows * a->pitch * w->element;
}

WORK(join, dpt_cuda_join_args)
{
    w->threads = a->vectors;
    w->bytes = 3 * 16 * a->vectors;
}

WORK(join_back, dpt_cuda_join_back_args)
{
    w->threads = a->vectors;
    w->bytes = (3 + (a->da != NULL) + (a->db != NULL)) * 16 * a->vectors;
}

static void concat(const struct dpt_cuda_concat_args *a, struct work *w)
{
    const int64_t first = a->first != NULL ? a->pitch[0] : 0;
    const int64_t second = a->second != NULL ? a->pitch[1] : 0;

    w->bytes = a->pixels * (a->whole_pitch + first + second) * w->element;
}

WORK(concat, dpt_cuda_concat_args)
{
    w->threads = a->pixels * (a->whole_pitch / w->lanes);
    concat(a, w);
}

WORK(concat_back, dpt_cuda_concat_args)
{
    const int32_t pitch = a->pitch[0] > a->pitch[1] ? a->pitch[0] : a->pitch[1];

    w->threads = a->pixels * (pitch / w->lanes);
    w->columns = 2;
    concat(a, w);
}

WORK(flatten, dpt_cuda_flatten_args)
{
    w->threads = (int64_t)a->n * (a->flat_pitch / w->lanes);
    w->bytes = (int64_t)a->n * ((int64_t)a->area * a->pitch + a->flat_pitch) * w->element;
}

WORK(flatten_back, dpt_cuda_flatten_args)
{
    w->threads = (int64_t)a->n * a->area * (a->pitch / w->lanes);
    w->bytes = (int64_t)a->n * ((int64_t)a->area * a->pitch + a->flat_pitch) * w->element;
}

/* Each block reads many elements, since it writes at most one number. */
WORK(scan, dpt_cuda_scan_args)
{
    w->blocks = smaller(ceil_div(a->n, DPT_CUDA_THREADS * w->lanes * 4), 2048);
    w->bytes = a->n * w->element;
}

WORK(add, dpt_cuda_add_args)
{
    w->threads = ceil_div(a->n, w->lanes);
    w->bytes = 3 * w->element * a->n;
}

WORK(norm, dpt_cuda_norm_args)
{
    w->blocks = dpt_cuda_norm_blocks(a->n + a->state_n);
    w->bytes = w->element * (a->n + a->state_n) + a->copies.bytes;
}

WORK(norm_chunks, dpt_cuda_norm_args)
{
    w->blocks = dpt_cuda_chunk_blocks(a->chunks);
    w->bytes = w->element * (smaller(a->n, a->listed * DPT_SUM_OF_SQUARES_CHUNK) + a->state_n) +
               24 * a->listed;
}

WORK(norm_decide, dpt_cuda_norm_args)
{
    w->blocks = 1;
    w->bytes = a->ordered ? 8 * a->chunks : 0;
}

WORK(norm_in_order, dpt_cuda_shown_args)
{
    w->blocks = 1;
    w->bytes = 8 * a->chunks;
}

WORK(tree, dpt_cuda_tree_args)
{
    w->threads = ceil_div(a->slices * a->width, w->lanes);
    w->bytes = w->element * a->slices * a->width * (a->n + 1);
}

WORK(update, dpt_cuda_update_args)
{
    const int slots = (a->slot[0] != NULL) + (a->slot[1] != NULL);
    const int64_t learned = smaller(a->end, a->n) - smaller(a->first, a->n);

    w->threads = ceil_div(a->end - a->first, w->lanes);
    w->bytes = learned * w->element * (3 + 2 * slots) + learned / 16 * (int64_t)sizeof *a->group +
               3 * w->element * (a->end - a->first - learned) + a->copies.bytes;
}

static const struct kernel {
    const char *name;
    size_t argument;
    int lanes;
    void (*work)(const void *argument, struct work *work);
} kernels[DPT_CUDA_KERNEL_COUNT] = {
#define X(name, kind, argument, lanes, meets)                                                      \
    {"dpt_cuda_" #name, sizeof(struct dpt_cuda_##argument##_args), lanes, kind##_work},
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

static struct work work_of(enum dpt_cuda_kernel kernel, const void *argument)
{
    const struct kernel *k = &kernels[kernel];
    struct work w = {.lanes = k->lanes, .element = 16 / k->lanes, .columns = 1};

    k->work(argument, &w);
    if (w.blocks == 0)
        w.blocks = ceil_div(w.threads, DPT_CUDA_THREADS);
    return w;
}

bool dpt_cuda_kernel_grid(enum dpt_cuda_kernel kernel, const void *argument,
                          struct dpt_cuda_grid *grid)
{
    const struct work w = work_of(kernel, argument);

    *grid = (struct dpt_cuda_grid){0};
    if (w.blocks > 0 && w.columns > 0)
        *grid = (struct dpt_cuda_grid){(uint32_t)w.blocks, (uint32_t)w.columns};
    return w.threads <= INT32_MAX && w.blocks <= INT32_MAX && w.columns <= UINT16_MAX;
}

int64_t dpt_cuda_kernel_bytes(enum dpt_cuda_kernel kernel, const void *argument)
{
    return work_of(kernel, argument).bytes;
}

int64_t dpt_cuda_layout_blocks(enum dpt_cuda_kernel kernel, const struct dpt_cuda_layout *l)
{
    const int64_t copy = (int64_t)l->padded_outputs * l->area * l->padded_inputs;
    const int64_t canonical = (int64_t)l->outputs * l->inputs * l->area;
    const bool back = kernels[kernel].work == from_layout_work;

    return ceil_div(back ? canonical : ceil_div(copy, kernels[kernel].lanes), DPT_CUDA_THREADS);
}

enum dpt_cuda_kernel dpt_cuda_kernel_of_rule(enum dpt_rule_kind rule)
{
#define KERNEL(X, NAME, name, slots) [DPT_RULE_##NAME] = DPT_CUDA_K_##name,
    static const enum dpt_cuda_kernel kernels[DPT_RULE_COUNT] = {
        [DPT_RULE_NONE] = DPT_CUDA_KERNEL_COUNT, DPT_RULES(KERNEL, )};
#undef KERNEL

    return kernels[rule];
}
