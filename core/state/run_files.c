#include "core/state/run_files.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/conf/yaml.h"
#include "core/state/board.h"
#include "core/state/checkpoint.h"

/* How a file begins and ends, as far as it is read; the head ends with a NUL. */
struct ends {
    char head[DPT_YAML_BYTES + 1], tail[DPT_YAML_BYTES];
    size_t n_head, n_tail;
    long long size;
};

static bool begins(const struct ends *e, const char *text)
{
    const size_t n = strlen(text);

    return memcmp(e->head, text, e->n_head < n ? e->n_head : n) == 0; /* a crash may have cut it */
}

/* Each line begins with the time. */
static bool is_log(const struct ends *e)
{
    static const char form[] = "0000-00-00T00:00:00 ";

    for (size_t i = 0; i < sizeof form - 1 && i < e->n_head; i++)
        if (form[i] == '0' ? !isdigit((unsigned char)e->head[i]) : e->head[i] != form[i])
            return false;
    return true;
}

static bool is_events(const struct ends *e)
{
    return memmem(e->head, e->n_head < 64 ? e->n_head : 64, "brain.Event:2", 13) != NULL;
}

/* The resolved job of an older version has no mark, but all sections, which nobody writes by
 * hand. */
static bool is_job(const struct ends *e)
{
    static const char *const keys[] = {
        "\nseed: ",      "\noutput: ",   "\ndata:",     "\nmodel:", "\nloss:",
        "\nbatch:",      "\noptimizer:", "\nschedule:", "\ntrain:", "\neval:",
        "\ncheckpoint:", "\nlog:",       "\ncomm:",
    };

    if (begins(e, DPT_RUN_JOB_MARK))
        return true;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strstr(e->head, keys[i]) == NULL)
            return false;
    return begins(e, "name: ");
}

/* How many bytes an HDF5 file has, as its superblock says; of one that is cut in there as many as
 * there can be. */
static uint64_t said_end(const struct ends *e)
{
    uint64_t end = UINT64_MAX;

    if (e->n_head >= 48)
        memcpy(&end, e->head + (e->head[8] < 2 ? 40 : 28), sizeof end);
    return end;
}

/*
 * A checkpoint that was cut, or overwritten, is one, too. By its attribute `format` or its last
 * line it is known; where both are gone it is no HDF5 file any more, or one that is cut. What else
 * lies under a step's name is a whole HDF5 file, somebody else's; of the links' names nothing but
 * HDF5 files is ours.
 */
static bool is_checkpoint(const struct ends *e, bool of_step)
{
    if (memmem(e->tail, e->n_tail, "dptrain c", 9) != NULL ||
        memmem(e->head, e->n_head, "dptrain c", 9) != NULL)
        return true;
    return begins(e, "\x89HDF\r\n\x1a\n") ? said_end(e) > (uint64_t)e->size : of_step;
}

/* They stand in the order in which --overwrite moves them. Each is known by its beginning, or by a
 * look. */
static const struct {
    const char *name, *beginning;
    bool (*is)(const struct ends *e);
} marks[] = {
    {"hashes.jsonl", "{\"step\": ", NULL},
    {"log.txt", NULL, is_log},
    {DPT_TENSORBOARD_FILE, NULL, is_events},
    {"trace.json", "[\n{\"ph\": \"M\", \"pid\": ", NULL},
    {"job.yaml", NULL, is_job},
    {"metrics.jsonl", "{\"event\": \"", NULL}, /* "run", where that line could be written */
};

enum { MARKS = sizeof marks / sizeof marks[0] };

const char *dpt_run_file_name(size_t i)
{
    return i < MARKS ? marks[i].name : NULL;
}

/* False where it cannot be read, which is told by whoever opens it for writing. */
static bool read_ends(const char *path, struct ends *e)
{
    struct dpt_error ignored;
    struct stat info;
    bool good;
    int fd;

    if (lstat(path, &info) != 0 || !S_ISREG(info.st_mode) ||
        dpt_file_open(path, DPT_FILE_READ, DPT_IO, &fd, &ignored) != DPT_OK)
        return false;
    e->size = info.st_size;
    e->n_head = e->size < DPT_YAML_BYTES ? (size_t)e->size : DPT_YAML_BYTES;
    e->n_tail = e->n_head;
    good = dpt_pread_all(fd, e->head, e->n_head, 0) == 0 &&
           dpt_pread_all(fd, e->tail, e->n_tail, e->size - (long long)e->n_tail) == 0;
    e->head[e->n_head] = '\0';
    close(fd);
    return good;
}

bool dpt_run_file_ours(const char *folder, const char *name)
{
    char path[PATH_MAX];
    size_t i = 0;
    struct ends *e;
    bool ours = true;

    while (i < MARKS && strcmp(marks[i].name, name) != 0)
        i++;
    e = dpt_alloc(sizeof *e);
    if (e != NULL && snprintf(path, sizeof path, "%s/%s", folder, name) < PATH_MAX &&
        read_ends(path, e) && e->size > 0 && e->head[0] != '\0') /* zeros: the power failed */
        ours = i == MARKS                   ? is_checkpoint(e, strstr(name, "step-") != NULL)
               : marks[i].beginning != NULL ? begins(e, marks[i].beginning)
                                            : marks[i].is(e);
    dpt_free(e);
    return ours;
}

enum dpt_status dpt_run_file_check(const char *folder, const char *name, struct dpt_error *err)
{
    if (dpt_run_file_ours(folder, name))
        return DPT_OK;
    return dpt_fail(err, DPT_USAGE,
                    "%s/%s was not written by dptrain, and this run would write there: choose "
                    "another folder with --output, or move that file away",
                    folder, name);
}

enum dpt_status dpt_run_checkpoints_check(const char *folder, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char path[PATH_MAX], name[NAME_MAX + sizeof "checkpoints/"];
    const struct dirent *entry;
    DIR *dir;

    snprintf(path, sizeof path, "%s/checkpoints", folder);
    dir = opendir(path);
    while (dir != NULL && status == DPT_OK && (entry = readdir(dir)) != NULL) {
        snprintf(name, sizeof name, "checkpoints/%s", entry->d_name);
        if (dpt_checkpoint_is_name(entry->d_name))
            status = dpt_run_file_check(folder, name, err);
    }
    if (dir != NULL)
        closedir(dir);
    return status;
}
