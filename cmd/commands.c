/* The subcommands, one row each, and the versions of what they stand on. */
#include <stdio.h>

#include "cmd/cli.h"
#include "core/backend/backend.h"
#include "core/comm/comm.h"
#include "data/dataset.h"

extern const struct dpt_command dpt_cmd_train, dpt_cmd_eval, dpt_cmd_convert, dpt_cmd_inspect;

const struct dpt_command *const dpt_commands[] = {
    &dpt_cmd_train,
    &dpt_cmd_eval,
    &dpt_cmd_convert,
    &dpt_cmd_inspect,
    NULL,
};

void dpt_cli_version(void)
{
    printf("dptrain %s\n%s\nHDF5 %s\n", DPT_VERSION, dpt_comm_version(), dpt_h5_version());
    for (size_t i = 0; dpt_backends[i] != NULL; i++)
        printf("backend %s: %s\n", dpt_backends[i]->name, dpt_backends[i]->describe());
}
