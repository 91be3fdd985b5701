/* test_cuda_layers.c on a device: a GPU's own with DPT_CUDA_TESTS=device, else the one that runs on
 * the CPU. */
#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA
#include "core/backend/tests/net.h"

#include "core/backend/cuda/tests/on_kernels.h"

#define main its_main
#include "core/backend/cuda/tests/test_cuda_layers.c"
#undef main

int main(void)
{
    return on_main(0, its_main);
}
#else
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void built_without(void **state)
{
    (void)state;
    print_message("built without CUDA\n");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(built_without)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
