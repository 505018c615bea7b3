// Prints the results of the configure script of this directory.
#include <stdio.h>
#include "config.h"

int main(void) {
    printf("configured: stdio.h %d, no_such.h %d, printf %d\n", HAVE_STDIO_H, HAVE_NO_SUCH_H, HAVE_PRINTF);
    return 0;
}
