#include "cmd/man/text.h"

#include <stddef.h>

const struct dpt_man_item dpt_man_description[] = {
    {NULL, "`dptrain` trains a neural network with synchronous data parallelism: one MPI rank a "
           "device, the model on each, every global batch split over the ranks, the gradients "
           "averaged with MPI_Allreduce, the same update everywhere. One YAML file says what to "
           "train on what, and how; samples come from HDF5 files."},
    {NULL, "Started by `mpirun` or `srun` it is one rank of what they launch. Started alone it is "
           "one rank, or with `--ranks` it starts mpirun itself. Results go to standard output, "
           "progress and errors to standard error; rank 0 alone talks."},
    {NULL, "The word `train` may be left out. Each option can be written `--name value` or "
           "`--name=value`; behind `--` nothing is an option."},
    {0},
};

const struct dpt_man_item dpt_man_job[] = {
    {NULL, "One YAML file, at most 64 KiB, without anchors, aliases and tags. Only `data` and "
           "`model` must be given. A key that does not exist, a wrong type or a value out of "
           "bounds is told with its line and column, all of them at once, before anything is read "
           "or allocated (exit code 78). `null` is the same as leaving a key out."},
    {NULL,
     "Where there are several kinds of a thing, `type` picks one (left out, the default), and "
     "its name alone stands for it with its defaults: `optimizer: adam`. A list of numbers or "
     "texts may be one of "
     "them. A layer is an entry like `relu`, `dense: 10` or `conv: {channels: 32}`."},
    {NULL, "`--set` overrides a key by its name as it stands below (`--set optimizer.lr=0.01`); "
           "those of layers stand in their list: `--set model.layers[0].conv.channels=64`."},
    {0},
};

const struct dpt_man_item dpt_man_exit[] = {
    {NULL, "They hold for one rank, under srun, with `--ranks`, and under mpirun where all ranks "
           "end by themselves. Where mpirun kills the ranks the code is mpirun's."},
    {NULL, "A batch file requeues at 75 and at nothing else. With `checkpoint.every: never` a stop "
           "saves nothing and gives 1: started again, the job would begin anew each time."},
    {0},
};

const struct dpt_man_item dpt_man_environment[] = {
    {"SLURM_JOB_END_TIME", "Before it is over, training saves and stops with exit code 75."},
    {"SLURM_JOB_ID, SLURM_RESTART_COUNT",
     "Tell a run that Slurm requeued from another that has the run folder."},
    {"COLUMNS, TERM", "Width and kind of the terminal, for the line that shows progress."},
    {"NO_COLOR, LC_ALL", "Whether `watch` uses colours, and characters beyond ASCII."},
    {"DPTRAIN_TTY", "`1`: show progress as on a terminal, `0`: as in a file; under mpirun standard "
                    "error is no terminal."},
    {"DPTRAIN_CUDA_PATH",
     "Folders, separated by colons, in which cuDNN and cuBLASLt are looked for first: each itself, "
     "its lib64 and lib, and where pip installs them below it, so that it may be a site-packages "
     "or a virtual environment. Then come CUDNN_ROOT and CUDA_HOME, the loader's folders, those of "
     "the build, and pip's and conda's of the Pythons on PATH. Where there is a GPU, `--version` "
     "says which were taken."},
    {"CUDA_VISIBLE_DEVICES", "The GPUs that may be used, for the driver."},
    {"OMPI_MCA_*", "With `--ranks` those that the machine needs are set, unless they are set "
                   "already."},
    {0},
};

const struct dpt_man_item dpt_man_files[] = {
    {"runs/NAME/", "The run folder, unless `output` names another."},
    {"runs/NAME/job.yaml", "The job with all defaults and overrides; can be run itself."},
    {"runs/NAME/metrics.jsonl",
     "One JSON object a line: `run`, `train` (means since the last "
     "one), `epoch` (means of a whole one), `eval`, `checkpoint`, `end`."},
    {"runs/NAME/events.out.tfevents.dptrain",
     "With `log.tensorboard`: for `tensorboard --logdir runs`."},
    {"runs/NAME/overwritten/", "The run before, whose place `--overwrite` gave to another, until "
                               "that one has its first checkpoint or has ended."},
    {"runs/NAME/log.txt", "What was said on standard error."},
    {"runs/NAME/checkpoints/",
     "HDF5 files; `latest` and `best` name the newest and the best. Parameters are "
     "/params/LAYER/weight and /params/LAYER/bias."},
    {"NAME-00000-of-00004.h5",
     "A shard: /images or /x, [N, C, H, W], [N, H, W, C] (attribute `layout`) or [N, D], bytes or "
     "floats; /labels or /y, [N] classes or [N, K] numbers."},
    {0},
};

const struct dpt_man_item dpt_man_examples[] = {
    {"Write a job file for a data set, and train on two ranks:",
     "dptrain init data/mnist --output mnist.yaml\nmpirun -np 2 dptrain mnist.yaml"},
    {"Go on after the batch system stopped it: the same command again.",
     "srun --mpi=pmix dptrain job.yaml --output runs/large"},
    {"Another learning rate, in another folder:",
     "dptrain job.yaml --set optimizer.lr=0.01 --output runs/lr-0.01"},
    {"How good is the newest checkpoint of a run on the test data?",
     "dptrain eval job.yaml --checkpoint runs/job"},
    {0},
};

const struct dpt_man_item dpt_man_see[] = {
    {NULL, "`mpirun`(1), `srun`(1), `h5ls`(1)"},
    {0},
};
