/* Writes one byte past a block of 64. The C library gives such a block 72 bytes, so the program
 * does not notice. The runtime's allocator stores the link of a free neighbour in this byte. The
 * loop searches for blocks whose changed link points to the first block. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    static unsigned char *block[90];
    for (int i = 0; i < 90; i++)
        block[i] = malloc(64);
    for (int k = 0; k < 80; k++) {
        if (((uintptr_t)block[k] & 255) == 0 && block[k + 3] == block[k] + 192) {
            free(block[k + 1]), free(block[k + 3]), free(block[k]);
            block[k + 2][64] = 0;
            break;
        }
    }
    puts("ok");
    return 0;
}
