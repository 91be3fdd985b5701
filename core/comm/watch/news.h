/*
 * news: what a node knows about the ranks of all nodes, and passes on to the nodes that ask it.
 *
 * Each entry has the time at which it was true, in the clock of this node, and ends some seconds
 * after it; the latest one about a node counts. A node is told how old an entry is, takes it to be
 * a bit older (by the time that the question and the answer took), and never to be younger. So no
 * entry stays alive by going round.
 *
 * Passed on are the nodes that do not answer and the reports that list ranks. A report that lists
 * none is passed on only for as long as it may have to replace another entry. An answer has room
 * for some of them: the silent nodes of the lowest numbers, and the ranks that are stopped or gone,
 * or late for longest. Private to core/comm.
 */
#ifndef DPT_COMM_NEWS_H
#define DPT_COMM_NEWS_H

#include "core/comm/watch/watch.h"

enum { DPT_HEARTBEAT_RANKS = 6 };

/* A node's ranks that do not wait in a collective, or are stopped or gone. */
struct dpt_heartbeat_report {
    int32_t n; /* how many are listed in `late`, the first of them */
    struct dpt_rank_status late[DPT_HEARTBEAT_RANKS];
};

struct dpt_news {
    int nodes;
    double lasts; /* the seconds for which an entry counts */
    struct dpt_news_entry {
        double at;      /* when it was true */
        double changed; /* when an entry that is passed on was true last */
        bool silent;
        struct dpt_heartbeat_report *report; /* NULL: lists none */
    } * of;                                  /* [nodes] */
};

/* False: memory ran out. */
bool dpt_news_open(struct dpt_news *news, int nodes, double lasts);
void dpt_news_close(struct dpt_news *news);

/* Enters what was true of a node at a time, unless something later is known. report: NULL: the node
 * does not answer. */
void dpt_news_put(struct dpt_news *news, int node, double at,
                  const struct dpt_heartbeat_report *report);

/* Others hold, as of this time, that a node is silent, which this one knows to be wrong: the entry
 * is passed on. */
void dpt_news_contradict(struct dpt_news *news, int node, double at);

/* The state of a node. *report: out, valid where it is HEARD, until the next entry. */
enum dpt_remote_state dpt_news_state(const struct dpt_news *news, int node, double now,
                                     const struct dpt_heartbeat_report **report);

/* Writes this node's report and the entries to pass on. Returns the number of bytes, at most
 * `room`, which must be DPT_NEWS_ROOM or more. */
enum { DPT_NEWS_ROOM = 1024 };
size_t dpt_news_write(const struct dpt_news *news, int me, const struct dpt_heartbeat_report *mine,
                      double now, char *out, size_t room);

/* Reads the next entry of what dpt_news_write wrote, n bytes that begin at *used, and moves *used
 * after it. Texts become printable, since they come from outside. False: there is none, or it is
 * malformed. */
struct dpt_news_item {
    int node;
    double age;
    bool silent;
    struct dpt_heartbeat_report report;
};
bool dpt_news_read(const char *bytes, size_t n, size_t *used, struct dpt_news_item *item);

#endif
