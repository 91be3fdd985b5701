/* What a job's things are called elsewhere leads to things that a job has. */
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/train/job/job.h"

struct search {
    const char *name;
    bool found;
};

static bool ends_with(const char *path, const char *name)
{
    const size_t n = strlen(path), m = strlen(name);

    return n >= m && strcmp(path + n - m, name) == 0 && (n == m || path[n - m - 1] == '.');
}

static void look_at_choices(struct search *s, const struct dpt_option *row)
{
    for (size_t i = 0; row->type == DPT_OPT_CHOICE && row->choices[i] != NULL; i++)
        s->found |= strcmp(row->choices[i], s->name) == 0;
}

static void look(void *arg, const struct dpt_option_visit *at)
{
    struct search *s = arg;
    const bool whole = strchr(s->name, '.') != NULL;

    if (whole ? strcmp(at->path, s->name) == 0 : ends_with(at->path, s->name))
        s->found = true;
    if (whole || at->row == NULL) {
        s->found |= !whole && at->variant != NULL && strcmp(at->variant, s->name) == 0;
        return;
    }
    look_at_choices(s, at->row);
    for (const struct dpt_option *row =
             at->row->alternatives != NULL ? at->row->alternatives->either : NULL;
         row != NULL && row->name != NULL; row++)
        look_at_choices(s, row);
}

static void all_lead_somewhere(void **state)
{
    (void)state;
    for (const struct dpt_synonym *s = dpt_job_synonyms; s->words != NULL; s++) {
        struct search search = {.name = s->meant};

        for (const char *c = s->words; *c != '\0'; c++)
            if (*c == '_' || *c == '-' || isupper((unsigned char)*c))
                fail_msg("'%s': the reader drops _, - and capitals", s->words);
        if (strchr(s->meant, ' ') != NULL)
            continue;
        dpt_options_walk(dpt_job_options, look, &search);
        if (!search.found)
            fail_msg("'%s': a job has no '%s'", s->words, s->meant);
    }
}

/* A thing has one row, and that has a word but once; blanks stand between words alone. */
static void none_is_there_twice(void **state)
{
    (void)state;
    for (const struct dpt_synonym *s = dpt_job_synonyms; s->words != NULL; s++) {
        char words[512];

        for (const struct dpt_synonym *r = dpt_job_synonyms; r < s; r++)
            if (strcmp(r->meant, s->meant) == 0)
                fail_msg("'%s' has two rows", s->meant);
        assert_true(snprintf(words, sizeof words, "%s ", s->words) < (int)sizeof words);
        for (const char *word = words, *end; *word != '\0'; word = end + 1) {
            char wanted[64];

            end = word + strcspn(word, " ");
            snprintf(wanted, sizeof wanted, " %.*s ", (int)(end - word), word);
            if (end == word || strstr(end, wanted) != NULL)
                fail_msg("%s:%s is there twice, or a blank too many", s->meant, wanted);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_lead_somewhere),
        cmocka_unit_test(none_is_there_twice),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
