/* Passes malloc on to the next library, as heaptrack does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

void *malloc(size_t size)
{
    static void *(*next)(size_t);
    if (!next)
        next = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    void *block = next(size);
    __asm__ volatile("" ::: "memory"); /* no tail call */
    return block;
}
