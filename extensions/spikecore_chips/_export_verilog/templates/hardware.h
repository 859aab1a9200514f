/* What goes into the core @name@ and comes out of it.
 *
 * x: @inputs@
 * y: @outputs@
 *
 * The functions are those of the program in C that sc.export_c writes, so that one test serves both.
 */
#ifndef @NAME@_H
#define @NAME@_H

#include <stdint.h>

#define @NAME@_INPUTS @count_in@
#define @NAME@_OUTPUTS @count_out@

typedef @type_in@ @name@_in;
typedef @type_out@ @name@_out;

struct @name@ {
    uint8_t none;
};

void @name@_reset(struct @name@ *s);
void @name@_step(struct @name@ *s, const @name@_in *x, @name@_out *y);

#endif
