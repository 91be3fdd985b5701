/*
 * library_find: where cuDNN, cuBLASLt and NCCL are on this machine.
 *
 * These places are searched in this order, and the first file that loads is used:
 *   1. the folders of DPTRAIN_CUDA_PATH, separated by colons: each itself, lib64 and lib below it,
 *      and pip's folders below it, if it is a site-packages, a virtual environment or a prefix;
 *   2. lib64 and lib below the folders that CUDNN_ROOT, NCCL_ROOT and CUDA_HOME name;
 *   3. the folders that the dynamic loader searches (LD_LIBRARY_PATH, ldconfig);
 *   4. the folders in which they were when this program was built;
 *   5. the packages of pip and conda for the Pythons of this machine: those of VIRTUAL_ENV and
 *      CONDA_PREFIX, then each python3 and python on PATH, then the user's own.
 * No Python is started: pip's folders are below the prefix of the python3 file. The prefix of the
 * path on PATH is searched first and that of the file to which symbolic links lead after it, since
 * the python3 of a virtual environment is a link to another environment's.
 */
#ifndef DPT_BACKEND_CUDA_LIBRARY_FIND_H
#define DPT_BACKEND_CUDA_LIBRARY_FIND_H

#include "core/base/str.h"

/* What a search found out. Zero-initialise: {0}. */
struct dpt_cuda_search {
    struct dpt_str looked; /* "CUDA_HOME (/opt/cuda), the loader's folders, pip's below /usr" */
    struct dpt_str broken; /* the loader's message for the first file that did not load */
    bool by_loader;        /* the library was found in the loader's folders */
};

/*
 * Searches for a library. names: its file names, best first, then NULL. variables: the environment
 * variables of place 2, then NULL. Returns dlopen's handle, or NULL. The library stays in memory
 * when the handle is closed.
 */
void *dpt_cuda_find(const char *const *names, const char *const *variables,
                    struct dpt_cuda_search *search);
void dpt_cuda_search_release(struct dpt_cuda_search *search);

/* Opens a library by its path, or by a name that the loader searches for; NULL: dlerror says
 * why. */
void *dpt_cuda_open(const char *path);
/* Returns the path of an opened library's file; "" if it is not known. */
const char *dpt_cuda_path_of(void *handle);

/*
 * Opens the compiler (libnvrtc) beside cuBLASLt, if there is one: cuDNN and cuBLASLt open it by its
 * name when they need it, and pip's cuBLASLt does not search the folder where pip installed it.
 */
void dpt_cuda_open_compiler(void *cublaslt);

#endif
