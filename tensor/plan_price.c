/*
 * What plans cost.
 */
#include "tensor/plan.h"

#include "bootstrap/base/common.h"

/* Of an ordinary machine. */
#define STEP_US     5.0
#define BYTES_A_US  8e3
#define COPIES_A_US 16e3

/* Elements that the index-th rank of the target has already. */
static int64_t own_elements(const tutti_kept_layout *src, const tutti_kept_layout *dst, int index) {
    const tutti_placement *from = src->view.placement;
    int own = tutti_placement_find(from, dst->view.placement->ranks[index]);
    tutti_region has, needs, common;
    if (own < 0 || tutti_layout_is_partial(src) || src->view.ndims != dst->view.ndims) return 0;
    tutti_tiling_region(&src->tiling, own, &has);
    tutti_tiling_region(&dst->tiling, index, &needs);
    return tutti_region_intersect(&has, &needs, &common) ? tutti_region_elements(&common) : 0;
}

/* The rank that takes longest. */
static double predict(const tutti_kept_layout *src, const tutti_kept_layout *dst) {
    double most_us = 0, element_bytes = (double)tutti_type_bytes(src->view.type);
    if (tutti_layout_is_equal(src, dst)) return 0;
    for (int i = 0; i < dst->view.placement->nranks; i++) {
        tutti_region needs;
        tutti_tiling_region(&dst->tiling, i, &needs);
        double own = (double)own_elements(src, dst, i), lacks = (double)tutti_region_elements(&needs) - own;
        double us = own * element_bytes / COPIES_A_US;
        if (lacks > 0) us += STEP_US + lacks * element_bytes / BYTES_A_US * (tutti_layout_is_partial(src) ? 2 : 1);
        if (us > most_us) most_us = us;
    }
    return most_us;
}

tutti_status tutti_layout_predict(const tutti_layout *src, const tutti_layout *dst, double *microseconds_out) {
    tutti_kept_layout *from, *to;
    if (microseconds_out == NULL) return tutti_fail(TUTTI_ERR_ARGUMENT, "tutti_layout_predict: NULL argument");
    TUTTI_TRY(tutti_layout_keep(src, &from));
    tutti_status status = tutti_layout_keep(dst, &to);
    if (status == TUTTI_OK) {
        *microseconds_out = predict(from, to);
        tutti_layout_release(to);
    }
    tutti_layout_release(from);
    return status;
}
