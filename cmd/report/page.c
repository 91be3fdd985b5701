/* The page as a whole, and what it says of the jobs. */
#include <stdio.h>
#include <stdlib.h>

#include "cmd/report/report.h"
#include "core/base/file.h"

static void write_job(struct dpt_page *r, size_t index)
{
    const struct dpt_run_folder *run = &r->runs.at[index];
    struct dpt_error why = {0};
    char path[PATH_MAX + 16], *text = NULL;
    size_t length;

    snprintf(path, sizeof path, "%s/job.yaml", run->history.folder);
    if (run->no_job != NULL ||
        dpt_file_read(path, DPT_YAML_BYTES, DPT_BAD_JOB, &text, &length, &why) != DPT_OK) {
        dpt_html_element(&r->out, "<p class=\"missing\">No job: ",
                         run->no_job != NULL ? run->no_job : why.text, "</p>\n");
        return;
    }
    dpt_str_printf(&r->out, "<details%s><summary>", r->runs.n == 1 ? " open" : "");
    dpt_page_prefix(r, index);
    dpt_str_printf(&r->out, "job.yaml, all defaults filled in</summary>\n");
    dpt_html_element(&r->out, "<pre tabindex=\"0\">", text, "</pre></details>\n");
    free(text);
}

static void write_jobs(struct dpt_page *r)
{
    dpt_str_printf(&r->out, "<section id=\"job\"><h2>%s</h2>\n", r->runs.n == 1 ? "Job" : "Jobs");
    for (size_t i = 0; i < r->runs.n; i++)
        write_job(r, i);
    dpt_str_printf(&r->out, "</section>\n");
}

void dpt_page_write(struct dpt_page *r)
{
    dpt_str_printf(
        &r->out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<meta name=\"generator\" content=\"dptrain " DPT_VERSION " report\">\n"
        /* The page is on its own: whatever may slip into it, nothing is fetched or sent. */
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
        "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n<title>");
    for (size_t i = 0; i < r->runs.n; i++)
        dpt_html_element(&r->out, i > 0 ? ", " : "", r->labels[i], "");
    dpt_str_printf(&r->out,
                   " – dptrain report</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n",
                   dpt_page_style);
    dpt_page_headline(r);
    dpt_page_curves(r);
    dpt_page_ranks(r);
    dpt_page_write_predictions(r);
    write_jobs(r);
    dpt_page_environment(r);
    dpt_str_printf(&r->out,
                   "</main>\n<footer>Made by dptrain " DPT_VERSION "</footer>\n<div id=\"tip\" "
                   "hidden></div>\n<script>\n%s</script>\n</body>\n</html>\n",
                   dpt_page_script);
}
