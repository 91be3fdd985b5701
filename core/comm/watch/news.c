#include "core/comm/watch/news.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/str.h"

enum {
    SILENT_MOST = 24, /* entries of silent nodes in an answer */
    LATE_MOST = 64,   /* others */
    SILENT = -1,      /* for the number of ranks */
};

/* An entry in an answer is this, followed by its ranks. */
struct wire_entry {
    int32_t node, n;
    float age;
};

/* Followed by the note, without its end. */
struct wire_rank {
    int32_t rank;
    float still;
    uint16_t process, note;
};

static const struct dpt_heartbeat_report NONE_LATE = {0};

bool dpt_news_open(struct dpt_news *news, int nodes, double lasts)
{
    *news = (struct dpt_news){.nodes = nodes, .lasts = lasts};
    news->of = calloc((size_t)nodes, sizeof *news->of);
    for (int i = 0; i < nodes && news->of != NULL; i++)
        news->of[i].at = news->of[i].changed = -INFINITY;
    return news->of != NULL;
}

void dpt_news_close(struct dpt_news *news)
{
    for (int i = 0; i < news->nodes && news->of != NULL; i++)
        free(news->of[i].report);
    free(news->of);
    news->of = NULL;
}

static bool lists_none(const struct dpt_news_entry *entry)
{
    return !entry->silent && (entry->report == NULL || entry->report->n == 0);
}

void dpt_news_put(struct dpt_news *news, int node, double at,
                  const struct dpt_heartbeat_report *report)
{
    struct dpt_news_entry *entry = &news->of[node];

    if (at < entry->at)
        return;
    if (report != NULL && report->n > 0 && entry->report == NULL) {
        entry->report = malloc(sizeof *entry->report);
        if (entry->report == NULL)
            return;
    }
    entry->at = at;
    entry->silent = report == NULL;
    if (report != NULL && entry->report != NULL)
        *entry->report = *report;
    if (!lists_none(entry))
        entry->changed = at;
}

void dpt_news_contradict(struct dpt_news *news, int node, double at)
{
    news->of[node].changed = fmax(news->of[node].changed, at);
}

enum dpt_remote_state dpt_news_state(const struct dpt_news *news, int node, double now,
                                     const struct dpt_heartbeat_report **report)
{
    const struct dpt_news_entry *entry = &news->of[node];

    *report = entry->report != NULL ? entry->report : &NONE_LATE;
    if (now - entry->at > news->lasts)
        return DPT_REMOTE_UNKNOWN;
    return entry->silent ? DPT_REMOTE_SILENT : DPT_REMOTE_HEARD;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Returns the number of bytes; 0: there is no room for all of it. report: NULL: silent. */
static size_t write_entry(int node, double age, const struct dpt_heartbeat_report *report,
                          char *out, size_t room)
{
    const struct wire_entry head = {node, report != NULL ? report->n : SILENT, (float)age};
    size_t used = sizeof head;

    if (room < used)
        return 0;
    memcpy(out, &head, sizeof head);
    for (int i = 0; i < head.n; i++) {
        const struct dpt_rank_status *s = &report->late[i];
        const struct wire_rank rank = {s->rank, (float)s->still, (uint16_t)s->process,
                                       (uint16_t)strnlen(s->note, sizeof s->note - 1)};

        if (room - used < sizeof rank + rank.note)
            return 0;
        memcpy(out + used, &rank, sizeof rank);
        memcpy(out + used + sizeof rank, s->note, rank.note);
        used += sizeof rank + rank.note;
    }
    return used;
}

/* How much an entry that lists ranks matters. */
static double weight_of(const struct dpt_news_entry *entry)
{
    double weight = -1;

    for (int i = 0; entry->report != NULL && i < entry->report->n; i++)
        weight = fmax(weight, entry->report->late[i].process != DPT_PROCESS_RUNS
                                  ? INFINITY
                                  : entry->report->late[i].still);
    return weight;
}

/* Inserts a node into the n of the greatest weight, in their order; returns how many there are
 * then. */
static int insert(const struct dpt_news *news, int node, int chosen[LATE_MOST], int n)
{
    const double weight = weight_of(&news->of[node]);
    int at = n;

    while (at > 0 && weight_of(&news->of[chosen[at - 1]]) < weight)
        at--;
    if (at == LATE_MOST)
        return n;
    n += n < LATE_MOST;
    memmove(chosen + at + 1, chosen + at, (size_t)(n - 1 - at) * sizeof *chosen);
    chosen[at] = node;
    return n;
}

size_t dpt_news_write(const struct dpt_news *news, int me, const struct dpt_heartbeat_report *mine,
                      double now, char *out, size_t room)
{
    size_t used = write_entry(me, 0, mine, out, room);
    int late[LATE_MOST], n_late = 0, n_silent = 0;

    for (int i = 0; i < news->nodes; i++) {
        const struct dpt_news_entry *entry = &news->of[i];

        if (now - entry->at > news->lasts || now - entry->changed > news->lasts || i == me)
            continue;
        if (!entry->silent)
            n_late = insert(news, i, late, n_late);
        else if (n_silent++ < SILENT_MOST)
            used += write_entry(i, now - entry->at, NULL, out + used, room - used);
    }
    for (int i = 0; i < n_late; i++) {
        const struct dpt_news_entry *entry = &news->of[late[i]];
        const struct dpt_heartbeat_report *report = entry->report;

        used += write_entry(late[i], now - entry->at, report != NULL ? report : &NONE_LATE,
                            out + used, room - used);
    }
    return used;
}

/* --- reading ---------------------------------------------------------------------------------- */

static bool take(const char *bytes, size_t n, size_t *used, void *out, size_t size)
{
    if (n - *used < size)
        return false;
    memcpy(out, bytes + *used, size);
    *used += size;
    return true;
}

static bool read_rank(const char *bytes, size_t n, size_t *used, struct dpt_rank_status *s)
{
    char note[sizeof s->note] = "", shown[6 * sizeof note + 8];
    struct wire_rank rank;

    if (!take(bytes, n, used, &rank, sizeof rank) || rank.note >= sizeof note ||
        !take(bytes, n, used, note, rank.note))
        return false;
    *s = (struct dpt_rank_status){.rank = rank.rank, .still = rank.still};
    if (rank.process == DPT_PROCESS_STOPPED || rank.process == DPT_PROCESS_GONE)
        s->process = rank.process == DPT_PROCESS_STOPPED ? DPT_PROCESS_STOPPED : DPT_PROCESS_GONE;
    dpt_show_text(shown, note, sizeof note);
    snprintf(s->note, sizeof s->note, "%.*s", DPT_NOTE_TEXT - 1, shown);
    return true;
}

bool dpt_news_read(const char *bytes, size_t n, size_t *used, struct dpt_news_item *item)
{
    struct wire_entry head;

    if (!take(bytes, n, used, &head, sizeof head) || head.n < SILENT ||
        head.n > DPT_HEARTBEAT_RANKS || !(head.age >= 0))
        return false;
    *item = (struct dpt_news_item){.node = head.node, .age = head.age, .silent = head.n == SILENT};
    for (; item->report.n < head.n; item->report.n++)
        if (!read_rank(bytes, n, used, &item->report.late[item->report.n]))
            return false;
    return true;
}
