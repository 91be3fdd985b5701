#include "core/backend/cuda/libraries/library_find.h"

#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The toolkit's folders on the machine where this was built, separated by colons. */
#ifndef DPT_CUDA_FOLDERS
#define DPT_CUDA_FOLDERS ""
#endif

enum { MOST_NAMED_PREFIXES = 5 };

/* NODELETE since the libraries have threads of their own, which may still run after dlclose. */
enum { OPEN_FLAGS = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE };

/* pip's folders below site-packages: of cuDNN, of the toolkit since CUDA 13, of cuBLAS before. */
static const char *const pip_folders[] = {"nvidia/cudnn/lib", "nvidia/cu13/lib",
                                          "nvidia/cublas/lib", "nvidia/nccl/lib", NULL};

/* The folders of packages below PREFIX/lib/pythonX.Y; Debian's own Python has dist-packages. */
static const char *const package_folders[] = {"site-packages", "dist-packages", NULL};

struct finder {
    const char *const *names;
    struct dpt_cuda_search *search;
    void *handle;        /* NULL until the library is found */
    struct dpt_str seen; /* folders searched, one per line, so that none is searched twice */
    int n_noted;
};

void *dpt_cuda_open(const char *path)
{
    return dlopen(path, OPEN_FLAGS);
}

/* --- folders ---------------------------------------------------------------------------------- */

static void note_broken(struct finder *f, const char *why)
{
    if (f->search->broken.length == 0 && why != NULL)
        dpt_str_printf(&f->search->broken, "%s", why);
}

/* Writes "folder/below", either of which may be empty, to buf; false if that is too long. */
static bool join(char *buf, const char *folder, const char *below)
{
    const int n = snprintf(buf, PATH_MAX, "%s%s%s", folder,
                           *folder != '\0' && *below != '\0' ? "/" : "", below);

    return n > 0 && n < PATH_MAX;
}

/* Tries all names of the library in one folder. */
static void try_folder(struct finder *f, const char *folder, const char *below)
{
    char where[PATH_MAX], path[PATH_MAX];

    if (f->handle != NULL || !join(where, folder, below))
        return;
    for (int i = 0; f->names[i] != NULL && f->handle == NULL; i++) {
        if (!join(path, where, f->names[i]) || access(path, F_OK) != 0)
            continue;
        f->handle = dpt_cuda_open(path);
        if (f->handle == NULL)
            note_broken(f, dlerror());
    }
}

static void try_pip(struct finder *f, const char *packages)
{
    for (int i = 0; pip_folders[i] != NULL; i++)
        try_folder(f, packages, pip_folders[i]);
}

/* Calls visit for each entry of a folder whose name begins with `start`, the highest version
 * first. */
static void visit_each(struct finder *f, const char *folder, const char *start,
                       void (*visit)(struct finder *f, const char *path))
{
    struct dirent **entries;
    int n = scandir(folder, &entries, NULL, versionsort);
    char path[PATH_MAX];

    if (n < 0)
        return;
    while (n-- > 0) {
        const char *name = entries[n]->d_name;

        if (f->handle == NULL && name[0] != '.' && strncmp(name, start, strlen(start)) == 0 &&
            join(path, folder, name))
            visit(f, path);
        free(entries[n]);
    }
    free(entries);
}

/* Calls visit for each folder of a list that is separated by colons. */
static void visit_list(struct finder *f, const char *list,
                       void (*visit)(struct finder *f, const char *folder))
{
    char folder[PATH_MAX];

    while (*list != '\0' && f->handle == NULL) {
        const int length = (int)strcspn(list, ":");

        if (length > 0 && snprintf(folder, sizeof folder, "%.*s", length, list) < PATH_MAX)
            visit(f, folder);
        list += length + (list[length] == ':');
    }
}

/* Searches a folder such as PREFIX/lib/python3.11. */
static void try_python_folder(struct finder *f, const char *folder)
{
    char packages[PATH_MAX];

    for (int i = 0; package_folders[i] != NULL; i++) {
        if (join(packages, folder, package_folders[i]))
            try_pip(f, packages);
    }
}

/* --- prefixes --------------------------------------------------------------------------------- */

/* Whether a folder exists and was not searched before, by this name or another. */
static bool is_first(struct finder *f, const char *folder)
{
    char real[PATH_MAX], line[PATH_MAX + 2];

    if (realpath(folder, real) == NULL)
        return false;
    snprintf(line, sizeof line, "\n%s\n", real);
    if (f->seen.text != NULL && strstr(f->seen.text, line) != NULL)
        return false;
    dpt_str_printf(&f->seen, "%s", line);
    return true;
}

/* Searches a prefix: conda's own libraries, and pip's packages of each Python there. */
static void search_prefix(struct finder *f, const char *prefix)
{
    static const char *const libs[] = {"lib", "lib64", "local/lib"};
    char folder[PATH_MAX];

    for (size_t i = 0; i < sizeof libs / sizeof *libs; i++) {
        try_folder(f, prefix, libs[i]);
        if (join(folder, prefix, libs[i]))
            visit_each(f, folder, "python3", try_python_folder);
    }
}

/* Adds a prefix to the message, which names only the first ones. */
static void note_prefix(struct finder *f, const char *prefix)
{
    struct dpt_str *looked = &f->search->looked;

    if (f->n_noted < MOST_NAMED_PREFIXES)
        dpt_str_printf(looked, "%s%s", f->n_noted == 0 ? ", pip's below " : ":", prefix);
    else if (f->n_noted == MOST_NAMED_PREFIXES)
        dpt_str_printf(looked, ":...");
    f->n_noted++;
}

/* Tests PREFIX/lib, since all packages of a prefix are below it. */
static bool is_new_prefix(struct finder *f, const char *prefix)
{
    char lib[PATH_MAX];

    return join(lib, prefix, "lib") && is_first(f, lib);
}

static void try_version(struct finder *f, const char *prefix)
{
    if (is_new_prefix(f, prefix))
        search_prefix(f, prefix);
}

static void try_prefix(struct finder *f, const char *prefix)
{
    if (f->handle != NULL || prefix == NULL || *prefix != '/' || !is_new_prefix(f, prefix))
        return;
    note_prefix(f, prefix);
    search_prefix(f, prefix);
}

/* Removes the last `levels` names of a path. */
static void shorten(char *path, int levels)
{
    for (char *slash; levels > 0 && (slash = strrchr(path, '/')) != NULL; levels--)
        *slash = '\0';
    if (*path == '\0')
        strcpy(path, "/");
}

/* Searches the prefix of a program PREFIX/bin/python3. */
static void try_python(struct finder *f, const char *program)
{
    char path[PATH_MAX], versions[PATH_MAX], *real;

    if (access(program, X_OK) != 0 || !join(path, program, ""))
        return;
    shorten(path, 1);
    /* pyenv's python3 is a script that starts one of its versions, so all of these are searched. */
    if (strlen(path) > 6 && strcmp(path + strlen(path) - 6, "/shims") == 0) {
        shorten(path, 1);
        if (f->handle == NULL && join(versions, path, "versions") && is_first(f, versions)) {
            note_prefix(f, versions);
            visit_each(f, versions, "", try_version);
        }
        return;
    }
    shorten(path, 1);
    try_prefix(f, path);
    real = realpath(program, NULL);
    if (real != NULL) {
        shorten(real, 2);
        try_prefix(f, real);
    }
    free(real);
}

/* Tries the Pythons in one folder of PATH. */
static void try_programs(struct finder *f, const char *folder)
{
    char program[PATH_MAX];

    if (*folder != '/')
        return;
    if (join(program, folder, "python3"))
        try_python(f, program);
    if (join(program, folder, "python"))
        try_python(f, program);
}

static void try_pythons(struct finder *f)
{
    const char *path = getenv("PATH"), *home = getenv("HOME"), *base = getenv("PYTHONUSERBASE");
    char local[PATH_MAX];

    try_prefix(f, getenv("VIRTUAL_ENV"));
    try_prefix(f, getenv("CONDA_PREFIX"));
    if (path != NULL)
        visit_list(f, path, try_programs);
    if (base == NULL && home != NULL && join(local, home, ".local"))
        base = local;
    try_prefix(f, base);
}

/* --- the search ------------------------------------------------------------------------------- */

static void try_given(struct finder *f, const char *folder)
{
    static const char *const below[] = {"", "lib64", "lib"};

    for (size_t i = 0; i < sizeof below / sizeof *below; i++)
        try_folder(f, folder, below[i]);
    try_pip(f, folder);
    search_prefix(f, folder);
}

static void try_built(struct finder *f, const char *folder)
{
    try_folder(f, folder, "");
}

static void try_variables(struct finder *f, const char *const *variables)
{
    for (int i = 0; variables[i] != NULL && f->handle == NULL; i++) {
        const char *root = getenv(variables[i]);

        if (root == NULL || *root == '\0')
            continue;
        dpt_str_printf(&f->search->looked, "%s (%s), ", variables[i], root);
        try_folder(f, root, "lib64");
        try_folder(f, root, "lib");
    }
}

static void try_loader(struct finder *f)
{
    static const char nowhere[] = ": cannot open shared object file: No such file or directory";

    dpt_str_printf(&f->search->looked, "the loader's folders");
    for (int i = 0; f->names[i] != NULL && f->handle == NULL; i++) {
        const size_t length = strlen(f->names[i]);
        const char *why;

        f->handle = dpt_cuda_open(f->names[i]);
        why = f->handle == NULL ? dlerror() : NULL;
        /* Any other message than this one is about a file that exists but does not load. */
        if (why != NULL &&
            (strncmp(why, f->names[i], length) != 0 || strcmp(why + length, nowhere) != 0))
            note_broken(f, why);
    }
    f->search->by_loader = f->handle != NULL;
}

void *dpt_cuda_find(const char *const *names, const char *const *variables,
                    struct dpt_cuda_search *search)
{
    struct finder f = {.names = names, .search = search};
    const char *given = getenv("DPTRAIN_CUDA_PATH");

    if (given != NULL && *given != '\0') {
        dpt_str_printf(&search->looked, "DPTRAIN_CUDA_PATH (%s), ", given);
        visit_list(&f, given, try_given);
    }
    try_variables(&f, variables);
    if (f.handle == NULL)
        try_loader(&f);
    if (f.handle == NULL && *DPT_CUDA_FOLDERS != '\0') {
        dpt_str_printf(&search->looked, ", %s", DPT_CUDA_FOLDERS);
        visit_list(&f, DPT_CUDA_FOLDERS, try_built);
    }
    if (f.handle == NULL)
        try_pythons(&f);
    dpt_str_release(&f.seen);
    return f.handle;
}

void dpt_cuda_search_release(struct dpt_cuda_search *search)
{
    dpt_str_release(&search->looked);
    dpt_str_release(&search->broken);
}

const char *dpt_cuda_path_of(void *handle)
{
    struct link_map *map;

    return handle != NULL && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : "";
}

void dpt_cuda_open_compiler(void *cublaslt)
{
    static const char *const below[] = {"", "../../cuda_nvrtc/lib"};
    static const char library[] = "libcublasLt.so.";
    const char *file = dpt_cuda_path_of(cublaslt), *name = strrchr(file, '/');
    char folder[PATH_MAX], names[32];
    struct dpt_cuda_search search = {0};
    struct finder f = {.search = &search};
    const char *only[] = {names, NULL};

    if (name == NULL || strncmp(name + 1, library, sizeof library - 1) != 0)
        return;
    /* Both file names end with the toolkit's version: libcublasLt.so.13 and libnvrtc.so.13. */
    snprintf(names, sizeof names, "libnvrtc.so.%.8s", name + sizeof library);
    snprintf(folder, sizeof folder, "%.*s", (int)(name - file), file);
    f.names = only;
    for (size_t i = 0; i < sizeof below / sizeof *below; i++)
        try_folder(&f, folder, below[i]);
    if (f.handle != NULL)
        dlclose(f.handle);
    dpt_cuda_search_release(&search);
}
