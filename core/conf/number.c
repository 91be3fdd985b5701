#include "core/conf/internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static size_t digits(const char *text)
{
    return strspn(text, "0123456789");
}

size_t dpt_number_length(const char *text)
{
    const char *p = text + (*text == '+' || *text == '-');
    const size_t whole = digits(p);
    size_t fraction = 0, exponent;

    p += whole;
    if (*p == '.') {
        fraction = digits(p + 1);
        if (whole + fraction > 0)
            p += 1 + fraction;
    }
    if (whole + fraction == 0)
        return 0;
    if (*p == 'e' || *p == 'E') {
        const char *e = p + 1 + (p[1] == '+' || p[1] == '-');

        exponent = digits(e);
        if (exponent > 0)
            p = e + exponent;
    }
    return (size_t)(p - text);
}

bool dpt_is_whole(const char *text)
{
    const char *p = text + (*text == '+' || *text == '-');
    const size_t n = digits(p);

    return n > 0 && p[n] == '\0';
}

bool dpt_parse_int(const char *text, int64_t *value)
{
    long long number;

    if (!dpt_is_whole(text))
        return false;
    errno = 0;
    number = strtoll(text, NULL, 10);
    if (errno == ERANGE)
        return false;
    *value = number;
    return true;
}

bool dpt_parse_real(const char *text, double *value)
{
    double number;

    if (*text == '\0' || text[dpt_number_length(text)] != '\0')
        return false;
    errno = 0;
    number = strtod(text, NULL);
    if (isinf(number) || (number == 0 && errno == ERANGE))
        return false;
    *value = number;
    return true;
}

const char *dpt_parse_size(const char *text, double bare, double *bytes)
{
    static const struct {
        const char *name;
        double bytes;
    } sizes[] = {
        {"b", 1},        {"byte", 1},     {"bytes", 1}, {"k", 1e3},      {"kb", 1e3},
        {"kib", 0x1p10}, {"m", 1e6},      {"mb", 1e6},  {"mib", 0x1p20}, {"g", 1e9},
        {"gb", 1e9},     {"gib", 0x1p30}, {"t", 1e12},  {"tb", 1e12},    {"tib", 0x1p40},
    };
    const size_t length = dpt_number_length(text);
    const char *unit = text + length + strspn(text + length, " ");
    double factor = *unit == '\0' ? bare : 0, n;
    char number[64];

    if (length == 0 || length >= sizeof number)
        return "a number and a unit are expected, as in 150MB, 1.5G or 80 GiB";
    memcpy(number, text, length);
    number[length] = '\0';
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        factor = strcasecmp(unit, sizes[i].name) == 0 ? sizes[i].bytes : factor;
    if (factor == 0)
        return *unit == '\0' ? "the unit is missing: MB, GB, MiB or GiB"
                             : "no such unit: B, kB, MB, GB, TB, KiB, MiB, GiB or TiB";
    if (!dpt_parse_real(number, &n) || !(n > 0))
        return "must be above 0";
    if (n * factor > 1e15)
        return *unit == '\0' ? "more than a machine has; give its unit, as in 150MB"
                             : "more than a machine has";
    *bytes = n * factor;
    return NULL;
}

static const struct {
    const char *name;
    enum dpt_unit unit;
    double factor;
} units[] = {
    {"epoch", DPT_EPOCHS, 1},    {"epochs", DPT_EPOCHS, 1},    {"step", DPT_STEPS, 1},
    {"steps", DPT_STEPS, 1},     {"s", DPT_SECONDS, 1},        {"sec", DPT_SECONDS, 1},
    {"second", DPT_SECONDS, 1},  {"seconds", DPT_SECONDS, 1},  {"min", DPT_SECONDS, 60},
    {"minute", DPT_SECONDS, 60}, {"minutes", DPT_SECONDS, 60}, {"h", DPT_SECONDS, 3600},
    {"hour", DPT_SECONDS, 3600}, {"hours", DPT_SECONDS, 3600}, {"%", DPT_PERCENT, 1},
};

const char *dpt_parse_every(const char *text, struct dpt_every *every)
{
    const size_t length = dpt_number_length(text);
    const char *unit = text + length + strspn(text + length, " ");
    char number[64];
    double n;

    if (strcmp(text, "never") == 0) {
        *every = (struct dpt_every){.unit = DPT_NEVER};
        return NULL;
    }
    if (length == 0 || length >= sizeof number)
        return "a number and a unit are expected, as in 1 epoch, 50 steps, 30 s, 10 min, 2 h, or "
               "never";
    memcpy(number, text, length);
    number[length] = '\0';
    if (*unit == '\0')
        return "the unit is missing: epochs, steps, s, min or h";
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(unit, units[i].name) != 0)
            continue;
        if (!dpt_parse_real(number, &n) || !isfinite(n * units[i].factor))
            return "the number is out of range";
        if (!(n > 0))
            return "must be above 0, or never";
        if (units[i].unit == DPT_STEPS && (floor(n) != n || n > 9e15))
            return "steps are whole";
        *every = (struct dpt_every){.n = n * units[i].factor, .unit = units[i].unit};
        return NULL;
    }
    return "unknown unit; there are epochs, steps, s, min and h";
}
