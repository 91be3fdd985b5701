/* The page as a whole, and what it says of the jobs and of where they ran. */
#include <math.h>
#include <stdio.h>

#include "cmd/report/html.h"
#include "cmd/report/report.h"

static void write_job(struct dpt_page *r, size_t index)
{
    const struct dpt_page_run *run = &r->runs[index];

    if (run->no_job != NULL) {
        dpt_str_printf(&r->out, "<p class=\"missing\">No job: ");
        dpt_html_text(&r->out, run->no_job);
        dpt_str_printf(&r->out, "</p>\n");
        return;
    }
    dpt_str_printf(&r->out, "<details%s><summary>", r->n == 1 ? " open" : "");
    if (r->n > 1)
        dpt_page_label(r, index);
    dpt_str_printf(&r->out, "%sjob.yaml, all defaults filled in</summary>\n<pre tabindex=\"0\">",
                   r->n > 1 ? ": " : "");
    dpt_html_text(&r->out, run->job_text);
    dpt_str_printf(&r->out, "</pre></details>\n");
}

void dpt_page_jobs(struct dpt_page *r)
{
    dpt_str_printf(&r->out, "<section id=\"job\"><h2>%s</h2>\n", r->n == 1 ? "Job" : "Jobs");
    for (size_t i = 0; i < r->n; i++)
        write_job(r, i);
    dpt_str_printf(&r->out, "</section>\n");
}

static const char *text_of(const char *text, char *buf)
{
    (void)buf;
    return text;
}

static const char *count_of(int64_t n, char *buf)
{
    return n >= 0 ? dpt_html_count(buf, (double)n) : "";
}

/* What a start says of where it ran; "" is left out. */
#define FACT(name, of)                                                                             \
    static const char *fact_##name(const struct dpt_history_start *s, char *buf)                   \
    {                                                                                              \
        return of(s->name, buf);                                                                   \
    }
FACT(version, text_of)
FACT(device, text_of)
FACT(library, text_of)
FACT(mpi, text_of)
FACT(hdf5, text_of)
FACT(host, text_of)
FACT(hosts, count_of)
FACT(ranks, count_of)
FACT(threads, count_of)
FACT(global, count_of)
FACT(micro, count_of)
FACT(train_samples, count_of)
FACT(valid_samples, count_of)
FACT(test_samples, count_of)
FACT(parameters, count_of)
#undef FACT

static const struct fact {
    const char *name;
    const char *(*of)(const struct dpt_history_start *start, char *buf);
} facts[] = {
    {"dptrain", fact_version},
    {"device", fact_device},
    {"library", fact_library},
    {"MPI", fact_mpi},
    {"HDF5", fact_hdf5},
    {"host of rank 0", fact_host},
    {"hosts", fact_hosts},
    {"ranks", fact_ranks},
    {"threads a rank", fact_threads},
    {"batch", fact_global},
    {"micro-batch", fact_micro},
    {"training samples", fact_train_samples},
    {"validation samples", fact_valid_samples},
    {"test samples", fact_test_samples},
    {"parameters", fact_parameters},
};

static void write_fact(struct dpt_page *r, const struct fact *fact)
{
    char buf[DPT_HTML_NUMBER];
    bool known = false;

    for (size_t i = 0; i < r->n; i++) {
        const struct dpt_history_start *start = dpt_history_start(&r->runs[i].history);

        known = known || (start != NULL && fact->of(start, buf)[0] != '\0');
    }
    if (!known)
        return;
    dpt_str_printf(&r->out, "<tr><th scope=\"row\">%s</th>", fact->name);
    for (size_t i = 0; i < r->n; i++) {
        const struct dpt_history_start *start = dpt_history_start(&r->runs[i].history);

        dpt_str_printf(&r->out, "<td class=\"%s\">", r->n > 1 ? "num wrap" : "wrap");
        dpt_html_text(&r->out, start != NULL ? fact->of(start, buf) : "–");
        dpt_str_printf(&r->out, "</td>");
    }
    dpt_str_printf(&r->out, "</tr>\n");
}

/* A run that was stopped and went on, and lines that could not be read. */
static void write_remarks(struct dpt_page *r)
{
    for (size_t i = 0; i < r->n; i++) {
        const struct dpt_history *h = &r->runs[i].history;

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

void dpt_page_environment(struct dpt_page *r)
{
    dpt_str_printf(&r->out,
                   "<section id=\"environment\"><h2>Environment</h2>\n<div class=\"scroll\" "
                   "tabindex=\"0\" role=\"region\" aria-label=\"environment\"><table "
                   "class=\"compare\">\n");
    if (r->n > 1) {
        dpt_str_printf(&r->out, "<thead><tr><td></td>");
        for (size_t i = 0; i < r->n; i++) {
            dpt_str_printf(&r->out, "<th scope=\"col\">");
            dpt_page_label(r, i);
            dpt_str_printf(&r->out, "</th>");
        }
        dpt_str_printf(&r->out, "</tr></thead>\n");
    }
    dpt_str_printf(&r->out, "<tbody>\n");
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
        write_fact(r, &facts[i]);
    dpt_str_printf(&r->out, "</tbody></table></div>\n");
    write_remarks(r);
    dpt_str_printf(&r->out, "</section>\n");
}

static void write_title(struct dpt_page *r)
{
    for (size_t i = 0; i < r->n; i++) {
        dpt_str_printf(&r->out, i > 0 ? ", " : "");
        dpt_html_text(&r->out, r->runs[i].label);
    }
    dpt_str_printf(&r->out, " – dptrain report");
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
    write_title(r);
    dpt_str_printf(&r->out, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n",
                   dpt_page_style);
    dpt_page_headline(r);
    dpt_page_curves(r);
    dpt_page_ranks(r);
    dpt_page_write_predictions(r);
    dpt_page_jobs(r);
    dpt_page_environment(r);
    dpt_str_printf(&r->out,
                   "</main>\n<footer>Made by dptrain " DPT_VERSION "</footer>\n<div id=\"tip\" "
                   "hidden></div>\n<script>\n%s</script>\n</body>\n</html>\n",
                   dpt_page_script);
}
