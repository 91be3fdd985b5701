/*
 * fake_set: changes the settings of the fake device (fake.h) during a test. The library reads its
 * environment when it is loaded, so a loaded library is made to read it again.
 */
#ifndef DPT_BACKEND_CUDA_TESTS_FAKE_SET_H
#define DPT_BACKEND_CUDA_TESTS_FAKE_SET_H

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* text: NULL: as if it was never set. */
static inline void fake_set(const char *name, const char *text)
{
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), *address = NULL;
    void (*read_environment)(void);

    if (text != NULL)
        setenv(name, text, 1);
    else
        unsetenv(name);
    if (library != NULL)
        address = dlsym(library, "fakegpu_read_environment"); /* a real driver has none */
    if (address != NULL) {
        memcpy(&read_environment, &address, sizeof address);
        read_environment();
    }
    if (library != NULL)
        dlclose(library);
}

#endif
