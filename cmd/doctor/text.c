/* How the report reads: lines for a person, one JSON object for a program. */
#include <string.h>

#include "cmd/doctor/doctor.h"

/* Columns of a line: level, name, what was found; advice stands below, further out. */
enum { LEVEL_AT = 2, NAME_AT = 11, FOUND_AT = 28, ADVICE_AT = 11, COLUMNS = 79 };

static const char *const levels[DPT_DOCTOR_LEVELS] = {
    [DPT_DOCTOR_OK] = "ok", [DPT_DOCTOR_WARNING] = "warning", [DPT_DOCTOR_FAILED] = "failed"};

/* --- who -------------------------------------------------------------------------------------- */

/* The hosts of some ranks, each once. */
static void list_hosts(const struct dpt_doctor *d, const int *ranks, int n, struct dpt_str *out)
{
    enum { MOST = 3 };
    int found = 0;

    for (int i = 0; i < n; i++) {
        const char *host = dpt_comm_host(&d->comm, ranks[i]);
        bool seen = false;

        for (int k = 0; k < i && !seen; k++)
            seen = strcmp(dpt_comm_host(&d->comm, ranks[k]), host) == 0;
        if (!seen && found < MOST)
            dpt_str_printf(out, "%s%s", found > 0 ? ", " : "", host);
        found += !seen;
    }
    if (found > MOST)
        dpt_str_printf(out, " and %d more", found - MOST);
}

const char *dpt_doctor_who(const struct dpt_doctor *d, const int *ranks, int n, char *buf,
                           size_t size)
{
    struct dpt_str text = {0};

    dpt_str_printf(&text, "rank%s ", n == 1 ? "" : "s");
    dpt_str_ranks(&text, ranks, n);
    dpt_str_printf(&text, " (");
    list_hosts(d, ranks, n, &text);
    dpt_str_printf(&text, ")");
    snprintf(buf, size, "%s", text.failed ? "some ranks" : text.text);
    dpt_str_release(&text);
    return buf;
}

/* --- for a person ----------------------------------------------------------------------------- */

static void print_line(const struct dpt_doctor *d, const struct dpt_doctor_line *line,
                       struct dpt_str *out)
{
    const struct dpt_finding *f = &line->finding;
    const size_t begin = out->length;
    struct dpt_str text = {0};
    size_t column;

    if (line->ranks != NULL && line->check->scope == DPT_DOCTOR_NODE) {
        list_hosts(d, line->ranks, line->n_ranks, &text);
        dpt_str_printf(&text, ": ");
    } else if (line->ranks != NULL) {
        char who[DPT_DOCTOR_LINE];

        dpt_str_printf(&text,
                       "%s: ", dpt_doctor_who(d, line->ranks, line->n_ranks, who, sizeof who));
    }
    dpt_str_printf(&text, "%s", f->found);
    dpt_str_printf(out, "%*s%-*s%-*s", LEVEL_AT, "", NAME_AT - LEVEL_AT, levels[f->level],
                   FOUND_AT - NAME_AT - 1, f->name);
    column = out->length - begin; /* a name that ends just there gets a blank after it, too */
    dpt_str_wrap(out, text.text != NULL ? text.text : "", FOUND_AT, column + (column == FOUND_AT),
                 COLUMNS);
    if (f->advice[0] != '\0')
        dpt_str_wrap(out, f->advice, ADVICE_AT, 0, COLUMNS);
    out->failed |= text.failed;
    dpt_str_release(&text);
}

void dpt_doctor_print(const struct dpt_doctor *d, const struct dpt_doctor_report *report,
                      bool quiet, struct dpt_str *out)
{
    const int ranks = d->comm.world.size, failed = report->count[DPT_DOCTOR_FAILED],
              warned = report->count[DPT_DOCTOR_WARNING];
    const char *section = NULL;

    if (!quiet)
        dpt_str_printf(out, "dptrain " DPT_VERSION " doctor: %d rank%s on %d node%s\n", ranks,
                       ranks == 1 ? "" : "s", d->comm.nodes, d->comm.nodes == 1 ? "" : "s");
    for (size_t i = 0; i < report->n; i++) {
        const struct dpt_doctor_line *line = &report->lines[i];

        if (quiet && line->finding.level == DPT_DOCTOR_OK)
            continue;
        if (section == NULL || strcmp(section, line->check->section) != 0)
            dpt_str_printf(out, "%s%s\n", section == NULL && quiet ? "" : "\n",
                           line->check->section);
        section = line->check->section;
        print_line(d, line, out);
    }
    if (failed == 0 && warned == 0)
        dpt_str_printf(out, "%sno problems found\n", quiet ? "" : "\n");
    else
        dpt_str_printf(out, "\n%d failed, %d warning%s\n", failed, warned, warned == 1 ? "" : "s");
}

/* --- for a program ---------------------------------------------------------------------------- */

static void json_line(const struct dpt_doctor_line *line, struct dpt_json *j)
{
    dpt_json_break(j);
    dpt_json_object(j, NULL);
    dpt_json_text(j, "section", line->check->section);
    dpt_json_text(j, "check", line->check->name);
    dpt_json_text(j, "name", line->finding.name);
    dpt_json_text(j, "level", levels[line->finding.level]);
    dpt_json_text(j, "found", line->finding.found);
    dpt_json_text(j, "advice", line->finding.advice);
    if (line->ranks != NULL) {
        dpt_json_array(j, "ranks");
        for (int i = 0; i < line->n_ranks; i++)
            dpt_json_int(j, NULL, line->ranks[i]);
        dpt_json_end(j);
    }
    dpt_json_end(j);
}

void dpt_doctor_json(const struct dpt_doctor *d, const struct dpt_doctor_report *report,
                     struct dpt_json *j)
{
    dpt_json_object(j, NULL);
    dpt_json_text(j, "dptrain", DPT_VERSION);
    dpt_json_int(j, "ranks", d->comm.world.size);
    dpt_json_int(j, "nodes", d->comm.nodes);
    for (int i = 0; i < DPT_DOCTOR_LEVELS; i++)
        dpt_json_int(j, levels[i], report->count[i]);
    dpt_json_break(j);
    dpt_json_array(j, "hosts");
    for (int r = 0; r < d->comm.world.size; r++)
        dpt_json_text(j, NULL, dpt_comm_host(&d->comm, r));
    dpt_json_end(j);
    dpt_json_break(j);
    dpt_json_array(j, "checks");
    for (size_t i = 0; i < report->n; i++)
        json_line(&report->lines[i], j);
    dpt_json_end(j);
    dpt_json_end(j);
}
