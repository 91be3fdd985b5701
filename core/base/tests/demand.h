/* demand: what a fuzzer holds a program to; a condition that does not hold ends it with a word. */
#ifndef DPT_BASE_TESTS_DEMAND_H
#define DPT_BASE_TESTS_DEMAND_H

#include <stdio.h>
#include <stdlib.h>

#define DEMAND(condition, ...)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s does not hold: ", __FILE__, __LINE__, #condition);          \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
