/*
 * date: dates, with or without times, as programs and people of many countries write them, and the
 * features that a model gets of them.
 *
 * A date is the seconds since 1970-01-01 00:00 of its calendar and clock, Gregorian, as they are
 * written: a zone after a time is read and not used, since the hour of a place says more.
 */
#ifndef DPT_DATA_DATE_H
#define DPT_DATA_DATE_H

#include <stdbool.h>
#include <stddef.h>

enum { DPT_DAY_SECONDS = 86400 }; /* seconds */

/* The order of day and month in front of a year. UNKNOWN: as the numbers tell. */
enum dpt_date_order { DPT_DATE_UNKNOWN, DPT_DATE_DAY_FIRST, DPT_DATE_MONTH_FIRST };

struct dpt_date {
    double seconds;
    bool timed;                /* it has a time */
    enum dpt_date_order order; /* that it must have been written in; UNKNOWN: any will do */
    bool ambiguous;            /* it may be another day in the other order, which is not given */
};

/*
 * Reads 2024-03-01, 2024/03/01, 2024.03.01, 01.03.2024 (the day first), 03/01/2024 or 03-01-2024
 * (by the order), 1 Mar 2024, 1-March-2024, March 1, 2024; after a blank or T maybe 13:45,
 * 13:45:00.5, 1:45 PM, with Z, UTC, +02:00 or +0200 after it. False: it is no such date.
 */
bool dpt_date_read(const char *text, enum dpt_date_order order, struct dpt_date *date);

/* "2024-03-01" or "2024-03-01 13:45:00" of seconds; returns buf. */
enum { DPT_DATE_TEXT = 64 };
const char *dpt_date_text(double seconds, char buf[DPT_DATE_TEXT]);

/* The parts of a date that become features: a year is a number, all others are cyclic: a sine and a
 * cosine. */
#define DPT_DATE_PARTS(X)                                                                          \
    X(YEAR, "year") X(MONTH, "month") X(DAY, "day of year") X(WEEKDAY, "weekday") X(HOUR, "hour")
enum dpt_date_part {
#define X(NAME, name) DPT_DATE_##NAME,
    DPT_DATE_PARTS(X)
#undef X
        DPT_DATE_PART_COUNT
};
/* The part of a name; DPT_DATE_PART_COUNT: none. */
enum dpt_date_part dpt_date_part_of(const char *name);
const char *dpt_date_part_name(enum dpt_date_part part);
/* Numbers that a part becomes, 1 or 2; and writes them. */
size_t dpt_date_part_width(enum dpt_date_part part);
void dpt_date_part_write(enum dpt_date_part part, double seconds, float *out);

#endif
