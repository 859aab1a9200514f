// The core that Verilator simulates, as the functions that the recorded steps call.
#include <cstdio>
#include <cstdlib>

#include "Vcore.h"
#include "recorded.h"

static Vcore core;
static long steps, clocks, least, most;

// Low before high: the first edge is none to Verilator where the clock begins high.
static void tick() {
    core.clk = 0;
    core.eval();
    core.clk = 1;
    core.eval();
}

static void report() {
    if (steps) std::printf("%s: %ld clocks a step, %ld to %ld\n", "@name@", clocks / steps, least, most);
}

void @name@_reset(struct @name@ *) {
    core.reset = 1;
    tick();
    core.reset = 0;
}

void @name@_step(struct @name@ *, const @name@_in *x, @name@_out *y) {
    if (!steps) std::atexit(report);
    core.in_write = 1;
    for (int n = 0; n < @NAME@_INPUTS; ++n) {
        if (!@zeros@ && x[n] == 0) continue;
        core.in_at = n;
        core.in_value = (uint64_t)(int64_t)x[n] & @mask_in@;
        tick();
    }
    core.in_write = 0;
    core.step = 1;
    tick();
    core.step = 0;
    long taken = 1;
    for (; !core.done && taken <= @clocks@; ++taken) tick();
    if (!core.done) {
        std::printf("%s: no end of a step after @clocks@ clocks\n", "@name@");
        std::exit(1);
    }
    least = !steps || taken < least ? taken : least;
    most = taken > most ? taken : most;
    clocks += taken;
    ++steps;
    for (int n = 0; n < @NAME@_OUTPUTS; ++n) {
        core.out_at = n;
        tick();
        y[n] = (@name@_out)((int64_t)((uint64_t)core.out_value << (64 - @bits_out@)) >> (64 - @bits_out@));
    }
}
