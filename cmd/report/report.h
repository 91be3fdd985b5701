/*
 * report: one or several runs as one HTML page. Private to `dptrain report`.
 *
 * Each run's history, job and predictions are read first and the page is written afterwards, so
 * that a failure leaves no half-written page. For a part that is missing the page has a line that
 * says why. Everything lives in the report's region, and is released with it.
 */
#ifndef DPT_CMD_REPORT_REPORT_H
#define DPT_CMD_REPORT_REPORT_H

#include "cmd/cmd.h"
#include "cmd/report/chart.h"
#include "cmd/report/page.h"
#include "cmd/runs.h"
#include "core/comm/comm.h"
#include "core/train/trainer.h"
#include "core/train/use/importance.h"

enum {
    DPT_PAGE_RUNS = 100,    /* at most */
    DPT_PAGE_FEW = 8,       /* runs up to which each has a column, and a legend in each chart */
    DPT_PAGE_WORST = 40,    /* samples that are shown */
    DPT_PAGE_CLASSES = 512, /* up to which a confusion matrix is counted */
    DPT_PAGE_SIDE = 48,     /* pixels of a shown image, at most */
    DPT_PAGE_CLOUD = 600,   /* points of predicted against true */
    DPT_PAGE_OFF = 20,      /* samples far off that are shown */
    DPT_PAGE_WISHED = 5,    /* recalls whose thresholds are told */
};

/* A sample in a list of those with the largest losses. */
struct dpt_page_sample {
    int64_t number;   /* in its data set */
    const char *name; /* of its row, or NULL */
    float loss;
};

/* A sample that the model gets wrong. */
struct dpt_page_wrong {
    struct dpt_page_sample sample; /* first, as lists of samples have it */
    int64_t position;              /* in the split */
    int32_t label, chosen;         /* the true class, the model's */
    float p_label, p_chosen;
    uint8_t *pixels; /* [height][width][channels]; NULL: samples are not images */
};

/* A sample whose prediction is far off: its output that is farthest off. */
struct dpt_page_off {
    struct dpt_page_sample sample; /* likewise */
    int32_t output;
    float truth, predicted;
};

/* How precise a class or label is, by how much of it is found. */
struct dpt_page_curve {
    int32_t class;
    struct dpt_series points; /* x recall, y precision */
    double average_precision;
    struct dpt_operating_point wished[DPT_PAGE_WISHED];
};

/* The predictions of a run's checkpoint for its test data, or for data.valid where there is
 * none. */
struct dpt_page_predictions {
    const char *why;   /* not NULL: there is none, and this is why */
    const char *split; /* "test" */
    char checkpoint[64];
    int64_t step; /* of the checkpoint, -1: unknown */
    bool classes; /* one of them a sample */
    bool labels;  /* several that hold or not; else numbers, by mse */
    int32_t outputs;
    int64_t all; /* samples of the split */
    int64_t samples, correct;
    double weight, accuracy; /* of classes: of all samples; by weight */
    /* What is known of classes, and of labels, of which each is like a class: */
    struct dpt_called called; /* as the data have them */
    struct dpt_said said;     /* of each sample; while these are predicted */
    struct dpt_scores scores;
    struct dpt_class_score *class; /* [outputs] */
    struct dpt_positive positive;  /* of two classes */
    /* [outputs][outputs] by weight, true by chosen; NULL: too many classes */
    double *confusion;
    struct dpt_page_curve curves[DPT_CHART_COLOURS];
    int n_curves;
    struct dpt_page_wrong wrong[DPT_PAGE_WORST]; /* the largest losses first */
    int n_wrong;
    int64_t all_wrong;
    int width, height, channels; /* of the pixels; 0: none */
    /* Regression only: */
    double *errors;                        /* dpt_error_sums_add's, in the units of the data */
    const char **targets;                  /* [outputs]: the names of their columns, or NULL */
    struct dpt_series cloud;               /* x true, y predicted; of the first output */
    struct dpt_series residuals;           /* x predicted, y predicted - true; likewise */
    struct dpt_page_off off[DPT_PAGE_OFF]; /* the largest losses first */
    int n_off;
    struct dpt_importances importance; /* of the columns of a table; n 0: not measured */
};

struct dpt_page {
    struct dpt_runs runs;
    struct dpt_cli *cli; /* its --set are key=value over the runs' own jobs */
    struct dpt_comm comm;
    bool no_predictions;                      /* nobody wants them */
    const char **labels;                      /* [runs]: tells each from the others */
    struct dpt_page_predictions *predictions; /* [runs] */
    const char **models;                      /* [runs] its layers as a table; NULL: unknown */
    struct dpt_region region;
    struct dpt_str out;
};

/* Whether tables have a row for each run, not a column, and details are folded. */
static inline bool dpt_page_many(const struct dpt_page *r)
{
    return r->runs.n > DPT_PAGE_FEW;
}

/* Collective. Fills the run's predictions; on a failure their `why` says what failed. Errors: RANK
 * (memory). */
enum dpt_status dpt_page_predict(struct dpt_page *r, size_t run, struct dpt_error *err);
/* Keeps the layers of a run's model, as a table. Errors: RANK (memory). */
enum dpt_status dpt_page_take_model(struct dpt_page *r, size_t run, const struct dpt_graph *graph,
                                    struct dpt_error *err);
/* Says why a run has no predictions. Errors: RANK (memory). */
enum dpt_status dpt_page_leave_out(struct dpt_page *r, size_t run, const char *why,
                                   struct dpt_error *err);

/* Gets the images of its wrong samples from the data, where they are images. By one rank.
 * Errors: BAD_DATA, IO, RANK. */
enum dpt_status dpt_page_pictures(struct dpt_page *r, struct dpt_page_predictions *v,
                                  struct dpt_trainer *t, const struct dpt_split *split,
                                  struct dpt_error *err);

/* Measures the importance of a table's columns, where that takes no longer than a page may; then
 * t->scores are others. Collective. Errors: dpt_trainer_evaluate's. */
enum dpt_status dpt_page_take_importance(struct dpt_page_predictions *v, struct dpt_trainer *t,
                                         struct dpt_split *split, struct dpt_error *err);

/* Keeps the curves of the positive class, or of the hardest ones, while v->said is there. Errors:
 * RANK (memory). */
enum dpt_status dpt_page_take_curves(struct dpt_page *r, struct dpt_page_predictions *v,
                                     const struct dpt_split *split, struct dpt_error *err);

/* The parts of the page, in their order. */
void dpt_page_headline(struct dpt_page *r);
void dpt_page_curves(struct dpt_page *r);
void dpt_page_ranks(struct dpt_page *r);
/* Whether a start's ranks divide the model and are few enough to be drawn; draws them
 * (mesh_html.c). */
bool dpt_page_has_mesh(const struct dpt_history_start *start);
void dpt_page_mesh(struct dpt_page *r, size_t run);
void dpt_page_write_predictions(struct dpt_page *r);
/* Write how good one run is: one that predicts numbers (numbers_html.c), at these; one that
 * predicts classes or labels, at each of them (classes_html.c). */
void dpt_page_numbers(struct dpt_page *r, size_t run);
void dpt_page_classes(struct dpt_page *r, const struct dpt_page_predictions *v);
void dpt_page_each_label(struct dpt_page *r, const struct dpt_page_predictions *v);
/* Writes what other thresholds would give (recall_html.c). */
void dpt_page_recall(struct dpt_page *r, const struct dpt_page_predictions *v);
/* Writes which columns matter (importance_html.c). */
void dpt_page_importance(struct dpt_page *r, const struct dpt_page_predictions *v);
void dpt_page_models(struct dpt_page *r);
void dpt_page_environment(struct dpt_page *r);

/* A swatch and the label of a run between two pieces of markup, for headings and tables; of several
 * runs, "label: ". */
void dpt_page_label(struct dpt_page *r, const char *before, size_t run, const char *after);
void dpt_page_prefix(struct dpt_page *r, size_t run);
/* How many of the rarest class a run finds, if the classes of its samples are imbalanced. */
void dpt_page_uneven(struct dpt_page *r, size_t run);
/* Begins a row of a sample, with its name, or its number where it has none. */
void dpt_page_row(struct dpt_page *r, const struct dpt_page_sample *sample);
/* A class by its name, or where it has none by its number, between two pieces of markup. */
void dpt_page_class(struct dpt_page *r, const struct dpt_page_predictions *v, const char *before,
                    int32_t class, const char *after);
/* A table of this style with these heads, which end with NULL; the caller writes its rows, and
 * closes it. */
void dpt_page_open_table(struct dpt_page *r, const char *style, const char *caption,
                         const char *const *heads);
void dpt_page_close_table(struct dpt_page *r);

#endif
