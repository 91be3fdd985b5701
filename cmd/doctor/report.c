/* From the findings of all ranks to the lines of the report. */
#include <stdlib.h>
#include <string.h>

#include "cmd/doctor/doctor.h"
#include "core/base/memory.h"

enum { HEAD = 3 + sizeof(double) }; /* of a packed finding: check, level, quiet, value */
enum { MOST_GROUPS = 6 };           /* that are told one by one */

struct dpt_finding dpt_doctor_finding(const struct dpt_doctor *d, const char *name)
{
    struct dpt_finding f = {.level = DPT_DOCTOR_OK};

    snprintf(f.name, sizeof f.name, "%s", name != NULL ? name : d->check->name);
    return f;
}

void dpt_doctor_add(struct dpt_doctor *d, const struct dpt_finding *f)
{
    const char *const texts[] = {f->name, f->found, f->advice};
    const char head[] = {(char)(d->check - dpt_doctor_checks), (char)f->level, (char)f->quiet};

    if (d->check->scope >= DPT_DOCTOR_FIRST && d->comm.world.rank != 0)
        return;
    dpt_str_add(&d->findings, head, sizeof head);
    dpt_str_add(&d->findings, (const char *)&f->value, sizeof f->value);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        dpt_str_add(&d->findings, texts[i], strlen(texts[i]) + 1);
}

void dpt_doctor_say(struct dpt_doctor *d, enum dpt_doctor_level level, const char *advice,
                    const char *format, ...)
{
    struct dpt_finding f = dpt_doctor_finding(d, NULL);
    va_list args;

    f.level = level;
    va_start(args, format);
    vsnprintf(f.found, sizeof f.found, format, args);
    va_end(args);
    snprintf(f.advice, sizeof f.advice, "%s", advice != NULL ? advice : "");
    dpt_doctor_add(d, &f);
}

/* --- what the ranks packed -------------------------------------------------------------------- */

/* A finding where it lies in the ranks' packets. */
struct item {
    int rank, check;
    enum dpt_doctor_level level;
    bool quiet;
    double value;
    const char *name, *found, *advice;
};

struct items {
    struct item *at;
    size_t n;
    const unsigned char *leads; /* [ranks]: the first one of its node */
};

/* The finding at `at`; gives where the next one is. */
static const char *unpack(const char *at, struct item *item)
{
    item->check = (unsigned char)at[0];
    item->level = (enum dpt_doctor_level)(unsigned char)at[1];
    item->quiet = at[2] != 0;
    memcpy(&item->value, at + 3, sizeof item->value);
    item->name = at + HEAD;
    item->found = item->name + strlen(item->name) + 1;
    item->advice = item->found + strlen(item->found) + 1;
    return item->advice + strlen(item->advice) + 1;
}

/* all: [ranks] packets, `room` bytes apart, of so many bytes each. at NULL: only counts. */
static size_t unpack_all(const char *all, size_t room, const int64_t *lengths, int ranks,
                         struct item *at)
{
    size_t n = 0;

    for (int r = 0; r < ranks; r++) {
        const char *next = all + (size_t)r * room, *const end = next + lengths[r];
        struct item item = {.rank = r};

        for (; next < end; n++) {
            next = unpack(next, &item);
            if (at != NULL)
                at[n] = item;
        }
    }
    return n;
}

/* --- groups of ranks that found the same ------------------------------------------------------ */

struct group {
    const struct item *item; /* of its first rank; NULL: these ranks have no such finding */
    int n;
    bool quiet; /* one of them has nothing to tell */
};

/* What one check says under one name: of each rank that looked its item, or NULL. */
struct topic {
    const struct dpt_doctor_check *check;
    const struct item **of; /* [n] */
    int *ranks, *group_of;  /* [n] */
    int n;
    struct group *groups; /* [n] */
    int n_groups;
};

static bool same(const struct item *a, const struct item *b)
{
    if (a == NULL || b == NULL)
        return a == b;
    return a->level == b->level && strcmp(a->found, b->found) == 0;
}

static void make_groups(struct topic *t)
{
    t->n_groups = 0;
    for (int i = 0; i < t->n; i++) {
        int k = 0;

        while (k < t->n_groups && !same(t->groups[k].item, t->of[i]))
            k++;
        if (k == t->n_groups)
            t->groups[t->n_groups++] = (struct group){.item = t->of[i]};
        t->groups[k].n++;
        t->groups[k].quiet |= t->of[i] != NULL && t->of[i]->quiet;
        t->group_of[i] = k;
    }
}

/* What the others are held against: the best, of these the most frequent, of these the first. */
static int reference(const struct topic *t)
{
    int best = 0;

    for (int k = 1; k < t->n_groups; k++) {
        const struct group *a = &t->groups[k], *b = &t->groups[best];
        const int level = a->item != NULL ? (int)a->item->level : DPT_DOCTOR_OK;
        const int least = b->item != NULL ? (int)b->item->level : DPT_DOCTOR_OK;

        if (level < least || (level == least && a->n > b->n))
            best = k;
    }
    return best;
}

static struct dpt_doctor_line *add_line(struct dpt_doctor_report *report, const struct topic *t,
                                        const struct item *item, const char *name)
{
    struct dpt_doctor_line *line;

    if (report->n == report->capacity)
        return NULL;
    line = &report->lines[report->n++];
    *line = (struct dpt_doctor_line){.check = t->check};
    snprintf(line->finding.name, sizeof line->finding.name, "%s", name);
    if (item == NULL) {
        snprintf(line->finding.found, sizeof line->finding.found, "not set");
        return line;
    }
    line->finding.level = item->level;
    line->finding.value = item->value;
    snprintf(line->finding.found, sizeof line->finding.found, "%s", item->found);
    snprintf(line->finding.advice, sizeof line->finding.advice, "%s", item->advice);
    return line;
}

/* Room for the ranks that a line is about. */
static bool open_ranks(const struct topic *t, struct dpt_doctor_line *line)
{
    line->ranks = dpt_alloc_array((size_t)t->n, sizeof *line->ranks);
    return line->ranks != NULL;
}

/* The ranks of group k; k < 0: of all groups that were not told. */
static void name_ranks(const struct topic *t, int k, const bool *told, struct dpt_doctor_line *line)
{
    if (!open_ranks(t, line))
        return;
    for (int i = 0; i < t->n; i++)
        if (k >= 0 ? t->group_of[i] == k : !told[t->group_of[i]])
            line->ranks[line->n_ranks++] = t->ranks[i];
}

static void raise_to(struct dpt_doctor_line *line, const struct dpt_doctor_check *check)
{
    if (line->finding.level < check->differ)
        line->finding.level = check->differ;
    if (line->finding.advice[0] == '\0' && check->advice != NULL)
        snprintf(line->finding.advice, sizeof line->finding.advice, "%s", check->advice);
}

static void tell_groups(struct dpt_doctor_report *report, struct topic *t, const char *name)
{
    const int first = reference(t);
    bool told[t->n_groups];
    struct dpt_doctor_line *line;

    memset(told, 0, sizeof told);
    for (int i = 0; i < t->n_groups && i < MOST_GROUPS; i++) {
        /* The reference, then the others as they come. */
        const int k = i == 0 ? first : i <= first ? i - 1 : i;

        line = add_line(report, t, t->groups[k].item, name);
        if (line == NULL)
            return;
        told[k] = true;
        name_ranks(t, k, NULL, line);
        if (i > 0)
            raise_to(line, t->check);
    }
    if (t->n_groups <= MOST_GROUPS)
        return;
    line = add_line(report, t, NULL, name);
    if (line == NULL)
        return;
    name_ranks(t, -1, told, line);
    snprintf(line->finding.found, sizeof line->finding.found, "%d other values",
             t->n_groups - MOST_GROUPS);
    raise_to(line, t->check);
}

/* The worst level, of these the least value. */
static void tell_least(struct dpt_doctor_report *report, struct topic *t, const char *name)
{
    int least = -1;
    struct dpt_doctor_line *line;

    for (int i = 0; i < t->n; i++) {
        const struct item *a = t->of[i], *b = least < 0 ? NULL : t->of[least];

        if (a != NULL &&
            (b == NULL || a->level > b->level || (a->level == b->level && a->value < b->value)))
            least = i;
    }
    line = add_line(report, t, t->of[least], name);
    if (line != NULL && open_ranks(t, line))
        line->ranks[line->n_ranks++] = t->ranks[least];
}

static void tell(struct dpt_doctor_report *report, struct topic *t, const char *name)
{
    make_groups(t);
    if (t->n_groups > 1 && t->check->compare == DPT_DOCTOR_LEAST)
        tell_least(report, t, name);
    else if (t->n_groups > 1)
        tell_groups(report, t, name);
    else if (!t->groups[0].quiet)
        add_line(report, t, t->groups[0].item, name);
}

/* By check; within one as they came: rank by rank. */
static int by_check(const void *a, const void *b)
{
    const struct item *x = a, *y = b;

    if (x->check != y->check)
        return x->check - y->check;
    return (x->name > y->name) - (x->name < y->name);
}

/* Whether the name came up before item i of the same check. */
static bool is_new(const struct items *items, size_t i)
{
    for (size_t k = i; k-- > 0 && items->at[k].check == items->at[i].check;)
        if (strcmp(items->at[k].name, items->at[i].name) == 0)
            return false;
    return true;
}

static void fill_topic(struct topic *t, const struct items *items, size_t i, int ranks)
{
    const struct item *item = &items->at[i];

    t->check = &dpt_doctor_checks[item->check];
    t->n = 0;
    for (int r = 0; r < ranks; r++)
        if (t->check->scope == DPT_DOCTOR_RANK ||
            (t->check->scope == DPT_DOCTOR_NODE && items->leads[r]) || r == item->rank)
            t->ranks[t->n++] = r;
    for (int k = 0; k < t->n; k++)
        t->of[k] = NULL;
    for (size_t k = i; k < items->n && items->at[k].check == item->check; k++) {
        if (strcmp(items->at[k].name, item->name) != 0)
            continue;
        for (int p = 0; p < t->n; p++)
            if (t->ranks[p] == items->at[k].rank)
                t->of[p] = &items->at[k];
    }
}

/* Rank 0's. */
static enum dpt_status sum_up(const struct items *items, int ranks,
                              struct dpt_doctor_report *report, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = (size_t)ranks;
    struct topic t = {.of = dpt_alloc_array(n, sizeof(void *)),
                      .ranks = dpt_alloc_array(2 * n, sizeof(int)),
                      .groups = dpt_alloc_array(n, sizeof(struct group))};

    report->capacity = 2 * items->n + 1; /* beside each value one "not set" */
    report->lines = dpt_alloc_array(report->capacity, sizeof *report->lines);
    if (t.of == NULL || t.ranks == NULL || t.groups == NULL || report->lines == NULL)
        DPT_TRY(dpt_fail_memory(err, "the report", 0));
    t.group_of = t.ranks + n;
    for (size_t i = 0; i < items->n; i++)
        if (is_new(items, i)) {
            fill_topic(&t, items, i, ranks);
            tell(report, &t, items->at[i].name);
        }
    for (size_t i = 0; i < report->n; i++)
        report->count[report->lines[i].finding.level]++;
out:
    dpt_free(t.of);
    dpt_free(t.ranks);
    dpt_free(t.groups);
    return status;
}

static enum dpt_status gather(struct dpt_doctor *d, struct dpt_doctor_report *report,
                              struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &d->comm.world;
    const size_t n = (size_t)world->size;
    const int64_t length = (int64_t)d->findings.length;
    const unsigned char leads = d->comm.node.rank == 0;
    unsigned char *leaders = dpt_alloc(n);
    int64_t *lengths = dpt_alloc_array(n, sizeof *lengths);
    char *mine = NULL, *all = NULL;
    struct items items = {.leads = leaders};
    double most;

    if (leaders == NULL || lengths == NULL || d->findings.failed)
        status = dpt_fail_memory(err, "the findings", 0);
    DPT_TRY(dpt_group_agree(world, status, err));
    DPT_TRY(dpt_group_gather(world, &leads, leaders, 1, err));
    DPT_TRY(dpt_group_gather(world, &length, lengths, sizeof length, err));
    DPT_TRY(dpt_group_max(world, (double)length, &most, err));
    mine = dpt_alloc((size_t)most);
    all = dpt_alloc_array(n, (size_t)most);
    if (mine == NULL || all == NULL)
        status = dpt_fail_memory(err, "the findings", most * (double)n);
    DPT_TRY(dpt_group_agree(world, status, err));
    if (length > 0)
        memcpy(mine, d->findings.text, (size_t)length);
    DPT_TRY(dpt_group_gather(world, mine, all, (size_t)most, err));
    if (world->rank == 0) {
        items.n = unpack_all(all, (size_t)most, lengths, world->size, NULL);
        items.at = dpt_alloc_array(items.n, sizeof *items.at);
        if (items.at == NULL)
            status = dpt_fail_memory(err, "the report", 0);
        else
            unpack_all(all, (size_t)most, lengths, world->size, items.at);
        if (status == DPT_OK && items.n > 0)
            qsort(items.at, items.n, sizeof *items.at, by_check);
        if (status == DPT_OK)
            status = sum_up(&items, world->size, report, err);
    }
    DPT_TRY(dpt_group_agree(world, status, err));
out:
    dpt_free(items.at);
    dpt_free(leaders);
    dpt_free(lengths);
    dpt_free(mine);
    dpt_free(all);
    return status;
}

enum dpt_status dpt_doctor_gather(struct dpt_doctor *d, struct dpt_doctor_report *report,
                                  struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;

    memset(report, 0, sizeof *report);
    DPT_TRY(gather(d, report, err));
    DPT_TRY(dpt_group_broadcast(&d->comm.world, 0, report->count, sizeof report->count, err));
out:
    return status;
}

void dpt_doctor_report_release(struct dpt_doctor_report *report)
{
    for (size_t i = 0; i < report->n; i++)
        dpt_free(report->lines[i].ranks);
    dpt_free(report->lines);
    memset(report, 0, sizeof *report);
}
