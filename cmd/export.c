/* `dptrain export`: the weights of a checkpoint in a format of other programs, on one process. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cmd/job_command.h"
#include "core/backend/fold.h"
#include "core/base/str.h"
#include "core/interchange/weights.h"
#include "core/train/use/checkpoint_model.h"
#include "data/sources/source.h"

/* "1,28,28" or "784". */
static enum dpt_status read_shape(const char *text, struct dpt_shape *shape, struct dpt_error *err)
{
    int end = 0;

    *shape = (struct dpt_shape){.h = 1, .w = 1, .flat = strchr(text, ',') == NULL};
    if ((shape->flat ? sscanf(text, "%9d%n", &shape->c, &end)
                     : sscanf(text, "%9d,%9d,%9d%n", &shape->c, &shape->h, &shape->w, &end)) < 1 ||
        end == 0 || text[end] != '\0' || shape->c < 1 || shape->h < 1 || shape->w < 1)
        return dpt_fail(err, DPT_USAGE,
                        "dptrain export: --input-shape %s: must be C,H,W (1,28,28), or N (784)",
                        text);
    return DPT_OK;
}

/* The model as it is written. */
struct exported {
    struct dpt_model_view view;
    struct dpt_graph folded; /* owned; {0}: the checkpoint's own is taken */
    float *arena;
    int32_t norms; /* that were folded */
    struct dpt_source_model source;
    struct dpt_region region; /* owns names in it */
};

/* What only a graph can have, not a list of tensors. */
static enum dpt_status check_options(const struct dpt_cli *cli,
                                     const struct dpt_weights_format *format, struct dpt_error *err)
{
    static const char *const of_graphs[] = {"--fold-batchnorm", "--bytes", "--normalized",
                                            "--softmax"};

    for (size_t i = 0; i < sizeof of_graphs / sizeof of_graphs[0]; i++)
        if (format->open != NULL && dpt_cli_has(cli, of_graphs[i]))
            return dpt_fail(
                err, DPT_USAGE,
                "dptrain export: %s: only for --to onnx; readers of %s have the model's layers "
                "already",
                of_graphs[i], format->name);
    if (dpt_cli_has(cli, "--bytes") && dpt_cli_has(cli, "--normalized"))
        return dpt_fail(
            err, DPT_USAGE,
            "dptrain export: --bytes and --normalized: normalised inputs are not bytes: "
            "give only one");
    return DPT_OK;
}

/* What its samples and classes are, as the checkpoint and the job's data, where these are there,
 * tell. */
static enum dpt_status find_source(struct dpt_cli *cli, const struct dpt_checkpoint_model *m,
                                   struct exported *e, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_source_model *source = &e->source;
    const bool classes = dpt_loss_has_classes(dpt_job_loss(&m->job).kind);

    if (dpt_cli_has(cli, "--softmax") && !dpt_loss_judges(dpt_job_loss(&m->job).kind))
        DPT_TRY(dpt_fail(
            err, DPT_USAGE,
            "dptrain export: --softmax: the model does regression, not classification; leave "
            "it out"));
    DPT_TRY(dpt_source_model_find(source, &m->job.data, classes, &e->region, err));
    DPT_TRY(dpt_source_model_keep(source, &m->kept, m->path, &e->region, err));
    e->view.columns = source->columns;
    if (source->n_classes <= (size_t)m->graph.nodes[m->graph.n_nodes - 1].out.c) {
        e->view.classes = source->classes;
        e->view.n_classes = source->n_classes;
    }
    e->view.bytes = dpt_cli_has(cli, "--bytes") || (source->seen && source->u8);
    e->view.typed = dpt_cli_has(cli, "--bytes") || source->seen;
    e->view.normalized = dpt_cli_has(cli, "--normalized");
    e->view.probabilities = dpt_cli_has(cli, "--softmax");
    e->view.labels = dpt_job_loss(&m->job).kind == DPT_LOSS_BINARY_CROSS_ENTROPY;
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
                         bool averaged, const char *path)
{
    const struct dpt_graph *g = e->view.graph;
    char digits[32], shape[40];
    struct stat info;

    printf("%s: %s, %s parameters in %d tensors, step %lld", path, format->name,
           dpt_group_digits(digits, g->parameters), g->n_tensors, (long long)e->view.step);
    if (format->open == NULL)
        printf(", input float32 [batch, %s]%s, %s [batch, %d]",
               dpt_shape_text(&g->nodes[0].out, shape),
               e->view.normalized ? ", normalised"
               : e->view.bytes    ? ", values 0 to 255"
                                  : "",
               e->view.probabilities ? "probabilities" : "output", g->nodes[g->n_nodes - 1].out.c);
    if (averaged)
        printf(", the weights' moving average");
    if (e->arena != NULL)
        printf(", %d of %d batch norms folded", e->norms, e->norms + count_norms(g));
    if (dpt_target_scale_undoes(e->view.targets) && format->open != NULL) {
        const char *inverse = dpt_target_scale_inverse(e->view.targets);

        printf(", outputs are %s (%s%s%s)",
               e->view.targets->rates ? "logarithms of rates" : "of scaled targets",
               inverse != NULL ? inverse : "",
               inverse == NULL         ? ""
               : e->view.targets->used ? " of "
                                       : " of y",
               e->view.targets->used ? "y * std + mean" : "");
    }
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
    unsigned how;

    if (cli->n_positional != 2)
        return dpt_cli_wrong(cli,
                             cli->n_positional == 0   ? "no checkpoint given;"
                             : cli->n_positional == 1 ? "no output file given;"
                                                      : "one checkpoint, one file;",
                             err);
    out = cli->positional[1];
    DPT_TRY(dpt_weights_target(dpt_cli_value(cli, "--to"), out, &format, err));
    DPT_TRY(check_options(cli, format, err));
    dpt_checkpoint_tell(cli->positional[0], &cli->log);
    if (shape_text != NULL)
        DPT_TRY(read_shape(shape_text, &shape, err));
    DPT_TRY(dpt_job_command_load_parts(cli, &how, err));
    DPT_TRY(dpt_checkpoint_model_open(&m, cli->positional[0], shape_text != NULL ? &shape : NULL,
                                      how, err));
    e.view = (struct dpt_model_view){.graph = &m.graph,
                                     .params = m.params,
                                     .producer = "dptrain " DPT_VERSION,
                                     .step = m.progress.step,
                                     .normalize = &m.job.data.normalize,
                                     .targets = &m.targets};
    DPT_TRY(find_source(cli, &m, &e, err));
    if (dpt_cli_has(cli, "--fold-batchnorm")) {
        DPT_TRY(dpt_fold_graph(&m.graph, m.params, &e.folded, &e.arena, &e.norms, err));
        e.view.graph = &e.folded;
        e.view.params = e.arena;
    }
    DPT_TRY(format->write(&e.view, out, err));
    print_result(&e, format, m.averaged, out);
    if (format->open == NULL && !e.view.typed && e.source.columns == NULL && !e.view.normalized &&
        !m.graph.nodes[0].out.flat)
        dpt_log_info(
            &cli->log,
            "neither this older checkpoint nor the job's data have the type of the inputs: "
            "if they were bytes, --bytes lets the graph take their values as they are");
out:
    dpt_region_release(&e.region);
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
    DPT_LOAD_CLI_OPTIONS,
    {"--fold-batchnorm", NULL, "onnx: batch norms become part of the weights before them"},
    {"--bytes", NULL,
     "onnx: inputs are the values of bytes, 0 to 255, as float32 (as the checkpoint says)"},
    {"--normalized", NULL, "onnx: inputs are normalised already; the graph does not do it"},
    {"--softmax", NULL, "onnx: outputs are probabilities (multi-label: sigmoids), not logits"},
    {"--input-shape", "C,H,W", "shape of a sample, if an old checkpoint does not have it"},
    {0},
};

const struct dpt_command dpt_cmd_export = {
    .name = "export",
    .usage = "CHECKPOINT [--to safetensors|npz|onnx] OUT",
    .summary = "export a trained model to PyTorch, NumPy, JAX or onnxruntime",
    .details = "Reads a checkpoint and writes its weights to OUT; neither the job file nor the "
               "data are needed. A run folder stands for its best checkpoint if its job has "
               "checkpoint.monitor, else for its newest, RUN/checkpoints/latest. Tensors have "
               "PyTorch's names (conv1.weight, dense1.bias) and layout (dense [out, in], "
               "convolution [out, in, height, width]). The names of resnet, vgg and "
               "mobilenet_v2 are torchvision's: load_state_dict takes them, including step "
               "counts. An ONNX graph takes samples as files hold them, in float32, and "
               "normalises them itself; its metadata have the names of a table's columns. The "
               "metadata of all files but npz have the names of classes, the type of the inputs "
               "and their normalisation. Equal checkpoints give byte-identical files. `dptrain "
               "train --init-from` reads safetensors and npz.\n\n"
               "  dptrain export runs/mnist-cnn --to onnx mnist.onnx\n"
               "  dptrain export runs/mnist-cnn/checkpoints/best mnist.safetensors",
    .options = options,
    .one_rank = true,
    .run = run,
    .more_help = list_formats,
};
