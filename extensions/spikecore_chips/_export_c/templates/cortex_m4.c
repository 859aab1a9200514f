/* The recorded steps on a Cortex-M4: start, counting of instructions, output through the debugger (semihosting). */
#include <stddef.h>

#include "recorded.h"

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define SYST_CSR REGISTER(0xe000e010u)
#define SYST_RVR REGISTER(0xe000e014u)
#define SYST_CVR REGISTER(0xe000e018u)
#define CPACR REGISTER(0xe000ed88u)
/* Instructions of 4 ns in a tick of the clock of 25 MHz of the emulated board. */
#define INSTRUCTIONS_OF_TICK 10

extern uint32_t data_start, data_end, data_load, bss_start, bss_end, stack_top;
void reset_handler(void);

static void stop(void) {
    for (;;) {}
}

struct vectors {
    uint32_t *stack;
    void (*handlers[15])(void);
};

__attribute__((section(".vectors"), used)) static const struct vectors vectors = {
    &stack_top, {reset_handler, stop, stop, stop, stop, stop}
};

static int semihost(const int operation, const void *argument) {
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static void write_text(const char *text) { semihost(0x04, text); }

static void write_number(uint32_t number) {
    char digits[11], *at = digits + 10;
    *at = 0;
    do *--at = (char)('0' + number % 10); while (number /= 10);
    write_text(at);
}

static uint32_t now(void) { return 0xffffffu - SYST_CVR; }

static int run(void) {
    uint32_t wrong = 0, most = 0;
    uint64_t total = 0;
    SYST_RVR = 0xffffffu;
    SYST_CVR = 0;
    SYST_CSR = 5;
    for (int32_t t = 0; t < RECORDED_STEPS; ++t) {
        const uint32_t begun = now();
        wrong += (uint32_t)recorded_step(t);
        const uint32_t ticks = (now() - begun) & 0xffffffu;
        total += ticks;
        most = ticks > most ? ticks : most;
    }
    write_text("@name@: ");
    write_number(RECORDED_STEPS);
    write_text(" steps, ");
    write_number(wrong);
    write_text(" of ");
    write_number((uint32_t)recorded_count());
    write_text(" outputs differ, ");
    write_number((uint32_t)(total * INSTRUCTIONS_OF_TICK / RECORDED_STEPS));
    write_text(" instructions per step, ");
    write_number(most * INSTRUCTIONS_OF_TICK);
    write_text(" at most\n");
    return wrong > RECORDED_ALLOWED;
}

void reset_handler(void) {
    const uint32_t *from = &data_load;
    for (uint32_t *to = &data_start; to < &data_end; ++to) *to = *from++;
    for (uint32_t *to = &bss_start; to < &bss_end; ++to) *to = 0;
    CPACR |= 0xfu << 20; /* the floating-point unit */
    __asm__ volatile("dsb\n\tisb");
    const uint32_t result[2] = {0x20026u, (uint32_t)run()}; /* ADP_Stopped_ApplicationExit, exit status */
    semihost(0x20, result);
    stop();
}
