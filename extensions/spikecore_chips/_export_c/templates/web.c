/* What @name@.mjs calls: one state, and where its arrays are. */
#include "../@name@.h"

static struct @name@ s;
static @name@_in x[@NAME@_INPUTS];
static @name@_out y[@NAME@_OUTPUTS];

void web_reset(void);
void web_step(void);
const void *web_array(int k);

void web_reset(void) { @name@_reset(&s); }

void web_step(void) { @name@_step(&s, x, y); }

const void *web_array(const int k) {
    switch (k) {
    case 0: return x;
    case 1: return y;
@places@
    default: return 0;
    }
}
