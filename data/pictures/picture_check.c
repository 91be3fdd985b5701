#include "data/pictures/picture.h"
#include "data/pictures/picture_list.h"

enum dpt_status dpt_picture_list_check(struct dpt_picture_list *list, bool leave_out,
                                       struct dpt_log *log, const volatile sig_atomic_t *stop,
                                       struct dpt_str *bad, size_t *n, struct dpt_error *err)
{
    enum dpt_status status = DPT_OK;
    size_t good = 0;
    double shown = 0;

    *n = 0;
    for (size_t i = 0; i < list->n; i++) {
        struct dpt_picture picture = {0};
        struct dpt_error reason = {0};

        if (stop != NULL && *stop != 0)
            DPT_TRY(dpt_fail(err, DPT_STOPPED, "stopped; nothing was written"));
        status = dpt_picture_read(&picture, list->entries[i].path, false, &reason);
        dpt_picture_release(&picture);
        if (status == DPT_OK) {
            list->entries[leave_out ? good++ : i] = list->entries[i];
        } else if (status == DPT_BAD_DATA) {
            list->entries[i].bad = true;
            dpt_str_printf(bad, "%s\n", reason.text);
            ++*n;
            status = DPT_OK;
        } else {
            *err = reason;
            DPT_TRY(status);
        }
        dpt_log_live_count(log, &shown, "looking at images", (int64_t)i, (int64_t)list->n);
    }
    if (leave_out)
        list->n = good;
out:
    if (log != NULL)
        dpt_log_live(log, NULL);
    return status;
}
