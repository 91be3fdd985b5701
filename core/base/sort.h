/*
 * sort: numbers in rising order, for medians and quarters of measurements.
 */
#ifndef DPT_BASE_SORT_H
#define DPT_BASE_SORT_H

#include <stddef.h>

/* None of them may be NaN. */
void dpt_sort(double *values, size_t n);
/* Sorts, and gives the middle one; n > 0. */
double dpt_median(double *values, size_t n);

#endif
