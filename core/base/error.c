#include "core/base/error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct {
    int code;
    const char *text;
} statuses[] = {
#define X(name, code, text) [DPT_##name] = {code, text},
    DPT_STATUS_LIST(X)
#undef X
};

/* Fills err->text. A line break that the format does not have comes from a name or a path, and
 * would forge a line; but a format that is "%s" alone passes on what was told elsewhere. */
static void fill(struct dpt_error *err, const char *format, va_list args)
{
    char *text = err->text;

    vsnprintf(err->text, sizeof err->text, format, args);
    if (strchr(format, '\n') != NULL || strcmp(format, "%s") == 0)
        return;
    while ((text = strchr(text, '\n')) != NULL) {
        const size_t rest = strlen(text);

        if (text + rest + 1 < err->text + sizeof err->text) {
            memmove(text + 1, text, rest + 1);
            *text++ = '\\';
        }
        *text = text > err->text && text[-1] == '\\' ? 'n' : ' ';
    }
}

static void append(struct dpt_error *err, const char *text)
{
    const size_t used = strlen(err->text);

    snprintf(err->text + used, sizeof err->text - used, "%s", text);
}

enum dpt_status dpt_fail(struct dpt_error *err, enum dpt_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fill(err, format, args);
    va_end(args);
    err->status = status;
    err->memory = false;
    return status;
}

void dpt_error_prefix(struct dpt_error *err, const char *format, ...)
{
    const struct dpt_error told = *err;
    va_list args;

    va_start(args, format);
    fill(err, format, args);
    va_end(args);
    append(err, told.text);
}

enum dpt_status dpt_fail_errno(struct dpt_error *err, enum dpt_status status, const char *format,
                               ...)
{
    const int code = errno;
    va_list args;

    va_start(args, format);
    fill(err, format, args);
    va_end(args);
    append(err, ": ");
    append(err, strerror(code));
    err->memory = code == ENOMEM;
    err->status = err->memory ? DPT_RANK : status;
    return err->status;
}

enum dpt_status dpt_fail_memory(struct dpt_error *err, const char *what, double bytes)
{
    dpt_fail(err, DPT_RANK, "not enough memory for %s (%.1f MB)", what, bytes / 1e6);
    err->memory = true;
    return err->status;
}

int dpt_exit_code(enum dpt_status status)
{
    return statuses[status].code;
}

const char *dpt_status_text(enum dpt_status status)
{
    return statuses[status].text;
}
