#include "core/state/life.h"

#include <string.h>
#include <unistd.h>

#include "core/state/lock.h"

const char *const dpt_life_words[DPT_LIFE_STATES] = {"running", "done", "stopped", "failed",
                                                     "lost"};

void dpt_life_look(const struct dpt_history *h, struct dpt_life *life)
{
    static const char stopped[] = "stopped after step "; /* as run.c ends such a run */
    const struct dpt_history_end *end = dpt_history_end(h);
    char host[DPT_OWNER_WORD] = "";
    bool alive = false;

    *life = (struct dpt_life){.reason = end != NULL ? end->reason : ""};
    if (gethostname(host, sizeof host - 1) != 0)
        host[0] = '\0';
    life->held = dpt_lock_holder(h->folder, host, &life->owner, &alive, &life->silent);
    if (end != NULL && strcmp(end->reason, "done") == 0)
        life->state = DPT_LIFE_DONE;
    else if (life->held && alive) /* also where it starts again and has not said so yet */
        life->state = DPT_LIFE_RUNNING;
    else if (end == NULL)
        life->state = DPT_LIFE_LOST;
    else if (strncmp(end->reason, stopped, sizeof stopped - 1) == 0)
        life->state = DPT_LIFE_STOPPED;
    else
        life->state = DPT_LIFE_FAILED;
}
