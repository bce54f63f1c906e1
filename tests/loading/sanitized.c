/* Without an argument, the program is correct. With `freed` it reads a freed block; with any other
   argument it has a data race. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int shared;

static void *count(void *argument)
{
    shared++;
    return argument;
}

int main(int count_of, char **words)
{
    volatile char *block = malloc(1 << 20);
    memset((char *)block, 7, 1 << 20);
    int sum = block[1] + block[1 << 19];
    if (count_of > 1 && !strcmp(words[1], "freed")) {
        free((char *)block);
        sum += block[2];
    } else if (count_of > 1) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            pthread_create(threads + i, NULL, count, NULL);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
    }
    free(count_of > 1 ? NULL : (char *)block);
    printf("%d\n", sum);
    return 0;
}
