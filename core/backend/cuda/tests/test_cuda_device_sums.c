/* test_cuda_sums.c on a device: a GPU's own with DPT_CUDA_TESTS=device, else the one that runs on
 * the CPU. */
#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA
#include "core/backend/tests/net.h"

#include "core/backend/cuda/tests/on_kernels.h"

#define main its_main
/* Compiles those tests with another main. NOLINTNEXTLINE(bugprone-suspicious-include) */
#include "core/backend/cuda/tests/test_cuda_sums.c"
#undef main

int main(void)
{
    return on_main(0, its_main);
}
#else
#include "core/backend/tests/left_out.h"

int main(void)
{
    return left_out("built without CUDA");
}
#endif
