/* Makes the lines of the report out of the findings of all ranks. */
#include <stdlib.h>
#include <string.h>

#include "cmd/doctor/doctor.h"
#include "core/base/memory.h"

enum { HEAD = 3 + sizeof(double) }; /* of a packed finding: check, level, quiet, value */
enum { MOST_GROUPS = 6 };           /* that are told one by one */

void dpt_doctor_add(struct dpt_doctor *d, struct dpt_finding f, const char *advice,
                    const char *format, ...)
{
    const char head[] = {(char)(d->check - d->checks), (char)f.level, (char)f.quiet};
    char found[DPT_DOCTOR_LINE];
    const char *const texts[] = {f.name != NULL ? f.name : d->check->name, found,
                                 advice != NULL ? advice : ""};
    va_list args;

    if (d->check->scope >= DPT_DOCTOR_FIRST && d->comm.world.rank != 0)
        return;
    va_start(args, format);
    vsnprintf(found, sizeof found, format, args);
    va_end(args);
    dpt_str_add(&d->findings, head, sizeof head);
    dpt_str_add(&d->findings, (const char *)&f.value, sizeof f.value);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        dpt_str_add(&d->findings, texts[i], strlen(texts[i]) + 1);
}

enum dpt_doctor_level dpt_doctor_below(double value, double fails, double warns)
{
    return value < fails ? DPT_DOCTOR_FAILED : value < warns ? DPT_DOCTOR_WARNING : DPT_DOCTOR_OK;
}

void *dpt_doctor_gather(struct dpt_doctor *d, const void *mine, size_t size, struct dpt_error *err)
{
    const struct dpt_group *world = &d->comm.world;
    enum dpt_status status = DPT_OK;
    void *all = dpt_region_alloc(&d->region, (size_t)world->size * size);

    if (all == NULL)
        status = dpt_fail_memory(err, "what all ranks found", (double)world->size * (double)size);
    DPT_TRY(dpt_group_agree(world, status, err));
    DPT_TRY(dpt_group_allgather(world, mine, all, size, err));
out:
    return status == DPT_OK ? all : NULL;
}

/* A finding whose texts lie in the ranks' packets. */
struct item {
    int rank, check;
    struct dpt_finding finding;
};

struct items {
    struct item *at;
    size_t n;
};

/* What a rank sends before its packet. */
struct packet {
    size_t length;
    bool leads; /* it is the first one of its node */
};

/* The finding at `at`; gives where the next one is. */
static const char *unpack(const char *at, struct item *item)
{
    struct dpt_finding *f = &item->finding;

    item->check = (unsigned char)at[0];
    f->level = (enum dpt_doctor_level)(unsigned char)at[1];
    f->quiet = at[2] != 0;
    memcpy(&f->value, at + 3, sizeof f->value);
    f->name = at + HEAD;
    f->found = f->name + strlen(f->name) + 1;
    f->advice = f->found + strlen(f->found) + 1;
    return f->advice + strlen(f->advice) + 1;
}

/* --- groups of ranks that found the same ------------------------------------------------------ */

struct group {
    const struct item *item; /* of its first rank; NULL: these ranks have no such finding */
    int n;
    bool quiet; /* one of them has nothing to tell */
};

/* What one check says under one name. */
struct topic {
    const struct dpt_doctor_check *check;
    const char *name;
    int n;                  /* ranks of the world */
    const struct item **of; /* [n]: its item, or NULL */
    int *group_of;          /* [n]; -1: the rank did not look */
    struct group *groups;   /* [n] */
    int n_groups;
};

static bool same(const struct item *a, const struct item *b)
{
    if (a == NULL || b == NULL)
        return a == b;
    return a->finding.level == b->finding.level && strcmp(a->finding.found, b->finding.found) == 0;
}

/* What the others are held against: the best, of these the most frequent, of these the first. */
static bool is_better(const struct group *a, const struct group *b)
{
    const int level = a->item != NULL ? (int)a->item->finding.level : DPT_DOCTOR_OK;
    const int other = b->item != NULL ? (int)b->item->finding.level : DPT_DOCTOR_OK;

    return level < other || (level == other && a->n > b->n);
}

/* The groups as they come, but the one that the others are held against first. */
static void make_groups(struct topic *t)
{
    struct group reference;
    int best = 0;

    t->n_groups = 0;
    for (int i = 0; i < t->n; i++) {
        int k = 0;

        if (t->group_of[i] < 0)
            continue;
        while (k < t->n_groups && !same(t->groups[k].item, t->of[i]))
            k++;
        if (k == t->n_groups)
            t->groups[t->n_groups++] = (struct group){.item = t->of[i]};
        t->groups[k].n++;
        t->groups[k].quiet |= t->of[i] != NULL && t->of[i]->finding.quiet;
        t->group_of[i] = k;
    }
    for (int k = 1; k < t->n_groups; k++)
        best = is_better(&t->groups[k], &t->groups[best]) ? k : best;
    reference = t->groups[best];
    memmove(t->groups + 1, t->groups, (size_t)best * sizeof *t->groups);
    t->groups[0] = reference;
    for (int i = 0; i < t->n; i++)
        if (t->group_of[i] >= 0)
            t->group_of[i] = t->group_of[i] == best ? 0 : t->group_of[i] + (t->group_of[i] < best);
}

/* A line about the ranks of the groups from `first` to before `end`; none: about all. */
static struct dpt_doctor_line *add_line(struct dpt_doctor *d, struct dpt_doctor_report *report,
                                        const struct topic *t, const struct item *item, int first,
                                        int end)
{
    static const struct dpt_finding none = {.found = "not set", .advice = ""};
    struct dpt_doctor_line *line = &report->lines[report->n++];

    *line =
        (struct dpt_doctor_line){.check = t->check, .finding = item != NULL ? item->finding : none};
    line->finding.name = t->name;
    if (first < end)
        line->ranks = dpt_region_alloc(&d->region, (size_t)t->n * sizeof *line->ranks);
    for (int i = 0; i < t->n && line->ranks != NULL; i++)
        if (t->group_of[i] >= first && t->group_of[i] < end)
            line->ranks[line->n_ranks++] = i;
    return line;
}

static void tell_groups(struct dpt_doctor *d, struct dpt_doctor_report *report,
                        const struct topic *t)
{
    for (int k = 0; k < t->n_groups && k <= MOST_GROUPS; k++) {
        const bool rest = k == MOST_GROUPS;
        struct dpt_doctor_line *line =
            add_line(d, report, t, rest ? NULL : t->groups[k].item, k, rest ? t->n_groups : k + 1);
        struct dpt_finding *f = &line->finding;

        if (rest)
            f->found = dpt_region_printf(&d->region, "%d other values", t->n_groups - MOST_GROUPS);
        if (rest && f->found == NULL)
            f->found = "other values";
        if (k > 0 && f->level < t->check->differ)
            f->level = t->check->differ;
        if (k > 0 && f->advice[0] == '\0' && t->check->advice != NULL)
            f->advice = t->check->advice;
    }
}

/* The worst level, of these the least value. */
static void tell_least(struct dpt_doctor *d, struct dpt_doctor_report *report, struct topic *t)
{
    int least = -1;

    for (int i = 0; i < t->n; i++) {
        const struct dpt_finding *a = t->of[i] != NULL ? &t->of[i]->finding : NULL;
        const struct dpt_finding *b = least >= 0 ? &t->of[least]->finding : NULL;

        if (a != NULL &&
            (b == NULL || a->level > b->level || (a->level == b->level && a->value < b->value)))
            least = i;
    }
    for (int i = 0; i < t->n; i++)
        t->group_of[i] = i == least;
    add_line(d, report, t, t->of[least], 1, 2);
}

/* Sorts by check; within one they stay as they came: rank by rank. */
static int by_check(const void *a, const void *b)
{
    const struct item *x = a, *y = b;

    if (x->check != y->check)
        return x->check - y->check;
    return (x->finding.name > y->finding.name) - (x->finding.name < y->finding.name);
}

/* Whether the name came up before item i of the same check. */
static bool is_new(const struct items *items, size_t i)
{
    for (size_t k = i; k-- > 0 && items->at[k].check == items->at[i].check;)
        if (strcmp(items->at[k].finding.name, items->at[i].finding.name) == 0)
            return false;
    return true;
}

static void fill_topic(const struct dpt_doctor *d, struct topic *t, const struct items *items,
                       size_t i, const struct packet *packets)
{
    const struct item *item = &items->at[i];

    t->check = &d->checks[item->check];
    t->name = item->finding.name;
    for (int r = 0; r < t->n; r++) {
        const bool looks = t->check->scope == DPT_DOCTOR_RANK || r == item->rank ||
                           (t->check->scope == DPT_DOCTOR_NODE && packets[r].leads);

        t->of[r] = NULL;
        t->group_of[r] = looks ? 0 : -1;
    }
    for (size_t k = i; k < items->n && items->at[k].check == item->check; k++)
        if (strcmp(items->at[k].finding.name, t->name) == 0)
            t->of[items->at[k].rank] = &items->at[k];
}

/* Rank 0's. */
static enum dpt_status sum_up(struct dpt_doctor *d, const struct items *items,
                              const struct packet *packets, struct dpt_doctor_report *report,
                              struct dpt_error *err)
{
    const size_t n = (size_t)d->comm.world.size;
    struct topic t = {.n = d->comm.world.size,
                      .of = dpt_region_alloc(&d->region, n * sizeof(void *)),
                      .group_of = dpt_region_alloc(&d->region, n * sizeof(int)),
                      .groups = dpt_region_alloc(&d->region, n * sizeof(struct group))};

    /* Beside each value one "not set". */
    report->lines = dpt_region_alloc(&d->region, (2 * items->n + 1) * sizeof *report->lines);
    if (t.of == NULL || t.group_of == NULL || t.groups == NULL || report->lines == NULL)
        return dpt_fail_memory(err, "the report", 0);
    for (size_t i = 0; i < items->n; i++) {
        if (!is_new(items, i))
            continue;
        fill_topic(d, &t, items, i, packets);
        make_groups(&t);
        if (t.n_groups > 1 && t.check->compare == DPT_DOCTOR_LEAST)
            tell_least(d, report, &t);
        else if (t.n_groups > 1)
            tell_groups(d, report, &t);
        else if (!t.groups[0].quiet)
            add_line(d, report, &t, t.groups[0].item, 0, 0);
    }
    for (size_t i = 0; i < report->n; i++)
        report->count[report->lines[i].finding.level]++;
    return DPT_OK;
}

/* Rank 0's. all: [ranks] packets, `most` bytes apart. */
static enum dpt_status unpack_all(struct dpt_doctor *d, const char *all, size_t most,
                                  const struct packet *packets, struct dpt_doctor_report *report,
                                  struct dpt_error *err)
{
    const size_t ranks = (size_t)d->comm.world.size;
    struct items items = {
        .at = dpt_region_alloc(&d->region, ranks * most / HEAD * sizeof *items.at + 1)};

    if (items.at == NULL)
        return dpt_fail_memory(err, "the report", 0);
    for (size_t r = 0; r < ranks; r++)
        for (const char *at = all + r * most, *end = at + packets[r].length; at < end; items.n++) {
            items.at[items.n].rank = (int)r;
            at = unpack(at, &items.at[items.n]);
        }
    qsort(items.at, items.n, sizeof *items.at, by_check);
    return sum_up(d, &items, packets, report, err);
}

enum dpt_status dpt_doctor_collect(struct dpt_doctor *d, struct dpt_doctor_report *report,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_group *world = &d->comm.world;
    const struct packet own = {d->findings.length, d->comm.node.rank == 0}, *packets;
    const char *all = NULL;
    size_t most = 1;

    DPT_DOCTOR_GATHER(packets, d, &own, sizeof own, err);
    for (int r = 0; r < world->size; r++)
        most = packets[r].length > most ? packets[r].length : most;
    while (d->findings.length < most && !d->findings.failed)
        dpt_str_add(&d->findings, "", 1);
    if (d->findings.failed)
        status = dpt_fail_memory(err, "the findings", (double)most);
    DPT_TRY(dpt_group_agree(world, status, err));
    DPT_DOCTOR_GATHER(all, d, d->findings.text, most, err);
    if (world->rank == 0)
        status = unpack_all(d, all, most, packets, report, err);
    DPT_TRY(dpt_group_agree(world, status, err));
    DPT_TRY(dpt_group_broadcast(world, 0, report->count, sizeof report->count, err));
out:
    return status;
}
