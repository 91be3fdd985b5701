/*
 * parts: the private members of a struct dpt_dataset, and the steps of opening one. Private to
 * data/.
 */
#ifndef DPT_DATA_PARTS_H
#define DPT_DATA_PARTS_H

#include "data/sets/dataset.h"
#include "data/sets/paths.h"
#include "data/shards/shard.h"

/* Makes `items`, of dpt_alloc_array, hold n elements where it has room for fewer, or fails as
 * DPT_TRY does. What was in it is lost then. */
#define DPT_WIDEN(items, room, n, what, err)                                                       \
    do {                                                                                           \
        if ((n) > *(room)) {                                                                       \
            *(room) = 0;                                                                           \
            dpt_free(items);                                                                       \
            DPT_TRY(DPT_ALLOCATE(items, n, what, err));                                            \
            *(room) = (n);                                                                         \
        }                                                                                          \
    } while (0)

struct dpt_dataset_parts {
    const char *key;          /* "data.train": what messages call the set; static */
    struct dpt_shard *shards; /* none in a synthetic set */
    size_t n_shards;
    struct dpt_shard *named;       /* the one that names the most classes; NULL: none does */
    const struct dpt_shard *table; /* the first that was made of a table's columns; NULL: none */
    bool synthetic;
    bool verify;          /* checksums, where there are any */
    _Atomic bool changed; /* a shard is, which dpt_dataset_changed has not told yet */
    /* The job's; NULL: classes, or multi-label labels, have none. */
    const struct dpt_class_weight_conf *class_weights, *label_weights;
    float *positive;                            /* the set's */
    struct dpt_shared images, targets, weighed; /* bytes NULL: not opened; weighed: the samples'
                                                   weights */
    struct dpt_shared offsets;                  /* the shards' */
    float *scale, *shift;     /* [c]: a number x of the file becomes x * scale + shift, */
    float *centre, *rest;     /* or (x - centre) * scale + rest, where these are not NULL */
    struct dpt_shape resized; /* between `stored` and `shape` of the set */
    bool uniform;             /* all channels have the same two */
    bool check_finite;        /* floats that nobody has looked at yet */
    float *weights, *biases;  /* synthetic regression, else NULL */
};

/* The samples [*begin, *end) that this rank of a group reads or makes for all of them. */
static inline void dpt_dataset_share(const struct dpt_dataset *set, const struct dpt_group *group,
                                     int64_t *begin, int64_t *end)
{
    *begin = (int64_t)((__int128)set->samples * group->rank / group->size);
    *end = (int64_t)((__int128)set->samples * (group->rank + 1) / group->size);
}

/*
 * Finds and describes the shards of a set, each by one rank. Collective over comm->world: all ranks
 * get the same status, of the first shard that is bad. Errors: BAD_JOB (no file matches, one is
 * named twice), BAD_DATA (names the file), RANK.
 */
enum dpt_status dpt_dataset_describe_shards(struct dpt_dataset *set,
                                            const struct dpt_dataset_spec *spec,
                                            const struct dpt_comm *comm, struct dpt_error *err);
/*
 * Reads labels and weights, and images where set->memory is given, in shares of each node's ranks,
 * and verifies them; images that will be read when needed are verified in shares of all ranks.
 * Collective over comm->world: all ranks get the same status. Errors: BAD_DATA, IO, RANK.
 */
enum dpt_status dpt_dataset_read(struct dpt_dataset *set, const struct dpt_dataset_spec *spec,
                                 const struct dpt_comm *comm, struct dpt_error *err);

/* Whether its files have weights of the samples. */
static inline bool dpt_dataset_has_weights(const struct dpt_dataset_parts *parts)
{
    return parts->n_shards > 0 && parts->shards[0].weights.name != NULL;
}
/* Takes data.class_weights, where the set is of the training samples, described. Errors: BAD_JOB
 * (its targets are no labels). */
enum dpt_status dpt_dataset_take_class_weights(struct dpt_dataset *set,
                                               const struct dpt_dataset_spec *spec,
                                               struct dpt_error *err);
/* Finds set->positive, once the labels are there. Errors: BAD_DATA (a label between 0 and 1),
 * BAD_JOB (a label that is none), RANK. */
enum dpt_status dpt_dataset_weigh_labels(struct dpt_dataset *set, struct dpt_error *err);
/* Makes the weights what data.class_weights says, of a set that has its labels. By one rank of the
 * node. Errors: BAD_JOB (a class that is none), RANK. */
enum dpt_status dpt_dataset_weigh(struct dpt_dataset *set, struct dpt_error *err);

/* Describes a synthetic set, and then makes its samples, a share for each rank of the node (not
 * collective: no rank waits). Errors: BAD_JOB, RANK. */
enum dpt_status dpt_synthetic_describe(struct dpt_dataset *set, const struct dpt_dataset_spec *spec,
                                       struct dpt_error *err);
enum dpt_status dpt_synthetic_fill(struct dpt_dataset *set, const struct dpt_dataset_spec *spec,
                                   const struct dpt_group *node, struct dpt_error *err);

/* Readies the normalisation and the view of a described set, whose shape is that of what is stored.
 * Errors: BAD_JOB (as many numbers as channels are needed; as of dpt_data_view), RANK. */
enum dpt_status dpt_fill_prepare(struct dpt_dataset *set, const struct dpt_data_conf *conf,
                                 struct dpt_error *err);
/* The shard that a sample lies in; not for synthetic sets. */
const struct dpt_shard *dpt_dataset_shard(const struct dpt_dataset *set, int64_t sample);

/* Where a stored sample begins among all of the set, and how many bytes it has. */
int64_t dpt_dataset_place(const struct dpt_dataset *set, int64_t sample, size_t *bytes);
/* Makes of a stored sample of so many bytes what others store: *stored is then *decoded where the
 * set is of files, which the caller frees in any case, and its numbers are finite. Errors: BAD_DATA
 * (names the sample), RANK. */
enum dpt_status dpt_dataset_take(const struct dpt_dataset *set, int64_t sample, size_t bytes,
                                 const uint8_t **stored, uint8_t **decoded, struct dpt_error *err);
/* Fills out [n][shape] with samples of a set in memory that the model takes as they are stored: not
 * files, nor other views. Small ones take no longer than to ask for each what else it needs.
 * Errors: as above. */
enum dpt_status dpt_dataset_fill(const struct dpt_dataset *set, const int64_t *sample, int32_t n,
                                 float *out, struct dpt_error *err);
/* Shuffled samples lie anywhere in memory: asks for one while another is being converted. */
void dpt_dataset_prefetch(const struct dpt_dataset *set, int64_t sample);

/* One stored, or decoded, sample as normalised floats [c][h][w]; scratch: of dpt_fill_scratch
 * floats. */
size_t dpt_fill_scratch(const struct dpt_dataset *set);
void dpt_fill_sample(const struct dpt_dataset *set, const uint8_t *stored, float *out,
                     float *scratch);
/* Writes the sample before anything is cut out of it, and before it is resized. */
void dpt_fill_resized(const struct dpt_dataset *set, const uint8_t *stored, float *out,
                      float *scratch);
void dpt_fill_stored(const struct dpt_dataset *set, const uint8_t *stored, float *out);
/* The first of n floats (any alignment) that is NaN or infinite, or -1. */
int64_t dpt_find_nonfinite(const void *floats, size_t n);

/*
 * A reader: any samples of a data set from its shards, many at a time, in the order of the files,
 * neighbours with one call. It belongs to one thread; several may read one data set.
 */
struct dpt_reader;

/* most: samples a read. sequential: neighbours will be asked for soon. set is borrowed. Errors:
 * RANK. */
enum dpt_status dpt_reader_open(struct dpt_reader **reader, const struct dpt_dataset *set,
                                size_t most, bool sequential, struct dpt_error *err);
void dpt_reader_close(struct dpt_reader *reader);

/* Where each of n samples begins when they are read, and how many bytes there are. at: out, [n]. */
size_t dpt_reader_places(const struct dpt_dataset *set, const int64_t *sample, int32_t n,
                         size_t *at);
/* bytes: out, one sample after the other, in the order of `sample`: [n][stride], of files as many
 * as they have (dpt_dataset_place). Errors: BAD_DATA, IO (names the file and the sample). */
enum dpt_status dpt_reader_read(struct dpt_reader *reader, const int64_t *sample, int32_t n,
                                uint8_t *bytes, struct dpt_error *err);

#endif
