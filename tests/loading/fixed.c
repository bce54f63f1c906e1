/* A non-PIE executable that takes malloc's address. In the whole process, malloc's address is
   that of a stub in the executable. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *(*volatile function)(size_t);

int main(void)
{
    function = malloc;
    size_t bytes = 24 << 20, wrong = 0;
    unsigned char *block = function(bytes);
    for (size_t at = 0; at < bytes; at += 4096)
        memset(block + at, (int)(at >> 12) & 255, 16);
    for (size_t at = 0; at < bytes; at += 4096)
        wrong += block[at] != (at >> 12 & 255);
    printf("wrong: %zu\n", wrong);
    return 0;
}
