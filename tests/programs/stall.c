/* Signals of a program while it waits for a free page: it fills memory beyond the limit until it
 * is stopped, and prints how many signals of its timer arrived during the last wait. `stall touch`
 * is stopped at a touch, `stall call` in a system call. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/time.h>
#include <unistd.h>

#define PAGE 4096UL
#define LEN (512UL << 20)
#define TICK_US 20000

/* The page being filled, and the signals that have arrived since. */
static volatile size_t page;
static volatile long ticks, ticks_at_page;

static void on_tick(int signal)
{
    (void)signal;
    ticks++;
    ticks_at_page++;
}

static void on_stop(int signal)
{
    (void)signal;
    char line[100];
    int len = snprintf(line, sizeof line, "page %zu ticks %ld, at this page %ld\n", page, ticks,
                       ticks_at_page);
    _exit(write(1, line, len) == len ? 0 : 2);
}

int main(int argc, char **argv)
{
    int by_call = argc > 1 && !strcmp(argv[1], "call");
    signal(SIGALRM, on_tick);
    signal(SIGBUS, on_stop);
    struct itimerval often = {{0, TICK_US}, {0, TICK_US}};
    setitimer(ITIMER_REAL, &often, NULL);
    char *memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 3;
    uint64_t word = 88172645463325252UL;
    for (size_t at = 0; at < LEN; at += PAGE) {
        page = at / PAGE;
        ticks_at_page = 0;
        if (by_call && getrandom(memory + at, PAGE, 0) != PAGE)
            return 4;
        for (size_t in = 0; !by_call && in < PAGE; in += 8) {
            word ^= word << 13, word ^= word >> 7, word ^= word << 17;
            *(uint64_t *)(memory + at + in) = word;
        }
    }
    puts("nothing stopped it");
    return 1;
}
