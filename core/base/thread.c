#include "core/base/thread.h"

#include <signal.h>

int dpt_thread_start(pthread_t *thread, void *(*work)(void *), void *arg)
{
    sigset_t all, before;
    int code;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    code = pthread_create(thread, NULL, work, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}
