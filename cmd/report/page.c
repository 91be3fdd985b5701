/* The page as a whole, and what it says of the jobs and of where they ran. */
#include <math.h>
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

/* What a start says of where it ran. */
static const struct fact {
    const char *name;
    struct dpt_figure figure;
} facts[] = {
    {"dptrain", DPT_OF_START(TEXT, version)},
    {"device", DPT_OF_START(TEXT, device)},
    {"library", DPT_OF_START(TEXT, library)},
    {"MPI", DPT_OF_START(TEXT, mpi)},
    {"HDF5", DPT_OF_START(TEXT, hdf5)},
    {"host of rank 0", DPT_OF_START(TEXT, host)},
    {"hosts", DPT_OF_START(COUNT, hosts)},
    {"ranks", DPT_OF_START(COUNT, ranks)},
    {"threads a rank", DPT_OF_START(COUNT, threads)},
    {"batch", DPT_OF_START(COUNT, global)},
    {"micro-batch", DPT_OF_START(COUNT, micro)},
    {"training samples", DPT_OF_START(COUNT, train_samples)},
    {"validation samples", DPT_OF_START(COUNT, valid_samples)},
    {"test samples", DPT_OF_START(COUNT, test_samples)},
    {"parameters", DPT_OF_START(COUNT, parameters)},
};

/* Of one run, as text; "": it does not say. */
static const char *fact_text(const struct fact *fact, const struct dpt_history *h, char *buf)
{
    double count;

    if (fact->figure.type == DPT_FIGURE_TEXT)
        return dpt_figure_text(&fact->figure, h);
    count = dpt_figure_number(&fact->figure, h);
    return isnan(count) ? "" : dpt_html_count(buf, count);
}

static void write_fact(struct dpt_page *r, const struct fact *fact)
{
    char buf[DPT_HTML_NUMBER];
    bool known = false;

    for (size_t i = 0; i < r->runs.n; i++)
        known = known || fact_text(fact, &r->runs.at[i].history, buf)[0] != '\0';
    if (!known)
        return;
    dpt_str_printf(&r->out, "<tr><th scope=\"row\">%s</th>", fact->name);
    for (size_t i = 0; i < r->runs.n; i++) {
        const struct dpt_history *h = &r->runs.at[i].history;

        dpt_html_element(&r->out, r->runs.n > 1 ? "<td class=\"num wrap\">" : "<td class=\"wrap\">",
                         h->n_starts > 0 ? fact_text(fact, h, buf) : "–", "</td>");
    }
    dpt_str_printf(&r->out, "</tr>\n");
}

/* A run that was stopped and went on, and lines that could not be read. */
static void write_remarks(struct dpt_page *r)
{
    for (size_t i = 0; i < r->runs.n; i++) {
        const struct dpt_history *h = &r->runs.at[i].history;

        if (h->n_starts < 2 && h->damaged == 0)
            continue;
        dpt_str_printf(&r->out, "<p>");
        dpt_page_label(r, i);
        if (h->n_starts > 1)
            dpt_str_printf(&r->out,
                           ": started %zu times, last from step %lld. Above is the last "
                           "start.",
                           h->n_starts, (long long)h->starts[h->n_starts - 1].resumed_from);
        if (h->damaged > 0)
            dpt_str_printf(&r->out,
                           " %lld of %lld lines of metrics.jsonl are damaged and were "
                           "passed over.",
                           (long long)h->damaged, (long long)h->lines);
        dpt_str_printf(&r->out, "</p>\n");
    }
}

static void write_environment(struct dpt_page *r)
{
    dpt_str_printf(&r->out,
                   "<section id=\"environment\"><h2>Environment</h2>\n<div class=\"scroll\" "
                   "tabindex=\"0\" role=\"region\" aria-label=\"environment\"><table "
                   "class=\"compare\">\n");
    if (r->runs.n > 1)
        dpt_page_heads(r);
    dpt_str_printf(&r->out, "<tbody>\n");
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
        write_fact(r, &facts[i]);
    dpt_str_printf(&r->out, "</tbody></table></div>\n");
    write_remarks(r);
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
    write_environment(r);
    dpt_str_printf(&r->out,
                   "</main>\n<footer>Made by dptrain " DPT_VERSION "</footer>\n<div id=\"tip\" "
                   "hidden></div>\n<script>\n%s</script>\n</body>\n</html>\n",
                   dpt_page_script);
}
