#include "data/shards/inspect.h"
#include "core/state/checkpoint.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"

enum dpt_status dpt_checkpoint_trailer(const char *path, enum dpt_trailer *trailer,
                                       struct dpt_error *err)
{
    static const char begin[] = "dptrain crc32 ";
    enum dpt_status status = DPT_OK;
    char line[sizeof begin - 1];
    struct stat info;
    int fd;

    *trailer = DPT_TRAILER_NONE;
    DPT_TRY(dpt_file_open(path, DPT_FILE_READ, DPT_BAD_DATA, &fd, err));
    if (fstat(fd, &info) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_BAD_DATA, "%s", path));
    if (info.st_size <= DPT_CHECKPOINT_TRAILER)
        goto out;
    if (dpt_pread_all(fd, line, sizeof line, info.st_size - DPT_CHECKPOINT_TRAILER) != 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s", path));
    if (memcmp(line, begin, sizeof line) != 0)
        goto out;
    status = dpt_checkpoint_verify(path, err);
    *trailer = status == DPT_OK ? DPT_TRAILER_GOOD : DPT_TRAILER_WRONG;
    if (status == DPT_BAD_DATA)
        status = DPT_OK;
out:
    if (fd >= 0)
        close(fd);
    return status;
}

bool dpt_checkpoint_is(const struct dpt_inspect *f, enum dpt_trailer trailer)
{
    const struct dpt_inspect_attribute *format = dpt_inspect_attribute(f, "format");

    return trailer != DPT_TRAILER_NONE ||
           (format != NULL && strcmp(format->text, "dptrain checkpoint") == 0);
}

/* The attributes and data sets that a run cannot resume without. */
static const char *missing(const struct dpt_inspect *f)
{
    static const char *const attributes[] = {
        "format",     "format_version", "step",       "updates",     "samples",   "epoch",
        "epoch_step", "seed",           "parameters", "best_metric", "best_step",
    };

    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++)
        if (dpt_inspect_attribute(f, attributes[i]) == NULL)
            return attributes[i];
    return dpt_inspect_find(f, "/job") == NULL ? "/job" : NULL;
}

enum dpt_status dpt_inspect_validation_result(const struct dpt_inspect *f, enum dpt_trailer trailer,
                                              struct dpt_error *err)
{
    const bool checkpoint = dpt_checkpoint_is(f, trailer);
    const struct dpt_inspect_set *first = NULL;
    size_t damaged = 0, good = 0;

    for (size_t i = 0; i < f->n_sets; i++) {
        const enum dpt_inspect_sum sum = f->sets[i].sum;

        good += sum == DPT_SUM_GOOD;
        if ((sum == DPT_SUM_WRONG || sum == DPT_SUM_UNREADABLE) && damaged++ == 0)
            first = &f->sets[i];
    }
    if (damaged == 1)
        return dpt_fail(err, DPT_BAD_DATA, "%s", first->fault);
    if (damaged > 1)
        return dpt_fail(err, DPT_BAD_DATA, "%s; and %zu more of its %zu data sets", first->fault,
                        damaged - 1, f->n_sets);
    if (f->fault != NULL)
        return dpt_fail(err, DPT_BAD_DATA, "%s", f->fault);
    if (checkpoint && trailer == DPT_TRAILER_NONE)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s is damaged at its end: its last line, the checksum of the whole, is "
                        "cut or hit; its %zu data sets match theirs",
                        f->path, good);
    if (trailer == DPT_TRAILER_WRONG)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s is damaged in its metadata: the checksum of the whole does not match, "
                        "those of its %zu data sets do",
                        f->path, good);
    if (checkpoint && missing(f) != NULL)
        return dpt_fail(err, DPT_BAD_DATA, "%s: lacks %s, which every checkpoint has", f->path,
                        missing(f));
    return DPT_OK;
}
