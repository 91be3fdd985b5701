#include "cmd/predict/print.h"

#include <stdio.h>
#include <string.h>

#include "core/base/str.h"

/* "0.9983": what is not quite 1 does not look like it. */
static const char *probability_text(float x, char buf[16])
{
    snprintf(buf, 16, "%.4f", (double)x);
    if (x < 1 && strcmp(buf, "1.0000") == 0)
        snprintf(buf, 16, ">0.9999");
    return buf;
}

/* Names of classes and files are anybody's. */
static void print_name(const char *name, const char *after)
{
    enum { SHOWN = 500 };
    char shown[6 * SHOWN + 8];

    dpt_show_text(shown, name, SHOWN);
    printf("%s%s", shown, after);
}

static void print_class(const struct dpt_predict_told *told, int32_t class)
{
    if (told->classes != NULL && (size_t) class < told->n_classes)
        print_name(told->classes[class], "");
    else
        printf("%d", class);
}

void dpt_predict_print(const struct dpt_predict_told *told, const struct dpt_predicted *d,
                       int32_t i)
{
    const float *values = d->values + (size_t)i * (size_t)d->outputs;
    char buf[16];

    if (dpt_source_info(told->source)->named)
        print_name(dpt_source_name(told->source, d->first + i), ": ");
    else
        printf("sample %lld: ", (long long)d->first + i);
    if (d->labels != NULL) {
        print_class(told, d->labels[i]);
        printf(", probability %s",
               probability_text(
                   d->probabilities[(size_t)i * (size_t)d->outputs + (size_t)d->labels[i]], buf));
    }
    for (int32_t k = 0; d->labels == NULL && k < d->outputs; k++)
        printf("%s%.6g", k > 0 ? " " : "", (double)values[k]);
    if (d->classes != NULL && d->classes[i] != d->labels[i]) {
        printf(", wrong: it is ");
        print_class(told, d->classes[i]);
    }
    for (int32_t k = 0; d->labels == NULL && d->targets != NULL && k < d->outputs; k++)
        printf("%s%.6g", k > 0 ? " " : ", true: ",
               (double)d->targets[(size_t)i * (size_t)d->outputs + (size_t)k]);
    printf("\n");
}
