/* test_cuda_update.c on a device: a GPU's own with DPT_CUDA_TESTS=device, else the one that runs on
 * the CPU. */
#if defined(DPT_WITH_CUDA) && DPT_WITH_CUDA
#include "core/backend/tests/net.h"

#include "core/backend/cuda/tests/on_kernels.h"

#define main its_main
/* The same tests, with another main. NOLINTNEXTLINE(bugprone-suspicious-include) */
#include "core/train/engines/tests/test_cuda_update.c"
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
