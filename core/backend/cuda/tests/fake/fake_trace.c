/* The output of the fake libraries: a log of calls, complaints; and failures on demand. */
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/backend/cuda/tests/fake/fake.h"

enum { COUNTERS = 256, RULES = 16, LINE = 512, TEXT = 1024 };

static struct {
    pthread_mutex_t lock;
    struct counter {
        char name[FAKEGPU_NAME];
        long calls;
    } counters[COUNTERS];
    int n;
    struct rule {
        char name[FAKEGPU_NAME];
        long from, calls;
        int code; /* 0: the usual one */
        bool on;
    } rules[RULES];
    int n_rules;
    bool rules_changed, log_changed;
    int file;
    uint64_t chance, seed;
    bool seeded;
} trace = {.lock = PTHREAD_MUTEX_INITIALIZER, .file = -1};

/* All of the environment that these libraries know, as it was when they were loaded. */
static struct variable {
    const char *name;
    bool set;
    long long number;
    char text[TEXT];
} variables[] = {
    {.name = "FAKEGPU_DEVICES"},  {.name = "FAKEGPU_MODEL"},     {.name = "FAKEGPU_MEMORY"},
    {.name = "FAKEGPU_SHARED"},   {.name = "FAKEGPU_SEED"},      {.name = "FAKEGPU_EAGER"},
    {.name = "FAKEGPU_IDLE_MS"},  {.name = "FAKEGPU_PROTECT"},   {.name = "FAKEGPU_FAIL"},
    {.name = "FAKEGPU_LOG"},      {.name = "FAKEGPU_LEAKS"},     {.name = "FAKEGPU_QUIET"},
    {.name = "FAKEGPU_TAKES"},    {.name = "FAKEGPU_DROPS_NAN"}, {.name = "FAKEGPU_HANG"},
    {.name = "FAKEGPU_KNOBS"},    {.name = "FAKENCCL_HANG"},     {.name = "FAKENCCL_VERSION"},
    {.name = "FAKENCCL_WRONG"},   {.name = "FAKEGPU_PEERS"},     {.name = "FAKENCCL_VIA"},
    {.name = "FAKENCCL_NETWORK"}, {.name = "FAKENCCL_SAYS"},     {.name = "FAKENCCL_ABORT_HANGS"},
};

enum { VARIABLES = sizeof variables / sizeof *variables };

static struct variable *find(const char *name)
{
    for (int i = 0; i < VARIABLES; i++) {
        if (strcmp(variables[i].name, name) == 0)
            return &variables[i];
    }
    fprintf(stderr, "fakegpu: %s has no row in the table of variables\n", name);
    abort();
}

/* The idle thread, callers and the handler of faults read these without a lock. */
long long fakegpu_number(const char *name, long long usual)
{
    const struct variable *v = find(name);

    return __atomic_load_n(&v->set, __ATOMIC_ACQUIRE)
               ? __atomic_load_n(&v->number, __ATOMIC_RELAXED)
               : usual;
}

const char *fakegpu_text(const char *name)
{
    const struct variable *v = find(name);

    return v->set ? v->text : NULL;
}

static void read_variable(struct variable *v)
{
    const char *text = getenv(v->name);

    snprintf(v->text, sizeof v->text, "%s", text != NULL ? text : "");
    __atomic_store_n(&v->number, strtoll(v->text, NULL, 0), __ATOMIC_RELAXED);
    __atomic_store_n(&v->set, v->text[0] != '\0', __ATOMIC_RELEASE);
}

/* The driver's threads must not call getenv: the program, or its MPI, may change the environment
 * at that moment, and glibc moves it then. */
__attribute__((constructor)) void fakegpu_read_environment(void)
{
    char fail[TEXT], log[TEXT];

    pthread_mutex_lock(&trace.lock);
    strcpy(fail, find("FAKEGPU_FAIL")->text);
    strcpy(log, find("FAKEGPU_LOG")->text);
    for (int i = 0; i < VARIABLES; i++)
        read_variable(&variables[i]);
    trace.rules_changed |= strcmp(fail, find("FAKEGPU_FAIL")->text) != 0;
    trace.log_changed |= strcmp(log, find("FAKEGPU_LOG")->text) != 0;
    pthread_mutex_unlock(&trace.lock);
}

uint64_t fakegpu_chance(void)
{
    const uint64_t seed = (uint64_t)fakegpu_number("FAKEGPU_SEED", 1);
    uint64_t x;

    pthread_mutex_lock(&trace.lock);
    if (!trace.seeded || seed != trace.seed) {
        trace.seeded = true;
        trace.chance = trace.seed = seed;
    }
    x = trace.chance += 0x9E3779B97F4A7C15ull;
    pthread_mutex_unlock(&trace.lock);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

static void read_rules(void)
{
    const char *at = find("FAKEGPU_FAIL")->text;

    trace.rules_changed = false;
    trace.n_rules = 0;
    while (*at != '\0' && trace.n_rules < RULES) {
        struct rule r = {0};
        int used = 0;

        if (sscanf(at, "%63[^:,]:%ld%n", r.name, &r.from, &used) == 2) {
            r.on = at[used] == '+';
            used += r.on;
            if (at[used] == ':')
                r.code = atoi(at + used + 1);
            trace.rules[trace.n_rules++] = r;
        }
        at += strcspn(at, ",");
        at += *at == ',';
    }
}

static void open_log(void)
{
    char path[TEXT + 32];
    const char *log = find("FAKEGPU_LOG")->text, *process = strstr(log, "%p");

    trace.log_changed = false;
    if (trace.file >= 0)
        close(trace.file);
    trace.file = -1;
    if (*log == '\0')
        return;
    if (process != NULL)
        snprintf(path, sizeof path, "%.*s%ld%s", (int)(process - log), log, (long)getpid(),
                 process + 2);
    else
        snprintf(path, sizeof path, "%s", log);
    trace.file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

static void write_line(int file, const char *line)
{
    size_t left = strlen(line);

    while (left > 0) {
        const ssize_t n = write(file, line, left);

        if (n <= 0)
            return;
        line += n;
        left -= (size_t)n;
    }
}

static int count(const char *function, int usual)
{
    int code = 0, i = 0;

    while (i < trace.n && strcmp(trace.counters[i].name, function) != 0)
        i++;
    if (i == trace.n && i < COUNTERS)
        snprintf(trace.counters[trace.n++].name, FAKEGPU_NAME, "%s", function);
    if (i < COUNTERS)
        trace.counters[i].calls++;
    if (i > 0 && i < COUNTERS) { /* those that are called often come to stand in front */
        const struct counter ahead = trace.counters[i - 1];

        trace.counters[i - 1] = trace.counters[i];
        trace.counters[i] = ahead;
    }
    for (struct rule *r = trace.rules; r < trace.rules + trace.n_rules; r++) {
        if (strcmp(r->name, function) != 0)
            continue;
        r->calls++;
        if (r->calls == r->from || (r->on && r->calls > r->from))
            code = r->code != 0 ? r->code : usual;
    }
    return code;
}

int fakegpu_enter(const char *function, int usual, const char *format, ...)
{
    char line[LINE], arguments[LINE - FAKEGPU_NAME - 32];
    va_list list;
    int code;

    pthread_mutex_lock(&trace.lock);
    if (trace.rules_changed)
        read_rules();
    if (trace.log_changed)
        open_log();
    code = count(function, usual);
    if (trace.file >= 0) {
        va_start(list, format);
        vsnprintf(arguments, sizeof arguments, format, list);
        va_end(list);
        snprintf(line, sizeof line, "%.63s%s%s%s\n", function, *arguments ? " " : "", arguments,
                 code != 0 ? " (fails on demand)" : "");
        write_line(trace.file, line);
    }
    pthread_mutex_unlock(&trace.lock);
    return code;
}

void fakegpu_complain(const char *format, ...)
{
    char line[LINE] = "fakegpu: ";
    const size_t start = strlen(line);
    va_list list;

    va_start(list, format);
    vsnprintf(line + start, sizeof line - start - 1, format, list);
    va_end(list);
    strcat(line, "\n");
    if (fakegpu_number("FAKEGPU_QUIET", 0) == 0)
        write_line(STDERR_FILENO, line);
    pthread_mutex_lock(&trace.lock);
    if (trace.file >= 0)
        write_line(trace.file, line);
    pthread_mutex_unlock(&trace.lock);
}

void fakegpu_note(const char *format, ...)
{
    char line[LINE];
    va_list list;

    va_start(list, format);
    vsnprintf(line, sizeof line - 1, format, list);
    va_end(list);
    strcat(line, "\n");
    pthread_mutex_lock(&trace.lock);
    if (trace.file >= 0)
        write_line(trace.file, line);
    pthread_mutex_unlock(&trace.lock);
}

void fakegpu_look(const char *name, const void *at, size_t bytes)
{
    const unsigned char *byte = at;

    for (size_t i = 0; i < bytes; i++) {
        if (byte[i] != 0)
            return;
    }
    fakegpu_note("%s reads zeros", name);
}

static __attribute__((destructor)) void sum_up(void)
{
    char line[LINE];

    pthread_mutex_lock(&trace.lock);
    for (int i = 0; i < trace.n && trace.file >= 0; i++) {
        snprintf(line, sizeof line, "total %s %ld\n", trace.counters[i].name,
                 trace.counters[i].calls);
        write_line(trace.file, line);
    }
    pthread_mutex_unlock(&trace.lock);
}
