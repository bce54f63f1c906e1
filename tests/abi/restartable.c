/* Restartable sequences: rseq(2). The kernel writes the area each time that a thread was
 * preempted. */
#include "abi.h"
#include <linux/rseq.h>

#define LEN (64UL << 10)
#define SIGNATURE 0x53053053

/* The C library registers its own area unless a tunable disables it. */
static void without_the_librarys_own(const char *name)
{
    if (getenv("GLIBC_TUNABLES"))
        return;
    MUST(setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0", 1));
    MUST(execl("/proc/self/exe", "abi", name, NULL));
}

static long change(struct rseq *area, int flags)
{
    return syscall(SYS_rseq, area, 32, flags, SIGNATURE);
}

/* Yields and sleeps, so that the kernel writes the area, then checks its CPU number. */
static void run_a_while(struct rseq *area)
{
    for (int i = 0; i < 20; i++) {
        apply_pressure(10);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        sched_yield();
    }
    say("runs somewhere: %d", *(volatile uint32_t *)&area->cpu_id < 1 << 20);
}

CASE(an_area_in_the_heap)
{
    without_the_librarys_own("an_area_in_the_heap");
    struct rseq *area = memory(LEN, 1);
    memset(area, 0, LEN);
    RESULT(change(area, 1));
    RESULT(change(area, 0));
    RESULT(change(area, 0));
    evict();
    run_a_while(area);
    RESULT(change(area, RSEQ_FLAG_UNREGISTER));
    say("no longer: %d", area->cpu_id == (uint32_t)-1);
    evict();
    RESULT(change(area, 0));
    run_a_while(area);
}

CASE(a_child_inherits_the_area)
{
    without_the_librarys_own("a_child_inherits_the_area");
    struct rseq *area = memory(LEN, 1);
    memset(area, 0, LEN);
    RESULT(change(area, 0));
    IN_CHILD("child") {
        evict();
        run_a_while(area);
        RESULT(change(area, RSEQ_FLAG_UNREGISTER));
    }
    run_a_while(area);
}
