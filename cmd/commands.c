/* The subcommands, one row each, and the versions of what they stand on. */
#include <stdio.h>

#include "cmd/cmd.h"
#include "core/backend/backend.h"
#include "core/backend/devices.h"
#include "core/comm/comm.h"
#include "data/sets/dataset.h"

extern const struct dpt_command dpt_cmd_train, dpt_cmd_eval, dpt_cmd_convert, dpt_cmd_inspect,
    dpt_cmd_bench, dpt_cmd_plan, dpt_cmd_schema, dpt_cmd_completion, dpt_cmd_man, dpt_cmd_init,
    dpt_cmd_export, dpt_cmd_doctor;
extern const struct dpt_command dpt_cmd_watch, dpt_cmd_compare, dpt_cmd_report, dpt_cmd_predict;

// clang-format off
const struct dpt_command *const dpt_commands[] = {
    &dpt_cmd_train,
    &dpt_cmd_eval,
    &dpt_cmd_predict,
    &dpt_cmd_bench,
    &dpt_cmd_plan,
    &dpt_cmd_report,
    &dpt_cmd_export,
    &dpt_cmd_convert,
    &dpt_cmd_inspect,
    &dpt_cmd_watch,
    &dpt_cmd_compare,
    &dpt_cmd_doctor,
    &dpt_cmd_schema,
    &dpt_cmd_completion,
    &dpt_cmd_man,
    &dpt_cmd_init,
    NULL,
};
// clang-format on

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
        printf("  %-8s %s\n", libraries[i].name, libraries[i].path);
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
