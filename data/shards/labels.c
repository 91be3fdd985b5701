#include "data/shards/labels.h"

#include <math.h>
#include <stdio.h>

#include "core/base/memory.h"
#include "core/base/str.h"
#include "data/shards/shard.h"

enum {
    FEW = 20,     /* so many classes, or samples, are few */
    EACH = 20,    /* samples of each number, where they are many and not in a row */
    EACH_ROW = 5, /* where they are: 0, 1, 2, ... or 1, 2, 3, ... */
    EACH_FLOAT = 10,
    LEFT_OUT = 10, /* numbers that may be left out below the largest */
};
static const int64_t none = INT64_MIN;

/* --- the numbers ------------------------------------------------------------------------------ */

/* The place of a number, or the empty one where it would be. room: a power of 2. */
static size_t place_of(const int64_t *at, size_t room, int64_t label)
{
    size_t i = (size_t)(((uint64_t)label * 0x9E3779B97F4A7C15u) >> 20) & (room - 1);

    while (at[i] != none && at[i] != label)
        i = (i + 1) & (room - 1);
    return i;
}

/* Makes room for one more number, so that no more than half of the table is full. */
static enum dpt_status widen(struct dpt_label_numbers *numbers, struct dpt_error *err)
{
    enum { FIRST = 64 };
    enum dpt_status status = DPT_OK;
    const size_t room = numbers->room > 0 ? 2 * numbers->room : FIRST;
    int64_t *at;

    if (2 * (size_t)(numbers->n + 1) <= numbers->room)
        return DPT_OK;
    DPT_TRY(DPT_ALLOCATE(at, room, "the labels", err));
    for (size_t i = 0; i < room; i++)
        at[i] = none;
    for (size_t i = 0; i < numbers->room; i++)
        if (numbers->at[i] != none)
            at[place_of(at, room, numbers->at[i])] = numbers->at[i];
    dpt_free(numbers->at);
    numbers->at = at;
    numbers->room = room;
out:
    return status;
}

enum dpt_status dpt_label_numbers_add(struct dpt_label_numbers *numbers, int64_t label,
                                      struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    size_t place;

    numbers->samples++;
    numbers->fraction = numbers->fraction || label == none;
    if (label == none)
        return DPT_OK;
    if (numbers->n == 0 || label < numbers->smallest)
        numbers->smallest = label;
    if (numbers->n == 0 || label > numbers->largest)
        numbers->largest = label;
    if (numbers->n >= DPT_MOST_CLASSES)
        return DPT_OK;
    DPT_TRY(widen(numbers, err));
    place = place_of(numbers->at, numbers->room, label);
    numbers->n += numbers->at[place] == none;
    numbers->at[place] = label;
out:
    return status;
}

bool dpt_label_numbers_has(const struct dpt_label_numbers *numbers, int64_t label)
{
    return numbers->room > 0 && numbers->at[place_of(numbers->at, numbers->room, label)] == label;
}

void dpt_label_numbers_release(struct dpt_label_numbers *numbers)
{
    dpt_free(numbers->at);
    *numbers = (struct dpt_label_numbers){0};
}

/* The labels of a shard that are seen. */
struct seen {
    const struct dpt_field *labels;
    struct dpt_label_numbers *numbers;
};

static enum dpt_status see(void *arg, int64_t row, int64_t n, const void *raw,
                           struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct seen *seen = arg;

    (void)row;
    for (int64_t i = 0; i < n; i++)
        DPT_TRY(
            dpt_label_numbers_add(seen->numbers, dpt_field_int(seen->labels, raw, (size_t)i), err));
out:
    return status;
}

enum dpt_status dpt_label_numbers_take(struct dpt_label_numbers *numbers, struct dpt_shard *shard,
                                       struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct seen seen = {&shard->labels, numbers};

    DPT_TRY(dpt_shard_attach(shard, err));
    DPT_TRY(dpt_field_scan(&shard->labels, 0, shard->samples, see, &seen, NULL, err));
out:
    dpt_shard_detach(shard);
    return status;
}

/* --- what they are ---------------------------------------------------------------------------- */

/* Whether many numbers are those of classes: as programs number these, from 0 or 1 on, a tenth may
 * be missing, with many samples of each; or fewer, if none is missing. Images and signals are of
 * classes more often. */
static bool many_are_classes(const struct dpt_label_numbers *numbers, bool floats, bool flat)
{
    const double n = (double)numbers->n, each = (double)numbers->samples / n;
    const double missing =
        (double)numbers->largest - n + dpt_label_numbers_has(numbers, 0); /* from 1 on */
    const bool numbered = numbers->smallest >= 0 && missing <= n / 10;

    if (each >= EACH)
        return numbered || !flat;
    return numbered && (missing == 0 || !flat) &&
           each >= (floats ? EACH_FLOAT
                    : flat ? EACH_ROW
                           : 1);
}

bool dpt_labels_seem_classes(const struct dpt_label_numbers *numbers, bool floats, bool flat)
{
    const double low = fmin(0, (double)numbers->smallest);
    const double left_out = (double)numbers->largest + 1 - low - (double)numbers->n;

    if (numbers->n == 0 || numbers->fraction ||
        (floats && (numbers->smallest < 0 || numbers->largest >= DPT_MOST_CLASSES)))
        return false;
    if (numbers->samples < FEW)
        return !floats || numbers->largest < FEW;
    if (numbers->n > 2 && left_out > LEFT_OUT && left_out > (double)numbers->n)
        return false;
    return numbers->n <= FEW || many_are_classes(numbers, floats, flat);
}

const char *dpt_labels_tell_targets(const struct dpt_label_numbers *numbers,
                                    char buf[DPT_LABELS_TOLD])
{
    char n[32], low[32], high[32], samples[32];

    snprintf(buf, DPT_LABELS_TOLD,
             "%s different whole numbers from %s to %s in %s samples: taken as "
             "regression targets",
             dpt_group_digits(n, numbers->n), dpt_group_digits(low, numbers->smallest),
             dpt_group_digits(high, numbers->largest), dpt_group_digits(samples, numbers->samples));
    return buf;
}

bool dpt_labels_doubt(const int64_t *counts, int64_t n, char *buf, size_t size)
{
    enum { MOST = 5 };
    struct dpt_str list = {0};
    char digits[32], most[32];
    bool told;
    int64_t empty = 0, samples = 0;

    for (int64_t i = 0; i < n; i++) {
        samples += counts[i];
        if (counts[i] == 0 && empty++ < MOST)
            dpt_str_printf(&list, "%s%lld", empty > 1 ? ", " : "", (long long)i);
    }
    told = (n > samples && n > FEW) || (empty > 0 && samples >= FEW && !list.failed);
    if (n > samples && n > FEW)
        snprintf(buf, size,
                 "the labels of %s samples go up to %s, so the model has as many outputs: `dptrain "
                 "convert` with --regression makes regression targets of them",
                 dpt_group_digits(digits, samples), dpt_group_digits(most, n - 1));
    else if (told)
        snprintf(buf, size, "no sample has the class%s %s%s: the model still gets %lld outputs%s",
                 empty > 1 ? "es" : "", list.text, empty > MOST ? ", …" : "", (long long)n,
                 counts[0] == 0 ? "; if the labels begin at 1, subtract 1 from them" : "");
    dpt_str_release(&list);
    return told;
}
