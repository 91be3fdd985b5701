#include "data/sources/convert.h"

#include <string.h>

const struct dpt_converter *const dpt_converters[] = {
    &dpt_convert_idx, &dpt_convert_cifar10,  &dpt_convert_csv,
    &dpt_convert_npy, &dpt_convert_pictures, NULL,
};

static const struct {
    const char *name, *value;
} options[] = {
#define X(id, name, value, help) [DPT_CONVERT_##id] = {name, value},
    DPT_CONVERT_OPTION_LIST(X)
#undef X
};

enum dpt_status dpt_converter_find(const char *name, const struct dpt_converter **converter,
                                   struct dpt_error *err)
{
    const char *names[sizeof dpt_converters / sizeof dpt_converters[0]];
    struct dpt_str list = {0};
    const char *near;
    size_t n = 0;

    for (; dpt_converters[n] != NULL; n++) {
        if (strcmp(dpt_converters[n]->name, name) == 0) {
            *converter = dpt_converters[n];
            dpt_str_release(&list);
            return DPT_OK;
        }
        names[n] = dpt_converters[n]->name;
        dpt_str_printf(&list, "%s%s", n > 0 ? ", " : "", names[n]);
    }
    near = dpt_nearest(name, names, n);
    dpt_fail(err, DPT_USAGE, "%s: unknown format%s%s%s; there are: %s", name,
             near != NULL ? ", did you mean '" : "", near != NULL ? near : "",
             near != NULL ? "'" : "", list.text != NULL ? list.text : "");
    dpt_str_release(&list);
    return err->status;
}

enum dpt_status dpt_convert(const struct dpt_converter *converter,
                            const struct dpt_convert_job *job, struct dpt_error *err)
{
    for (int i = 0; i < DPT_CONVERT_OPTION_COUNT; i++)
        if (job->option[i] != NULL && (converter->options & 1u << i) == 0)
            return dpt_fail(err, DPT_USAGE, "%s is no option of the format %s", options[i].name,
                            converter->name);
    return converter->run(job, err);
}

void dpt_convert_result_release(struct dpt_convert_result *result)
{
    dpt_str_release(&result->first);
    dpt_str_release(&result->classes);
}
