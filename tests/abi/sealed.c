/* Sealed memory: mseal(2). */
#include "abi.h"
#include <linux/mman.h>

#define LEN (64UL << 10)
#define HALF (LEN / 2)

static long seal(void *at, size_t len, unsigned long flags)
{
    return syscall(462, at, len, flags);
}

/* Maps memory and seals its upper half. */
static char *half_sealed(int protection)
{
    char *at = memory(LEN, 1);
    MUST(mprotect(at, LEN, protection));
    RESULT(seal(at + HALF, HALF, 0));
    return at;
}

CASE(what_seals)
{
    char *at = memory(LEN, 1);
    RESULT(seal(at, LEN, 1));
    RESULT(seal(at + 1, PAGE, 0));
    RESULT(seal(at, 0, 0));
    RESULT(seal(at, -1UL, 0));
    RESULT(seal((void *)-PAGE, 4 * PAGE, 0));
    MUST(munmap(at + PAGE, PAGE));
    RESULT(seal(at, LEN, 0));
    RESULT(munmap(at, PAGE));
    RESULT(seal(at + 2 * PAGE, 10, 0));
    RESULT(seal(at + 2 * PAGE, 10, 0));
    RESULT(munmap(at + 3 * PAGE, PAGE));
    RESULT(munmap(at + 2 * PAGE, PAGE));
}

CASE(sealed_memory_stays)
{
    char *at = half_sealed(PROT_READ | PROT_WRITE), *other = memory(LEN, 2);
    evict();
    RESULT(munmap(at, LEN));
    RESULT(munmap(at + HALF, PAGE));
    RESULT(mprotect(at + HALF, PAGE, PROT_READ | PROT_WRITE));
    RESULT(mprotect(at, LEN, PROT_READ));
    say("the part before is read-only: %d", syscall(SYS_getrandom, at, 1, 0) == -1);
    RESULT(mprotect(at, HALF, PROT_READ | PROT_WRITE));
    say_place("fixed", mmap(at + HALF, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
              at + HALF);
    int fd = scratch_file(O_RDWR);
    MUST(ftruncate(fd, PAGE));
    say_place("file", mmap(at + HALF, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0), at + HALF);
    say_place("moved", mremap(at + HALF, HALF, HALF, MREMAP_MAYMOVE | MREMAP_FIXED, other), other);
    say_place("grown", mremap(at + HALF, HALF, 4 * LEN, MREMAP_MAYMOVE), NULL);
    say_place("shrunk", mremap(at + HALF, HALF, PAGE, 0), at + HALF);
    say_place("displaced", mremap(other, HALF, HALF, MREMAP_MAYMOVE | MREMAP_FIXED, at + HALF),
              at + HALF);
    say_place("cut", mremap(at, LEN, PAGE, 0), at);
    evict();
    say("wrong %zu", wrong(at, LEN, 1));
}

CASE(advice_about_sealed_memory)
{
    const int advices[] = {MADV_DONTNEED, MADV_FREE, MADV_DONTFORK, MADV_WIPEONFORK, MADV_COLD,
                           MADV_WILLNEED, MADV_DOFORK, MADV_KEEPONFORK};
    char *at = half_sealed(PROT_READ);
    evict();
    for (size_t i = 0; i < sizeof advices / sizeof *advices; i++) {
        RESULT(madvise(at + HALF, HALF, advices[i]));
        RESULT(madvise(at + HALF - PAGE, 2 * PAGE, advices[i]));
        RESULT(madvise(at, 1, MADV_DOFORK) | madvise(at, HALF, MADV_KEEPONFORK));
    }
    say("alike above %d", !memcmp(at + HALF, (char *)memory(LEN, 1) + HALF, HALF));
    char *writable = half_sealed(PROT_READ | PROT_WRITE);
    RESULT(madvise(writable + HALF, PAGE, MADV_DONTNEED));
    say("not zero %zu", not_zero(writable + HALF, PAGE));
}

CASE(children_inherit_seals)
{
    char *at = half_sealed(PROT_READ | PROT_WRITE);
    evict();
    IN_CHILD("child") {
        RESULT(munmap(at + HALF, PAGE));
        RESULT(mprotect(at + HALF, PAGE, PROT_READ));
        evict();
        say("wrong %zu", wrong(at, LEN, 1));
        RESULT(munmap(at, HALF));
    }
    RESULT(munmap(at + HALF, PAGE));
    say("wrong %zu", wrong(at, LEN, 1));
}

/* Twice the budget: sealed pages are evicted like other pages. */
CASE(much_is_sealed)
{
    size_t len = 16 * MIB;
    char *at = memory(len, 3);
    MUST(mprotect(at, len, PROT_READ));
    RESULT(seal(at, len, 0));
    for (int i = 0; i < 2; i++) {
        evict();
        say("wrong %zu", wrong(at, len, 3));
    }
}
