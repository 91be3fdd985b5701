/*
 * library_find: where cuDNN and cuBLASLt are on this machine.
 *
 * In this order, and the first file that loads is taken:
 *   1. the folders of DPTRAIN_CUDA_PATH, separated by colons: each itself, lib64 and lib below it,
 *      and pip's folders below it, where it is a site-packages, a virtual environment or a prefix;
 *   2. lib64 and lib below the folders that CUDNN_ROOT and CUDA_HOME name;
 *   3. where the dynamic loader looks (LD_LIBRARY_PATH, ldconfig);
 *   4. where they were when this was built;
 *   5. what pip and conda installed for the Pythons that there are: those of VIRTUAL_ENV and
 *      CONDA_PREFIX, then each python3 and python on PATH, then the user's own.
 * No Python is started: pip's folders lie below the prefix of the program's file. That is looked at
 * as it stands on PATH first, since the python3 of a virtual environment is a link to another
 * one's, and then where the link leads.
 */
#ifndef DPT_BACKEND_CUDA_LIBRARY_FIND_H
#define DPT_BACKEND_CUDA_LIBRARY_FIND_H

#include "core/base/str.h"

/* How a search went. Zero-initialise: {0}. */
struct dpt_cuda_search {
    struct dpt_str looked; /* "CUDA_HOME (/opt/cuda), the loader's folders, pip's below /usr" */
    struct dpt_str
        broken;     /* the loader's words for the first file that was there and did not load */
    bool by_loader; /* it was found where the loader looks */
};

/*
 * names: of the file, best first; both end with NULL. variables: for 2. Returns dlopen's handle, or
 * NULL. What is opened stays in memory when it is closed.
 */
void *dpt_cuda_find(const char *const *names, const char *const *variables,
                    struct dpt_cuda_search *search);
void dpt_cuda_search_release(struct dpt_cuda_search *search);

/* A file by its path, or a name for the loader; NULL: dlerror says why. */
void *dpt_cuda_open(const char *path);
/* The file of an opened library, as the loader has it; "" where that is not known. */
const char *dpt_cuda_path_of(void *handle);

/*
 * Opens the compiler (libnvrtc) that lies with cuBLASLt, where there is one: cuDNN and cuBLASLt
 * open it by its name when they need it, and pip's cuBLASLt does not look where pip has put it.
 */
void dpt_cuda_open_compiler(void *cublaslt);

#endif
