/*
 * The log of the fake NCCL, with NCCL_DEBUG=INFO and NCCL_DEBUG_FILE, in the words of src/transport
 * of NCCL 2.14 to 2.28: from 2.20 on devices stand in brackets, before that PCI addresses.
 *
 *   FAKENCCL_VIA=P2P/CUMEM, FAKENCCL_NETWORK=Socket, FAKENCCL_SAYS=TEXT
 *                        how it says that the ranks are connected, and another line of it
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/backend/cuda/tests/fake/fake.h"
#include "core/backend/cuda/tests/fake/fake_nccl.h"

static void say(FILE *log, int rank, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void say(FILE *log, int rank, const char *format, ...)
{
    va_list list;

    if (log == NULL)
        return;
    fprintf(log, "node01:%d:%d [%d] NCCL INFO ", (int)getpid(), (int)getpid() + 1, rank);
    va_start(list, format);
    vfprintf(log, format, list);
    va_end(list);
    fputc('\n', log);
    fflush(log);
}

static const char *text_or(const char *name, const char *usual)
{
    const char *text = fakegpu_text(name);

    return text != NULL ? text : usual;
}

FILE *fakenccl_open_log(int rank)
{
    const char *level = getenv("NCCL_DEBUG"), *path = getenv("NCCL_DEBUG_FILE");
    FILE *log;

    if (level == NULL || strcmp(level, "INFO") != 0 || path == NULL)
        return NULL;
    log = fopen(path, "w");
    say(log, rank, "NET/IB : No device found.");
    say(log, rank, "NET/Socket : Using [0]eth0:10.0.0.1<0>");
    say(log, rank, "Using network %s", text_or("FAKENCCL_NETWORK", "Socket"));
    if (fakegpu_text("FAKENCCL_SAYS") != NULL)
        say(log, rank, "%s", fakegpu_text("FAKENCCL_SAYS"));
    return log;
}

/* A ring, as which rank is connected with the next one. */
void fakenccl_say_connections(FILE *log, int rank, int ranks)
{
    const bool devices = fakegpu_number("FAKENCCL_VERSION", 0) >= 22000;
    const char *via = text_or("FAKENCCL_VIA", devices ? "P2P/CUMEM" : "P2P/IPC");
    const bool by_net = strncmp(via, "NET/", 4) == 0, by_host = strncmp(via, "SHM/", 4) == 0;
    const int next = (rank + 1) % ranks;

    for (int channel = 0; channel < 2; channel++) {
        char which[16];

        snprintf(which, sizeof which, by_host ? "%02d" : "%02d/0", channel);
        if (devices)
            say(log, rank, "Channel %s : %d[%d] -> %d[%d]%s via %s", which, rank, rank, next, next,
                by_net ? " [send]" : "", via);
        else
            say(log, rank, "Channel %s : %d[%x] -> %d[%x]%s via %s", which, rank,
                (rank + 0x10) << 12, next, (next + 0x10) << 12, by_net ? " [send]" : "", via);
    }
    say(log, rank, "Connected all rings");
}
