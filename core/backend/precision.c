#include "core/backend/backend.h"

const char *const dpt_precision_names[DPT_PRECISIONS + 1] = {DPT_PRECISION_LIST(DPT_LIST_WORD)
                                                                 NULL};
