/* Allocates and frees blocks of 16 to 1,039 bytes at random, with 200,000 allocated at a time. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments)
{
    static unsigned char *blocks[200000];
    const size_t places = sizeof blocks / sizeof *blocks;
    uint64_t word = 88172645463325252u, sum = 0;
    for (long left = count > 1 ? atol(arguments[1]) : 1; left > 0; left--) {
        word ^= word << 13, word ^= word >> 7, word ^= word << 17;
        unsigned char **block = &blocks[word % places];
        size_t len = 16 + (word >> 32) % 1024;
        if (*block)
            sum += **block;
        free(*block);
        *block = malloc(len);
        if (!*block)
            return 1;
        (*block)[0] = (*block)[len - 1] = (unsigned char)word;
    }
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
