/*
 * Shards that MATLAB wrote, in version 7.3 of its format, which is HDF5: the dimensions of its
 * arrays lie there in reverse, since it stores columns first.
 */
#include "data/shards/shard.h"

static bool is_matlab(hid_t file, const struct dpt_field *field)
{
    const hid_t data =
        field->name != NULL ? H5Dopen2(file, field->name, H5P_DEFAULT) : H5I_INVALID_HID;
    bool is;

    if (data < 0)
        return false;
    is = H5Aexists(data, "MATLAB_class") > 0;
    H5Dclose(data);
    return is;
}

static void reverse(struct dpt_field *field)
{
    const int n = field->info.n_dims;
    int axis[DPT_H5_DIMS];

    for (int i = 0; i < n; i++)
        axis[i] = n - 1 - i;
    dpt_field_turn(field, axis);
}

/* Brings labels into the form [N] or [N, K], and gives N; -1: there are none. MATLAB has no arrays
 * of one dimension. */
static int64_t turn_labels(struct dpt_field *labels, const struct dpt_h5_info *images)
{
    const struct dpt_h5_info *info = &labels->info;
    const int64_t last = images->n_dims > 0 ? images->dims[images->n_dims - 1] : 0;

    if (labels->name == NULL || info->n_dims < 1)
        return -1;
    if (info->n_dims == 2 &&
        (info->dims[0] == 1 ||
         (info->dims[1] != 1 && (info->dims[1] == last || info->dims[1] == images->dims[0]))))
        reverse(labels);
    return info->dims[0];
}

void dpt_shard_turn(struct dpt_shard *shard, hid_t file)
{
    static const int pictures[] = {0, 1, 3, 2}, grey[] = {0, 2, 1};
    struct dpt_field *images = &shard->images;
    const int n = images->info.n_dims;
    int64_t samples;

    shard->matlab = is_matlab(file, images) && n >= 2;
    if (!shard->matlab)
        return;
    samples = is_matlab(file, &shard->labels) ? turn_labels(&shard->labels, &images->info) : -1;
    /* Rows are samples, of images [H, W, C, N] the last dimension, unless the labels' number says
     * otherwise. */
    if (samples >= 0 && images->info.dims[n - 1] != images->info.dims[0]
            ? images->info.dims[0] != samples
            : n == 2)
        reverse(images);
    else if (n == 4)
        dpt_field_turn(images, pictures);
    else if (n == 3)
        dpt_field_turn(images, grey);
}
