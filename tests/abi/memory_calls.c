/* mmap, munmap, mprotect, madvise, mlock, msync, mincore: which calls are refused, with which
 * error, and that a refused call changes nothing. */
#include "abi.h"
#include <dlfcn.h>
#include <sys/personality.h>

#define LEN (256UL << 10)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define RW (PROT_READ | PROT_WRITE)
#define NOBODY 65534

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

#define MAP(wanted, ...) (errno = 0, say_place(#__VA_ARGS__, mmap(__VA_ARGS__), wanted))

static void become_nobody(void)
{
    if (geteuid() == 0)
        MUST(setuid(NOBODY));
}

/* ---- munmap ---- */

CASE(munmap_of_an_unaligned_address)
{
    char *at = evicted_memory(256 << 10, 1);
    RESULT(munmap(at + 1, PAGE));
    say("wrong %zu", wrong(at, 256 << 10, 1));
}

CASE(data_survives_being_evicted)
{
    char *at = evicted_memory(4 * MIB, 2);
    say("wrong %zu", wrong(at, 4 * MIB, 2));
}

CASE(munmap_lengths)
{
    char *at = evicted_memory(LEN, 3);
    RESULT(munmap(at, 0));
    RESULT(munmap(at, -PAGE));
    RESULT(munmap(at, -1UL));
    RESULT(munmap(at, 1UL << 47));
    say("wrong %zu", wrong(at, LEN, 3));
    RESULT(munmap(at, 1));
    say("readable %d %d", is_readable(at), is_readable(at + PAGE));
    RESULT(munmap(at, LEN));
    RESULT(munmap(at, LEN));
}

CASE(munmap_of_locked_memory)
{
    char *at = memory(LEN, 4);
    RESULT(mlock(at, 64 << 10));
    RESULT(munmap(at, LEN));
    say("readable %d", is_readable(at));
    MAP(at, at, LEN, RW, ANON | MAP_FIXED, -1, 0);
    say("not zero %zu", not_zero(at, LEN));
    rewrite(at, LEN, 5);
    RESULT(madvise(at, LEN, MADV_DONTNEED));
}

/* ---- mmap ---- */

CASE(mmap_refused)
{
    MAP(NULL, NULL, 0, RW, ANON, -1, 0);
    MAP(NULL, NULL, -PAGE, RW, ANON, -1, 0);
    MAP(NULL, NULL, -1UL, RW, ANON, -1, 0);
    MAP(NULL, NULL, LEN, RW, ANON, -1, 1);
    MAP(NULL, NULL, LEN, RW, MAP_ANONYMOUS, -1, 0);
    MAP(NULL, NULL, LEN, RW, MAP_PRIVATE, -1, 0);
    MAP(NULL, NULL, LEN, RW, MAP_PRIVATE, 12345, 0);
}

CASE(unknown_protection_bits)
{
    char *at = MAP(NULL, NULL, LEN, RW | 0x1000, ANON, -1, 0);
    if (at == MAP_FAILED)
        return;
    rewrite(at, LEN, 5);
    RESULT(mprotect(at, LEN, RW | 0x1000));
    RESULT(mprotect(at, LEN, RW | 8));
}

CASE(fixed_with_a_bad_descriptor)
{
    char *at = evicted_memory(LEN, 6);
    MAP(NULL, at, LEN, RW, MAP_PRIVATE | MAP_FIXED, 12345, 0);
    MAP(NULL, at, LEN, RW, MAP_SHARED | MAP_FIXED, -1, 0);
    say("wrong %zu", wrong(at, LEN, 6));
}

CASE(fixed_without_permission)
{
    char *at = memory(LEN, 7);
    char path[] = "/proc/self/fd/00000";
    int file = scratch_file(O_RDWR);
    MUST(ftruncate(file, LEN));
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int reads = MUST(open(path, O_RDONLY)), writes = MUST(open(path, O_WRONLY));
    evict();
    MAP(NULL, at, LEN, RW, MAP_SHARED | MAP_FIXED, reads, 0);
    MAP(NULL, at, LEN, PROT_READ, MAP_PRIVATE | MAP_FIXED, writes, 0);
    say("wrong %zu", wrong(at, LEN, 7));
    MAP(at, at, LEN, RW, MAP_PRIVATE | MAP_FIXED, reads, 0);
    say("not zero %zu", not_zero(at, LEN));
}

CASE(fixed_with_a_bad_offset)
{
    char *at = memory(LEN, 8);
    int file = scratch_file(O_RDWR);
    evict();
    MAP(NULL, at, LEN, RW, MAP_PRIVATE | MAP_FIXED, file, 1);
    MAP(NULL, at, LEN, RW, MAP_PRIVATE | MAP_FIXED, file, (off_t)(-PAGE));
    MAP(NULL, at, LEN, RW, ANON | MAP_FIXED, -1, 1);
    say("wrong %zu", wrong(at, LEN, 8));
}

CASE(fixed_of_what_cannot_be_mapped)
{
    char *at = memory(LEN, 9);
    int ends[2];
    MUST(pipe(ends));
    int dir = MUST(open("/", O_RDONLY | O_DIRECTORY));
    evict();
    MAP(NULL, at, LEN, RW, MAP_PRIVATE | MAP_FIXED, ends[0], 0);
    MAP(NULL, at, LEN, PROT_READ, MAP_PRIVATE | MAP_FIXED, dir, 0);
    say("wrong %zu", wrong(at, LEN, 9));
}

CASE(fixed_unaligned_or_empty)
{
    char *at = evicted_memory(LEN, 10);
    MAP(NULL, at + 1, LEN / 2, RW, ANON | MAP_FIXED, -1, 0);
    MAP(NULL, at, 0, RW, ANON | MAP_FIXED, -1, 0);
    MAP(NULL, at, -PAGE, RW, ANON | MAP_FIXED, -1, 0);
    MAP(NULL, at, LEN, RW, MAP_FIXED | MAP_ANONYMOUS, -1, 0);
    say("wrong %zu", wrong(at, LEN, 10));
}

CASE(shared_validate)
{
    char *at = memory(LEN, 11);
    int file = scratch_file(O_RDWR);
    MUST(ftruncate(file, LEN));
    evict();
    MAP(NULL, at, LEN, RW, MAP_SHARED_VALIDATE | MAP_FIXED | 0x8000000, file, 0);
    say("wrong %zu", wrong(at, LEN, 11));
    MAP(at, at, LEN, RW, MAP_SHARED_VALIDATE | MAP_FIXED, file, 0);
    at[0] = 'a';
    char byte = 0;
    RESULT(pread(file, &byte, 1, 0));
    say("byte %c", byte);
}

CASE(noreplace_over_a_mapping)
{
    char *at = memory(LEN, 12);
    int file = scratch_file(O_RDWR);
    MUST(ftruncate(file, LEN));
    evict();
    MAP(NULL, at, LEN, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
    MAP(NULL, at + LEN / 2, LEN, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
    MAP(NULL, at, PAGE, RW, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
    say("wrong %zu", wrong(at, LEN, 12));
    MUST(munmap(at, LEN / 2));
    MAP(at, at, LEN / 2, RW, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
    MAP(NULL, at, LEN / 2, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
}

CASE(a_hint_that_is_free)
{
    char *at = memory(8 * LEN, 13);
    MUST(munmap(at + 2 * LEN, 4 * LEN));
    evict();
    char *there = MAP(at + 2 * LEN, at + 2 * LEN, LEN, RW, ANON, -1, 0);
    say("not zero %zu", not_zero(there, LEN));
    int file = scratch_file(O_RDWR);
    MUST(ftruncate(file, LEN));
    MAP(at + 4 * LEN, at + 4 * LEN, LEN, RW, MAP_SHARED, file, 0);
    MAP(at + 5 * LEN, at + 5 * LEN, PAGE, RW, ANON, -1, 0);
}

CASE(a_hint_that_is_taken)
{
    char *at = evicted_memory(LEN, 14);
    char *other = mmap(at, LEN, RW, ANON, -1, 0);
    say("elsewhere: %d", other != MAP_FAILED && other != at);
    fill(other, LEN, 15);
    evict();
    say("wrong %zu %zu", wrong(at, LEN, 14), wrong(other, LEN, 15));
}

/* Like garbage collectors that choose their heap's address. They try addresses until a mapping
   has the requested address. */
CASE(hints_that_a_program_insists_on)
{
    for (size_t i = 0; i < 4000; i++) {
        char *hint = (char *)(0x100000000000UL + i * 0x10000000UL);
        char *got = mmap(hint, 64 * MIB, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
        if (got == hint) {
            say("one is kept");
            char *over = mmap(hint, MIB, RW, ANON | MAP_FIXED, -1, 0);
            say("there: %d", over == hint);
            rewrite(over, MIB, 16);
            return;
        }
        MUST(munmap(got, 64 * MIB));
    }
    say("none is kept");
}

/* Like ZGC: one bit of the heap's address is a flag of its pointers. */
CASE(a_hint_that_is_one_bit)
{
    char *hint = (char *)0x40000000000UL;
    MAP(hint, hint, 1024 * MIB, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
    MAP(NULL, hint, 2 * MIB, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
    MAP(hint, hint, 2 * MIB, RW, ANON | MAP_FIXED, -1, 0);
    rewrite(hint, 2 * MIB, 18);
}

/* Like LuaJIT: memory for code within reach of a jump from its library. */
CASE(hints_near_code)
{
    uintptr_t code = (uintptr_t)dlsym(RTLD_DEFAULT, "mmap") & ~0xffffUL;
    char *near = NULL;
    for (uintptr_t away = 64 * MIB; !near && away < 1024 * MIB; away += 4 * MIB) {
        char *got = mmap((void *)(code - away), 65536, RW, ANON, -1, 0);
        if (got == (char *)(code - away))
            near = got;
        else
            MUST(munmap(got, 65536));
    }
    say("near: %d", near != NULL);
    rewrite(near, 65536, 19);
    memcpy(near, "\xb8\x2a\0\0\0\xc3", 6);
    RESULT(mprotect(near, 65536, PROT_READ | PROT_EXEC));
    say("answer %d", ((int (*)(void))near)());
}

/* Like JDK 25: several addresses in turn, then any. */
CASE(places_that_a_program_tries)
{
    size_t len = 400 * MIB;
    char *heap = MAP_FAILED;
    for (uintptr_t at = 0x40000000; heap == MAP_FAILED && at < 0x100000000; at += 0x4000000)
        heap = mmap((void *)at, len, PROT_NONE, ANON | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (heap == MAP_FAILED && errno == EEXIST)
        heap = mmap(NULL, len, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
    say("reserved: %d", heap != MAP_FAILED);
    MAP(heap, heap, 8 * MIB, RW, ANON | MAP_FIXED | MAP_NORESERVE, -1, 0);
    rewrite(heap, 8 * MIB, 20);
    /* A program that finally accepts only one address. */
    char *own = (char *)0x600000000000UL;
    size_t tries = 0;
    while (tries < 1000 && mmap(own, 64 * MIB, PROT_NONE,
                                ANON | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) != own)
        tries++;
    say("has its own: %d", tries < 1000);
}

/* Allocators map and unmap blocks with hints, but accept other addresses. */
CASE(hints_that_a_program_prefers)
{
    size_t count = 0;
    for (size_t i = 0; i < 400; i++) {
        char *hint = (char *)(0x100000000000UL + i * 0x10000000UL);
        char *got = mmap(hint, LEN, RW, ANON, -1, 0);
        got[0] = got[LEN - 1] = 1;
        count += got[1];
        MUST(munmap(got, LEN));
    }
    char *at = mmap((char *)0x180000000000UL, 4 * MIB, RW, ANON, -1, 0);
    fill(at, 4 * MIB, 17);
    evict();
    say("not zero %zu, wrong %zu", count, wrong(at, 4 * MIB, 17));
}

CASE(a_program_within_an_address_space)
{
    for (rlim_t kib = 6000000; kib <= 9000000; kib += 1000000) {
        IN_CHILD("child") {
            struct rlimit limit = {kib * 1024, kib * 1024};
            MUST(setrlimit(RLIMIT_AS, &limit));
            execl("/proc/self/exe", "memory_calls", "munmap_of_an_unaligned_address", NULL);
            _exit(96);
        }
    }
}

CASE(a_reservation_is_opened)
{
    char *at = mmap(NULL, 64 * MIB, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
    say("readable %d", is_readable(at));
    MAP(at + MIB, at + MIB, LEN, RW, ANON | MAP_FIXED, -1, 0);
    RESULT(mprotect(at + 2 * MIB, LEN, RW));
    fill(at + MIB, LEN, 17), fill(at + 2 * MIB, LEN, 18);
    evict();
    say("wrong %zu %zu", wrong(at + MIB, LEN, 17), wrong(at + 2 * MIB, LEN, 18));
    MAP(at + MIB, at + MIB, LEN, PROT_NONE, ANON | MAP_FIXED | MAP_NORESERVE, -1, 0);
    say("readable %d %d", is_readable(at + MIB), is_readable(at + 2 * MIB));
}

CASE(executable_memory)
{
    static const unsigned char answer[] = {0xb8, 42, 0, 0, 0, 0xc3};
    char *at = memory(LEN, 19);
    memcpy(at, answer, sizeof answer);
    RESULT(mprotect(at, PAGE, PROT_READ | PROT_EXEC));
    evict();
    say("says %d", ((int (*)(void))at)());
    MAP(at, at, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, ANON | MAP_FIXED, -1, 0);
    memcpy(at, answer, sizeof answer);
    say("says %d", ((int (*)(void))at)());
}

/* SBCL's heap has code between its data. */
CASE(executable_heap)
{
    static const unsigned char answer[] = {0xb8, 42, 0, 0, 0, 0xc3};
    int all = PROT_READ | PROT_WRITE | PROT_EXEC;
    char *heap = mmap(NULL, 16 * MIB, all, ANON | MAP_NORESERVE, -1, 0), *data = heap + 8 * MIB;
    memcpy(heap, answer, sizeof answer);
    fill(data, 4 * MIB, 21);
    evict();
    say("says %d, wrong %zu", ((int (*)(void))heap)(), wrong(data, 4 * MIB, 21));
    RESULT(mprotect(heap, LEN, PROT_READ | PROT_EXEC));
    evict();
    say("says %d", ((int (*)(void))heap)());
    RESULT(madvise(data, 4 * MIB, MADV_DONTNEED));
    say("not zero %d", data[PAGE]);
    RESULT(munmap(heap, 16 * MIB));
}

/* ---- mprotect ---- */

CASE(mprotect_refused)
{
    char *at = evicted_memory(LEN, 20);
    RESULT(mprotect(at + 1, PAGE, PROT_READ));
    RESULT(mprotect(at, -PAGE, PROT_READ));
    RESULT(mprotect(at, -1UL, PROT_READ));
    RESULT(mprotect(at, 0, PROT_READ));
    RESULT(mprotect(at, PAGE, 0x100));
    RESULT(mprotect(at, PAGE, PROT_READ | PROT_GROWSDOWN));
    RESULT(mprotect(at, PAGE, PROT_READ | PROT_GROWSUP));
    RESULT(mprotect(at, PAGE, PROT_READ | PROT_GROWSDOWN | PROT_GROWSUP));
    fill(at, LEN, 21);
    say("wrong %zu", wrong(at, LEN, 21));
}

CASE(mprotect_up_to_a_hole)
{
    char *at = memory(LEN, 22);
    MUST(munmap(at + LEN / 2, PAGE));
    evict();
    RESULT(mprotect(at, LEN, PROT_NONE));
    say("readable %d %d", is_readable(at), is_readable(at + LEN / 2 + PAGE));
    RESULT(mprotect(at, LEN / 2, PROT_READ));
    say("wrong %zu", wrong(at, LEN / 2, 22));
    RESULT(mprotect(at + LEN / 2, PAGE, PROT_READ));
}

CASE(mprotect_over_a_file)
{
    char *at = memory(LEN, 23);
    int file = scratch_file(O_RDWR);
    MUST(ftruncate(file, LEN));
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int reads = MUST(open(path, O_RDONLY));
    MAP(at + LEN / 2, at + LEN / 2, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, reads, 0);
    evict();
    RESULT(mprotect(at, LEN, PROT_READ));
    RESULT(mprotect(at, LEN, RW));
    int zero = MUST(open("/dev/zero", O_RDONLY));
    RESULT(read(zero, at, 1));
    RESULT(read(zero, at + LEN / 2, 1));
    RESULT(read(zero, at + LEN / 2 + PAGE, 1));
}

CASE(protection_keys)
{
    char *at = evicted_memory(LEN, 24);
    RESULT(pkey_mprotect(at, LEN, PROT_NONE, 1));
    RESULT(pkey_mprotect(at, LEN, PROT_NONE, 15));
    RESULT(pkey_mprotect(at, LEN, PROT_NONE, 99));
    RESULT(pkey_mprotect(at, LEN, PROT_NONE, -2));
    say("readable %d", is_readable(at));
    RESULT(pkey_mprotect(at, LEN, PROT_READ, -1));
    say("wrong %zu", wrong(at, LEN, 24));
    RESULT(pkey_mprotect(at + 1, LEN, PROT_READ, 1));
    RESULT(pkey_mprotect(at, 0, PROT_READ, 1));
}

/* ---- madvise ---- */

CASE(madvise_refused)
{
    char *at = evicted_memory(LEN, 25);
    RESULT(madvise(at + 1, PAGE, MADV_DONTNEED));
    RESULT(madvise(at, -PAGE, MADV_DONTNEED));
    RESULT(madvise(at, -1UL, MADV_DONTNEED));
    RESULT(madvise(at, 0, MADV_DONTNEED));
    RESULT(madvise(at, PAGE, 12345));
    RESULT(madvise(at, 0, 12345));
    RESULT(madvise(at + 1, 0, MADV_NORMAL));
    RESULT(madvise(at, LEN, MADV_REMOVE));
    RESULT(madvise(at, LEN, 5));
    say("wrong %zu", wrong(at, LEN, 25));
}

CASE(advice_over_a_hole)
{
    char *at = memory(LEN, 26);
    MUST(munmap(at + LEN / 2, PAGE));
    evict();
    RESULT(madvise(at, LEN, MADV_RANDOM));
    RESULT(madvise(at, LEN, MADV_DONTFORK));
    RESULT(madvise(at, LEN, MADV_POPULATE_READ));
    RESULT(madvise(at, LEN, MADV_COLD));
    say("wrong %zu", wrong(at, LEN / 2, 26));
    RESULT(madvise(at, LEN, MADV_DONTNEED));
    say("not zero %zu %zu", not_zero(at, LEN / 2), not_zero(at + LEN / 2 + PAGE, LEN / 2 - PAGE));
    RESULT(madvise(at + LEN / 2, PAGE, MADV_DONTNEED));
}

CASE(all_hints)
{
    static const int hints[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED,
                                MADV_DONTFORK, MADV_DOFORK, MADV_MERGEABLE, MADV_UNMERGEABLE,
                                MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_DONTDUMP, MADV_DODUMP,
                                MADV_WIPEONFORK, MADV_KEEPONFORK, MADV_COLD, MADV_PAGEOUT};
    char *at = evicted_memory(LEN, 27);
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++) {
        say("advice %d", hints[i]);
        RESULT(madvise(at, LEN, hints[i]));
    }
    say("wrong %zu", wrong(at, LEN, 27));
}

CASE(populating)
{
    char *at = evicted_memory(LEN, 28);
    RESULT(madvise(at, LEN, MADV_POPULATE_READ));
    RESULT(madvise(at, LEN, MADV_POPULATE_WRITE));
    MUST(mprotect(at + LEN / 2, PAGE, PROT_READ));
    RESULT(madvise(at, LEN, MADV_POPULATE_READ));
    RESULT(madvise(at, LEN, MADV_POPULATE_WRITE));
    MUST(mprotect(at + LEN / 2, PAGE, PROT_NONE));
    RESULT(madvise(at, LEN, MADV_POPULATE_READ));
    MUST(mprotect(at + LEN / 2, PAGE, PROT_READ));
    say("wrong %zu", wrong(at, LEN, 28));
}

CASE(poison)
{
    become_nobody();
    char *at = memory(LEN, 29);
    RESULT(madvise(at, PAGE, 100));
    RESULT(madvise(at, PAGE, 101));
    say("wrong %zu", wrong(at, LEN, 29));
}

CASE(wiped_on_fork)
{
    char *at = memory(LEN, 30);
    RESULT(madvise(at, LEN / 2, MADV_WIPEONFORK));
    RESULT(madvise(at, PAGE, MADV_KEEPONFORK));
    evict();
    IN_CHILD("child") {
        say("kept wrong %zu", wrong(at, PAGE, 30));
        say("wiped not zero %zu", not_zero(at + PAGE, LEN / 2 - PAGE));
        fill(at, LEN, 31);
        IN_CHILD("grandchild")
            say("again: not zero %zu", not_zero(at + PAGE, LEN / 2 - PAGE));
        say("wrong %zu", wrong(at, LEN, 31));
    }
    evict();
    say("wrong %zu", wrong(at, LEN, 30));
}

CASE(withheld_at_fork)
{
    char *at = memory(LEN, 32);
    RESULT(madvise(at, LEN, MADV_DONTFORK));
    RESULT(madvise(at, PAGE, MADV_DOFORK));
    evict();
    IN_CHILD("child") {
        say("readable %d %d", is_readable(at), is_readable(at + PAGE));
        say("wrong %zu", wrong(at, PAGE, 32));
        RESULT(mprotect(at + PAGE, PAGE, PROT_READ));
        *(volatile char *)(at + LEN - 1);
    }
    say("wrong %zu", wrong(at, LEN, 32));
}

CASE(advice_by_a_process_descriptor)
{
    char *at = memory(LEN, 33);
    int self = MUST(syscall(SYS_pidfd_open, getpid(), 0));
    struct iovec vector = {at, LEN};
    evict();
    RESULT(syscall(SYS_process_madvise, self, &vector, 1, MADV_COLD, 0) == (long)LEN);
    RESULT(syscall(SYS_process_madvise, self, &vector, 1, MADV_PAGEOUT, 0) == (long)LEN);
    RESULT(syscall(SYS_process_madvise, self, &vector, 1, 12345, 0));
    RESULT(syscall(SYS_process_madvise, -1, &vector, 1, MADV_COLD, 0));
    say("wrong %zu", wrong(at, LEN, 33));
}

/* ---- mlock ---- */

CASE(dontneed_of_locked_memory)
{
    char *at = memory(LEN, 34);
    RESULT(mlock(at, 64 << 10));
    RESULT(madvise(at, 64 << 10, MADV_DONTNEED));
    RESULT(madvise(at, 64 << 10, MADV_FREE));
    RESULT(madvise(at, 64 << 10, MADV_COLD));
    RESULT(madvise(at, 64 << 10, MADV_PAGEOUT));
    evict();
    say("wrong %zu", wrong(at, LEN, 34));
    RESULT(madvise(at, 64 << 10, MADV_DONTNEED_LOCKED));
    say("not zero %zu", not_zero(at, 64 << 10));
    RESULT(madvise(at, 64 << 10, MADV_DONTNEED));
    RESULT(munlock(at, PAGE));
    RESULT(madvise(at, PAGE, MADV_DONTNEED));
    RESULT(munlock(at, LEN));
    RESULT(madvise(at, LEN, MADV_DONTNEED));
    say("not zero %zu", not_zero(at, LEN));
}

CASE(mlock_lengths)
{
    char *at = memory(LEN, 35);
    RESULT(mlock(at, 0));
    RESULT(mlock(at + 1, 1));
    RESULT(madvise(at, PAGE, MADV_DONTNEED));
    RESULT(mlock(at, -PAGE));
    RESULT(munlock(at, -PAGE));
    RESULT(munlock(at + 1, 0));
    RESULT(madvise(at + PAGE, PAGE, MADV_DONTNEED));
}

/* Write-only memory can be locked; inaccessible memory cannot. */
CASE(mlock_of_what_cannot_be_read)
{
    char *at = memory(LEN, 35);
    MUST(mprotect(at, 32 << 10, PROT_WRITE));
    MUST(mprotect(at + (64 << 10), 32 << 10, PROT_NONE));
    evict();
    RESULT(mlock(at, 32 << 10));
    RESULT(mlock(at + (64 << 10), 32 << 10));
    RESULT(madvise(at, PAGE, MADV_DONTNEED));
    RESULT(munlock(at, 32 << 10));
    MUST(mprotect(at, 96 << 10, PROT_READ));
    say("wrong %zu", wrong(at, LEN, 35));
}

CASE(mlock_over_a_hole)
{
    char *at = memory(LEN, 36);
    MUST(munmap(at + 2 * PAGE, PAGE));
    evict();
    RESULT(mlock(at, 4 * PAGE));
    RESULT(madvise(at, PAGE, MADV_DONTNEED));
    RESULT(madvise(at + 3 * PAGE, PAGE, MADV_DONTNEED));
    RESULT(munlock(at, 4 * PAGE));
    RESULT(madvise(at, PAGE, MADV_DONTNEED));
    RESULT(mlock(at + 2 * PAGE, PAGE));
}

CASE(mlock2_flags)
{
    char *at = memory(LEN, 37);
    RESULT(mlock2(at, 4 * PAGE, 2));
    RESULT(mlock2(at, 4 * PAGE, 0));
    RESULT(munlock(at, 4 * PAGE));
    RESULT(mlock2(at, 4 * PAGE, MLOCK_ONFAULT));
    RESULT(madvise(at, 4 * PAGE, MADV_DONTNEED));
    evict();
    say("wrong %zu", wrong(at, LEN, 37));
}

CASE(mlock_of_closed_memory)
{
    char *at = memory(LEN, 38);
    MUST(mprotect(at, 4 * PAGE, PROT_NONE));
    RESULT(mlock(at, 4 * PAGE));
    RESULT(munlock(at, 4 * PAGE));
}

CASE(mlock_within_its_limit)
{
    /* The limit is not checked to the page, because the engine may have locked a page for its
     * key. */
    struct rlimit limit = {20 * PAGE, 20 * PAGE};
    char *at = memory(LEN, 39);
    MUST(setrlimit(RLIMIT_MEMLOCK, &limit));
    become_nobody();
    RESULT(mlock(at, 21 * PAGE));
    RESULT(mlock(at, 16 * PAGE));
    RESULT(mlock(at, 16 * PAGE));
    RESULT(mlock(at + 16 * PAGE, 8 * PAGE));
    RESULT(munlock(at, 8 * PAGE));
    RESULT(mlock(at + 16 * PAGE, 8 * PAGE));
    evict();
    say("wrong %zu", wrong(at, LEN, 39));
}

CASE(mlock_without_a_limit_to_speak_of)
{
    struct rlimit none = {0, 0};
    char *at = memory(LEN, 40);
    MUST(setrlimit(RLIMIT_MEMLOCK, &none));
    become_nobody();
    RESULT(mlock(at, PAGE));
    RESULT(mlock(at, 0));
    RESULT(mlockall(MCL_FUTURE));
    RESULT(munlock(at, PAGE));
}

static void locked_bytes(const char *what)
{
    static long before = -1; /* the engine may have locked a page */
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (!strncmp(line, "VmLck:", 6)) {
            long now = strtol(line + 6, NULL, 10);
            before = before < 0 ? now : before;
            say("%s: %ld KiB more", what, now - before);
        }
    if (status)
        fclose(status);
}

CASE(the_kernel_counts_what_is_locked)
{
    char *at = memory(LEN, 41);
    locked_bytes("at first");
    MUST(mlock(at, 64 << 10));
    locked_bytes("locked");
    MUST(munlock(at, PAGE));
    locked_bytes("a page less");
    IN_CHILD("child") {
        locked_bytes("in the child");
        RESULT(madvise(at + PAGE, PAGE, MADV_DONTNEED));
        say("not zero %zu", not_zero(at + PAGE, PAGE));
    }
    MUST(munmap(at, LEN));
    locked_bytes("unmapped");
}

CASE(munlockall_unlocks)
{
    char *at = memory(LEN, 42);
    RESULT(mlock(at, 64 << 10));
    RESULT(munlockall());
    RESULT(madvise(at, 64 << 10, MADV_DONTNEED));

}

CASE(mlockall_flags)
{
    RESULT(mlockall(0));
    RESULT(mlockall(MCL_ONFAULT));
    RESULT(mlockall(8));
}

CASE(map_locked)
{
    char *at = memory(LEN, 43);
    locked_bytes("at first");
    evict();
    MAP(at, at, 16 * PAGE, RW, ANON | MAP_FIXED | MAP_LOCKED, -1, 0);
    RESULT(madvise(at, PAGE, MADV_DONTNEED));
    locked_bytes("locked");
    RESULT(munmap(at, LEN));
    locked_bytes("unmapped");
}

/* ---- msync ---- */

CASE(msync_flags)
{
    char *at = evicted_memory(LEN, 44);
    RESULT(msync(at, LEN, MS_SYNC));
    RESULT(msync(at, LEN, MS_ASYNC));
    RESULT(msync(at, LEN, MS_INVALIDATE));
    RESULT(msync(at, LEN, 0));
    RESULT(msync(at, LEN, MS_SYNC | MS_ASYNC));
    RESULT(msync(at, LEN, 64));
    RESULT(msync(at + 1, LEN, MS_SYNC));
    RESULT(msync(at, 0, MS_SYNC));
    RESULT(msync(at, -PAGE, MS_SYNC));
    RESULT(msync(at, -1UL, MS_SYNC));
}

CASE(msync_over_a_hole)
{
    char *at = memory(LEN, 45);
    MUST(munmap(at + LEN / 2, PAGE));
    RESULT(msync(at, LEN, MS_ASYNC));
    RESULT(msync(at + LEN / 2, PAGE, MS_SYNC));
    RESULT(msync((char *)sbrk(0) + 4 * PAGE, PAGE, MS_SYNC));
}

CASE(msync_of_locked_memory)
{
    char *at = memory(LEN, 46);
    MUST(mlock(at, PAGE));
    RESULT(msync(at, LEN, MS_INVALIDATE));
    RESULT(msync(at, LEN, MS_SYNC));
    RESULT(msync(at + PAGE, PAGE, MS_SYNC | MS_INVALIDATE));
}

/* ---- mincore ---- */

CASE(mincore_refused)
{
    unsigned char *states = memory(LEN, 47);
    char *at = memory(LEN, 48);
    RESULT(mincore(at + 1, PAGE, states));
    RESULT(mincore(at, -PAGE, states));
    RESULT(mincore(at, LEN, (void *)PAGE));
    RESULT(mincore(at, 0, states));
    MUST(munmap(at + LEN / 2, PAGE));
    RESULT(mincore(at, LEN, states));
    RESULT(mincore(at + LEN / 2, PAGE, states));
    RESULT(mincore(at, LEN / 2, states));
}

CASE(mincore_into_managed_memory)
{
    unsigned char *states = memory(2 * LEN, 49);
    MUST(munmap(states + LEN, LEN));
    char *own = mmap(NULL, 64 * MIB, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    evict();
    RESULT(mincore(own, 64 * MIB, states));
    size_t other = 0;
    for (size_t i = 0; i < 64 * MIB / PAGE; i++)
        other += states[i] != 0;
    say("in memory %zu", other);
    RESULT(mincore(own, 64 * MIB, states + LEN - 100));
    evict();
    RESULT(mincore((void *)((size_t)mincore_refused & -PAGE), PAGE, states));
    MUST(mprotect(states, LEN, PROT_READ));
    RESULT(mincore(own, PAGE, states));
}

/* The first page of the buffer is a file, the second managed memory. */
CASE(a_buffer_of_two_mappings)
{
    unsigned char *at = memory(LEN, 50), *other = memory(LEN, 51);
    int shared = memfd_create("page", 0), file = memfd_create("file", 0), pair[2];
    MUST(ftruncate(shared, PAGE));
    MUST(write(file, other, 2 * PAGE));
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    void *first = mmap(at, PAGE, RW, MAP_SHARED | MAP_FIXED, shared, 0);
    say("%d", first == at);
    evict();
    RESULT(pread(file, at, 2 * PAGE, 0));
    say("wrong %zu", wrong(at, 2 * PAGE, 51));
    evict();
    RESULT(send(pair[0], at, 2 * PAGE, 0));
    RESULT(recv(pair[1], other + LEN / 2, 2 * PAGE, 0));
    say("wrong %zu", wrong(other + LEN / 2, 2 * PAGE, 51));
    evict();
    RESULT(mincore(other, PAGE, at));
    RESULT(open((char *)at + PAGE - 1, O_RDONLY));
}

static void *reads_a_byte(void *argument)
{
    char **at = argument;
    size_t sum = 0;
    while (__atomic_load_n(&at[1], __ATOMIC_RELAXED) == NULL)
        sum += *(volatile char *)at[0];
    return (void *)sum;
}

/* A thread touches memory while another replaces its mapping by anonymous memory. */
CASE(memory_replaced_while_it_is_touched)
{
    char *at[2] = {mmap(NULL, LEN, RW, ANON, -1, 0), NULL};
    pthread_t thread;
    void *sum;
    pthread_create(&thread, NULL, reads_a_byte, at);
    size_t failed = 0;
    for (int i = 0; i < 20000; i++)
        failed += mmap(at[0], LEN, RW, ANON | MAP_FIXED, -1, 0) != at[0];
    __atomic_store_n(&at[1], at[0], __ATOMIC_RELAXED);
    pthread_join(thread, &sum);
    say("failed %zu, sum %zu", failed, (size_t)sum);
}

CASE(mincore_of_what_was_never_touched)
{
    unsigned char states[LEN / PAGE];
    char *at = mmap(NULL, LEN, RW, ANON, -1, 0);
    at[3 * PAGE] = 1;
    RESULT(mincore(at, LEN, states));
    say("%d %d %d", states[1], states[3], states[LEN / PAGE - 1]);
    RESULT(madvise(at, LEN, MADV_DONTNEED));
    RESULT(mincore(at, LEN, states));
    say("%d", states[3]);
}

CASE(shmat_over_managed_memory)
{
    char *at = memory(LEN, 50);
    int id = MUST(syscall(SYS_shmget, 0 /* IPC_PRIVATE */, LEN, 0600));
    evict();
    RESULT(syscall(SYS_shmat, id, at, 0));
    say("wrong %zu", wrong(at, LEN, 50));
    syscall(SYS_shmctl, id, 0 /* IPC_RMID */, NULL);
}

CASE(the_break_over_locked_memory)
{
    char *before = sbrk(0);
    SUCCESS(sbrk(16 * PAGE));
    memset(before, 7, 16 * PAGE);
    char *page = (char *)(((uintptr_t)before + PAGE) & ~(PAGE - 1));
    RESULT(mlock(page + 4 * PAGE, 8 * PAGE));
    evict();
    say("byte %d", page[6 * PAGE]);
    say("back %d", sbrk(-14 * (long)PAGE) == before + 16 * PAGE);
    say("now %d", sbrk(0) == before + 2 * PAGE);
    SUCCESS(sbrk(14 * PAGE));
    say("byte %d", page[6 * PAGE]);
    page[6 * PAGE] = 1;
    evict();
    say("byte %d", page[6 * PAGE]);
    RESULT(brk(before));
    say("now %d", sbrk(0) == before);
}

CASE(the_break_over_closed_memory)
{
    char *before = sbrk(0);
    SUCCESS(sbrk(16 * PAGE));
    char *page = (char *)(((uintptr_t)before + PAGE) & ~(PAGE - 1));
    RESULT(mprotect(page, 8 * PAGE, PROT_NONE));
    RESULT(brk(before));
    SUCCESS(sbrk(16 * PAGE));
    memset(before, 7, 16 * PAGE);
    say("byte %d", page[0]);
}

CASE(the_break_where_it_cannot_be)
{
    char *before = sbrk(0);
    RESULT(brk(NULL));
    RESULT(brk((void *)PAGE));
    say("stays %d", sbrk(0) == before);
    SUCCESS(brk((void *)0x7fffffffe000));
    RESULT((long)sbrk(PTRDIFF_MAX));
    say("stays %d", sbrk(0) == before);
    say("below %d", sbrk(-(long)((uintptr_t)before / 2)) == before);
    say("stays %d", sbrk(0) == before);
}

/* By number the call returns the break. */
CASE(the_break_by_number)
{
    char *before = sbrk(0), *after = before + 16 * PAGE;
    say("alike %d", (char *)syscall(SYS_brk, 0UL) == before);
    say("moved %d", (char *)syscall(SYS_brk, after) == after);
    memset(before, 7, 16 * PAGE);
    evict();
    say("byte %d", before[5 * PAGE]);
    say("stays %d", (char *)syscall(SYS_brk, PAGE) == after);
    say("stays %d", (char *)syscall(SYS_brk, 0x7fffffffe000UL) == after);
    say("back %d", (char *)syscall(SYS_brk, before) == before);
}

/* Like the image of GCL, whose data continues at the break. */
CASE(the_break_behind_the_data)
{
    extern char _end;
    int has = personality(0xffffffff);
    if (has < 0 || (!(has & ADDR_NO_RANDOMIZE) && personality(has | ADDR_NO_RANDOMIZE) < 0)) {
        say("skipped: addresses cannot be fixed here");
        return;
    }
    if (!(has & ADDR_NO_RANDOMIZE)) {
        execl("/proc/self/exe", "memory_calls", __func__, NULL);
        return;
    }
    char *end = (char *)(((uintptr_t)&_end + PAGE - 1) & -PAGE);
    say("contiguous %d", (char *)sbrk(0) == end);
    SUCCESS(sbrk(MIB));
    rewrite(end, MIB, 21);
    RESULT(brk(end + PAGE));
    say("there %d", (char *)sbrk(0) == end + PAGE);
}
