/* The table of `dptrain plan --mesh auto`, in 80 columns. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cmd/plan/plan.h"

/* How many meshes are shown that fit, that do not, and how many reasons why others are not
 * possible. */
enum { SHOWN = 16, SHOWN_LARGE = 6, SHOWN_REASONS = 6, CELL = DPT_PLAN_QUANTITY, WIDTH = 79 };

/* "12.9G"; "-" for nothing. */
static const char *short_bytes(double value, char cell[CELL])
{
    return value < 0.5 ? "-" : dpt_plan_quantity(value, "", "", cell);
}

/* Writes seconds in five columns. */
static const char *short_seconds(double value, char cell[CELL])
{
    static const struct {
        const char *name;
        double seconds, most;
    } units[] = {{"us", 1e-6, 999.5e-6}, {"ms", 1e-3, 0.9995}, {"s", 1, 9999}, {"h", 3600, 1e300}};
    size_t i = 0;
    int digits;

    while (value >= units[i].most)
        i++;
    value /= units[i].seconds;
    digits = 3 - (int)strlen(units[i].name) - (value >= 9.95) - 2 * (value >= 99.5);
    if (value <= 0)
        snprintf(cell, CELL, "-");
    else
        snprintf(cell, CELL, "%.*f%s", digits > 0 ? digits : 0, value, units[i].name);
    return cell;
}

/* The columns, in 80 with three axes. */
enum { MESH = 9, SHARD = 10, ALL = 6, AXIS = 6, WAIT = 5, STEP = 6 };
static const struct {
    const char *name;
    int width;
} columns[DPT_PLAN_PARTS] = {
    [DPT_PLAN_WEIGHTS] = {"weight", 7},  [DPT_PLAN_GRADIENTS] = {"grads", 6},
    [DPT_PLAN_OPTIMIZER] = {"optim", 6}, [DPT_PLAN_VALUES] = {"value", 6},
    [DPT_PLAN_OTHER] = {NULL, 0}, /* in the sum alone */
};

static void print_names(const struct dpt_plan_candidate *c, struct dpt_str *out)
{
    int memory = ALL;

    for (int i = 0; i < DPT_PLAN_PARTS; i++)
        memory += columns[i].width;
    dpt_str_printf(out, "%*s%*s%*s\n%-*s %-*s", MESH + 1 + SHARD, "", memory,
                   "memory a rank needs  ", AXIS * DPT_PLAN_AXES, "sent a step", MESH, "mesh",
                   SHARD, "shard");
    for (int i = 0; i < DPT_PLAN_PARTS; i++)
        if (columns[i].width > 0)
            dpt_str_printf(out, "%*s", columns[i].width, columns[i].name);
    dpt_str_printf(out, "%*s", ALL, "all");
    for (int i = 0; i < DPT_PLAN_AXES; i++) /* "pipe" */
        dpt_str_printf(out, "%*.*s", AXIS, strlen(c->axes[i].name) < AXIS ? AXIS : 4,
                       c->axes[i].name);
    dpt_str_printf(out, "%*s%*s\n", WAIT, "wait", STEP, "step");
}

static void print_row(const struct dpt_plan_candidate *c, struct dpt_str *out)
{
    struct dpt_str mesh = {0};
    char cell[CELL];

    dpt_plan_mesh_text(c, &mesh);
    dpt_str_printf(out, "%-*s %-*s", MESH, mesh.failed ? "" : mesh.text, SHARD,
                   DPT_CHOICES(DPT_SHARDS)[c->shard]);
    dpt_str_release(&mesh);
    for (int i = 0; i < DPT_PLAN_PARTS; i++)
        if (columns[i].width > 0)
            dpt_str_printf(out, "%*s", columns[i].width, short_bytes(c->share.bytes[i], cell));
    dpt_str_printf(out, "%*s", ALL, short_bytes(c->share.all, cell));
    for (int i = 0; i < DPT_PLAN_AXES; i++)
        dpt_str_printf(out, "%*s", AXIS, short_bytes(c->axes[i].bytes, cell));
    dpt_str_printf(out, "%*.0f%%%*s\n", WAIT - 1, 100 * c->bubble, STEP,
                   short_seconds(c->seconds, cell));
}

/* Prints the rows from *i on that are of the same kind as the first. */
static void print_rows(const struct dpt_plan_meshes *all, size_t *i, bool fits, size_t most,
                       struct dpt_str *out)
{
    size_t n = 0;

    for (const struct dpt_plan_candidate *c = &all->list[*i], *first = c;
         *i < all->n && c->why[0] == '\0' && c->fits == fits &&
         (!fits || (c->idle > 0) == (first->idle > 0));
         c = &all->list[++*i])
        if (n++ < most)
            print_row(&all->list[*i], out);
    if (n > most)
        dpt_str_printf(out, "and %zu more, which --json lists\n", n - most);
}

/* Whether two texts differ at most in their numbers. */
static bool alike(const char *a, const char *b)
{
    while (*a != '\0' && *b != '\0') {
        while (isdigit((unsigned char)*a))
            a++;
        while (isdigit((unsigned char)*b))
            b++;
        if (*a == '\0' || *a != *b)
            break;
        a++;
        b++;
    }
    return *a == *b;
}

/* Prints each reason once, with the first mesh that it holds for. */
static void print_reasons(const struct dpt_plan_meshes *all, size_t from, struct dpt_str *out)
{
    int shown = 0;

    if (from < all->n)
        dpt_str_printf(out, "not possible:\n");
    for (size_t i = from; i < all->n; i++) {
        const struct dpt_plan_candidate *c = &all->list[i];
        struct dpt_str text = {0};
        int like = 0;

        for (size_t k = from; k < i; k++)
            like += alike(all->list[k].why, c->why);
        if (like > 0 || ++shown > SHOWN_REASONS)
            continue;
        for (size_t k = i + 1; k < all->n; k++)
            like += alike(all->list[k].why, c->why);
        dpt_plan_mesh_text(c, &text);
        if (c->shard != DPT_SHARD_NONE)
            dpt_str_printf(&text, " %s", DPT_CHOICES(DPT_SHARDS)[c->shard]);
        if (like > 0)
            dpt_str_printf(&text, " and %d more", like);
        dpt_str_printf(&text, ": %s", c->why);
        dpt_str_printf(out, "  ");
        dpt_str_wrap(out, text.failed ? c->why : text.text, 4, 2, WIDTH);
        dpt_str_release(&text);
    }
}

/* Prints what sums the gradients of GPUs. */
static void print_sums(const struct dpt_plan_meshes *all, struct dpt_str *out)
{
    bool nccl = false;

    for (size_t i = 0; i < all->n; i++)
        nccl |= all->list[i].why[0] == '\0' && all->list[i].by_host == NULL;
    if (nccl)
        dpt_str_printf(out, "sums by NCCL\n");
    else
        dpt_str_printf(out, "sums through the hosts' memory: %s\n", all->list[0].by_host);
}

static void print_head(const struct dpt_plan_meshes *all, struct dpt_str *out)
{
    char digits[40];

    dpt_str_printable(out, all->name, strlen(all->name), false);
    dpt_str_printf(out, ": %s parameters, %d rank%s on %d node%s%s%s",
                   dpt_group_digits(digits, all->parameters), all->spec.ranks,
                   all->spec.ranks == 1 ? "" : "s", all->nodes, all->nodes == 1 ? "" : "s",
                   all->gpu[0] != '\0' ? "\n" : "", all->gpu);
    if (all->limit > 0)
        dpt_str_printf(out, "; %.4g GB a rank", all->limit / 1e9);
    dpt_str_printf(out, "\n%s", all->assumed);
    if (all->gpu[0] != '\0' && all->spec.ranks > 1)
        print_sums(all, out);
    dpt_str_printf(out, "mesh: data");
    for (int i = 0; i < DPT_PLAN_DIVISIONS; i++)
        if (dpt_plan_has_division(i))
            dpt_str_printf(out, " x %s", dpt_plan_divisions[i]);
    dpt_str_printf(out, ", the best first\n\n");
}

/* Prints how many replicas the best mesh leaves idle, and what would give them work. */
static void print_idle(const struct dpt_plan_candidate *c, struct dpt_str *out)
{
    dpt_str_printf(out, "%d of its %d replicas stay%s idle: ", c->idle, c->data,
                   c->idle == 1 ? "s" : "");
    if (c->feeding > 0)
        dpt_str_printf(out, "batch.micro: %lld%s would feed all\n", (long long)c->feeding,
                       c->feeding > 1 ? " or less" : "");
    else
        dpt_str_printf(out, "start fewer ranks, or make batch.global larger\n");
}

void dpt_plan_meshes_print(const struct dpt_plan_meshes *all, struct dpt_str *out)
{
    const struct dpt_plan_candidate *first = &all->list[0];
    const bool large = first->share.first >= 1e9;
    size_t i = 0;

    print_head(all, out);
    print_names(first, out);
    print_rows(all, &i, true, SHOWN, out);
    if (i < all->n && all->list[i].why[0] == '\0' && all->list[i].fits) {
        dpt_str_printf(out, "leaves replicas idle:\n");
        print_rows(all, &i, true, SHOWN_LARGE, out);
    }
    if (i < all->n && all->list[i].why[0] == '\0') {
        dpt_str_printf(out, "does not fit:\n");
        print_rows(all, &i, false, SHOWN_LARGE, out);
    }
    print_reasons(all, i, out);
    dpt_str_printf(out, "\n");
    if (first->fits) {
        dpt_str_printf(out, "best: ");
        dpt_plan_mesh_job(first, out);
        dpt_str_printf(out, "\n");
        if (dpt_plan_mesh_reproducible(all, first))
            dpt_str_printf(out, "      comm: {reduction: reproducible}\n");
        if (first->idle > 0)
            print_idle(first, out);
    } else {
        dpt_str_printf(out,
                       "no mesh of %d ranks fits %.3g GB a rank: the least needs %.3g GB;\n"
                       "more ranks need less of each, and so does an optimizer with fewer slots\n",
                       all->spec.ranks, all->limit / 1e9, first->share.all / 1e9);
    }
    if (first->share.host > 0)
        dpt_str_printf(out, "and %.3g GB a rank of the host's memory\n", first->share.host / 1e9);
    if (first->share.first > 0)
        dpt_str_printf(out, "rank 0 has %.3g %s more while it saves a checkpoint\n",
                       first->share.first / (large ? 1e9 : 1e6), large ? "GB" : "MB");
}
