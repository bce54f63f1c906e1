/* Fills memory, evicts it by touching as much again, writes its PID and the address to the given
 * file, and waits until it is killed. The program runs on a stack in the heap, like a coroutine:
 * the address and length of an evicted part of that stack follow in the file. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <ucontext.h>
#include <unistd.h>

static unsigned char *volatile data;
static const char *file_name;

static __attribute__((noinline)) void wait_with(volatile unsigned char *outer, size_t outer_bytes)
{
    size_t bytes = 32 << 20;
    char name[4096];
    data = malloc(bytes);
    unsigned *more = malloc(2 * bytes);
    for (size_t at = 0; at < bytes; at += 4096)
        data[at] = data[at + 4095] = at >> 12;
    for (size_t at = 0; at < 2 * bytes / sizeof *more; at++)
        more[at] = at * 2654435761u;
    snprintf(name, sizeof name, "%s.new", file_name);
    FILE *file = fopen(name, "w");
    fprintf(file, "%d %p %zu %p %zu\n", getpid(), (void *)data, bytes, (void *)outer, outer_bytes);
    fclose(file);
    rename(name, file_name);
    for (;;)
        pause();
}

/* Fills pages of its frame with the low byte of their number. */
static void on_heap_stack(void)
{
    static volatile unsigned char *frame;
    unsigned char local[(64 << 10) + 4096];
    frame = (unsigned char *)(((uintptr_t)local + 4095) & ~(uintptr_t)4095);
    for (size_t at = 0; at < 64 << 10; at += 4096)
        frame[at] = at >> 12;
    wait_with(frame, 64 << 10);
}

int main(int count, char **words)
{
    static ucontext_t context;
    if (count < 2)
        return 2;
    file_name = words[1];
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    getcontext(&context);
    context.uc_stack.ss_size = 1 << 20;
    context.uc_stack.ss_sp = malloc(context.uc_stack.ss_size);
    makecontext(&context, on_heap_stack, 0);
    setcontext(&context);
}
