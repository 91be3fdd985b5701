#include "data/tables/input.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file.h"
#include "data/tables/zip_entry.h"

enum { BUFFER = 256 * 1024, READ_MOST = 1 << 30 };

enum dpt_status dpt_input_open(struct dpt_input *in, const char *path,
                               const volatile sig_atomic_t *stop, struct dpt_error *err)
{
    struct stat st;
    int fd;

    *in = (struct dpt_input){.path = path, .stop = stop};
    /* A regular file, since it is read more than once. */
    if (dpt_file_open(path, DPT_FILE_READ,
                      stat(path, &st) == 0 && !S_ISREG(st.st_mode) ? DPT_BAD_DATA : DPT_IO, &fd,
                      err) != DPT_OK)
        return err->status;
    if (fstat(fd, &st) != 0) {
        dpt_fail_errno(err, DPT_IO, "%s: cannot read", path);
        close(fd);
        return err->status;
    }
    in->size = st.st_size;
    in->gz = gzdopen(fd, "rb");
    if (in->gz == NULL) {
        close(fd);
        return dpt_fail_memory(err, "reading", BUFFER);
    }
    gzbuffer(in->gz, BUFFER);
    return DPT_OK;
}

enum dpt_status dpt_input_open_entry(struct dpt_input *in, const char *path, const char *name,
                                     const char *shown, const volatile sig_atomic_t *stop,
                                     struct dpt_error *err)
{
    *in = (struct dpt_input){.path = shown, .stop = stop};
    return dpt_zip_entry_open(&in->entry, path, name, shown, &in->size, err);
}

void dpt_input_close(struct dpt_input *in)
{
    dpt_zip_entry_close(in->entry);
    in->entry = NULL;
    if (in->gz != NULL)
        gzclose_r(in->gz);
    in->gz = NULL;
}

static enum dpt_status gzip_error(const struct dpt_input *in, struct dpt_error *err)
{
    const int saved = errno;
    int code;
    const char *text = gzerror(in->gz, &code);

    if (code == Z_OK || code == Z_STREAM_END)
        return DPT_OK;
    if (code == Z_ERRNO) {
        errno = saved;
        return dpt_fail_errno(err, DPT_IO, "%s: cannot read", in->path);
    }
    if (code == Z_BUF_ERROR)
        return dpt_fail(
            err, DPT_BAD_DATA,
            "%s: the gzip stream ends too early, after %lld unpacked bytes: the file is cut off",
            in->path, (long long)in->read);
    if (code == Z_MEM_ERROR)
        return dpt_fail_memory(err, in->path, BUFFER);
    return dpt_fail(err, DPT_BAD_DATA, "%s: the gzip stream is damaged (%s)", in->path, text);
}

enum dpt_status dpt_input_some(struct dpt_input *in, void *bytes, size_t capacity, size_t *got,
                               struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    *got = 0;
    while (*got < capacity) {
        const size_t left = capacity - *got;
        const unsigned want = left < READ_MOST ? (unsigned)left : READ_MOST;
        int n;

        if (in->stop != NULL && *in->stop != 0)
            return dpt_fail(err, DPT_STOPPED, "stopped; nothing was written");
        if (in->entry != NULL) {
            DPT_TRY(dpt_zip_entry_read(in->entry, bytes, capacity, got, err));
            in->read += (int64_t)*got;
            break;
        }
        n = gzread(in->gz, (char *)bytes + *got, want);
        if (n > 0) {
            *got += (size_t)n;
            in->read += n;
        }
        /* Where the stream is cut off gzread gives what there is, and only gzerror tells. */
        if (n < (int)want) {
            DPT_TRY(gzip_error(in, err));
            break;
        }
    }
out:
    return status;
}

enum dpt_status dpt_input_exact(struct dpt_input *in, void *bytes, size_t n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t before = in->read;
    size_t got;

    DPT_TRY(dpt_input_some(in, bytes, n, &got, err));
    if (got < n)
        status = dpt_fail(err, DPT_BAD_DATA,
                          "%s: too short: it ends after %lld bytes, %lld are needed at least",
                          in->path, (long long)in->read, (long long)before + (long long)n);
out:
    return status;
}

enum dpt_status dpt_input_skip(struct dpt_input *in, int64_t n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    if (n == 0)
        return DPT_OK;
    if (in->entry != NULL)
        DPT_TRY(dpt_zip_entry_skip(in->entry, n, err));
    else if (gzseek(in->gz, (z_off_t)n, SEEK_CUR) < 0) {
        DPT_TRY(gzip_error(in, err));
        DPT_TRY(dpt_fail_errno(err, DPT_IO, "%s: cannot be read from another place", in->path));
    }
    in->read += n;
out:
    return status;
}

enum dpt_status dpt_input_promise(struct dpt_input *in, int64_t bytes, struct dpt_error *err)
{
    const bool plain = in->entry != NULL || gzdirect(in->gz) != 0;
    int64_t most = in->size - in->read;

    if (!plain && __builtin_mul_overflow(in->size, (int64_t)DPT_DEFLATE_MOST, &most))
        most = INT64_MAX;
    if (bytes <= most)
        return DPT_OK;
    return dpt_fail(err, DPT_BAD_DATA,
                    "%s: too short: its header promises %lld bytes after it, the file has %s%lld",
                    in->path, (long long)bytes, plain ? "" : "at most ",
                    (long long)(most < 0 ? 0 : most));
}

enum dpt_status dpt_input_end(struct dpt_input *in, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const int64_t before = in->read;
    char byte;
    size_t got;

    DPT_TRY(dpt_input_some(in, &byte, 1, &got, err));
    if (got > 0)
        status = dpt_fail(err, DPT_BAD_DATA,
                          "%s: bytes are left after the %lld that its header promises: not the "
                          "file it claims to be",
                          in->path, (long long)before);
out:
    return status;
}
