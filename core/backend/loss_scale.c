#include "core/backend/loss_scale.h"

struct dpt_loss_scale dpt_loss_scale_start(bool fp16, int32_t micro)
{
    int32_t scale = DPT_LOSS_SCALE_LEAST;

    while (fp16 && 2 * scale <= DPT_LOSS_SCALE_FIRST / micro)
        scale *= 2;
    return (struct dpt_loss_scale){.scale = (float)scale};
}

void dpt_loss_scale_step(struct dpt_loss_scale *s, bool finite, bool *mended)
{
    *mended = !finite && s->scale > DPT_LOSS_SCALE_LEAST;
    if (*mended) {
        s->scale /= 2;
        s->good = 0;
        s->overflows++;
    } else if (finite && ++s->good >= DPT_LOSS_SCALE_PATIENCE) {
        s->good = 0;
        if (s->scale < DPT_LOSS_SCALE_MOST)
            s->scale *= 2;
    }
}
