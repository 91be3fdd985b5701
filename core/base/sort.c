#include "core/base/sort.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void dpt_sort(double *values, size_t n)
{
    if (n > 0)
        qsort(values, n, sizeof *values, by_value);
}

double dpt_median(double *values, size_t n)
{
    dpt_sort(values, n);
    return values[n / 2];
}
