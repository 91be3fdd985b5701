/* `dptrain export`: the weights of a checkpoint in a format of other programs, on one process. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cmd/cmd.h"
#include "core/backend/fold.h"
#include "core/base/str.h"
#include "core/interchange/weights.h"
#include "core/train/checkpoint_model.h"

/* "1,28,28" or "784". */
static enum dpt_status read_shape(const char *text, struct dpt_shape *shape, struct dpt_error *err)
{
    int end = 0;

    *shape = (struct dpt_shape){.h = 1, .w = 1, .flat = strchr(text, ',') == NULL};
    if ((shape->flat ? sscanf(text, "%d%n", &shape->c, &end)
                     : sscanf(text, "%d,%d,%d%n", &shape->c, &shape->h, &shape->w, &end)) < 1 ||
        end == 0 || text[end] != '\0' || shape->c < 1 || shape->h < 1 || shape->w < 1)
        return dpt_fail(err, DPT_USAGE,
                        "dptrain export: --input-shape %s: C,H,W is wanted (1,28,28), or N (784)",
                        text);
    return DPT_OK;
}

/* The model as it is written. */
struct exported {
    struct dpt_model_view view;
    struct dpt_graph folded; /* owned; {0}: the checkpoint's own is taken */
    float *arena;
    int32_t norms; /* that were folded */
};

static enum dpt_status fold(struct dpt_cli *cli, const struct dpt_weights_format *format,
                            struct exported *e, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (!dpt_cli_has(cli, "--fold-batchnorm"))
        return DPT_OK;
    if (format->open != NULL)
        return dpt_fail(err, DPT_USAGE,
                        "dptrain export: --fold-batchnorm: who reads %s has the model's layers "
                        "already, batch norms too; it is for --to onnx",
                        format->name);
    DPT_TRY(dpt_fold_graph(e->view.graph, e->view.params, &e->folded, &e->arena, &e->norms, err));
    e->view.graph = &e->folded;
    e->view.params = e->arena;
out:
    return status;
}

static int32_t count_norms(const struct dpt_graph *g)
{
    int32_t n = 0;

    for (int32_t i = 0; i < g->n_nodes; i++)
        n += g->nodes[i].op == DPT_OP_BATCHNORM;
    return n;
}

static void print_result(const struct exported *e, const struct dpt_weights_format *format,
                         const char *path)
{
    const struct dpt_graph *g = e->view.graph;
    char digits[32], shape[40];
    struct stat info;

    printf("%s: %s, %s parameters in %d tensors, step %lld", path, format->name,
           dpt_group_digits(digits, g->parameters), g->n_tensors, (long long)e->view.step);
    if (format->open == NULL)
        printf(", input [batch, %s], output [batch, %d]", dpt_shape_text(&g->nodes[0].out, shape),
               g->nodes[g->n_nodes - 1].out.c);
    if (e->arena != NULL)
        printf(", %d of %d batch norms folded", e->norms, e->norms + count_norms(g));
    if (e->view.targets->used && format->open != NULL)
        printf(", outputs are of scaled targets (y * std + mean)");
    if (stat(path, &info) == 0)
        printf(", %.*f %s", 1, (double)info.st_size / (info.st_size < 100000 ? 1e3 : 1e6),
               info.st_size < 100000 ? "kB" : "MB");
    printf("\n");
}

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *shape_text = dpt_cli_value(cli, "--input-shape"), *out;
    const struct dpt_weights_format *format;
    struct dpt_checkpoint_model m = {0};
    struct dpt_shape shape;
    struct exported e = {0};

    if (cli->n_positional != 2)
        return dpt_cli_wrong(cli,
                             cli->n_positional == 0   ? "which checkpoint?"
                             : cli->n_positional == 1 ? "to which file?"
                                                      : "one checkpoint, one file;",
                             err);
    out = cli->positional[1];
    DPT_TRY(dpt_weights_target(dpt_cli_value(cli, "--to"), out, &format, err));
    if (shape_text != NULL)
        DPT_TRY(read_shape(shape_text, &shape, err));
    DPT_TRY(dpt_checkpoint_model_open(&m, cli->positional[0], shape_text != NULL ? &shape : NULL,
                                      dpt_cli_has(cli, "--allow-nan"), err));
    e.view = (struct dpt_model_view){.graph = &m.graph,
                                     .params = m.params,
                                     .producer = "dptrain " DPT_VERSION,
                                     .step = m.progress.step,
                                     .normalize = &m.job.data.normalize,
                                     .targets = &m.targets};
    DPT_TRY(fold(cli, format, &e, err));
    DPT_TRY(format->write(&e.view, out, err));
    print_result(&e, format, out);
out:
    dpt_graph_release(&e.folded);
    dpt_free(e.arena);
    dpt_checkpoint_model_close(&m);
    return status;
}

static void list_formats(void)
{
    printf("\nformats:\n");
    for (size_t i = 0; dpt_weights_formats[i] != NULL; i++) {
        const struct dpt_weights_format *f = dpt_weights_formats[i];

        if (f->write == NULL)
            continue;
        dpt_cli_print(14, printf("  %-12s", f->name), f->summary);
    }
}

static const struct dpt_cli_option options[] = {
    {"--to", "safetensors|npz|onnx", "the format; else that of OUT's ending"},
    {"--allow-nan", NULL, "take a checkpoint whose weights are not all finite"},
    {"--fold-batchnorm", NULL, "onnx: batch norms become part of the weights before them"},
    {"--input-shape", "C,H,W", "of a sample, where an old checkpoint does not say it"},
    {0},
};

const struct dpt_command dpt_cmd_export = {
    .name = "export",
    .usage = "CHECKPOINT [--to safetensors|npz|onnx] OUT",
    .summary = "a trained model for PyTorch, NumPy, JAX or onnxruntime",
    .details =
        "Reads a checkpoint, or a run folder's latest, and writes its weights to OUT; neither the "
        "job file nor the data are needed. Tensors are called as in PyTorch (conv1.weight, "
        "dense1.bias) and lie as there (dense [out, in], convolution [out, in, height, width]). "
        "Those of resnet, vgg and mobilenet_v2 are torchvision's: load_state_dict takes them, "
        "counts "
        "of steps and all. "
        "What a model's inputs were normalised with is in the file's metadata, but for npz. The "
        "same checkpoint gives the same bytes. `dptrain train --init-from` reads safetensors and "
        "npz.\n\n"
        "  dptrain export runs/mnist-cnn --to onnx mnist.onnx\n"
        "  dptrain export runs/mnist-cnn/checkpoints/best mnist.safetensors",
    .options = options,
    .one_rank = true,
    .run = run,
    .more_help = list_formats,
};
