/* Prints how many pages are wrong in the memory of a thread that a library's constructor
 * started. */
#include <stdio.h>

long wrong_pages(void);

int main(void)
{
    printf("wrong: %ld\n", wrong_pages());
    return 0;
}
