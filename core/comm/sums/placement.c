#include "core/comm/sums/placement.h"

#include "core/base/memory.h"

/* Hosts up to which prices are tried, which takes the square of their number: a tenth of a second,
 * and more than a second of 4 096. */
enum { PRICED = 1024 };

/* The cost of what cannot be; two of them can be added. */
static const int64_t NEVER = INT64_MAX / 4;

/* Appends a partial whose hosts are to follow. */
static struct dpt_partial *append(struct dpt_placement *p, size_t at)
{
    struct dpt_partial *partial = &p->partials[p->n++];

    *partial = (struct dpt_partial){.left = -1, .right = -1, .at = at};
    return partial;
}

/* Lists the hosts of both operands. */
static void join_hosts(const struct dpt_placement *p, struct dpt_partial *sum)
{
    const struct dpt_partial *l = &p->partials[sum->left], *r = &p->partials[sum->right];
    const int *left = p->host + l->at, *right = p->host + r->at;
    int *to = p->host + sum->at, i = 0, k = 0;

    while (i < l->n || k < r->n) {
        const int host = k == r->n || (i < l->n && left[i] < right[k]) ? left[i] : right[k];

        i += i < l->n && left[i] == host;
        k += k < r->n && right[k] == host;
        to[sum->n++] = host;
    }
}

/* Adds the partial of two operands. Returns its number. */
static int add_sum(struct dpt_placement *p, int left, int right, size_t at)
{
    const struct dpt_partial *l = &p->partials[left], *r = &p->partials[right];
    struct dpt_partial *sum = append(p, at);

    sum->left = left;
    sum->right = right;
    sum->phase = 1 + (l->phase > r->phase ? l->phase : r->phase);
    p->phases = sum->phase > p->phases ? sum->phase : p->phases;
    if (p->host != NULL)
        join_hosts(p, sum);
    else
        sum->n = l->n + r->n < p->hosts ? l->n + r->n : p->hosts;
    return p->n - 1;
}

/* Builds the partials from the blocks; without p->host it only counts. Returns the entries of
 * `host`. The tree decides what is added to what: it gets places in `value`, which are not used,
 * and `number` says which partial each has become. */
static size_t build(struct dpt_placement *p, const struct dpt_placement_block *blocks, int n,
                    int32_t total, float *value, int *number)
{
    struct dpt_tree tree;
    size_t entries = 0;

    p->n = p->phases = 0;
    dpt_tree_begin(&tree, total);
    for (int i = 0; i < n; i++) {
        float *released[DPT_TREE_BLOCKS];
        struct dpt_partial *leaf = append(p, entries);
        int merged = 0;

        leaf->where = blocks[i].host;
        leaf->block = blocks[i].index;
        leaf->n = 1;
        if (p->host != NULL)
            p->host[entries] = blocks[i].host;
        entries++;
        number[i] = p->n - 1;
        dpt_tree_push(&tree, blocks[i].block, &value[i], 0, released, &merged);
        for (int k = 0; k < merged; k++) {
            const float *left = k + 1 < merged ? released[k + 1] : tree.value[tree.n - 1];

            number[left - value] =
                add_sum(p, number[left - value], number[released[k] - value], entries);
            entries += (size_t)p->partials[p->n - 1].n;
        }
    }
    return entries;
}

enum dpt_status dpt_placement_open(struct dpt_placement *p, int hosts,
                                   const struct dpt_placement_block *blocks, int n, int32_t total,
                                   struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    float *value = NULL;
    int *number = NULL;
    size_t entries;

    *p = (struct dpt_placement){.hosts = hosts};
    DPT_TRY(DPT_ALLOCATE(value, (size_t)n, "the reduction", err));
    DPT_TRY(DPT_ALLOCATE(number, (size_t)n, "the reduction", err));
    DPT_TRY(DPT_ALLOCATE(p->partials, 2 * (size_t)n, "the reduction", err));
    DPT_TRY(DPT_ALLOCATE(p->sent, (size_t)hosts, "the reduction", err));
    DPT_TRY(DPT_ALLOCATE(p->received, (size_t)hosts, "the reduction", err));
    DPT_TRY(DPT_ALLOCATE(p->sums, (size_t)n, "the reduction", err));
    entries = build(p, blocks, n, total, value, number);
    DPT_TRY(DPT_ALLOCATE(p->cost, entries, "the reduction", err));
    DPT_TRY(DPT_ALLOCATE(p->host, entries, "the reduction", err));
    build(p, blocks, n, total, value, number);
    for (int i = 0; i < p->n; i++)
        if (p->partials[i].left >= 0)
            p->sums[p->n_sums++] = i;
out:
    dpt_free(value);
    dpt_free(number);
    return status;
}

void dpt_placement_close(struct dpt_placement *p)
{
    dpt_free(p->partials);
    dpt_free(p->sums);
    dpt_free(p->host);
    dpt_free(p->cost);
    dpt_free(p->sent);
    dpt_free(p->received);
    *p = (struct dpt_placement){0};
}

/* What it costs that a host sends a value, and that one receives it. */
static int64_t send_cost(const struct dpt_placement *p, int host)
{
    return p->hosts + (p->priced ? p->sent[host] : 0);
}

static int64_t receive_cost(const struct dpt_placement *p, int host)
{
    return p->priced ? p->hosts + p->received[host] : 0;
}

/* The place of a host among a partial's, or -1. */
static int find_host(const struct dpt_placement *p, const struct dpt_partial *partial, int host)
{
    const int *hosts = p->host + partial->at;
    int low = 0, high = partial->n;

    while (low < high) {
        const int middle = (low + high) / 2;

        if (hosts[middle] < host)
            low = middle + 1;
        else
            high = middle;
    }
    return low < partial->n && hosts[low] == host ? low : -1;
}

/* What a partial costs that is made on a host; NEVER where it cannot be. */
static int64_t cost_on(const struct dpt_placement *p, const struct dpt_partial *partial, int host)
{
    const int at = find_host(p, partial, host);

    return at >= 0 ? p->cost[partial->at + (size_t)at] : NEVER;
}

/* The cost of both operands of a sum on a host, and which of them is sent there. One is made there,
 * since its memory takes the sum. */
struct choice {
    int64_t cost;
    bool left, right; /* sent */
};

/* l, r: the costs of the operands made there. */
static struct choice choose(const struct dpt_placement *p, const struct dpt_partial *sum, int64_t l,
                            int64_t r, int host)
{
    const int64_t left = p->partials[sum->left].least + receive_cost(p, host),
                  right = p->partials[sum->right].least + receive_cost(p, host);
    struct choice best = {l + r, false, false};

    if (l + right < best.cost)
        best = (struct choice){l + right, false, true};
    if (left + r < best.cost)
        best = (struct choice){left + r, true, false};
    return best;
}

/* Finds the costs of a partial on its hosts, once those of its operands are known. */
static void find_costs(struct dpt_placement *p, struct dpt_partial *partial)
{
    const bool sum = partial->left >= 0;
    const struct dpt_partial *left = sum ? &p->partials[partial->left] : NULL,
                             *right = sum ? &p->partials[partial->right] : NULL;
    int64_t *cost = p->cost + partial->at;

    for (int i = 0, l = 0, r = 0; i < partial->n; i++) {
        const int host = p->host[partial->at + (size_t)i];

        cost[i] = 0;
        if (sum) {
            const bool in_left = l < left->n && p->host[left->at + (size_t)l] == host,
                       in_right = r < right->n && p->host[right->at + (size_t)r] == host;

            cost[i] = choose(p, partial, in_left ? p->cost[left->at + (size_t)l] : NEVER,
                             in_right ? p->cost[right->at + (size_t)r] : NEVER, host)
                          .cost;
            l += in_left;
            r += in_right;
        }
        if (i == 0 || cost[i] + send_cost(p, host) < partial->least)
            partial->least = cost[i] + send_cost(p, host);
    }
}

/* The host from which a partial is sent at the least cost. Of several, owners get different ones:
 * the search begins at the owner's number. */
static int find_sender(const struct dpt_placement *p, const struct dpt_partial *partial, int owner)
{
    size_t at = partial->at + (size_t)(owner % partial->n);

    while (p->cost[at] + send_cost(p, p->host[at]) != partial->least)
        at = at + 1 < partial->at + (size_t)partial->n ? at + 1 : partial->at;
    return p->host[at];
}

/* Places the operands of a sum that is placed. */
static void place_operands(struct dpt_placement *p, const struct dpt_partial *sum, int owner)
{
    struct dpt_partial *left = &p->partials[sum->left], *right = &p->partials[sum->right];
    const struct choice choice =
        choose(p, sum, cost_on(p, left, sum->where), cost_on(p, right, sum->where), sum->where);

    left->where = choice.left ? find_sender(p, left, owner) : sum->where;
    right->where = choice.right ? find_sender(p, right, owner) : sum->where;
}

static void count_sent(struct dpt_placement *p, int from, int to)
{
    p->sent[from] += from != to;
    p->received[to] += from != to;
}

void dpt_placement_place(struct dpt_placement *p, int owner)
{
    struct dpt_partial *root = &p->partials[p->n - 1];
    int64_t here;

    /* Without prices all owners' costs are the same. */
    for (int i = 0; i < p->n && (p->priced || owner == 0); i++)
        find_costs(p, &p->partials[i]);
    here = cost_on(p, root, owner);
    root->where = here < NEVER && (p->at_owner || here <= root->least + receive_cost(p, owner))
                      ? owner
                      : find_sender(p, root, owner);
    for (int i = p->n_sums - 1; i >= 0; i--)
        place_operands(p, &p->partials[p->sums[i]], owner);
    /* Only now: all costs of an owner are those of before it. */
    count_sent(p, root->where, owner);
    for (int i = 0; i < p->n_sums; i++) {
        const struct dpt_partial *sum = &p->partials[p->sums[i]];

        count_sent(p, p->partials[sum->left].where, sum->where);
        count_sent(p, p->partials[sum->right].where, sum->where);
    }
}

/* Places all owners' partials. Returns what the busiest host sends or receives. mean: out, what a
 * host sends, rounded up. */
static int64_t try_prices(struct dpt_placement *p, bool priced, int64_t *mean)
{
    int64_t most = 0, all = 0;

    p->priced = priced;
    for (int h = 0; h < p->hosts; h++)
        p->sent[h] = p->received[h] = 0;
    for (int owner = 0; owner < p->hosts; owner++)
        dpt_placement_place(p, owner);
    for (int h = 0; h < p->hosts; h++) {
        most = p->sent[h] > most ? p->sent[h] : most;
        most = p->received[h] > most ? p->received[h] : most;
        all += p->sent[h];
    }
    *mean = (all + p->hosts - 1) / p->hosts;
    return most;
}

void dpt_placement_begin(struct dpt_placement *p, bool at_owner)
{
    int64_t plain, mean, ignored;

    p->at_owner = at_owner;
    p->priced = false;
    if (p->hosts <= PRICED) {
        plain = try_prices(p, false, &mean);
        /* With prices no fewer are sent in all, so nobody's load falls below that mean. */
        p->priced = plain > mean && try_prices(p, true, &ignored) < plain;
    }
    for (int h = 0; h < p->hosts; h++)
        p->sent[h] = p->received[h] = 0;
}

void dpt_placement_only(struct dpt_placement *p, int host)
{
    int n = 0;

    for (int i = 0; i < p->n_sums && !p->priced; i++)
        if (find_host(p, &p->partials[p->sums[i]], host) >= 0)
            p->sums[n++] = p->sums[i];
    p->n_sums = p->priced ? p->n_sums : n;
}
