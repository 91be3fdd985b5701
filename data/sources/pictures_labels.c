/* Labels of images that a CSV file gives, instead of the folders that the images lie in. */
#include <string.h>

#include "data/sources/csv_state.h"
#include "data/sources/pictures_state.h"

/* What a row may call an image, the best first: its path in the folder, or its name, and both
 * without their ends. */
enum { PATH, PATH_ALONE, NAME, NAME_ALONE, KEYS };

/* Rows of one kind that something is wrong with. */
struct found {
    int64_t n;
    const char *first, *picture, *other;
};

struct match {
    struct dpt_source *source;
    struct dpt_name_index index; /* KEYS of each image */
    struct dpt_region region;
    struct found missing, doubtful, contrary;
};

enum dpt_status dpt_pictures_check_options(const struct dpt_source *s, struct dpt_error *err)
{
    static const char *const names[DPT_SOURCE_OPTION_COUNT] = {
#define X(id, name, value, help) [DPT_SOURCE_##id] = name,
        DPT_SOURCE_OPTION_LIST(X)
#undef X
    };

    for (int i = 0; i < DPT_SOURCE_OPTIONS && s->spec->option[DPT_SOURCE_TABLE] == NULL; i++)
        if ((DPT_PICTURES_TABLE_OPTIONS & 1ull << i) != 0 && s->spec->option[i] != NULL)
            return dpt_fail(err, DPT_USAGE,
                            s->spec->convert
                                ? "%s is no option of the format pictures without --labels FILE"
                                : "%s is no option for inputs of the format pictures",
                            names[i]);
    return DPT_OK;
}

/* --- which image a row means ---------------------------------------------------------------- */

static enum dpt_status list_names(struct match *m, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    const struct dpt_picture_list *list = &((const struct dpt_pictures *)m->source->state)->list;

    const size_t n = list->n * KEYS;
    const char **names = dpt_region_alloc(&m->region, n * sizeof *names);

    for (size_t i = 0; names != NULL && i < list->n; i++) {
        const char *path = list->entries[i].name, *slash = strrchr(path, '/');
        const char *alone =
            dpt_region_strndup(&m->region, path, (size_t)(strrchr(path, '.') - path));
        const char **of = names + i * KEYS;
        const ptrdiff_t name = slash != NULL ? slash + 1 - path : 0;

        if (alone == NULL)
            break;
        of[PATH] = path;
        of[PATH_ALONE] = alone;
        of[NAME] = path + name;
        of[NAME_ALONE] = alone + name;
    }
    if (m->region.failed)
        DPT_TRY(dpt_fail_memory(err, "names of images", (double)list->n));
    DPT_TRY(dpt_name_index_make(&m->index, names, sizeof *names, n, &m->region, err));
out:
    return status;
}

/* How many images a text names, of the best kind of name below `kinds`; at: the first two. */
static size_t look_up(const struct match *m, const char *text, size_t kinds, size_t at[2])
{
    const struct dpt_name_place *first;
    const size_t all = dpt_name_index_find(&m->index, text, &first);
    size_t best = KEYS, n = 0;

    for (size_t i = 0; i < all; i++) {
        const size_t kind = first[i].at % KEYS, picture = first[i].at / KEYS;

        if (kind >= kinds || kind > best)
            continue;
        if (kind < best) {
            best = kind;
            n = 0;
        }
        if (n == 0 || at[n > 1] != picture) {
            at[n > 0] = picture;
            n++;
        }
    }
    return n;
}

/* Finds the image, also if the text has the folder, or more, in front of the path. */
static size_t find_picture(const struct match *m, const char *text, size_t at[2])
{
    size_t n, kinds = KEYS;

    while (strncmp(text, "./", 2) == 0)
        text += 2;
    n = look_up(m, text, kinds, at);
    for (const char *slash; n == 0 && (slash = strchr(text, '/')) != NULL;) {
        text = slash + 1;
        n = look_up(m, text, NAME, at);
    }
    return n;
}

/* --- the table -------------------------------------------------------------------------------- */

extern const struct dpt_source_format dpt_source_csv;

void dpt_pictures_labels_close(struct dpt_pictures *state)
{
    struct dpt_source *table = &state->table;

    if (table->state != NULL)
        dpt_source_csv.close(table->state);
    dpt_free(table->state);
    dpt_region_release(&table->region);
    *table = (struct dpt_source){0};
}

/* A source of names and labels alone, by itself: nobody fetches samples from it. */
static enum dpt_status open_table(struct dpt_source *s, const char *header, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_pictures *state = s->state;
    struct dpt_source_spec *spec = &state->table_spec;
    struct dpt_source *table = &state->table;

    dpt_pictures_labels_close(state);
    *spec = (struct dpt_source_spec){
        .log = s->spec->log, .stop = s->spec->stop, .convert = true, .labels_only = true};
    for (int i = 0; i < DPT_SOURCE_OPTIONS; i++)
        if ((DPT_PICTURES_TABLE_OPTIONS & 1ull << i) != 0)
            spec->option[i] = s->spec->option[i];
    spec->option[DPT_SOURCE_LIKE] = s->spec->option[DPT_SOURCE_LIKE];
    spec->option[DPT_SOURCE_HEADER] = header;
    state->table_path = (char *)s->spec->option[DPT_SOURCE_TABLE];
    *table = (struct dpt_source){.spec = spec, .format = &dpt_source_csv, .ranks = 1};
    table->paths = &state->table_path;
    table->n_paths = 1;
    table->parts = dpt_region_alloc(&table->region, sizeof *table->parts);
    table->state = table->parts != NULL ? dpt_alloc(dpt_source_csv.state) : NULL;
    if (table->state == NULL)
        DPT_TRY(dpt_fail_memory(err, state->table_path, (double)dpt_source_csv.state));
    DPT_TRY(dpt_source_csv.open(table, err));
out:
    return status;
}

static enum dpt_status read_labels(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_pictures *state = s->state;
    struct dpt_source *table = &state->table;
    const size_t n = (size_t)table->parts->samples;
    struct dpt_source_rows rows = {.n = table->parts->samples};

    if (table->info.truth == DPT_TRUTH_CLASS)
        DPT_TRY(DPT_ALLOCATE(state->row_classes, n, "the labels", err));
    else
        DPT_TRY(DPT_ALLOCATE(state->row_targets, n * (size_t)table->info.width, "the labels", err));
    rows.classes = state->row_classes;
    rows.targets = state->row_targets;
    DPT_TRY(dpt_source_csv.read(table, &rows, err));
    s->info.truth = table->info.truth;
    s->info.width = table->info.width;
    s->info.classes = table->info.classes;
    s->info.class_names = table->info.class_names;
out:
    return status;
}

static bool same_label(const struct dpt_source *s, int64_t a, int64_t b)
{
    const struct dpt_pictures *state = s->state;
    const size_t width = (size_t)s->info.width;

    return state->row_classes != NULL
               ? state->row_classes[a] == state->row_classes[b]
               : memcmp(state->row_targets + (size_t)a * width,
                        state->row_targets + (size_t)b * width, width * sizeof(float)) == 0;
}

static void note(struct found *found, const char *first, const char *picture, const char *other)
{
    if (found->n++ == 0) {
        found->first = first;
        found->picture = picture;
        found->other = other;
    }
}

/* Gives each image its row. */
static enum dpt_status match_rows(struct match *m, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_pictures *state = m->source->state;
    struct dpt_picture_entry *entries = state->list.entries, *entry;
    size_t at[2] = {0, 0};

    for (int64_t row = 0; row < state->table.parts->samples; row++) {
        const char *name = dpt_source_csv.sample_name(&state->table, row);
        char *path = dpt_region_strdup(&m->region, name);
        size_t n;

        if (path == NULL)
            DPT_TRY(dpt_fail_memory(err, "names of images", (double)row));
        for (char *c = path; *c != '\0'; c++)
            *c = (char)(*c == '\\' ? '/' : *c); /* as Windows writes paths */
        n = find_picture(m, path, at);
        entry = &entries[at[0]];
        if (n == 0)
            note(&m->missing, name, NULL, NULL);
        else if (n > 1)
            note(&m->doubtful, name, entry->name, entries[at[1]].name);
        else if (entry->row >= 0 && !same_label(m->source, entry->row, row))
            note(&m->contrary, name, entry->name, NULL);
        else
            entry->row = row;
    }
out:
    return status;
}

/* What is wrong with some rows ends the conversion; --skip-bad leaves out those without an image.
 */
static enum dpt_status check_rows(const struct match *m, struct dpt_error *err)
{
    const struct dpt_source *s = m->source;
    const struct dpt_source *table = &((const struct dpt_pictures *)s->state)->table;
    const long long rows = table->parts->samples;
    const bool skip = s->spec->option[DPT_SOURCE_SKIP_BAD] != NULL;
    char some[32], all[32];

    dpt_group_digits(all, rows);
    if (m->contrary.n > 0)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: %s of %s rows name an image that a row before labels otherwise; the "
                        "first is '%s'",
                        table->paths[0], dpt_group_digits(some, m->contrary.n), all,
                        m->contrary.first);
    if (m->doubtful.n > 0)
        return dpt_fail(
            err, DPT_BAD_DATA,
            "%s: %s of %s rows may name several images in %s; the first is '%s', which is %s "
            "or %s: give paths in the folder",
            table->paths[0], dpt_group_digits(some, m->doubtful.n), all, s->paths[0],
            m->doubtful.first, m->doubtful.picture, m->doubtful.other);
    if (m->missing.n == 0)
        return DPT_OK;
    if (!skip || m->missing.n == rows)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: %s of %s rows name no image in %s; the first is '%s', in the column "
                        "'%s'; %s",
                        table->paths[0], dpt_group_digits(some, m->missing.n), all, s->paths[0],
                        m->missing.first, table->info.id,
                        m->missing.n == rows ? "--id says which column names the files"
                                             : "--skip-bad leaves such rows out");
    dpt_log_warn(
        s->spec->log, "%s: %s of %s rows name no image in %s and are left out; the first is '%s'",
        table->paths[0], dpt_group_digits(some, m->missing.n), all, s->paths[0], m->missing.first);
    return DPT_OK;
}

/* Leaves out the images without a row. Sub-folders are no classes. */
static void keep_labelled(struct dpt_source *s)
{
    struct dpt_pictures *state = s->state;
    struct dpt_picture_list *list = &state->list;
    const size_t all = list->n;
    const char *first = NULL;
    char some[32], digits[32];

    list->n = 0;
    for (size_t i = 0; i < all; i++) {
        if (list->entries[i].row < 0) {
            first = first != NULL ? first : list->entries[i].name;
            continue;
        }
        list->entries[list->n] = list->entries[i];
        list->entries[list->n++].class = -1;
    }
    dpt_names_release(&list->classes);
    if (first != NULL)
        dpt_log_info(s->spec->log,
                     "%s: %s of %s images have no row in %s and are left out; the first is %s",
                     s->paths[0], dpt_group_digits(some, (long long)(all - list->n)),
                     dpt_group_digits(digits, (long long)all), state->table_path, first);
}

enum dpt_status dpt_pictures_labels(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    struct dpt_pictures *state = s->state;
    const char *header = s->spec->option[DPT_SOURCE_HEADER];
    struct match m = {.source = s};
    size_t at[2];

    DPT_TRY(list_names(&m, err));
    DPT_TRY(open_table(s, header, err));
    if (state->table.info.id == NULL)
        DPT_TRY(dpt_fail(err, DPT_USAGE, "%s: --id says which column names the files",
                         state->table_path));
    /* Nothing in a first line of words says that it is a header, but that it names no image. */
    if ((header == NULL || strcmp(header, "auto") == 0) &&
        find_picture(&m, state->table.info.id, at) > 0)
        DPT_TRY(open_table(s, "no", err));
    DPT_TRY(read_labels(s, err));
    DPT_TRY(match_rows(&m, err));
    DPT_TRY(check_rows(&m, err));
    keep_labelled(s);
out:
    dpt_region_release(&m.region);
    return status;
}

enum dpt_status dpt_pictures_labels_end(struct dpt_source *s, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    static const char *const fits[] = {DPT_PICTURE_FITS(DPT_LIST_WORD)};
    struct dpt_pictures *state = s->state;
    struct dpt_source *table = &state->table;

    ((struct dpt_csv_state *)table->state)->columns.fit =
        s->info.columns != NULL ? fits[state->layout.fit] : NULL;
    DPT_TRY(dpt_source_csv.fit(table, NULL, err));
    if (table->info.columns == NULL)
        return DPT_OK;
    s->info.columns = table->info.columns;
    dpt_str_printf(&state->told, "%s", table->info.told);
    if (state->told.failed)
        DPT_TRY(dpt_fail_memory(err, "the columns", (double)state->told.length));
    s->info.told = state->told.text;
out:
    return status;
}
