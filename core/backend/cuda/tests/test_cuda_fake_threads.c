/* The device that runs on the CPU (fake.h), called by several threads. */
#include <pthread.h>

#include "core/backend/cuda/tests/fake/fake_scene.h"

#if FAKE_SCENE
#include "core/base/pool.h"

static void *without_context(void *result)
{
    size_t unused, total;

    *(CUresult *)result = lib.cuMemGetInfo(&unused, &total);
    return NULL;
}

static void each_thread_has_a_context(void **state)
{
    CUresult result = CUDA_SUCCESS;
    pthread_t thread;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, without_context, &result), 0);
    pthread_join(thread, NULL);
    assert_int_equal(result, CUDA_ERROR_INVALID_CONTEXT);
}

/* Memory of the device, and the result of the thread that fills it. */
struct filling {
    CUdeviceptr at;
    CUresult result;
};

static void *fills(void *filling)
{
    struct filling *f = filling;

    f->result = lib.cuCtxSetCurrent(context);
    if (f->result == CUDA_SUCCESS)
        f->result = lib.cuMemsetD32Async(f->at, 0, 1, two);
    if (f->result == CUDA_SUCCESS)
        f->result = lib.cuStreamSynchronize(two);
    return NULL;
}

static void has_a_thread_fill(void *filling)
{
    struct dpt_thread thread = {0};

    if (dpt_thread_start(&thread, fills, filling) == 0)
        dpt_thread_end(&thread);
}

/* A thread that blocks all signals, as a job's threads do, works on the device while another one
 * has the device's memory open, since the host function of its stream runs. */
static void threads_work_at_once(void **state)
{
    struct filling f = {device(1), CUDA_ERROR_UNKNOWN};

    (void)state;
    WORKS(cuLaunchHostFunc(one, has_a_thread_fill, &f));
    WORKS(cuStreamSynchronize(one));
    assert_int_equal(f.result, CUDA_SUCCESS);
    WORKS(cuMemFree(f.at));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_thread_has_a_context),
        cmocka_unit_test(threads_work_at_once),
    };

    return cmocka_run_group_tests(tests, fake_scene_begin, fake_scene_end);
}
#else
FAKE_SCENE_WITHOUT
#endif
