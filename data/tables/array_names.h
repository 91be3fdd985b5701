/*
 * array_names: which arrays of a file are likely samples and labels, by their names, for advice.
 */
#ifndef DPT_DATA_ARRAY_NAMES_H
#define DPT_DATA_ARRAY_NAMES_H

enum { DPT_ARRAY_NAME = 64 };

/* The likeliest names so far; "": none. Zero-initialise. */
struct dpt_array_names {
    char x[2 * DPT_ARRAY_NAME], y[2 * DPT_ARRAY_NAME]; /* maybe with that of a group */
    int like_x, like_y;
};

/* Looks at another name of the file. */
void dpt_array_names_look(struct dpt_array_names *names, const char *name);

/* The name, or where there is none a word that stands for one. */
static inline const char *dpt_array_name(const char *name)
{
    return name[0] != '\0' ? name : "NAME";
}

#endif
