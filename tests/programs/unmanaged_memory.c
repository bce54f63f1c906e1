/* Memory that the runtime does not manage, like that of a program without the C library, and
 * signals that the runtime cannot intercept. The program makes every system call with its own
 * instruction.
 *
 *   unmanaged_memory --only mapped [--mib N] [--seconds N]   N MiB of private memory
 *   unmanaged_memory --only blocked --pressure MIB           touches swapped-out pages with SIGBUS blocked */
#include "check.h"

#include <sys/syscall.h>

static long call(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static void mapped(void) {
    size_t bytes = option_number("mib", 64) * MIB;
    long at = call(SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                   -1, 0);
    CHECK(at > 0, "mmap: %ld", at);
    fill_random((void *)at, bytes, 1);
    puts("ready");
    fflush(stdout);
    sleep((unsigned)option_number("seconds", 1));
    if (inject_now()) *(uint64_t *)at ^= 1;
    verify_random("mapped", (void *)at, bytes, 1);
}

static void blocked(void) {
    void *data = filled(MIB, 2);
    evict_data(data, MIB);
    uint64_t mask = 1ul << (SIGBUS - 1);
    /* The mask is on the stack, which is not swapped out, so the kernel can read it. */
    call(SYS_rt_sigprocmask, SIG_BLOCK, (long)&mask, 0, sizeof mask, 0, 0);
    verify_random("blocked", data, MIB, 2);
}

static const struct check_case cases[] = {{"mapped", mapped}, {"blocked", blocked}};
CHECK_MAIN(cases)
