/* Recorded steps of an example, and what the network made of them. */
#ifndef RECORDED_H
#define RECORDED_H

#include "../@name@.h"

/* All steps, and those of a sample, before the first of which the state is at rest. */
#define RECORDED_STEPS @all_steps@
#define RECORDED_SAMPLE @steps@
/* How many outputs may differ: sums of floats depend on their order, sums of integers do not. */
#define RECORDED_ALLOWED @allowed@

/* One recorded step: how many of its outputs differ. Steps come in their order. */
int32_t recorded_step(int32_t step);

/* All of them. */
int32_t recorded_test(void);

/* The outputs that there are. */
int32_t recorded_count(void);

#endif
