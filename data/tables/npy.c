#include "data/tables/npy.h"

#include <ctype.h>
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_MOST = 1 << 20 };

/* A walk over the header's text; `failed` once something else stood there than was wanted. */
struct walk {
    const char *at, *end;
    bool failed;
};

static void skip_space(struct walk *w)
{
    while (w->at < w->end && isspace((unsigned char)*w->at))
        w->at++;
}

/* Takes a byte where it comes next. */
static bool take(struct walk *w, char byte)
{
    skip_space(w);
    if (w->failed || w->at == w->end || *w->at != byte)
        return false;
    w->at++;
    return true;
}

static void want(struct walk *w, char byte)
{
    if (!take(w, byte))
        w->failed = true;
}

static bool take_word(struct walk *w, const char *word)
{
    const size_t n = strlen(word);

    skip_space(w);
    if (w->failed || (size_t)(w->end - w->at) < n || memcmp(w->at, word, n) != 0)
        return false;
    w->at += n;
    return true;
}

/* A string in single or double quotes, without escapes: NumPy writes none into the keys and types
 * that are taken here. */
static void want_string(struct walk *w, char *text, size_t capacity)
{
    const int quote = take(w, '\'') ? '\'' : take(w, '"') ? '"' : '\0';
    size_t n = 0;

    text[0] = '\0';
    if (quote == '\0') {
        w->failed = true;
        return;
    }
    while (w->at < w->end && *w->at != quote && *w->at != '\\' && *w->at != '\0' &&
           n + 1 < capacity)
        text[n++] = *w->at++;
    text[n] = '\0';
    if (w->at == w->end || *w->at != quote)
        w->failed = true;
    else
        w->at++;
}

/* A size; Python 2 wrote an L after it. */
static int64_t want_size(struct walk *w)
{
    int64_t value = 0;

    skip_space(w);
    if (w->at == w->end || !isdigit((unsigned char)*w->at))
        w->failed = true;
    while (w->at < w->end && isdigit((unsigned char)*w->at))
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *w->at++ - '0', &value))
            w->failed = true;
    if (w->at < w->end && *w->at == 'L')
        w->at++;
    return w->failed ? 0 : value;
}

static bool want_shape(struct walk *w, struct dpt_npy *npy)
{
    want(w, '(');
    npy->n_dims = 0;
    while (!w->failed && !take(w, ')')) {
        if (npy->n_dims == DPT_NPY_DIMS)
            return false;
        npy->dims[npy->n_dims++] = want_size(w);
        if (!take(w, ',')) {
            want(w, ')');
            break;
        }
    }
    return true;
}

/* descr: byte order, kind, bytes. */
static bool set_type(struct dpt_npy *npy)
{
    static const struct {
        char kind;
        int size;
    } types[] = {{'b', 1}, {'u', 1}, {'u', 2}, {'u', 4}, {'u', 8}, {'i', 1},
                 {'i', 2}, {'i', 4}, {'i', 8}, {'f', 2}, {'f', 4}, {'f', 8}};
    const char *d = npy->descr;
    const char other = BYTE_ORDER == LITTLE_ENDIAN ? '>' : '<';

    if (strlen(d) != 3 || strchr("<>=|", d[0]) == NULL)
        return false;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (types[i].kind != d[1] || types[i].size != d[2] - '0')
            continue;
        npy->kind = d[1];
        npy->size = types[i].size;
        npy->swapped = npy->size > 1 && d[0] == other;
        return npy->size == 1 || d[0] != '|';
    }
    return false;
}

enum dpt_status dpt_npy_parse(const char *path, const char *text, size_t n, struct dpt_npy *npy,
                              struct dpt_error *err)
{
    struct walk w = {.at = text, .end = text + n};
    unsigned seen = 0;
    bool few_dims = true;
    char key[32];

    memset(npy, 0, sizeof *npy);
    want(&w, '{');
    while (!w.failed && !take(&w, '}')) {
        want_string(&w, key, sizeof key);
        want(&w, ':');
        if (strcmp(key, "descr") == 0) {
            seen |= 1;
            if (take(&w, '['))
                return dpt_fail(err, DPT_BAD_DATA,
                                "%s: is an array of records; plain numbers are needed", path);
            want_string(&w, npy->descr, sizeof npy->descr);
        } else if (strcmp(key, "fortran_order") == 0) {
            seen |= 2;
            npy->fortran_order = take_word(&w, "True");
            if (!npy->fortran_order && !take_word(&w, "False"))
                w.failed = true;
        } else if (strcmp(key, "shape") == 0) {
            seen |= 4;
            few_dims = want_shape(&w, npy);
        } else {
            w.failed = true;
        }
        if (!few_dims)
            return dpt_fail(err, DPT_BAD_DATA, "%s: has more than %d dimensions", path,
                            DPT_NPY_DIMS);
        if (!take(&w, ',')) {
            want(&w, '}');
            break;
        }
    }
    skip_space(&w);
    if (w.failed || w.at != w.end || seen != 7)
        return dpt_fail(err, DPT_BAD_DATA,
                        "%s: its header is no dictionary of descr, fortran_order and shape", path);
    if (!set_type(npy))
        return dpt_fail(
            err, DPT_BAD_DATA,
            "%s: holds values of the type '%s'%s; integers and floats of 32 or 64 bits are taken",
            path, npy->descr, strcmp(npy->descr, "|O") == 0 ? " (Python objects)" : "");
    npy->count = 1;
    for (int i = 0; i < npy->n_dims; i++)
        if (__builtin_mul_overflow(npy->count, npy->dims[i], &npy->count) ||
            npy->count > INT64_MAX / 8)
            return dpt_fail(err, DPT_BAD_DATA, "%s: its shape has more numbers than any file",
                            path);
    return DPT_OK;
}

enum dpt_status dpt_npy_read(const char *path,
                             enum dpt_status (*read)(void *arg, void *bytes, size_t n,
                                                     struct dpt_error *err),
                             void *arg, struct dpt_npy *npy, size_t *length, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    uint8_t b[8], l[4] = {0};
    char *text = NULL;
    size_t n;

    DPT_TRY(read(arg, b, sizeof b, err));
    if (memcmp(b, "\x93NUMPY", 6) != 0)
        DPT_TRY(
            dpt_fail(err, DPT_BAD_DATA,
                     "%s: is no .npy file: it begins with %02x %02x %02x %02x, not \\x93NUMPY%s",
                     path, b[0], b[1], b[2], b[3],
                     memcmp(b, "PK\3\4", 4) == 0 ? "; `dptrain convert npz` takes .npz" : ""));
    if (b[6] < 1 || b[6] > 3 || b[7] != 0)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA,
                         "%s: is of .npy version %d.%d; 1.0, 2.0 and 3.0 are taken", path, b[6],
                         b[7]));
    DPT_TRY(read(arg, l, b[6] == 1 ? 2 : 4, err));
    n = (size_t)l[0] | (size_t)l[1] << 8 | (size_t)l[2] << 16 | (size_t)l[3] << 24;
    if (n > HEADER_MOST)
        DPT_TRY(dpt_fail(err, DPT_BAD_DATA, "%s: its header claims to have %zu bytes", path, n));
    *length = sizeof b + (b[6] == 1 ? 2 : 4) + n;
    text = malloc(n + 1);
    if (text == NULL)
        DPT_TRY(dpt_fail_memory(err, path, (double)n));
    DPT_TRY(read(arg, text, n, err));
    DPT_TRY(dpt_npy_parse(path, text, n, npy, err));
out:
    free(text);
    return status;
}

size_t dpt_npy_header(const char *descr, const int64_t *dims, int n_dims,
                      char header[DPT_NPY_HEADER])
{
    enum {
        MAGIC = 8, /* "\x93NUMPY", two bytes of version */
        ALIGN = 64 /* of the numbers within the file, as numpy writes it */
    };
    size_t n = MAGIC + 2;

    n += (size_t)snprintf(header + n, DPT_NPY_HEADER - n,
                          "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (int d = 0; d < n_dims; d++)
        n += (size_t)snprintf(header + n, DPT_NPY_HEADER - n, "%s%lld", d > 0 ? ", " : "",
                              (long long)dims[d]);
    n += (size_t)snprintf(header + n, DPT_NPY_HEADER - n, "%s), }", n_dims == 1 ? "," : "");
    while ((n + 1) % ALIGN != 0)
        header[n++] = ' ';
    header[n++] = '\n';
    memcpy(header, "\x93NUMPY\x01\x00", MAGIC);
    header[MAGIC] = (char)((n - MAGIC - 2) & 0xFF);
    header[MAGIC + 1] = (char)((n - MAGIC - 2) >> 8);
    return n;
}
