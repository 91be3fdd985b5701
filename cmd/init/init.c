/* `dptrain init`: a job file for a data set. */
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "cmd/init/idx.h"
#include "cmd/init/job.h"
#include "core/base/file.h"
#include "data/shards/labels.h"
#include "data/tables/array.h"

enum part { TRAIN, VALID, TEST, PARTS };

/* The files of one part, in the order in which they are read. */
struct files {
    const char **at;
    size_t n, room;
};

struct init {
    struct files parts[PARTS];
    struct dpt_str values[PARTS]; /* YAML */
    struct dpt_region names;
    struct dpt_init_idx idx; /* files that have to become shards first */
    struct dpt_data_keys keys;
};

static const char *base_of(const char *path)
{
    return strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path;
}

/* The part that a file belongs to, by its name. */
static enum part part_of(const char *path)
{
    const char *base = base_of(path);

    if (strstr(base, "test") != NULL || strncmp(base, "t10k", 4) == 0)
        return TEST;
    return strstr(base, "valid") != NULL || strncmp(base, "val-", 4) == 0 ||
                   strncmp(base, "val.", 4) == 0 || strncmp(base, "dev", 3) == 0
               ? VALID
               : TRAIN;
}

/* Adds a file to the part that its name speaks of. */
static enum dpt_status push(struct init *init, const char *path, struct dpt_error *err)
{
    struct files *files = &init->parts[part_of(path)];
    const char **more = dpt_grow(files->at, &files->room, files->n + 1, sizeof *more);

    if (more != NULL)
        files->at = more;
    if (more == NULL || (more[files->n] = dpt_region_strdup(&init->names, path)) == NULL)
        return dpt_fail_memory(err, "the list of files", (double)files->n * 8);
    files->n++;
    return DPT_OK;
}

/* --- which files ------------------------------------------------------------------------------ */

/* Adds a shard to the part that its name speaks of, or an IDX file to those that become some; *n
 * grows by what was added. only_idx: other files are passed over. */
static enum dpt_status add_file(struct init *init, const char *path, bool only_idx, size_t *n,
                                struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    bool is;

    DPT_TRY(dpt_init_idx_add(&init->idx, path, &is, err));
    if (!is && !only_idx)
        DPT_TRY(push(init, path, err));
    *n += is || !only_idx;
out:
    return status;
}

/* Adds what a pattern matches, likewise. */
static enum dpt_status add_matches(struct init *init, const char *pattern, bool only_idx, size_t *n,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    glob_t found = {0};

    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            DPT_TRY(add_file(init, found.gl_pathv[i], only_idx, n, err));
out:
    globfree(&found);
    return status;
}

/* Adds text to a pattern, its special characters escaped. */
static void add_literal(struct dpt_str *pattern, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dpt_str_printf(pattern, "%s%c", strchr("*?[]{}\\", text[i]) != NULL ? "\\" : "", text[i]);
}

/* One argument: a file, a folder of shards, or a pattern in quotes. */
static enum dpt_status add_argument(struct init *init, const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_str pattern = {0};
    struct stat st;
    size_t n = 0;

    if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode))
        return add_file(init, path, false, &n, err);
    if (stat(path, &st) == 0) {
        const size_t length = strlen(path);

        add_literal(&pattern, path, length > 1 && path[length - 1] == '/' ? length - 1 : length);
        dpt_str_printf(&pattern, "/*.h5");
        if (pattern.failed)
            DPT_TRY(dpt_fail_memory(err, "the pattern", 0));
        DPT_TRY(add_matches(init, pattern.text, false, &n, err));
        pattern.length -= strlen(".h5");
        pattern.text[pattern.length] = '\0'; /* all files */
        if (n == 0)
            DPT_TRY(add_matches(init, pattern.text, true, &n, err));
        if (n == 0)
            DPT_TRY(
                dpt_fail(err, DPT_BAD_DATA,
                         "%s: neither *.h5 nor IDX files in this folder; `dptrain convert` makes "
                         "shards of CSV, images, NumPy and CIFAR-10 files",
                         path));
    } else {
        DPT_TRY(add_matches(init, path, false, &n, err));
        if (n == 0)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: no such file or folder", path));
    }
out:
    dpt_str_release(&pattern);
    return status;
}

/* --- how the job names them ------------------------------------------------------------------- */

/* Bytes in front of "-00000-of-00004.h5", or 0. */
static size_t prefix_length(const char *path)
{
#define FIVE "[0-9][0-9][0-9][0-9][0-9]"
    static const char form[] = "-" FIVE "-of-" FIVE ".h5";
    const size_t n = strlen(path), m = strlen("-00000-of-00004.h5");

    return n > m && fnmatch(form, path + n - m, 0) == 0 ? n - m : 0;
}

/* Writes `train-*.h5` for the files that share the prefix of file i; false: it would match
 * others too. */
static bool as_pattern(const struct files *files, size_t i, struct dpt_str *pattern)
{
    const size_t length = prefix_length(files->at[i]);
    size_t alike = 0, matched;
    glob_t found = {0};

    if (length == 0)
        return false;
    for (size_t k = 0; k < files->n; k++)
        alike += prefix_length(files->at[k]) == length &&
                 strncmp(files->at[k], files->at[i], length) == 0;
    add_literal(pattern, files->at[i], length);
    dpt_str_printf(pattern, "-*.h5");
    matched = !pattern->failed && glob(pattern->text, 0, NULL, &found) == 0 ? found.gl_pathc : 0;
    globfree(&found);
    return alike > 1 && matched == alike;
}

/* A scalar; in quotes where YAML or the reader would take it for something else. */
static void add_scalar(struct dpt_str *out, const char *text)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./*-";

    if (strspn(text, plain) == strlen(text) && strchr("*-0123456789", text[0]) == NULL)
        dpt_str_printf(out, "%s", text);
    else
        dpt_str_json(out, text);
}

/* One name, or a list of them, a line each. */
static void name_files(const struct files *files, struct dpt_str *value)
{
    struct dpt_str names = {0}, pattern = {0}, last = {0};
    size_t n = 0;

    for (size_t i = 0; i < files->n; i++) {
        dpt_str_clear(&pattern);
        if (!as_pattern(files, i, &pattern)) {
            dpt_str_clear(&pattern);
            add_literal(&pattern, files->at[i], strlen(files->at[i]));
        }
        if (pattern.failed || (last.text != NULL && strcmp(last.text, pattern.text) == 0))
            continue;
        dpt_str_clear(&last);
        dpt_str_printf(&last, "%s", pattern.text);
        dpt_str_printf(&names, "\n    - ");
        add_scalar(n == 0 ? value : &names, pattern.text);
        if (n++ == 0)
            add_scalar(&names, pattern.text);
    }
    if (n > 1) {
        dpt_str_clear(value);
        dpt_str_printf(value, "%s", names.text == NULL ? "" : names.text);
    }
    dpt_str_release(&names);
    dpt_str_release(&pattern);
    dpt_str_release(&last);
}

/* Names the job after its file or, where that says nothing, after the data's folder. */
static void name_job(const char *output, const struct files *train, struct dpt_str *name)
{
    const char *base = base_of(output), *dot = strrchr(base, '.');
    size_t n = dot != NULL ? (size_t)(dot - base) : strlen(base);
    const char *file = train->n > 0 ? train->at[0] : "";

    if ((n == 3 && strncmp(base, "job", 3) == 0) || strcmp(output, "-") == 0 || n == 0) {
        base = strrchr(file, '/') != NULL ? file : "first";
        n = strrchr(file, '/') != NULL ? (size_t)(strrchr(file, '/') - file) : strlen(base);
        while (n > 0 && memrchr(base, '/', n) != NULL) {
            const char *slash = memrchr(base, '/', n);

            n -= (size_t)(slash + 1 - base);
            base = slash + 1;
        }
    }
    for (size_t i = 0; i < n; i++) {
        const bool good = (base[i] >= 'a' && base[i] <= 'z') ||
                          (base[i] >= 'A' && base[i] <= 'Z') ||
                          (i > 0 && ((base[i] >= '0' && base[i] <= '9') || base[i] == '-'));

        dpt_str_printf(name, "%c", good ? base[i] : '_');
    }
    if (name->length == 0)
        dpt_str_printf(name, "first");
}

/* --- the command ------------------------------------------------------------------------------ */

/* Says so where a file is no HDF5 file: that is the likeliest error. */
static void advise(const char *const *paths, size_t n, struct dpt_error *err)
{
    static const char signature[] = "\211HDF\r\n\032\n";
    enum { MATLAB = 512 }; /* bytes that it writes in front */

    for (size_t i = 0; i < n; i++) {
        char bytes[sizeof signature - 1] = "", later[sizeof signature - 1] = "";
        struct dpt_error ignored;
        bool read;
        int fd;

        if (dpt_file_open(paths[i], DPT_FILE_READ, DPT_BAD_DATA, &fd, &ignored) != DPT_OK)
            continue;
        read = dpt_pread_all(fd, bytes, sizeof bytes, 0) == 0;
        read = dpt_pread_all(fd, later, sizeof later, MATLAB) == 0 || read;
        close(fd);
        if (strncmp(err->text, paths[i], strlen(paths[i])) == 0 &&
            (!read || (memcmp(bytes, signature, sizeof bytes) != 0 &&
                       memcmp(later, signature, sizeof later) != 0))) {
            dpt_fail(err, DPT_BAD_DATA,
                     "%s: no HDF5 file; `dptrain convert` makes shards of CSV, images, NumPy, "
                     "MNIST and CIFAR-10 files",
                     paths[i]);
            return;
        }
    }
}

static enum dpt_status statistics(const struct init *init, const struct files *files,
                                  struct dpt_shard_statistics *s, struct dpt_error *err)
{
    const enum dpt_status status =
        dpt_shard_statistics_collect(s, files->at, files->n, &init->keys, err);

    if (status == DPT_BAD_DATA)
        advise(files->at, files->n, err);
    return status;
}

/* All parts must be alike; classes are those of all of them. */
static enum dpt_status look(const struct init *init, struct dpt_shard_statistics *train,
                            struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_shard_statistics s = {0};
    char a[40], b[40];

    DPT_TRY(statistics(init, &init->parts[TRAIN], train, err));
    for (int p = VALID; p < PARTS; p++) {
        const struct files *files = &init->parts[p];

        if (files->n == 0)
            continue;
        s.labels = train->classes > 0 ? DPT_LABELS_CLASSES : DPT_LABELS_TARGETS;
        DPT_TRY(statistics(init, files, &s, err));
        if (strcmp(dpt_shape_text(&s.shape, a), dpt_shape_text(&train->shape, b)) != 0 ||
            s.width != train->width)
            DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                             "%s: samples are %s with %lld targets, those of %s are %s with %lld",
                             files->at[0], a, (long long)s.width, init->parts[TRAIN].at[0], b,
                             (long long)train->width));
        if (s.classes > train->classes)
            DPT_TRY(dpt_fail(
                err, DPT_BAD_DATA,
                "%s: has labels up to %lld, those of %s end at %lld: no output would learn them",
                files->at[0], (long long)s.classes - 1, init->parts[TRAIN].at[0],
                (long long)train->classes - 1));
        dpt_shard_statistics_release(&s);
    }
out:
    dpt_shard_statistics_release(&s);
    return status;
}

static const char *part_name(const char *path)
{
    static const char *const names[PARTS] = {[TRAIN] = "train", [VALID] = "valid", [TEST] = "test"};

    return names[part_of(path)];
}

static enum dpt_status find_files(struct dpt_cli *cli, struct init *init, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    for (size_t i = 0; i < cli->n_positional; i++)
        DPT_TRY(add_argument(init, cli->positional[i], err));
    DPT_TRY(
        dpt_init_idx_convert(&init->idx, part_name, dpt_cli_has(cli, "--force"), &cli->log, err));
    for (size_t i = 0; i < init->idx.n; i++)
        if (init->idx.at[i].shard != NULL)
            DPT_TRY(push(init, init->idx.at[i].shard, err));
    for (int p = TEST; p > TRAIN && init->parts[TRAIN].n == 0; p--) { /* all there is */
        const struct files none = init->parts[TRAIN];

        init->parts[TRAIN] = init->parts[p];
        init->parts[p] = none;
    }
    for (int p = 0; p < PARTS; p++) {
        name_files(&init->parts[p], &init->values[p]);
        if (init->values[p].failed)
            DPT_TRY(dpt_fail_memory(err, "the list of files", 0));
    }
out:
    return status;
}

/* Never replaces a file, also one that was made meanwhile, unless `force`. */
static enum dpt_status write_file(const char *path, const struct dpt_str *text, bool force,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    int fd = -1;

    if (strcmp(path, "-") == 0) {
        fputs(text->text, stdout);
        return DPT_OK;
    }
    if (force)
        return dpt_file_write(path, text->text, text->length, err);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EEXIST)
        return dpt_fail(err, DPT_USAGE, "%s exists; --force replaces it, --output writes another",
                        path);
    if (fd < 0)
        return dpt_fail_errno(err, DPT_IO, "%s", path);
    if (dpt_pwrite_all(fd, text->text, text->length, 0) != 0) {
        status = dpt_fail_errno(err, DPT_IO, "%s", path);
        unlink(path);
    }
    close(fd);
    return status;
}

/* Warns of labels that are taken as classes, or as regression targets. */
static void warn_labels(const struct dpt_shard_statistics *s, const char *path, struct dpt_log *log)
{
    char text[512];

    if (s->told[0] != '\0')
        dpt_log_warn(log,
                     "%s: the labels are %s, with `loss: mse` in the job; classes have `loss: "
                     "cross_entropy` there, and no `targets`",
                     path, s->told);
    if (s->floats != NULL)
        dpt_log_warn(log,
                     "%s: the labels are whole numbers, stored as %s: taken as %lld classes; "
                     "amounts to predict have `loss: mse` in the job",
                     path, s->floats, (long long)s->classes);
    if (s->classes > 0 && s->named == 0 &&
        dpt_labels_doubt(s->counts, s->classes, text, sizeof text))
        dpt_log_warn(log, "%s: %s", path, text);
    else if (s->named > 0 && s->named < s->classes)
        dpt_log_warn(log, "%s: names %lld of %lld classes; the others are numbers in predictions",
                     path, (long long)s->named, (long long)s->classes);
}

static enum dpt_status check_log_target(const struct dpt_init_job *job, const char *path,
                                        struct dpt_error *err)
{
    const struct dpt_shard_statistics *s = job->statistics;

    if (!job->log_target)
        return DPT_OK;
    if (s == NULL || s->classes > 0 || s->probabilities || s->binary)
        return dpt_fail(err, DPT_USAGE, "--log-target: is for regression targets; %s%s",
                        path != NULL ? path : "made-up images",
                        path != NULL ? " has labels of classes" : " have classes");
    if (s->targets.least < 0)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: the smallest target is %g: numbers below 0 have no logarithm; leave "
                        "--log-target out",
                        path, s->targets.least);
    return DPT_OK;
}

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const char *output = dpt_cli_value(cli, "--output");
    const bool force = dpt_cli_has(cli, "--force");
    struct init init = {0};
    struct dpt_shard_statistics statistics_of = {0};
    struct dpt_str name = {0}, text = {0};
    struct dpt_init_job job = {0};
    struct dpt_word_keys keys = {0};

    output = output == NULL ? "job.yaml" : output;
    if (!force && strcmp(output, "-") != 0 && dpt_file_exists(output))
        return dpt_fail(err, DPT_USAGE, "%s exists; --force replaces it, --output writes another",
                        output);
    DPT_TRY(dpt_word_keys_open(&keys, err));
    DPT_TRY(dpt_data_keys_take(dpt_cli_value(cli, "--keys"), &init.names, &init.keys, err));
    DPT_TRY(find_files(cli, &init, err));
    if (init.parts[TRAIN].n > 0)
        DPT_TRY(look(&init, &statistics_of, err));
    name_job(output, &init.parts[TRAIN], &name);
    job = (struct dpt_init_job){.name = name.text,
                                .path = strcmp(output, "-") == 0 ? NULL : output,
                                .statistics = init.parts[TRAIN].n > 0 ? &statistics_of : NULL,
                                .train = init.values[TRAIN],
                                .valid = init.values[VALID],
                                .test = init.values[TEST],
                                .keys = &keys,
                                .data_keys = init.keys,
                                .log_target = dpt_cli_has(cli, "--log-target")};
    DPT_TRY(check_log_target(&job, init.parts[TRAIN].n > 0 ? init.parts[TRAIN].at[0] : NULL, err));
    if (!name.failed)
        dpt_init_job_write(&job, &text);
    if (name.failed || text.failed)
        DPT_TRY(dpt_fail_memory(err, "the job file", (double)text.length));
    DPT_TRY(write_file(output, &text, force, err));
    if (statistics_of.nhwc)
        dpt_log_warn(&cli->log,
                     "%s: the last of four dimensions is taken for channels, as in [N, H, W, C], "
                     "since the file has no layout (`layout: nhwc` in the job; nchw: the second)",
                     init.parts[TRAIN].at[0]);
    if (job.statistics != NULL && statistics_of.merged >= 0)
        dpt_log_warn(&cli->log, "%s: " DPT_FLOAT_MERGES, init.parts[TRAIN].at[0],
                     (long long)statistics_of.merged);
    if (job.statistics != NULL)
        warn_labels(&statistics_of, init.parts[TRAIN].at[0], &cli->log);
    if (job.path != NULL)
        printf("wrote %s; train with: dptrain %s --ranks auto\n", output, output);
out:
    dpt_word_keys_close(&keys);
    dpt_str_release(&name);
    dpt_str_release(&text);
    dpt_shard_statistics_release(&statistics_of);
    for (int p = 0; p < PARTS; p++) {
        free(init.parts[p].at);
        dpt_str_release(&init.values[p]);
    }
    dpt_region_release(&init.names);
    dpt_init_idx_release(&init.idx);
    return status;
}

static const struct dpt_cli_option options[] = {
    {"--output", "OUT.yaml", "the job file (job.yaml); - for standard output"},
    {"--force", NULL, "replace a file that is there"},
    {"--keys", "X,Y",
     "names of the data sets of samples and labels (default: images or x, labels or y)"},
    {"--log-target", NULL,
     "learn the logarithm of amounts (data.targets.transform); results stay in their units"},
    {0},
};

const struct dpt_command dpt_cmd_init = {
    .name = "init",
    .usage = "[DATA...] [--output OUT.yaml] [--force] [--keys X,Y] [--log-target]",
    .summary = "write a job file for a data set, with comments",
    .details = "Reads shards (files, patterns, or folders of *.h5): the form of the samples, "
               "the classes or targets, mean and standard deviation. Writes a job file that "
               "trains on them at once, whose comments explain each line and its alternatives: "
               "a small convolutional network for images, conv1d for signals ([N, C, 1, L], and "
               "float [N, C, L] at least four times as long as C), dense layers for rows; "
               "classes with cross-entropy, multi-label targets (0 or 1) with the binary one, "
               "other targets with the mean squared error. Files with `test` in their names are "
               "for testing, those with `valid` for validation; without the latter a part of "
               "the training data is held out if there are at least 600 rows or 1000 images. It "
               "first makes shards of IDX files, as those of MNIST and Fashion-MNIST (or a "
               "folder of them, gzipped or not), beside them: train-00000-of-00001.h5 and "
               "test-... Without DATA the job is one for synthetic images. `dptrain convert` "
               "makes shards of other files.\n\n"
               "  dptrain init data/mnist --output mnist.yaml\n"
               "  dptrain init fashion-mnist/*.gz --output fashion.yaml",
    .options = options,
    .one_rank = true,
    .run = run,
};
