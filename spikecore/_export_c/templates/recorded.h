/* Recorded steps of an example, and what the network made of them. */
#ifndef RECORDED_H
#define RECORDED_H

#include "@name@.h"

#define RECORDED_STEPS @steps@
/* How many outputs may differ: sums of floats depend on their order, sums of integers do not. */
#define RECORDED_ALLOWED @allowed@

/* One recorded step: how many of its outputs differ. Step 0 begins at rest. */
int32_t recorded_step(int32_t step);

/* All of them. */
int32_t recorded_test(void);

/* The outputs that there are. */
int32_t recorded_count(void);

#endif
