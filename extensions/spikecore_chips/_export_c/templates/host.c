/* The recorded steps on this machine. */
#include <stdio.h>

#include "recorded.h"

int main(void) {
    const int32_t wrong = recorded_test();
    printf("%s: %d steps, %d of %d outputs differ\n", "@name@", RECORDED_STEPS, (int)wrong, (int)recorded_count());
    return wrong > RECORDED_ALLOWED;
}
