/* What a program's signals do while room for a page is waited for: it fills memory with what
 * does not fit, until it is stopped, and notes how long its timer's signals were kept from
 * it. `stall touch` is stopped at a touch, `stall call` in a system call. */
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
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define LEN (512UL << 20)
#define TICK_US 20000

static volatile int64_t last_ms, longest_ms;
static volatile long ticks;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void note_tick(void)
{
    int64_t now = now_ms();
    if (last_ms && now - last_ms > longest_ms)
        longest_ms = now - last_ms;
    last_ms = now;
}

static void on_tick(int signal)
{
    (void)signal;
    ticks++;
    note_tick();
}

static void on_stop(int signal)
{
    (void)signal;
    note_tick();
    char line[100];
    int len = snprintf(line, sizeof line, "ticks %ld longest %ld ms\n", ticks, (long)longest_ms);
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
