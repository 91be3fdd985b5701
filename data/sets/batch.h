/*
 * batch: the memory of a micro-batch, and what it holds.
 *
 * A form says what the samples of a split become: which set they are from and what is done to them.
 * Everything whose size hangs on that takes it from here. A buffer belongs to one thread, and
 * serves other forms of samples of the same shape too.
 */
#ifndef DPT_DATA_BATCH_H
#define DPT_DATA_BATCH_H

#include "data/sets/dataset.h"

struct dpt_augment_key;

struct dpt_batch_form {
    const struct dpt_dataset *set;     /* borrowed */
    const struct dpt_augment *augment; /* borrowed; NULL: nothing is done to them */
    int32_t targets;                   /* floats of a sample's targets; 0: labels */
};

/* The form of a set's samples, augmented or not (NULL), for a model with so many outputs. */
struct dpt_batch_form dpt_batch_form_of(const struct dpt_dataset *set,
                                        const struct dpt_augment *augment, int32_t outputs);
/* Floats of a sample; stored samples that one is made of, 2 where they are mixed (mix.h); and
 * floats of the memory in which that is done. */
size_t dpt_batch_size(const struct dpt_batch_form *form);
int dpt_batch_sources(const struct dpt_batch_form *form);
size_t dpt_batch_scratch(const struct dpt_batch_form *form);
/* Makes of a stored sample, of so many bytes, what the model takes, but for the mixing. scratch: of
 * dpt_batch_scratch floats. Errors: BAD_DATA (names the sample), RANK. */
enum dpt_status dpt_batch_sample(const struct dpt_batch_form *form,
                                 const struct dpt_augment_key *key, const uint8_t *stored,
                                 size_t bytes, float *out, float *scratch, struct dpt_error *err);

/* Measures the seconds that making a sample takes one thread, the median of some: of the first
 * files of a described set, else of made-up ones. Errors: as of dpt_batch_sample, IO. */
enum dpt_status dpt_batch_cost(const struct dpt_batch_form *form, double *seconds,
                               struct dpt_error *err);

/* Memory for one micro-batch, one for each thread; filled by dpt_loader_fill, valid until the next
 * fill. */
struct dpt_batch_buffer {
    float *input;
    int32_t *labels;
    float *targets;
    float *weights; /* of a set that has some */
    int64_t *sample;
    float *scratch;       /* samples on their way from stored ones */
    size_t target_floats; /* capacity of `targets` */
    size_t scratch_floats;
};

/* Errors: RANK. */
enum dpt_status dpt_batch_buffer_open(struct dpt_batch_buffer *buffer,
                                      const struct dpt_batch_form *form, int32_t micro,
                                      struct dpt_error *err);
void dpt_batch_buffer_close(struct dpt_batch_buffer *buffer);
/* Makes room for another form, as dpt_loader_fill does, of so many rows. Errors: RANK. */
enum dpt_status dpt_batch_buffer_widen(struct dpt_batch_buffer *buffer,
                                       const struct dpt_batch_form *form, int32_t rows,
                                       struct dpt_error *err);
/* Makes room for so many floats to make samples in. Errors: RANK. */
enum dpt_status dpt_batch_buffer_scratch(struct dpt_batch_buffer *buffer, size_t floats,
                                         struct dpt_error *err);
/* The buffer without its first rows; borrowed. */
struct dpt_batch_buffer dpt_batch_buffer_from(const struct dpt_batch_buffer *buffer,
                                              const struct dpt_batch_form *form, size_t row);

#endif
