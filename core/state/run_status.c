#include "core/state/run_status.h"

#include <string.h>
#include <unistd.h>

#include "core/state/lock.h"

const char *const dpt_run_state_names[DPT_RUN_STATES] = {"running", "done", "stopped", "failed",
                                                         "lost"};

void dpt_run_status_read(const struct dpt_history *h, struct dpt_run_status *run_status)
{
    static const char stopped[] = "stopped after step "; /* as run.c ends such a run */
    const struct dpt_history_end *end = dpt_history_end(h);
    char host[DPT_OWNER_WORD] = "";
    bool alive = false;

    *run_status = (struct dpt_run_status){.reason = end != NULL ? end->reason : ""};
    if (gethostname(host, sizeof host - 1) != 0)
        host[0] = '\0';
    run_status->held =
        dpt_lock_holder(h->folder, host, &run_status->owner, &alive, &run_status->silent);
    if (end != NULL && strcmp(end->reason, "done") == 0)
        run_status->state = DPT_RUN_DONE;
    else if (run_status->held && alive) /* also where it starts again and has not said so yet */
        run_status->state = DPT_RUN_RUNNING;
    else if (end == NULL)
        run_status->state = DPT_RUN_LOST;
    else if (strncmp(end->reason, stopped, sizeof stopped - 1) == 0)
        run_status->state = DPT_RUN_STOPPED;
    else
        run_status->state = DPT_RUN_FAILED;
}
