#include "core/comm/watch.h"

#include <math.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/str.h"
#include "core/base/thread.h"
#include "core/comm/internal.h"
#include "core/comm/nodes.h"

/* Seconds. A tick is also the longest time for which a dead rank stays unnoticed; a launcher that
 * notices it too gives the others one second. */
static const double TICK = 0.25;
/* MPI itself may take long to start on many nodes. */
static const double START_LIMIT = 300;
/* Until the job says another. */
static const double USUAL_LIMIT = 60;
/* For the node whose rank is missing to speak first, from one node to the next, and for the first
 * rank of a node, which knows of the others. */
static const double GRACE = 2, NODE_GRACE = 0.25, RANK_GRACE = 1;
/* For the one who knows the cause to speak before the one who only sees an effect. */
static const double YIELD = 1.5;
/* After these seconds in MPI_Abort the process ends without. */
enum { ABORT_LIMIT = 5 };

/* What the ranks of a node share. */
struct page {
    _Atomic bool told; /* somebody has said why the job ends */
    struct dpt_slot slots[];
};

/* How a slot looked at the last tick. */
struct memory {
    uint64_t phase;
    double still;
};

struct dpt_watch {
    pthread_t thread;
    pthread_mutex_t lock; /* over all but what is atomic */
    pthread_cond_t wake;
    bool stop;
    _Atomic bool closing; /* MPI_Abort may not be called any more */
    int rank;
    double limit, looked;
    double patience, lasted; /* that a note may be the last one, and is; 0: for ever */
    unsigned word;           /* that was the last one at the last tick */
    double waited; /* for the start of MPI */
    bool slept;    /* it was stopped itself, and others may have spoken meanwhile */
    struct dpt_kin kin;
    int n, me; /* of the node's group; n 0: not attached */
    char host[DPT_HOST_TEXT];
    struct dpt_shared shared;
    struct page *page;
    struct dpt_slot *mine, own; /* own: until it is attached */
    struct memory *memory;      /* [n] */
    struct dpt_seen *seen; /* [n] */
    bool *visible;         /* [n]: its process can be looked at from here */
    struct dpt_nodes nodes;
};

bool dpt_process_read(int pid, struct dpt_process *process)
{
    char path[64], text[1024], *p, *name;
    FILE *file;
    size_t n;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    file = fopen(path, "re");
    if (file == NULL)
        return false;
    n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    name = strchr(text, '(');
    p = strrchr(text, ')'); /* the name before it may hold anything */
    if (name == NULL || p == NULL)
        return false;
    *p = '\0';
    snprintf(process->name, sizeof process->name, "%s", name + 1);
    return sscanf(p + 1,
                  " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
                  &process->state, &process->parent, &process->born) == 3;
}

static enum dpt_process_state process_of(const struct dpt_slot *slot)
{
    struct dpt_process process;

    if (!dpt_process_read(slot->pid, &process))
        /* Also where /proc cannot be opened for want of descriptors or memory. */
        return kill(slot->pid, 0) == 0 ? DPT_PROCESS_RUNS : DPT_PROCESS_GONE;
    if (process.born != slot->born || process.state == 'Z' || process.state == 'X')
        return DPT_PROCESS_GONE;
    return process.state == 'T' || process.state == 't' ? DPT_PROCESS_STOPPED : DPT_PROCESS_RUNS;
}

static void see(const struct dpt_watch *w, int i, bool process, struct dpt_seen *seen)
{
    const struct dpt_slot *slot = &w->page->slots[i];
    const unsigned word = atomic_load_explicit(&slot->word, memory_order_acquire);

    seen->rank = slot->rank;
    seen->phase = atomic_load_explicit(&slot->phase, memory_order_relaxed);
    seen->aside = atomic_load_explicit(&slot->aside, memory_order_relaxed);
    seen->step = atomic_load_explicit(&slot->step, memory_order_relaxed);
    seen->still = w->memory[i].still;
    seen->process = process && w->visible[i] ? process_of(slot) : DPT_PROCESS_RUNS;
    /* A rank that notes twice meanwhile gives a mixed text, at worst. */
    memcpy(seen->word, slot->words[word & 1], sizeof seen->word);
    seen->word[sizeof seen->word - 1] = '\0';
}

/* In one write, so that nobody's line comes between. What ranks noted may hold names and paths. */
static void print_line(const char *text)
{
    struct dpt_str line = {0};
    size_t left;

    dpt_str_printable(&line, text, strlen(text), false);
    dpt_str_add(&line, "\n", 1);
    left = line.length;
    for (const char *p = line.text; left > 0;) {
        const ssize_t written = write(STDERR_FILENO, p, left);

        if (written <= 0)
            break;
        p += written;
        left -= (size_t)written;
    }
    dpt_str_release(&line);
}

static void sleep_for(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};

    while (nanosleep(&t, &t) != 0)
        ;
}

/* Says why, if nobody of this node has, and ends the job. */
static _Noreturn void end_job(struct dpt_watch *w, int code, const char *line)
{
    if (w->page == NULL || !atomic_exchange(&w->page->told, true))
        print_line(line);
    else
        sleep_for(YIELD); /* who has said it is ending the job: do not overtake the exit code */
    /* MPI_Abort speaks with a launcher that may hang itself. */
    signal(SIGALRM, SIG_DFL);
    alarm(ABORT_LIMIT);
    if (w->n != 0 && !atomic_load(&w->closing))
        MPI_Abort(MPI_COMM_WORLD, code);
    sleep_for(TICK); /* a launcher that sees the exit first may lose the line */
    _exit(code);
}

/* Looks after the next rank of the node. */
static void check_neighbour(struct dpt_watch *w)
{
    const int next = (w->me + 1) % w->n;
    const struct dpt_slot *slot = &w->page->slots[next];
    char line[512];
    struct dpt_seen seen;

    if (!w->visible[next] || process_of(slot) != DPT_PROCESS_GONE || atomic_load(&slot->ended))
        return;
    /* Where a launcher kills all ranks this one is among them, and there is nothing to say. */
    sleep_for(TICK);
    if (atomic_load(&w->page->told) || atomic_load(&slot->ended))
        return;
    see(w, next, false, &seen);
    dpt_watch_obituary(&seen, w->host, line, sizeof line);
    end_job(w, dpt_exit_code(DPT_RANK), line);
}

static void remember(struct dpt_watch *w, double passed)
{
    for (int i = 0; i < w->n; i++) {
        struct memory *m = &w->memory[i];
        const uint64_t phase = atomic_load_explicit(&w->page->slots[i].phase, memory_order_relaxed);

        m->still = phase == m->phase ? m->still + passed : 0;
        m->phase = phase;
    }
}

/* Tells the other nodes of this one, and asks them where this rank has waited for half its limit.
 */
static void talk(struct dpt_watch *w, double now)
{
    const bool waiting = w->limit > 0 && w->memory[w->me].still >= w->limit / 2;
    struct dpt_wire_report report = {0};

    if (!dpt_wire_turn(w->nodes.wire, waiting, now))
        return;
    for (int i = 0; i < w->n && report.n < DPT_WIRE_RANKS; i++) {
        see(w, i, true, &w->seen[i]);
        if (w->seen[i].process != DPT_PROCESS_RUNS || !dpt_watch_waits(&w->seen[i]))
            report.late[report.n++] = w->seen[i];
    }
    dpt_wire_answer(w->nodes.wire, &report);
}

static void check_waiting(struct dpt_watch *w, double now)
{
    const struct dpt_verdict_context context = {w->host, w->limit, w->nodes.others};
    const double still = w->memory[w->me].still;
    const double more = GRACE + NODE_GRACE * w->nodes.me + (w->me > 0 ? RANK_GRACE : 0);
    enum dpt_verdict verdict;
    char line[2048];

    if (w->limit <= 0 || still < w->limit)
        return;
    for (int i = 0; i < w->n; i++)
        see(w, i, true, &w->seen[i]);
    verdict = dpt_watch_judge(w->seen, w->n, w->me, &context, line, sizeof line);
    if (verdict == DPT_ALL_WELL || (verdict == DPT_NONE_MISSING && still < w->limit + more))
        return;
    if (verdict == DPT_NONE_MISSING && w->nodes.wire != NULL) {
        dpt_nodes_look(&w->nodes, now);
        if (dpt_watch_judge_far(w->nodes.far, w->nodes.n, w->seen, w->n, w->me, &context, line,
                                sizeof line) == DPT_ALL_WELL)
            return;
    }
    end_job(w, dpt_exit_code(DPT_RANK), line);
}

/* A line that all ranks of this machine would say: the lowest one does, the others wait for the end
 * that it makes. */
static _Noreturn void end_start(const struct dpt_watch *w, const char *line)
{
    if (w->rank == (w->kin.first >= 0 ? w->kin.first : 0)) {
        print_line(line);
        dpt_kin_tell();
        sleep_for(DPT_KIN_NOTICE);
    } else {
        sleep_for(GRACE);
    }
    _exit(dpt_exit_code(DPT_RANK));
}

/*
 * MPI starts, and there is no page yet. The ranks of this machine are found as the children of its
 * launcher: one that died or is stopped is the cause without doubt.
 */
static void check_start(struct dpt_watch *w, double passed)
{
    struct dpt_seen dead = {0};
    char line[512], host[DPT_HOST_TEXT];

    w->waited += passed;
    dpt_kin_look(&w->kin);
    if (w->kin.told ||
        (w->slept && w->kin.dead >= 0)) { /* its launcher ends this rank, too; if not, so be it */
        sleep_for(GRACE);
        _exit(dpt_exit_code(DPT_RANK));
    }
    dpt_host_name(host);
    if (w->kin.dead >= 0) {
        dead.rank = w->kin.dead;
        dpt_watch_obituary(&dead, host, line, sizeof line);
        sleep_for(TICK); /* as for a neighbour */
        end_start(w, line);
    }
    if (w->kin.stopped >= 0 && w->waited >= USUAL_LIMIT) {
        snprintf(line, sizeof line,
                 "rank %d (%s) has not arrived at the start of MPI for %g s: it is stopped "
                 "(SIGSTOP)",
                 w->kin.stopped, host, USUAL_LIMIT);
        end_start(w, line);
    }
    if (w->waited >= START_LIMIT) {
        snprintf(line, sizeof line,
                 "rank %d (%s): MPI has not started after %g s: a rank is missing", w->rank, host,
                 START_LIMIT);
        end_start(w, line);
    }
}

/* This process works alone: what it does is the only sign of life. */
static void check_note(struct dpt_watch *w, double passed)
{
    const unsigned word = atomic_load_explicit(&w->mine->word, memory_order_acquire);
    char line[DPT_NOTE_TEXT + 128];

    w->lasted = word == w->word ? w->lasted + passed : 0;
    w->word = word;
    if (w->lasted < w->patience)
        return;
    snprintf(line, sizeof line, "no answer for %g s while %.*s: is a file server or a device gone?",
             w->patience, DPT_NOTE_TEXT - 1, w->mine->words[word & 1]);
    end_job(w, dpt_exit_code(DPT_RANK), line);
}

static void *serve(void *arg)
{
    struct dpt_watch *w = arg;
    struct timespec until;

    dpt_kin_look(&w->kin);
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        double now, passed;

        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)(TICK * 1e9);
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (pthread_cond_timedwait(&w->wake, &w->lock, &until) == 0)
            continue; /* woken to end */
        now = dpt_now();
        /* A long pause is one of this process, of which nothing can be concluded. */
        passed = now - w->looked < 2 * TICK ? now - w->looked : 2 * TICK;
        w->slept |= now - w->looked > GRACE;
        w->looked = now;
        if (w->patience > 0) {
            check_note(w, passed);
            continue;
        }
        if (w->n == 0) {
            check_start(w, passed);
            continue;
        }
        remember(w, passed);
        check_neighbour(w);
        if (w->nodes.wire != NULL)
            talk(w, now);
        check_waiting(w, now);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

enum dpt_status dpt_watch_open(struct dpt_watch **watch, int rank, struct dpt_error *err)
{
    struct dpt_watch *w = dpt_alloc(sizeof *w);
    pthread_condattr_t attributes;
    int code;

    if (w == NULL)
        return dpt_fail_memory(err, "the watchdog", sizeof *w);
    w->rank = rank;
    w->limit = USUAL_LIMIT;
    w->looked = dpt_now();
    w->mine = &w->own;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&w->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    code = dpt_thread_start(&w->thread, serve, w);
    if (code != 0) {
        pthread_cond_destroy(&w->wake);
        pthread_mutex_destroy(&w->lock);
        dpt_free(w);
        return dpt_fail(err, DPT_RANK, "not enough memory or threads for the watchdog: %s",
                        strerror(code));
    }
    *watch = w;
    return DPT_OK;
}

static void fill_slot(struct dpt_watch *w)
{
    struct dpt_process process;

    w->mine->rank = w->rank;
    w->mine->pid = (int32_t)getpid();
    if (dpt_process_read(w->mine->pid, &process))
        w->mine->born = process.born;
    dpt_watch_note(w, 0, "starting");
}

/* A rank in a container of its own has a number that means another process here, or none. */
static void find_visible(struct dpt_watch *w, int n)
{
    for (int i = 0; i < n; i++) {
        const struct dpt_slot *slot = &w->page->slots[i];
        struct dpt_process process;

        w->visible[i] = dpt_process_read(slot->pid, &process) && process.born == slot->born;
    }
}

enum dpt_status dpt_watch_attach(struct dpt_watch *w, const struct dpt_comm *comm,
                                 struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const size_t n = (size_t)comm->node.size;
    struct dpt_nodes nodes = {0};

    DPT_TRY(dpt_shared_open(&w->shared, &comm->node, sizeof *w->page + n * sizeof *w->mine, err));
    w->memory = calloc(n, sizeof *w->memory);
    w->seen = calloc(n, sizeof *w->seen);
    w->visible = calloc(n, sizeof *w->visible);
    if (w->memory == NULL || w->seen == NULL || w->visible == NULL)
        status = dpt_fail_memory(err, "the watchdog", (double)(n * sizeof *w->seen));
    DPT_TRY(dpt_group_agree(&comm->world, status, err));
    pthread_mutex_lock(&w->lock);
    w->page = w->shared.bytes;
    w->mine = &w->page->slots[comm->node.rank];
    pthread_mutex_unlock(&w->lock);
    fill_slot(w);
    DPT_TRY(dpt_group_barrier(&comm->node, err)); /* now all slots are filled */
    find_visible(w, comm->node.size);
    DPT_TRY(dpt_nodes_open(&nodes, comm, err));
    pthread_mutex_lock(&w->lock);
    w->nodes = nodes;
    w->n = comm->node.size;
    w->me = comm->node.rank;
    memcpy(w->host, comm->host, sizeof w->host);
    if (w->nodes.wire != NULL)
        dpt_wire_turn(w->nodes.wire, false, w->looked);
    pthread_mutex_unlock(&w->lock);
out:
    if (status != DPT_OK)
        dpt_nodes_close(&nodes);
    return status;
}

void dpt_watch_closing(struct dpt_watch *w)
{
    atomic_store(&w->closing, true);
    dpt_watch_enter(w, true);
}

/* The first other rank of the node that still has to come to its end; -1: none. */
static int still_ending(const struct dpt_watch *w)
{
    for (int i = 0; i < w->n; i++)
        if (i != w->me && w->visible[i] && !atomic_load(&w->page->slots[i].ended) &&
            process_of(&w->page->slots[i]) != DPT_PROCESS_GONE)
            return i;
    return -1;
}

/* A launcher waits for ever for a rank that is stopped while it ends, when nobody else is left. */
static void await_others(struct dpt_watch *w)
{
    const struct dpt_slot *slot;
    double waited = 0, pause = 1e-4;
    char line[512];
    int late;

    for (; (late = still_ending(w)) >= 0 && w->limit > 0; pause = fmin(2 * pause, TICK)) {
        if (waited >= w->limit) {
            slot = &w->page->slots[late];
            snprintf(line, sizeof line,
                     "rank %d (%s) has not come to its end for %g s after all others%s; the run's "
                     "results are whole",
                     slot->rank, w->host, w->limit,
                     process_of(slot) == DPT_PROCESS_STOPPED ? ": it is stopped (SIGSTOP)" : "");
            end_job(w, dpt_exit_code(DPT_RANK), line);
        }
        sleep_for(pause);
        waited += pause; /* and no time in which this process was stopped itself */
    }
}

void dpt_watch_close(struct dpt_watch *w)
{
    if (w == NULL)
        return;
    atomic_store(&w->mine->ended, true);
    if (w->n > 1) {
        dpt_watch_leave(w, true); /* MPI_Finalize: its waiting is over */
        await_others(w);
    }
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    dpt_nodes_close(&w->nodes);
    dpt_shared_close(&w->shared);
    free(w->memory);
    free(w->seen);
    free(w->visible);
    dpt_free(w);
}

void dpt_watch_limit(struct dpt_watch *w, double seconds)
{
    pthread_mutex_lock(&w->lock);
    w->limit = seconds;
    pthread_mutex_unlock(&w->lock);
}

void dpt_watch_patience(struct dpt_watch *w, double seconds)
{
    pthread_mutex_lock(&w->lock);
    w->patience = seconds;
    pthread_mutex_unlock(&w->lock);
}

void dpt_watch_note(struct dpt_watch *w, int64_t step, const char *what)
{
    struct dpt_slot *slot = w->mine;
    const unsigned next = atomic_load_explicit(&slot->word, memory_order_relaxed) + 1;
    size_t n = strlen(what);

    if (step >= 0)
        atomic_store_explicit(&slot->step, step, memory_order_relaxed);
    n = n < DPT_NOTE_TEXT - 1 ? n : DPT_NOTE_TEXT - 1;
    memcpy(slot->words[next & 1], what, n);
    slot->words[next & 1][n] = '\0';
    atomic_store_explicit(&slot->word, next, memory_order_release);
}

static void advance(_Atomic uint64_t *phase)
{
    /* One writer: no need for an atomic addition. */
    atomic_store_explicit(phase, atomic_load_explicit(phase, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

void dpt_watch_enter(struct dpt_watch *w, bool whole)
{
    if (whole)
        advance(&w->mine->phase);
    else
        atomic_store_explicit(&w->mine->aside, true, memory_order_relaxed);
}

void dpt_watch_leave(struct dpt_watch *w, bool whole)
{
    if (whole)
        advance(&w->mine->phase);
    else
        atomic_store_explicit(&w->mine->aside, false, memory_order_relaxed);
}

void dpt_watch_give_up(struct dpt_watch *w, int code, const char *text)
{
    char line[DPT_ERROR_TEXT + DPT_HOST_TEXT + 32];

    snprintf(line, sizeof line, "rank %d (%s): %s", w->rank, w->host, text);
    sleep_for(YIELD);
    end_job(w, code, line);
}

void dpt_watch_hush(struct dpt_watch *w)
{
    if (w->page != NULL)
        atomic_store(&w->page->told, true);
}
