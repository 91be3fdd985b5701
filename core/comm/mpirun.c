#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/comm/internal.h"
#include "core/comm/launched.h"

#define TEXT_OF(x)                    #x
#define TEXT(x)                       TEXT_OF(x)
#define DOTTED(major, minor, release) TEXT(major) "." TEXT(minor) "." TEXT(release)

const char *dpt_comm_version(void)
{
#if defined(OMPI_MAJOR_VERSION)
    return "Open MPI " DOTTED(OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
    return "MPICH " MPICH_VERSION;
#else
    return "MPI " TEXT(MPI_VERSION) "." TEXT(MPI_SUBVERSION);
#endif
}

/* The MPIs that a PATH may hold several of, and how to tell their programs apart: what is called
 * mpirun is any of them. */
static const struct mpi {
    const char *programs[4]; /* that start ranks, by the names that a user may have put first */
    const char *parts[3];    /* one of these is in the real name of such a program ... */
    const char *beside;      /* ... or this lies in its folder */
    const char *package;     /* of Debian */
} mpis[] = {
    {{"mpirun", "mpirun.openmpi", "mpiexec"},
     {"openmpi", "orte", "prte"},
     "ompi_info",
     "openmpi-bin"},
    {{"mpiexec", "mpirun", "mpiexec.mpich", "mpiexec.hydra"},
     {"mpich", "hydra"},
     "hydra_pmi_proxy",
     "mpich"},
};

enum { MPIS = sizeof mpis / sizeof mpis[0] };

#if defined(OMPI_MAJOR_VERSION)
static const struct mpi *const own = &mpis[0];
#else
static const struct mpi *const own = &mpis[1];
#endif

const char *dpt_mpirun_name(void)
{
    return own->programs[0];
}

bool dpt_mpirun_talks(void)
{
#if defined(OMPI_MAJOR_VERSION)
    return OMPI_MAJOR_VERSION >= 5; /* 4 has an option against it */
#else
    return true;
#endif
}

static bool has_part(const struct mpi *mpi, const char *name)
{
    for (size_t i = 0; i < sizeof mpi->parts / sizeof mpi->parts[0] && mpi->parts[i] != NULL; i++)
        if (strstr(name, mpi->parts[i]) != NULL)
            return true;
    return false;
}

static bool lies_in(const char *folder, const char *name)
{
    char path[PATH_MAX];

    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path &&
           access(path, F_OK) == 0;
}

/* Whether a program is certainly that of another MPI than ours. What nobody knows may be a user's
 * own script. */
static bool is_foreign(const char *path)
{
    char real[PATH_MAX], *name;
    bool foreign = false;

    if (realpath(path, real) == NULL)
        return false;
    name = strrchr(real, '/');
    *name++ = '\0';
    if (has_part(own, name))
        return false;
    for (size_t i = 0; i < MPIS; i++)
        foreign |= &mpis[i] != own && has_part(&mpis[i], name);
    if (foreign || lies_in(real, own->beside))
        return foreign;
    for (size_t i = 0; i < MPIS; i++)
        foreign |= lies_in(real, mpis[i].beside);
    return foreign;
}

/* Looks for the program in a folder. other: the first one that was another MPI's, if it is empty
 * still. */
static bool find_in(const char *folder, size_t length, char path[PATH_MAX], char other[PATH_MAX])
{
    for (size_t i = 0; i < sizeof own->programs / sizeof own->programs[0]; i++) {
        if (own->programs[i] == NULL ||
            snprintf(path, PATH_MAX, "%.*s/%s", (int)length, folder, own->programs[i]) >=
                PATH_MAX ||
            access(path, X_OK) != 0)
            continue;
        if (!is_foreign(path))
            return true;
        if (other[0] == '\0')
            memcpy(other, path, PATH_MAX);
    }
    return false;
}

enum dpt_status dpt_mpirun_find(char path[PATH_MAX], struct dpt_error *err)
{
    const char *at = getenv("PATH");
    char other[PATH_MAX] = "";

    while (at != NULL && *at != '\0') {
        const size_t length = strcspn(at, ":");

        if (length > 0 && find_in(at, length, path, other))
            return DPT_OK;
        at += length + (at[length] == ':');
    }
    if (find_in(DPT_MPI_FOLDER, strlen(DPT_MPI_FOLDER), path, other))
        return DPT_OK;
    return dpt_fail(err, DPT_RANK,
                    "--ranks needs the %s of %s, and there is none in the PATH or in %s%s%s%s; "
                    "load that MPI's module, or install it (Debian: %s)",
                    own->programs[0], dpt_comm_version(), DPT_MPI_FOLDER,
                    other[0] != '\0' ? " (" : "", other,
                    other[0] != '\0' ? " is another MPI's)" : "", own->package);
}
