#include "data/tables/array_names.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* How likely a name is that of samples or labels: by a letter that it begins or ends with, or a
 * word in it, and rather what is for training. */
static int likeness(const char *path, const char *letter, const char *const *words)
{
    const char *name = strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path;
    char lower[DPT_ARRAY_NAME] = "";
    size_t n = 0;
    int points = 0;

    for (; name[n] != '\0' && n + 1 < DPT_ARRAY_NAME; n++)
        lower[n] = (char)tolower((unsigned char)name[n]);
    lower[n] = '\0';
    if ((lower[0] == *letter && !isalpha((unsigned char)lower[1])) ||
        (n > 1 && lower[n - 1] == *letter && !isalpha((unsigned char)lower[n - 2])))
        points = 4;
    else if (lower[0] == *letter && strstr(lower, "train") != NULL)
        points = 3;
    for (size_t i = 0; words[i] != NULL && points == 0; i++)
        points = strstr(lower, words[i]) != NULL ? 2 : 0;
    return points > 0 && strcasestr(path, "train") != NULL ? points + 1 : points;
}

void dpt_array_names_look(struct dpt_array_names *names, const char *name)
{
    static const char *const of_x[] = {"image", "data", "feature", "input", "sample", NULL};
    static const char *const of_y[] = {"label", "target", "class", "output", NULL};
    const int like_x = likeness(name, "x", of_x), like_y = likeness(name, "y", of_y);

    if (like_x > names->like_x && like_x >= like_y) {
        names->like_x = like_x;
        snprintf(names->x, sizeof names->x, "%s", name);
    } else if (like_y > names->like_y) {
        names->like_y = like_y;
        snprintf(names->y, sizeof names->y, "%s", name);
    }
}
