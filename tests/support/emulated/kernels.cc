/*
 * All kernels of kernels/cuda in one file, for the host.
 */
#include "kernels/cuda/grid.h"

#include "kernels/cuda/layers/bias.cu"
#include "kernels/cuda/layers/elements.cu"
#include "kernels/cuda/layers/loss.cu"
#include "kernels/cuda/layers/loss_parts.cu"
#include "kernels/cuda/layers/norm.cu"
#include "kernels/cuda/layers/optimizer.cu"
#include "kernels/cuda/layers/random.cu"
#include "kernels/cuda/layers/windows.cu"

static piece_list reach(piece_list list) {
    for (int i = 0; i < list.npieces; i++) {
        tutti_optimizer_piece *piece = &list.pieces[i];
        piece->gradient = reach(piece->gradient), piece->parameter = reach(piece->parameter);
        for (int s = 0; s < 2; s++) piece->states[s] = reach(piece->states[s]);
    }
    return list;
}

/* For tests: the quotient that kernels compute without a division. */
extern "C" uint32_t emulated_divide(uint32_t dividend, int divisor);

uint32_t emulated_divide(uint32_t dividend, int divisor) {
    return divide(dividend, divider_by(divisor));
}
