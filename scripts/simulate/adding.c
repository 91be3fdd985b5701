/*
 * adding: the seconds that adding one float to another takes in the sums of gradients.
 *
 * usage: adding FLOATS. Prints the median of some rounds of dpt_tree_push on this machine, one
 * core.
 */
#include <stdio.h>
#include <stdlib.h>

#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/sort.h"
#include "core/comm/sums/tree.h"

enum { ROUNDS = 15 };

int main(int argc, char **argv)
{
    const size_t n = argc == 2 ? strtoull(argv[1], NULL, 10) : 0;
    const int repeats = n < 1000000 ? 100 : 1;
    float *sum = dpt_alloc_array(n, sizeof *sum), *other = dpt_alloc_array(n, sizeof *other);
    double seconds[ROUNDS];

    if (n == 0 || sum == NULL || other == NULL) {
        fprintf(stderr, "usage: adding FLOATS\n");
        return 2;
    }
    for (int round = 0; round < ROUNDS; round++) {
        const double start = dpt_now();

        for (int i = 0; i < repeats; i++) {
            struct dpt_tree tree;

            dpt_tree_begin(&tree, 2);
            dpt_tree_push(&tree, (struct dpt_block){0, 0}, sum, n, NULL, NULL);
            dpt_tree_push(&tree, (struct dpt_block){1, 0}, other, n, NULL, NULL);
        }
        seconds[round] = (dpt_now() - start) / repeats / (double)n;
    }
    printf("%.4g\n", dpt_median(seconds, ROUNDS));
    dpt_free(sum);
    dpt_free(other);
    return 0;
}
