/*
 * `dptrain man`: the manual page, in the man macros that groff and mandoc read.
 *
 * Made from the rows of the subcommands and the tables of the job file; the rest is man_text.c.
 */
#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/man/text.h"
#include "cmd/output.h"
#include "core/base/str.h"
#include "core/train/job.h"
#include "data/sources/source.h"

enum { WIDTH = 76 };

/* --- troff ------------------------------------------------------------------------------------ */

/* One character, so that it comes out as it is. Returns its bytes. */
static size_t put_character(struct dpt_str *out, const char *text)
{
    static const char *const names[128] = {
        ['\\'] = "\\e",  ['-'] = "\\-",   ['\''] = "\\(aq", ['`'] = "\\(ga",
        ['^'] = "\\(ha", ['~'] = "\\(ti", ['"'] = "\\(dq",
    };
    const unsigned char c = (unsigned char)*text;
    size_t n = 1;

    if (c < 128) {
        if (names[c] != NULL)
            dpt_str_printf(out, "%s", names[c]);
        else
            dpt_str_add(out, text, 1);
        return 1;
    }
    dpt_str_printf(out, "\\[u%04X]", (unsigned)dpt_utf8_decode(text, strlen(text), &n));
    return n;
}

/* Text as lines of the source; what stands in backquotes is bold where `bold`. */
static void put_text(struct dpt_str *out, const char *text, bool bold)
{
    struct dpt_str words = {0};
    bool inside = false, begins = true; /* of a word: no line begins with a full stop */

    while (*text != '\0') {
        const bool blank = *text == ' ' || *text == '\n';

        if (begins && *text == '.')
            dpt_str_printf(&words, "\\&");
        begins = blank;
        if (blank) {
            dpt_str_add(&words, " ", words.length > 0);
            text++;
        } else if (bold && *text == '`') {
            inside = !inside;
            dpt_str_printf(&words, "%s", inside ? "\\fB" : "\\fR");
            text++;
        } else {
            text += put_character(&words, text);
        }
    }
    dpt_str_printf(&words, "%s", inside ? "\\fR" : "");
    dpt_str_wrap(out, words.text != NULL ? words.text : "", 0, 0, WIDTH);
    dpt_str_release(&words);
}

static void put_example(struct dpt_str *out, const char *text)
{
    dpt_str_printf(out, ".PP\n.RS 4\n.nf\n");
    while (*text != '\0') {
        const size_t n = strcspn(text, "\n");
        size_t i = 0;

        if (text[0] == '.' || text[0] == '\'')
            dpt_str_printf(out, "\\&");
        while (i < n)
            i += put_character(out, text + i);
        dpt_str_printf(out, "\n");
        text += n + (text[n] == '\n');
    }
    dpt_str_printf(out, ".fi\n.RE\n");
}

/* Paragraphs as --help has them: lines that begin with spaces are examples. */
static void put_paragraphs(struct dpt_str *out, const char *text)
{
    struct dpt_str part = {0};

    while (*text != '\0') {
        const bool example = *text == ' ';

        dpt_str_clear(&part);
        while (*text != '\0' && *text != '\n' && (*text == ' ') == example) {
            text += example ? strspn(text, " ") < 2 ? strspn(text, " ") : 2 : 0;
            dpt_str_printf(&part, "%.*s\n", (int)strcspn(text, "\n"), text);
            text += strcspn(text, "\n");
            text += *text == '\n';
        }
        if (example && part.text != NULL) {
            put_example(out, part.text);
        } else if (part.text != NULL) {
            dpt_str_printf(out, ".PP\n");
            put_text(out, part.text, true);
        }
        text += strspn(text, "\n");
    }
    dpt_str_release(&part);
}

/* .TP with a bold head. */
static void put_head(struct dpt_str *out, const char *head, const char *value)
{
    dpt_str_printf(out, ".TP\n\\fB");
    while (*head != '\0')
        head += put_character(out, head);
    dpt_str_printf(out, "\\fR");
    if (value != NULL) {
        dpt_str_printf(out, " \\fI");
        while (*value != '\0')
            value += put_character(out, value);
        dpt_str_printf(out, "\\fR");
    }
    dpt_str_printf(out, "\n");
}

static void put_items(struct dpt_str *out, const struct dpt_man_item *items)
{
    for (; items->text != NULL; items++) {
        if (items->head != NULL)
            put_head(out, items->head, NULL);
        else
            dpt_str_printf(out, ".PP\n");
        put_text(out, items->text, true);
    }
}

/* .SH takes away a .PP right behind it. */
static void put_section(struct dpt_str *out, const char *title, const struct dpt_man_item *items)
{
    dpt_str_printf(out, ".SH %s\n", title);
    if (items != NULL && items->head == NULL && items->text != NULL) {
        put_text(out, items->text, true);
        items++;
    }
    if (items != NULL)
        put_items(out, items);
}

/* --- commands --------------------------------------------------------------------------------- */

static void put_usage(struct dpt_str *out, const struct dpt_command *command, bool optional)
{
    dpt_str_printf(out, optional ? "\\fBdptrain\\fR [\\fB%s\\fR]\n" : "\\fBdptrain %s\\fR\n",
                   command->name);
    if (command->usage[0] != '\0') /* an empty line would be a space */
        put_text(out, command->usage, false);
}

static void put_options(struct dpt_str *out, const struct dpt_cli_option *options)
{
    for (; options->name != NULL; options++) {
        put_head(out, options->name, options->value);
        put_text(out, options->help, true);
    }
}

static void put_formats(struct dpt_str *out)
{
    for (size_t i = 0; dpt_source_formats[i] != NULL; i++) {
        const struct dpt_source_format *f = dpt_source_formats[i];

        if (f->inputs == NULL)
            continue;
        put_head(out, f->name, f->inputs);
        put_text(out, f->summary, true);
        dpt_str_printf(out, ".br\n");
        put_text(out, f->details, true);
    }
}

static void put_command(struct dpt_str *out, const struct dpt_command *command)
{
    struct dpt_str details = {0};

    dpt_str_printf(out, ".SS %s\n", command->name);
    put_usage(out, command, strcmp(command->name, "train") == 0);
    dpt_str_printf(out, ".PP\n");
    dpt_str_printf(&details, "%s.", command->summary);
    put_text(out, details.text == NULL ? "" : details.text, true);
    put_paragraphs(out, command->details);
    put_options(out, command->options);
    if (strcmp(command->name, "convert") == 0)
        put_formats(out);
    dpt_str_release(&details);
}

/* --- the job file ----------------------------------------------------------------------------- */

static void put_key(void *arg, const struct dpt_option_visit *at)
{
    struct dpt_str *out = arg, text = {0};
    const struct dpt_option *row = at->row;

    if (row == NULL) { /* a variant or a kind begins */
        dpt_str_printf(out, ".PP\n%s\\fB%s\\fR:\n", at->listed ? "\\- " : "type: ", at->variant);
        put_text(out, at->summary, true);
        return;
    }
    if (at->depth == 0 && (row->type == DPT_OPT_SECTION || row->type == DPT_OPT_VARIANT)) {
        dpt_str_printf(out, ".SS %s\n", row->name);
        put_text(out, row->help, true);
    } else {
        put_head(out, at->path, NULL);
        put_text(out, row->help, true);
        dpt_str_printf(out, ".br\n");
    }
    if (row->type != DPT_OPT_SECTION) {
        if (at->depth == 0 && row->type == DPT_OPT_VARIANT)
            dpt_str_printf(out, ".br\n");
        dpt_option_describe(row, &text);
        put_text(out, text.text == NULL ? "" : text.text, true);
    }
    dpt_str_release(&text);
}

/* --- the page --------------------------------------------------------------------------------- */

static void put_page(struct dpt_str *out, const struct dpt_command *const *commands)
{
    dpt_str_printf(out,
                   ".\\\" Made by `dptrain man`.\n.TH DPTRAIN 1 " DPT_MAN_DATE
                   " \"dptrain %s\" \"User Commands\"\n.ad l\n.nh\n.SH NAME\n"
                   "dptrain \\- train neural networks data\\-parallel with MPI\n.SH SYNOPSIS\n",
                   DPT_VERSION);
    for (size_t i = 0; commands[i] != NULL; i++) {
        if (i > 0)
            dpt_str_printf(out, ".br\n");
        put_usage(out, commands[i], i == 0);
    }
    put_section(out, "DESCRIPTION", dpt_man_description);
    put_section(out, "COMMANDS", NULL);
    for (size_t i = 0; commands[i] != NULL; i++)
        put_command(out, commands[i]);
    dpt_str_printf(out, ".SS options of every command\n");
    put_options(out, dpt_cli_common_options);
    put_head(out, "--version", NULL);
    put_text(out, "the versions of dptrain and of what it stands on", false);
    put_section(out, "\"JOB FILE\"", dpt_man_job);
    dpt_options_walk(dpt_job_options, put_key, out);
    put_section(out, "\"EXIT STATUS\"", NULL);
    for (int i = 0; i < DPT_STATUS_COUNT; i++) {
        dpt_str_printf(out, ".TP\n\\fB%d\\fR\n", dpt_exit_code((enum dpt_status)i));
        put_text(out, dpt_status_text((enum dpt_status)i), true);
    }
    put_items(out, dpt_man_exit);
    put_section(out, "ENVIRONMENT", dpt_man_environment);
    put_section(out, "FILES", dpt_man_files);
    dpt_str_printf(out, ".SH EXAMPLES\n");
    for (const struct dpt_man_item *e = dpt_man_examples; e->text != NULL; e++) {
        if (e != dpt_man_examples)
            dpt_str_printf(out, ".PP\n");
        put_text(out, e->head, true);
        put_example(out, e->text);
    }
    put_section(out, "\"SEE ALSO\"", dpt_man_see);
}

static enum dpt_status run(struct dpt_cli *cli, struct dpt_error *err)
{
    struct dpt_str page = {0};

    if (cli->n_positional > 0)
        return dpt_fail(err, DPT_USAGE, "dptrain man: takes no argument");
    put_page(&page, cli->commands);
    return dpt_output_text(&page, "the manual page", err);
}

static const struct dpt_cli_option options[] = {{0}};

const struct dpt_command dpt_cmd_man = {
    .name = "man",
    .usage = "",
    .summary = "the manual page, for man or mandoc",
    .details = "Prints the manual page: commands, options, every key of the job file, exit codes. "
               "`make install` puts it where `man dptrain` finds it.\n\n"
               "  dptrain man | man -l -",
    .options = options,
    .one_rank = true,
    .run = run,
};
