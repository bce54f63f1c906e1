/* Ways to commit private memory other than malloc and a plain mmap. Each case fills --mib MiB
 * and compares them twice. */
#include "check.h"

#include <sys/syscall.h>
#include <ucontext.h>

static size_t bytes_wanted(void) { return option_number("mib", 64) * MIB; }

/* Waits at most --linger seconds, so that a test can observe the process. */
static void linger(void) {
    size_t seconds = option_number("linger", 0);
    if (seconds == 0) return;
    puts("ready");
    fflush(stdout);
    sleep((unsigned)seconds);
}

/* Fills and compares, so that each page is swapped out and in again. */
static void use(char *at) {
    size_t bytes = bytes_wanted();
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    fill_random(at, bytes, 1);
    if (inject_now()) at[bytes / 2] ^= 1;
    verify_random("first", at, bytes, 1);
    verify_random("second", at, bytes, 1);
    linger();
}

#define FIBER_BYTES ((size_t)128 << 10)
#define LOCAL_BYTES ((size_t)96 << 10)

static ucontext_t scheduler;
static ucontext_t *fibers;

static void fiber(int number) {
    char local[LOCAL_BYTES];
    fill_random(local, sizeof local, (uint64_t)number);
    for (int round = 0; round < 2; round++) {
        CALL(swapcontext(&fibers[number], &scheduler));
        if (inject_now()) local[5] ^= 1;
        verify_random("stack", local, sizeof local, (uint64_t)number);
    }
}

/* One mapping for many stacks, like Ruby. */
static void stacks(void) {
    int count = (int)(bytes_wanted() / FIBER_BYTES);
    char *at = mmap(NULL, bytes_wanted(), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    fibers = allocate((size_t)count * sizeof *fibers);
    for (int i = 0; i < count; i++) {
        char *stack = at + (size_t)i * FIBER_BYTES;
        CALL(mprotect(stack, PAGE, PROT_NONE));
        CALL(getcontext(&fibers[i]));
        fibers[i].uc_stack.ss_sp = stack + PAGE;
        fibers[i].uc_stack.ss_size = FIBER_BYTES - PAGE;
        fibers[i].uc_link = &scheduler;
        makecontext(&fibers[i], (void (*)(void))fiber, 1, i);
    }
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < count; i++) CALL(swapcontext(&scheduler, &fibers[i]));
    linger();
}

static void zero_device(void) {
    int fd = CALL(open("/dev/zero", O_RDWR));
    char *at = mmap(NULL, bytes_wanted(), PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, (off_t)PAGE);
    CALL(close(fd));
    CHECK(at != MAP_FAILED && at[0] == 0 && at[bytes_wanted() - 1] == 0, "not zeroes");
    use(at);
}

static void by_number(void) {
    use((char *)syscall(SYS_mmap, NULL, bytes_wanted(), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

/* Like SBCL's heap, which has code between its data, and a preferred address. */
static void executable(void) {
    use(mmap((void *)0x1000000000, bytes_wanted(), PROT_READ | PROT_WRITE | PROT_EXEC,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
}

static const struct check_case cases[] = {
    {"stacks", stacks},
    {"zero_device", zero_device},
    {"by_number", by_number},
    {"executable", executable},
};
CHECK_MAIN(cases)
