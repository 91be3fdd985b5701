/* `dptrain export`: the weights of a checkpoint in a format of other programs, on one process. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cmd/cmd.h"
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

static void print_result(const struct dpt_checkpoint_model *m,
                         const struct dpt_weights_format *format, const char *path)
{
    const struct dpt_graph *g = &m->graph;
    char digits[32], shape[40];
    struct stat info;

    printf("%s: %s, %s parameters in %d tensors, step %lld", path, format->name,
           dpt_group_digits(digits, g->parameters), g->n_tensors, (long long)m->progress.step);
    if (format->open == NULL)
        printf(", input [batch, %s], output [batch, %d]", dpt_shape_text(&g->nodes[0].out, shape),
               g->nodes[g->n_nodes - 1].out.c);
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
    struct dpt_model_view view;

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
    view = (struct dpt_model_view){.graph = &m.graph,
                                   .params = m.params,
                                   .producer = "dptrain " DPT_VERSION,
                                   .step = m.progress.step,
                                   .normalize = &m.job.data.normalize};
    DPT_TRY(format->write(&view, out, err));
    print_result(&m, format, out);
out:
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
