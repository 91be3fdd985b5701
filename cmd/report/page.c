#include "cmd/report/page.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/file.h"

/* A text that only such a page has, so that no other file is replaced. */
static const char mark[] = "<meta name=\"generator\" content=\"dptrain ";

enum dpt_status dpt_page_check_output(const char *path, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct stat info;
    char head[1024] = "";
    FILE *file = NULL;
    const char *ending = strrchr(path, '.');
    const bool there = stat(path, &info) == 0;
    size_t n;

    if (there && !S_ISREG(info.st_mode))
        return dpt_fail(err, DPT_USAGE, "%s: is not a file; give the page a name of its own", path);
    if (ending == NULL || (strcmp(ending, ".html") != 0 && strcmp(ending, ".htm") != 0))
        return dpt_fail(err, DPT_USAGE,
                        "%s: it is a page for browsers: give a name that ends in .html", path);
    if (!there)
        return DPT_OK;
    if (dpt_file_stream(path, DPT_FILE_READ, DPT_IO, &file, err) != DPT_OK)
        return err->status;
    n = fread(head, 1, sizeof head - 1, file);
    fclose(file);
    if (n > 0 && strstr(head, mark) == NULL)
        status = dpt_fail(err, DPT_USAGE,
                          "%s exists and is not a dptrain report; it is not overwritten", path);
    return status;
}

void dpt_page_begin(struct dpt_str *out, const char *command)
{
    dpt_str_printf(out,
                   "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                   "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                   "%s" DPT_VERSION " %s\">\n"
                   /* The page is on its own: whatever may slip into it, nothing is fetched or
                    * sent. */
                   "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                   "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
                   "<title>",
                   mark, command);
}

void dpt_page_body(struct dpt_str *out, const char *command)
{
    dpt_str_printf(out, " – dptrain %s</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n",
                   command, dpt_page_style);
}

void dpt_page_end(struct dpt_str *out)
{
    dpt_str_printf(out,
                   "</main>\n<footer>Made by dptrain " DPT_VERSION "</footer>\n<div id=\"tip\" "
                   "hidden></div>\n<script>\n%s</script>\n</body>\n</html>\n",
                   dpt_page_script);
}
