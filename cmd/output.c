#include "cmd/output.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/streams.h"
#include "core/base/str.h"

/* Bytes at the end of a text that begin a character of UTF-8 whose rest is still to come. */
static size_t begun(const char *text, size_t n)
{
    for (size_t i = 1; i <= 3 && i <= n; i++) {
        const unsigned char c = (unsigned char)text[n - i];

        if (c >= 0xC0)
            return c >= 0xF0 ? i : c >= 0xE0 && i < 3 ? i : i < 2 ? i : 0;
        if (c < 0x80)
            break;
    }
    return 0;
}

/* `rest`: of the text before, where stdio cut a character in two. */
static ssize_t print(void *rest, const char *bytes, size_t n)
{
    struct dpt_str *text = rest, clean = {0};
    bool good;
    size_t kept;

    dpt_str_add(text, bytes, n);
    kept = begun(text->text, text->length);
    dpt_str_printable(&clean, text->text, text->length - kept, true);
    good = !text->failed && !clean.failed;
    if (!good)
        errno = ENOMEM;
    good = good && dpt_streams_write(STDOUT_FILENO, clean.text, clean.length);
    dpt_str_release(&clean);
    if (!text->failed)
        memmove(text->text, text->text + text->length - kept, kept);
    text->length = text->failed ? 0 : kept;
    text->failed = false;
    return good ? (ssize_t)n : 0;
}

void dpt_output_begin(void)
{
    struct dpt_str *rest = calloc(1, sizeof *rest); /* the stream's, until the process ends */
    FILE *stream =
        rest == NULL ? NULL : fopencookie(rest, "w", (cookie_io_functions_t){.write = print});

    if (stream == NULL) {
        free(rest);
        return;
    }
    setvbuf(stream, NULL, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, BUFSIZ);
    stdout = stream;
}

enum dpt_status dpt_output_colored(const char *text, struct dpt_error *err)
{
    if ((fflush(stdout) == 0 && dpt_streams_write(STDOUT_FILENO, text, strlen(text))) ||
        errno == EPIPE)
        return DPT_OK; /* as dpt_streams_finish has it: a reader that left has what it wanted */
    return dpt_fail_errno(err, DPT_IO, "standard output");
}
