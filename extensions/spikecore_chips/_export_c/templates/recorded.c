#include "recorded.h"

@tables@

static struct @name@ state;

static int differs(const @name@_out a, const @name@_out b) {
    @compare@
}

int32_t recorded_step(const int32_t step) {
    @name@_out y[@NAME@_OUTPUTS];
    int32_t wrong = 0;
    if (step % RECORDED_SAMPLE == 0) @name@_reset(&state);
    @name@_step(&state, recorded_inputs + step * @NAME@_INPUTS, y);
    for (int i = 0; i < @NAME@_OUTPUTS; ++i) wrong += differs(y[i], recorded_outputs[step * @NAME@_OUTPUTS + i]);
    return wrong;
}

int32_t recorded_test(void) {
    int32_t wrong = 0;
    for (int32_t t = 0; t < RECORDED_STEPS; ++t) wrong += recorded_step(t);
    return wrong;
}

int32_t recorded_count(void) { return RECORDED_STEPS * @NAME@_OUTPUTS; }
