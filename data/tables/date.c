#include "data/tables/date.h"

#include <ctype.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* --- the calendar ----------------------------------------------------------------------------- */

/* Days since 1970-01-01, of years that begin in March so that the leap day is their last (Howard
 * Hinnant, "chrono-compatible low-level date algorithms"). */
static int64_t days_of(int64_t year, int month, int day)
{
    const int64_t y = year - (month <= 2), era = (y >= 0 ? y : y - 399) / 400;
    const int64_t of_era = y - era * 400, of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;

    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

static void date_of(int64_t days, int64_t *year, int *month, int *day)
{
    const int64_t z = days + 719468, era = (z >= 0 ? z : z - 146096) / 146097;
    const int64_t of_era = z - era * 146097;
    const int64_t y = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    const int64_t of_year = of_era - (365 * y + y / 4 - y / 100), m = (5 * of_year + 2) / 153;

    *day = (int)(of_year - (153 * m + 2) / 5 + 1);
    *month = (int)(m < 10 ? m + 3 : m - 9);
    *year = y + era * 400 + (*month <= 2);
}

static bool is_leap(int64_t year)
{
    return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
}

static bool is_day(int year, int month, int day)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};

    return month >= 1 && month <= 12 && day >= 1 &&
           day <= days[month - 1] + (month == 2 && is_leap(year));
}

/* --- reading ---------------------------------------------------------------------------------- */

/* A whole number of 1 to `most` digits. *digits: how many. */
static bool take_number(const char **at, int most, int *value, int *digits)
{
    *value = *digits = 0;
    while (*digits < most && isdigit((unsigned char)**at)) {
        *value = 10 * *value + (*(*at)++ - '0');
        ++*digits;
    }
    return *digits > 0 && !isdigit((unsigned char)**at);
}

/* An English name of a month, whole or its first three letters; a point may follow these. */
static bool take_month(const char **at, int *month)
{
    static const char *const names[] = {"January",   "February", "March",    "April",
                                        "May",       "June",     "July",     "August",
                                        "September", "October",  "November", "December"};
    size_t n = 0;

    while (isalpha((unsigned char)(*at)[n]))
        n++;
    for (int i = 0; i < 12 && n >= 3; i++) {
        if ((n != 3 && n != strlen(names[i])) || strncasecmp(*at, names[i], n) != 0)
            continue;
        *month = i + 1;
        *at += n;
        *at += n == 3 && **at == '.';
        return true;
    }
    return false;
}

/* What stands between the parts of a date: one of "-/." or, beside a name, blanks and a comma. */
static char take_mark(const char **at)
{
    const char mark = **at;

    if (mark != '\0' && strchr("-/.", mark) != NULL) {
        ++*at;
        return mark;
    }
    if (mark != ' ' && mark != ',')
        return '\0';
    *at += mark == ',';
    *at += strspn(*at, " ");
    return ' ';
}

/* The day, the month and the year, in any order. */
struct written {
    int day, month, year;
};

/* Decides which of two numbers is the day. */
static void order_numbers(int first, int second, char mark, enum dpt_date_order order,
                          struct written *w, struct dpt_date *date)
{
    if (mark == '.')
        order = DPT_DATE_DAY_FIRST;
    else if (first > 12 || second > 12)
        date->order = first > 12 ? DPT_DATE_DAY_FIRST : DPT_DATE_MONTH_FIRST;
    else if (order == DPT_DATE_UNKNOWN)
        date->ambiguous = first != second;
    if (order == DPT_DATE_UNKNOWN)
        order = date->order;
    w->day = order == DPT_DATE_MONTH_FIRST ? second : first;
    w->month = order == DPT_DATE_MONTH_FIRST ? first : second;
}

static bool take_day(const char **at, enum dpt_date_order order, struct dpt_date *date)
{
    struct written w = {0};
    int first = 0, second = 0, digits = 0, year_digits = 0;
    const bool named_first = take_month(at, &w.month);
    bool named = named_first;
    char mark, other;

    if (!named_first && !take_number(at, 4, &first, &digits))
        return false;
    mark = take_mark(at);
    if (mark == '\0' || (digits != 4 && digits > 2))
        return false;
    if (!named && digits <= 2)
        named = take_month(at, &w.month);
    if ((named_first || !named) && !take_number(at, 2, &second, &(int){0}))
        return false;
    other = take_mark(at);
    if ((other != mark && !(named && mark == ' ' && other == ' ')) || (!named && mark == ' '))
        return false;
    if (digits == 4) {
        w = (struct written){.year = first, .month = second};
        if (!take_number(at, 2, &w.day, &(int){0}))
            return false;
    } else {
        if (!take_number(at, 4, &w.year, &year_digits) || year_digits != 4)
            return false;
        if (named)
            w.day = named_first ? second : first;
        else
            order_numbers(first, second, mark, order, &w, date);
    }
    date->seconds = (double)days_of(w.year, w.month, w.day) * DPT_DAY_SECONDS;
    return is_day(w.year, w.month, w.day);
}

/* Z, UTC, GMT, +02, +02:00 or +0200. */
static bool take_zone(const char **at)
{
    int hours, minutes, digits;

    static const char *const names[] = {"Z", "UTC", "GMT"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strncasecmp(*at, names[i], strlen(names[i])) == 0) {
            *at += strlen(names[i]);
            return true;
        }
    if (**at != '+' && **at != '-')
        return false;
    ++*at;
    if (!take_number(at, 4, &hours, &digits) || digits % 2 != 0)
        return false;
    if (digits == 2 && **at == ':') {
        ++*at;
        return take_number(at, 2, &minutes, &digits) && digits == 2;
    }
    return true;
}

static bool take_time(const char **at, double *seconds)
{
    int hour, minute, second = 0, digits;
    double rest = 0, place = 0.1;

    if (!take_number(at, 2, &hour, &digits) || *(*at)++ != ':' ||
        !take_number(at, 2, &minute, &digits) || digits != 2)
        return false;
    if (**at == ':') {
        ++*at;
        if (!take_number(at, 2, &second, &digits) || digits != 2)
            return false;
        if (**at == '.' || **at == ',')
            for (++*at; isdigit((unsigned char)**at); ++*at, place /= 10)
                rest += (**at - '0') * place;
    }
    *at += strspn(*at, " ");
    if (strncasecmp(*at, "am", 2) == 0 || strncasecmp(*at, "pm", 2) == 0) {
        if (hour < 1 || hour > 12)
            return false;
        hour = hour % 12 + (tolower((unsigned char)**at) == 'p' ? 12 : 0);
        *at += 2;
        *at += strspn(*at, " ");
    }
    *seconds = hour * 3600.0 + minute * 60.0 + second + rest;
    return hour < 24 && minute < 60 && second < 61 && (**at == '\0' || take_zone(at));
}

bool dpt_date_read(const char *text, enum dpt_date_order order, struct dpt_date *date)
{
    const char *at = text + strspn(text, " ");
    double time;

    *date = (struct dpt_date){0};
    if (!take_day(&at, order, date))
        return false;
    if (at[strspn(at, " ")] == '\0')
        return true;
    if (*at != ' ' && *at != 'T' && *at != 't')
        return false;
    at += *at == ' ' ? strspn(at, " ") : 1;
    if (!take_time(&at, &time) || at[strspn(at, " ")] != '\0')
        return false;
    date->seconds += time;
    date->timed = true;
    return true;
}

/* --- as text, and as features ----------------------------------------------------------------- */

/* A moment's day, counted from 1970-01-01, and its seconds. */
static int64_t split(double seconds, double *rest)
{
    const double days = floor(seconds / DPT_DAY_SECONDS);

    *rest = seconds - days * DPT_DAY_SECONDS;
    return (int64_t)days;
}

const char *dpt_date_text(double seconds, char buf[DPT_DATE_TEXT])
{
    double rest;
    int64_t year;
    int month, day, n;

    date_of(split(seconds, &rest), &year, &month, &day);
    n = snprintf(buf, DPT_DATE_TEXT, "%04lld-%02d-%02d", (long long)year, month, day);
    if (rest > 0)
        snprintf(buf + n, DPT_DATE_TEXT - (size_t)n, " %02d:%02d:%02d", (int)(rest / 3600),
                 (int)(rest / 60) % 60, (int)rest % 60);
    return buf;
}

static const char *const part_names[DPT_DATE_PART_COUNT] = {
#define X(NAME, name) [DPT_DATE_##NAME] = name,
    DPT_DATE_PARTS(X)
#undef X
};

const char *dpt_date_part_name(enum dpt_date_part part)
{
    return part_names[part];
}

enum dpt_date_part dpt_date_part_of(const char *name)
{
    enum dpt_date_part part = DPT_DATE_YEAR;

    while (part < DPT_DATE_PART_COUNT && strcmp(part_names[part], name) != 0)
        part++;
    return part;
}

size_t dpt_date_part_width(enum dpt_date_part part)
{
    return part == DPT_DATE_YEAR ? 1 : 2;
}

void dpt_date_part_write(enum dpt_date_part part, double seconds, float *out)
{
    const double tau = 6.283185307179586;
    double rest, turn; /* from 0 to 1: January, the 1st of January, Monday and midnight are 0 */
    int64_t days = split(seconds, &rest), year;
    int month, day;

    date_of(days, &year, &month, &day);
    switch (part) {
    case DPT_DATE_YEAR:
        out[0] = (float)year;
        return;
    case DPT_DATE_MONTH:
        turn = (month - 1) / 12.0;
        break;
    case DPT_DATE_DAY:
        turn = (double)(days - days_of(year, 1, 1)) / (is_leap(year) ? 366 : 365);
        break;
    case DPT_DATE_WEEKDAY: /* 1970-01-01 was a Thursday */
        turn = (double)(((days + 3) % 7 + 7) % 7) / 7;
        break;
    default:
        turn = rest / DPT_DAY_SECONDS;
    }
    out[0] = (float)sin(tau * turn);
    out[1] = (float)cos(tau * turn);
}
