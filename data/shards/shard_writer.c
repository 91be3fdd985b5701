/* The writer of shards: names, bytes and checksums; what HDF5 adds to them is skeleton.c. */
#include "data/shards/shard_writer.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/memory.h"
#include "data/shards/skeleton.h"

enum {
    NAME_BYTES = 320,  /* of a file name in the folder: the prefix's last part and what is added */
    PREFIX_MOST = 200, /* leaves room below NAME_MAX for numbers and the temporary name's */
    CLASSES_TOLD = 20,
};

/* The data sets of a shard, in the order in which HDF5 is told of them: another order is another
 * file. */
enum { IMAGES, OFFSETS, LABELS, COLUMNS, ID, WEIGHTS, SETS };

struct dpt_shard_writer {
    struct dpt_shard_output output;
    struct dpt_shard_format format;
    const char *name;                /* the prefix's last part */
    char *folder;                    /* and its first */
    int dir;                         /* the folder, opened */
    size_t image_bytes, label_bytes; /* of one sample */
    int64_t done;                    /* samples taken */
    int64_t begun;                   /* shards that have a temporary file */
    double bytes, shown;             /* written; time of the last live line */
    /* The shard being written, number begun - 1; fd < 0: none. */
    int fd;
    int64_t size, in_shard; /* its samples, and those of them that are there */
    int64_t images_at;      /* bytes of these */
    struct dpt_h5_metadata metadata;
    struct dpt_skeleton_set sets[SETS];
    uint32_t crc[SETS];
};

static void final_name(const struct dpt_shard_writer *w, int64_t shard, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "%s-%05lld-of-%05lld.h5", w->name, (long long)shard,
             (long long)w->output.shards);
}

/* Begins with a dot and does not end in .h5, so that no glob for shards takes it. */
static void temporary_name(const struct dpt_shard_writer *w, int64_t shard, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, ".%s-%05lld-of-%05lld.h5.tmp-%ld", w->name, (long long)shard,
             (long long)w->output.shards, (long)getpid());
}

static enum dpt_status cannot_write(const struct dpt_shard_writer *w, int64_t shard,
                                    struct dpt_error *err)
{
    char name[NAME_BYTES];
    const int saved = errno;

    final_name(w, shard, name);
    errno = saved;
    return dpt_fail_errno(err, DPT_IO, "%s/%s: cannot write", w->folder, name);
}

/* Bytes of n images from the first on. */
static int64_t image_bytes(const struct dpt_shard_writer *w, int64_t first, int64_t n)
{
    int64_t bytes = n * (int64_t)w->image_bytes;

    for (int64_t i = first; w->format.files && i < first + n; i++)
        bytes += w->format.sizes[i];
    return bytes;
}

/* The data sets of the shard that is written. */
static void list_sets(struct dpt_shard_writer *w)
{
    const struct dpt_shard_format *format = &w->format;
    struct dpt_skeleton_set images = {
        .name = format->files ? "files" : "images",
        .n_dims = format->files ? 1 : format->n_dims + 1,
        .dims = {(hsize_t)(format->files ? image_bytes(w, w->done, w->size) : w->size)},
        .layout = format->nhwc ? "NHWC" : NULL,
        .shape = format->files ? format->dims : NULL,
    };

    dpt_h5_enter(); /* its types are calls */
    images.type = format->u8 ? H5T_NATIVE_UINT8 : H5T_NATIVE_FLOAT;
    for (int i = 0; i < format->n_dims && !format->files; i++)
        images.dims[i + 1] = (hsize_t)format->dims[i];
    w->sets[IMAGES] = images;
    w->sets[OFFSETS] =
        dpt_skeleton_numbers(format->files ? "offsets" : NULL, H5T_NATIVE_UINT64, w->size + 1, 0);
    w->sets[LABELS] = dpt_skeleton_numbers("labels",
                                           format->targets > 0      ? H5T_NATIVE_FLOAT
                                           : format->classes <= 256 ? H5T_NATIVE_UINT8
                                                                    : H5T_NATIVE_INT32,
                                           w->size, format->targets);
    w->sets[LABELS].classes = format->class_names;
    w->sets[LABELS].n_classes = (size_t)format->classes;
    w->sets[COLUMNS] = (struct dpt_skeleton_set){
        .name = format->columns != NULL ? "columns" : NULL,
        .text_bytes = format->columns != NULL ? strlen(format->columns) : 0,
    };
    w->sets[ID] = (struct dpt_skeleton_set){
        .name = format->id_bytes > 0 ? "id" : NULL,
        .text_bytes = format->id_bytes,
        .n_dims = 1,
        .dims = {(hsize_t)w->size},
    };
    w->sets[WEIGHTS] =
        dpt_skeleton_numbers(format->weighted ? "weights" : NULL, H5T_NATIVE_FLOAT, w->size, 0);
    dpt_h5_leave();
    for (size_t i = 0; i < SETS; i++)
        w->sets[i].crc = &w->crc[i];
}

static enum dpt_status begin_shard(struct dpt_shard_writer *w, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_str path = {0};
    char name[NAME_BYTES];

    w->size =
        w->format.samples / w->output.shards + (w->begun < w->format.samples % w->output.shards);
    w->in_shard = w->images_at = 0;
    memset(w->crc, 0, sizeof w->crc);
    final_name(w, w->begun, name);
    dpt_str_printf(&path, "%s/%s", w->folder, name);
    if (path.failed)
        DPT_TRY(dpt_fail_memory(err, "a path", NAME_BYTES));
    DPT_TRY(dpt_file_check_target(path.text, err));
    temporary_name(w, w->begun, name);
    w->fd = openat(w->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (w->fd < 0)
        DPT_TRY(cannot_write(w, w->begun, err));
    w->begun++;
    list_sets(w);
    DPT_TRY(dpt_h5_metadata_begin(&w->metadata, path.text, "; with more --shards each is smaller",
                                  w->fd, err));
out:
    dpt_str_release(&path);
    return status;
}

/* Writes bytes of a data set, after `at` of them, and continues its checksum. */
static enum dpt_status put(struct dpt_shard_writer *w, size_t set, const void *bytes, size_t n,
                           int64_t at, struct dpt_error *err)
{
    if (dpt_pwrite_all(w->fd, bytes, n, w->sets[set].first + at) != 0)
        return cannot_write(w, w->begun - 1, err);
    w->crc[set] = dpt_crc32(w->crc[set], bytes, n);
    return DPT_OK;
}

/* Where each of the shard's files begins, and the last one ends. */
static enum dpt_status put_offsets(struct dpt_shard_writer *w, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    uint64_t *offsets;

    DPT_TRY(DPT_ALLOCATE(offsets, w->size + 1, "the offsets of files", err));
    for (int64_t i = 0; i < w->size; i++)
        offsets[i + 1] = offsets[i] + (uint64_t)w->format.sizes[w->done - w->size + i];
    DPT_TRY(put(w, OFFSETS, offsets, (size_t)(w->size + 1) * sizeof *offsets, 0, err));
out:
    dpt_free(offsets);
    return status;
}

static enum dpt_status end_shard(struct dpt_shard_writer *w, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t total = w->metadata.total;
    const int fd = w->fd;
    int64_t first[SETS];

    if (w->format.columns != NULL)
        DPT_TRY(put(w, COLUMNS, w->format.columns, strlen(w->format.columns), 0, err));
    if (w->format.files)
        DPT_TRY(put_offsets(w, err));
    for (size_t i = 0; i < SETS; i++)
        first[i] = w->sets[i].first;
    DPT_TRY(dpt_h5_metadata_make(&w->metadata, err)); /* with the checksums of what was written */
    for (size_t i = 0; i < SETS; i++)
        if (first[i] != w->sets[i].first || total != w->metadata.total)
            DPT_TRY(dpt_fail(err, DPT_INTERNAL, "%s: HDF5 laid the same file out in two ways",
                             w->folder));
    if (dpt_h5_metadata_copy(&w->metadata, fd) != 0 || TEMP_FAILURE_RETRY(fsync(fd)) != 0)
        DPT_TRY(cannot_write(w, w->begun - 1, err));
    w->fd = -1;
    if (close(fd) != 0)
        DPT_TRY(cannot_write(w, w->begun - 1, err));
    w->bytes += (double)w->metadata.total;
out:
    return status;
}

/* Makes labels what is stored, in their place. A file that changed since its classes were counted
 * may give others. */
static enum dpt_status narrow(struct dpt_shard_writer *w, int32_t *labels, int64_t n,
                              struct dpt_error *err)
{
    for (int64_t i = 0; i < n; i++) {
        if (labels[i] < 0 || labels[i] >= w->format.classes)
            return dpt_fail(err, DPT_BAD_DATA,
                            "%s: label %d of sample %lld is not below %lld: changed while it was "
                            "read",
                            w->output.from, (int)labels[i], (long long)w->done + i,
                            (long long)w->format.classes);
        if (w->label_bytes == 1)
            ((uint8_t *)labels)[i] = (uint8_t)labels[i];
    }
    return DPT_OK;
}

static enum dpt_status add_some(struct dpt_shard_writer *w, const void *const rows[SETS],
                                const size_t bytes[SETS], int64_t n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    const int64_t images = image_bytes(w, w->done, n);

    DPT_TRY(put(w, IMAGES, rows[IMAGES], (size_t)images, w->images_at, err));
    for (size_t i = 0; i < SETS; i++)
        if (bytes[i] > 0)
            DPT_TRY(put(w, i, rows[i], (size_t)n * bytes[i], w->in_shard * (int64_t)bytes[i], err));
    w->images_at += images;
    w->in_shard += n;
    w->done += n;
out:
    return status;
}

enum dpt_status dpt_shard_writer_add(struct dpt_shard_writer *w, const void *images,
                                     int32_t *labels, const float *targets, const float *weights,
                                     const char *ids, int64_t n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const void *rows[SETS] = {
        [IMAGES] = images,
        [LABELS] = w->format.targets > 0 ? (const void *)targets : labels,
        [ID] = ids,
        [WEIGHTS] = weights,
    };
    const size_t bytes[SETS] = {[LABELS] = w->label_bytes,
                                [ID] = w->format.id_bytes,
                                [WEIGHTS] = w->format.weighted ? sizeof *weights : 0};
    int64_t images_here;

    if (n > w->format.samples - w->done)
        DPT_TRY(dpt_fail(err, DPT_INTERNAL, "%s: more samples than were announced", w->folder));
    if (w->format.targets == 0)
        DPT_TRY(narrow(w, labels, n, err));
    for (int64_t left = n, some; left > 0; left -= some) {
        if (w->output.stop != NULL && *w->output.stop != 0)
            DPT_TRY(dpt_fail(err, DPT_STOPPED, "stopped; nothing was written"));
        if (w->fd < 0)
            DPT_TRY(begin_shard(w, err));
        some = left < w->size - w->in_shard ? left : w->size - w->in_shard;
        images_here = image_bytes(w, w->done, some);
        DPT_TRY(add_some(w, rows, bytes, some, err));
        rows[IMAGES] = (const char *)rows[IMAGES] + images_here;
        for (size_t i = 0; i < SETS; i++)
            if (bytes[i] > 0)
                rows[i] = (const char *)rows[i] + (size_t)some * bytes[i];
        if (w->in_shard == w->size)
            DPT_TRY(end_shard(w, err));
        dpt_log_live_count(w->output.log, &w->shown, "converting", w->done, w->format.samples);
    }
out:
    return status;
}

/*
 * Whether a file's name is NAME-ddddd-of-ddddd.h5 with another count than the job's; *stale:
 * whether it is the temporary file of a writer of this prefix that is no longer alive.
 */
static bool other_set(const struct dpt_shard_writer *w, const char *file, bool *stale)
{
    const bool hidden = file[0] == '.';
    const size_t n = strlen(w->name);
    long long shard, count;
    int end = 0;

    *stale = false;
    file += hidden;
    if (strncmp(file, w->name, n) != 0 ||
        sscanf(file + n, "-%5lld-of-%5lld.h5%n", &shard, &count, &end) != 2 ||
        end != (int)strlen("-00000-of-00000.h5"))
        return false;
    file += n + (size_t)end;
    if (hidden)
        *stale = dpt_process_gone(dpt_file_maker(file));
    return !hidden && *file == '\0' && count != w->output.shards;
}

/* Walks the folder. Shards of another set are refused, or where `remove` removed; temporary files
 * of dead writers are removed. */
static enum dpt_status walk_folder(const struct dpt_shard_writer *w, bool remove,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    DIR *dir = opendir(w->folder);
    const struct dirent *entry;

    if (dir == NULL)
        return dpt_fail_errno(err, DPT_IO, "%s: cannot list the folder", w->folder);
    while ((entry = readdir(dir)) != NULL) {
        bool stale;
        const bool other = other_set(w, entry->d_name, &stale);

        if (other && !w->output.force)
            DPT_TRY(dpt_fail(
                err, DPT_USAGE,
                "%s/%s exists, from a conversion into another number of shards: a glob like "
                "%s-*.h5 would take both; give the same --shards, another --output, or --force "
                "to remove it",
                w->folder, entry->d_name, w->name));
        if ((stale || (other && remove)) && unlinkat(w->dir, entry->d_name, 0) != 0 && other &&
            errno != ENOENT)
            DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s/%s: cannot remove the older shard", w->folder,
                                   entry->d_name));
    }
out:
    closedir(dir);
    return status;
}

/* Splits the prefix and checks it against what is written. */
static enum dpt_status check_prefix(struct dpt_shard_writer *w, struct dpt_error *err)
{
    const char *prefix = w->output.prefix;
    const char *slash = strrchr(prefix, '/');
    const char *name = slash != NULL ? slash + 1 : prefix;
    const int folder = slash == NULL ? 1 : slash == prefix ? 1 : (int)(slash - prefix);

    if (name[0] == '\0')
        return dpt_fail(err, DPT_USAGE,
                        "--output %s: is a folder; append the beginning of the files' names, as in "
                        "%s%strain for train-00000-of-%05lld.h5",
                        prefix, prefix, prefix[0] == '\0' ? "data/" : "",
                        (long long)w->output.shards);
    if (strlen(name) > PREFIX_MOST)
        return dpt_fail(err, DPT_USAGE, "--output %s: the name is longer than %d bytes", prefix,
                        PREFIX_MOST);
    w->name = name;
    w->folder = slash == NULL ? strdup(".") : strndup(prefix, (size_t)folder);
    return w->folder != NULL ? DPT_OK : dpt_fail_memory(err, "the shards' folder", PREFIX_MOST);
}

static enum dpt_status check_format(struct dpt_shard_writer *w, struct dpt_error *err)
{
    const struct dpt_shard_format *format = &w->format;
    char samples[32];
    int64_t bytes = format->u8 ? 1 : 4, all;

    if (format->samples <= 0)
        return dpt_fail(err, DPT_BAD_DATA, "%s: there are no samples", w->output.from);
    if (w->output.shards < 1 || w->output.shards > 99999)
        return dpt_fail(err, DPT_USAGE, "--shards %lld: must be 1 to 99999",
                        (long long)w->output.shards);
    if (w->output.shards > format->samples)
        return dpt_fail(err, DPT_USAGE, "--shards %lld: there are only %s samples",
                        (long long)w->output.shards, dpt_group_digits(samples, format->samples));
    for (int i = 0; i < format->n_dims; i++)
        if (format->dims[i] <= 0 || __builtin_mul_overflow(bytes, format->dims[i], &bytes))
            return dpt_fail(err, DPT_BAD_DATA, "%s: dimension %d of a sample is %lld",
                            w->output.from, i + 1, (long long)format->dims[i]);
    for (int64_t i = 0; format->files && i < format->samples; i++)
        if (__builtin_add_overflow(bytes, format->sizes[i], &bytes))
            return dpt_fail(err, DPT_BAD_DATA, "%s: more bytes than a file can hold",
                            w->output.from);
    w->image_bytes = format->files ? 0 : (size_t)bytes;
    w->label_bytes = format->targets > 0      ? 4 * (size_t)format->targets
                     : format->classes <= 256 ? 1
                                              : 4;
    if (__builtin_mul_overflow(
            format->samples, (int64_t)w->image_bytes + (int64_t)(w->label_bytes + format->id_bytes),
            &all))
        return dpt_fail(
            err, DPT_BAD_DATA, "%s: %s samples of %lld bytes are more than a file can hold",
            w->output.from, dpt_group_digits(samples, format->samples), (long long)bytes);
    return DPT_OK;
}

enum dpt_status dpt_shard_writer_open(struct dpt_shard_writer **writer,
                                      const struct dpt_shard_output *output,
                                      const struct dpt_shard_format *format, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_shard_writer *w;

    *writer = NULL;
    DPT_TRY(DPT_ALLOCATE(w, 1, "the shard writer", err));
    w->output = *output;
    w->format = *format;
    w->dir = w->fd = -1;
    w->metadata = (struct dpt_h5_metadata){.memory = -1, .sets = w->sets, .n_sets = SETS};
    DPT_TRY(check_prefix(w, err));
    DPT_TRY(check_format(w, err));
    DPT_TRY(dpt_make_folders(w->folder, err));
    w->dir = open(w->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->dir < 0)
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot open the folder", w->folder));
    DPT_TRY(walk_folder(w, false, err));
    DPT_TRY(dpt_h5_metadata_open(&w->metadata, err));
    *writer = w;
    w = NULL;
out:
    dpt_shard_writer_close(w);
    return status;
}

static enum dpt_status tell_result(const struct dpt_shard_writer *w,
                                   struct dpt_shard_result *result, struct dpt_error *err)
{
    result->format = w->format;
    result->format.class_names = NULL;
    result->format.columns = NULL;
    result->format.sizes = NULL;
    result->shards = w->output.shards;
    result->bytes = w->bytes;
    dpt_str_printf(&result->first, "%s-%05d-of-%05lld.h5", w->output.prefix, 0,
                   (long long)w->output.shards);
    for (int64_t i = 0; w->format.class_names != NULL && i < w->format.classes && i < CLASSES_TOLD;
         i++)
        dpt_str_printf(&result->classes, "%s%lld = %s", i > 0 ? ", " : "", (long long)i,
                       w->format.class_names[i]);
    if (w->format.class_names != NULL && w->format.classes > CLASSES_TOLD)
        dpt_str_printf(&result->classes, ", …");
    for (size_t i = 0; i < result->classes.length; i++) /* a quoted cell may have line ends */
        if (iscntrl((unsigned char)result->classes.text[i]))
            result->classes.text[i] = ' ';
    return result->first.failed || result->classes.failed
               ? dpt_fail_memory(err, "the result", NAME_BYTES)
               : DPT_OK;
}

enum dpt_status dpt_shard_writer_commit(struct dpt_shard_writer *w, struct dpt_shard_result *result,
                                        struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    char from[NAME_BYTES], to[NAME_BYTES];

    if (w->done != w->format.samples || w->fd >= 0)
        DPT_TRY(dpt_fail(err, DPT_INTERNAL, "%s: %lld of %lld samples were written", w->folder,
                         (long long)w->done, (long long)w->format.samples));
    for (int64_t i = 0; i < w->output.shards; i++) {
        temporary_name(w, i, from);
        final_name(w, i, to);
        if (renameat(w->dir, from, w->dir, to) != 0)
            DPT_TRY(cannot_write(w, i, err));
    }
    /* Some file systems cannot sync a folder and say EINVAL. */
    if (TEMP_FAILURE_RETRY(fsync(w->dir)) != 0 && errno != EINVAL)
        DPT_TRY(cannot_write(w, 0, err));
    if (w->output.force) /* only now: until here the older set is whole */
        DPT_TRY(walk_folder(w, true, err));
    DPT_TRY(tell_result(w, result, err));
    w->begun = 0;
out:
    return status;
}

void dpt_shard_writer_close(struct dpt_shard_writer *w)
{
    char name[NAME_BYTES];

    if (w == NULL)
        return;
    if (w->fd >= 0)
        close(w->fd);
    for (int64_t i = 0; i < w->begun; i++) {
        temporary_name(w, i, name);
        unlinkat(w->dir, name, 0);
    }
    if (w->output.log != NULL)
        dpt_log_live(w->output.log, NULL);
    if (w->dir >= 0)
        close(w->dir);
    dpt_h5_metadata_close(&w->metadata);
    free(w->folder);
    dpt_free(w);
}

void dpt_shard_result_release(struct dpt_shard_result *result)
{
    dpt_str_release(&result->first);
    dpt_str_release(&result->classes);
}
