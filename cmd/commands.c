/* The subcommands, one row each, and the versions of what they stand on. */
#include <stdio.h>

#include "cmd/cmd.h"
#include "core/backend/backend.h"
#include "core/backend/devices.h"
#include "core/comm/comm.h"
#include "data/sets/dataset.h"

/* They stand in the order of --help. */
// clang-format off
#define COMMANDS(X)                                                                                \
    X(train) X(eval) X(predict) X(bench) X(plan) X(report) X(export) X(convert) X(inspect)         \
    X(watch) X(compare) X(doctor) X(layers) X(schema) X(completion) X(man) X(init)
// clang-format on

#define X(name) extern const struct dpt_command dpt_cmd_##name;
COMMANDS(X)
#undef X
#define X(name) &dpt_cmd_##name,
const struct dpt_command *const dpt_commands[] = {COMMANDS(X) NULL};
#undef X

/* What was there when it was built, and what is here. */
static void tell_devices(const struct dpt_backend *backend)
{
    struct dpt_error why = {0};
    struct dpt_device_library libraries[DPT_DEVICE_LIBRARIES];
    char built[64];
    int count = 0;

    backend->devices->built(built, sizeof built);
    printf("backend %s: built with %s; ", backend->name, built);
    if (backend->devices->count(&count, &why) != DPT_OK) {
        printf("no GPU here: %s\n", why.text);
        return;
    }
    printf("%d GPU%s, %s\n", count, count == 1 ? "" : "s", backend->describe());
    if (backend->devices->libraries(libraries, &why) != DPT_OK)
        return;
    for (int i = 0; i < DPT_DEVICE_LIBRARIES; i++)
        printf("  %-8s %s\n", libraries[i].name,
               libraries[i].path[0] != '\0' ? libraries[i].path
                                            : "none: several GPUs sum by MPI, which is slower");
}

void dpt_cli_version(void)
{
    printf("dptrain %s\n%s\nHDF5 %s\n", DPT_VERSION, dpt_comm_version(), dpt_h5_version());
    for (size_t i = 0; dpt_backends[i] != NULL; i++) {
        const struct dpt_backend *b = dpt_backends[i];

        if (b->devices != NULL)
            tell_devices(b);
        else
            printf("backend %s: %s\n", b->name, b->describe());
    }
}
