/* A spiking network, one time step at a call.
 *
 *     static struct @name@ state;
 *     @name@_reset(&state);               before the first step
 *     @name@_step(&state, x, y);          for each step
 *
 * x: @inputs@
 * y: @outputs@
 *
 * Tables take @flash@ bytes of flash, beside the code. The state takes @memory@ bytes of memory, and is all that there is
 * beside some words of the stack.
 */
#ifndef @NAME@_H
#define @NAME@_H

#include <stdint.h>

#define @NAME@_INPUTS @count_in@
#define @NAME@_OUTPUTS @count_out@

typedef @type_in@ @name@_in;
typedef @type_out@ @name@_out;

/* States of neurons and delays, and the memory that a step works with: arrays of one union do not live at one time. */
struct @name@ {
@fields@
};

_Static_assert(sizeof(struct @name@) == @memory@, "the size that is said above");

/* Go to rest. */
void @name@_reset(struct @name@ *s);

/* One time step. x and y do not overlap. */
void @name@_step(struct @name@ *s, const @name@_in *x, @name@_out *y);

#endif
