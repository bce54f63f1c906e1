/* All forms of mremap: a refused call changes nothing. */
#include "abi.h"

#define LEN (256UL << 10)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define RW (PROT_READ | PROT_WRITE)

#define REMAP(wanted, ...) (errno = 0, say_place(#__VA_ARGS__, mremap(__VA_ARGS__), wanted))

static char *reserve(size_t len)
{
    char *at = mmap(NULL, len, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        must_("mmap", -1);
    return at;
}

CASE(fixed_onto_itself_overlapping)
{
    char *at = evicted_memory(LEN, 1);
    REMAP(NULL, at, LEN / 2, LEN / 2, MREMAP_MAYMOVE | MREMAP_FIXED, at + LEN / 4);
    REMAP(NULL, at + LEN / 4, LEN / 2, LEN / 2, MREMAP_MAYMOVE | MREMAP_FIXED, at);
    REMAP(NULL, at, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, at);
    say("wrong %zu", wrong(at, LEN, 1));
}

CASE(fixed_without_maymove)
{
    char *at = memory(LEN, 2), *target = memory(LEN, 3);
    evict();
    REMAP(NULL, at, LEN, LEN, MREMAP_FIXED, target);
    say("wrong %zu %zu", wrong(at, LEN, 2), wrong(target, LEN, 3));
}

CASE(fixed_to_an_unaligned_target)
{
    char *at = memory(LEN, 2), *target = memory(LEN, 3);
    evict();
    REMAP(NULL, at, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, target + 1);
    REMAP(NULL, at + 1, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    say("wrong %zu %zu", wrong(at, LEN, 2), wrong(target, LEN, 3));
}

CASE(unknown_flags)
{
    char *at = evicted_memory(LEN, 4);
    REMAP(NULL, at, LEN, 2 * LEN, 8);
    REMAP(NULL, at, LEN, LEN / 2, MREMAP_MAYMOVE | 0x100);
    say("wrong %zu", wrong(at, LEN, 4));
}

CASE(dontunmap_keeps_the_source)
{
    char *at = evicted_memory(LEN, 5);
    char *moved = REMAP(NULL, at, LEN, LEN, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    if (moved == MAP_FAILED)
        return;
    say("apart: %d", moved != at);
    say("moved wrong %zu", wrong(moved, LEN, 5));
    say("source not zero %zu", not_zero(at, LEN));
    fill(at, LEN, 6);
    evict();
    say("wrong %zu %zu", wrong(moved, LEN, 5), wrong(at, LEN, 6));
}

CASE(dontunmap_to_a_place)
{
    char *at = memory(LEN, 5), *target = memory(LEN, 6);
    evict();
    REMAP(target, at, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, target);
    say("moved wrong %zu", wrong(target, LEN, 5));
    say("source not zero %zu", not_zero(at, LEN));
}

CASE(dontunmap_refused)
{
    char *at = evicted_memory(LEN, 7);
    REMAP(NULL, at, LEN, LEN, MREMAP_DONTUNMAP, NULL);
    REMAP(NULL, at, LEN, 2 * LEN, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    REMAP(NULL, at, LEN, LEN / 2, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    say("wrong %zu", wrong(at, LEN, 7));
}

CASE(no_length)
{
    char *at = evicted_memory(LEN, 8);
    REMAP(NULL, at, LEN, 0, MREMAP_MAYMOVE);
    REMAP(NULL, at, 0, LEN, MREMAP_MAYMOVE);
    REMAP(NULL, at, 0, LEN, 0);
    say("wrong %zu", wrong(at, LEN, 8));
}

CASE(lengths_beyond_everything)
{
    char *at = memory(LEN, 9);
    REMAP(NULL, at, LEN, -PAGE, MREMAP_MAYMOVE);
    REMAP(NULL, at, LEN, 1UL << 46, MREMAP_MAYMOVE);
    REMAP(NULL, at, LEN, -1UL, MREMAP_MAYMOVE);
    say("wrong %zu", wrong(at, LEN, 9));
}

CASE(lengths_are_rounded_up)
{
    char *at = evicted_memory(LEN, 10);
    REMAP(at, at, LEN - 100, LEN - 200, 0);
    say("wrong %zu", wrong(at, LEN, 10));
    REMAP(at, at, LEN, LEN - PAGE - 1, 0);
    say("wrong %zu", wrong(at, LEN - PAGE, 10));
    REMAP(at, at, LEN, LEN - 2 * PAGE, 0);
    say("last: %d %d", is_readable(at + LEN - 3 * PAGE), is_readable(at + LEN - 2 * PAGE));
}

CASE(of_nothing)
{
    char *at = memory(LEN, 11);
    MUST(munmap(at, LEN));
    REMAP(NULL, at, LEN, 2 * LEN, MREMAP_MAYMOVE);
    REMAP(NULL, at, LEN, LEN / 2, 0);
    REMAP(NULL, at, LEN, LEN, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
}

CASE(growing_over_a_hole)
{
    char *at = memory(LEN, 12);
    MUST(munmap(at + LEN / 2, PAGE));
    evict();
    REMAP(NULL, at, LEN, 2 * LEN, MREMAP_MAYMOVE);
    say("wrong %zu", wrong(at, LEN / 2, 12));
    char *target = memory(LEN, 13);
    REMAP(NULL, at, LEN / 2 + PAGE, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    say("wrong %zu", wrong(target, LEN, 13));
}

CASE(growing_two_mappings)
{
    char *at = memory(LEN, 13);
    MUST(mprotect(at + LEN / 2, LEN / 2, PROT_READ));
    evict();
    REMAP(NULL, at, LEN, 2 * LEN, MREMAP_MAYMOVE);
    say("wrong %zu", wrong(at, LEN, 13));
}

CASE(shrinking_two_mappings)
{
    char *at = memory(LEN, 13);
    MUST(mprotect(at + LEN / 2, LEN / 2, PROT_READ));
    evict();
    REMAP(at, at, LEN, LEN / 4, 0);
    say("wrong %zu, then %d", wrong(at, LEN / 4, 13), is_readable(at + LEN / 4));
}

CASE(into_a_neighbour)
{
    char *at = memory(LEN, 14);
    MUST(mprotect(at + LEN / 2, LEN / 2, PROT_READ));
    evict();
    REMAP(NULL, at, LEN / 2, LEN / 2 + PAGE, 0);
    char *moved = REMAP(NULL, at, LEN / 2, LEN, MREMAP_MAYMOVE);
    say("wrong %zu %zu", wrong(moved, LEN / 2, 14), not_zero(moved + LEN / 2, LEN / 2));
    say("old place: %d", is_readable(at));
}

CASE(into_a_hole)
{
    char *at = memory(LEN, 15);
    MUST(munmap(at + LEN / 2, LEN / 4));
    evict();
    REMAP(at, at, LEN / 2, LEN / 2 + LEN / 4, 0);
    REMAP(NULL, at, LEN / 2 + LEN / 4, LEN, 0);
    say("wrong %zu, not zero %zu", wrong(at, LEN / 2, 15), not_zero(at + LEN / 2, LEN / 4));
}

CASE(the_target_has_the_sources_protection)
{
    char *at = memory(LEN, 16), *target = memory(LEN, 17);
    MUST(mprotect(at, LEN, PROT_READ));
    evict();
    REMAP(target, at, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    say("wrong %zu", wrong(target, LEN, 16));
    int zero = MUST(open("/dev/zero", O_RDONLY));
    RESULT(read(zero, target, 1));
    RESULT(mprotect(target, LEN, RW));
    RESULT(read(zero, target, 1));
}

CASE(a_closed_mapping_moves)
{
    char *at = memory(LEN, 18), *target = reserve(2 * LEN);
    MUST(mprotect(at, LEN, PROT_NONE));
    evict();
    REMAP(target, at, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    say("readable: %d", is_readable(target));
    MUST(mprotect(target, LEN, PROT_READ));
    say("wrong %zu", wrong(target, LEN, 18));
}

CASE(fixed_and_longer)
{
    char *at = memory(LEN, 19), *target = memory(2 * LEN, 20);
    evict();
    REMAP(target, at, LEN, LEN + LEN / 2, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    say("wrong %zu", wrong(target, LEN, 19));
    say("not zero %zu", not_zero(target + LEN, LEN / 2));
    size_t count = 0;
    for (size_t i = LEN + LEN / 2; i < 2 * LEN; i++)
        count += (unsigned char)target[i] != pattern(i, 20);
    say("behind: wrong %zu", count);
    say("old place: %d", is_readable(at));
}

CASE(fixed_and_shorter)
{
    char *at = memory(LEN, 21), *target = memory(LEN, 22);
    evict();
    REMAP(target, at, LEN, LEN / 2, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    say("wrong %zu", wrong(target, LEN / 2, 21));
    say("old place: %d %d", is_readable(at), is_readable(at + LEN - 1));
    say("behind: %d", is_readable(target + LEN / 2));
}

static char *small_memory(size_t len, unsigned seed)
{
    /* Too small to be managed by softswap. */
    char *at = mmap(NULL, len, RW, ANON, -1, 0);
    if (at == MAP_FAILED)
        must_("mmap", -1);
    fill(at, len, seed);
    return at;
}

CASE(unmanaged_to_managed)
{
    char *at = small_memory(32 << 10, 23), *target = memory(LEN, 24);
    evict();
    REMAP(target, at, 32 << 10, 32 << 10, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    say("wrong %zu", wrong(target, 32 << 10, 23));
    size_t count = 0;
    for (size_t i = 32 << 10; i < LEN; i++)
        count += (unsigned char)target[i] != pattern(i, 24);
    say("behind: wrong %zu", count);
    say("old place: %d", is_readable(at));
    rewrite(target, LEN, 25);
    RESULT(munmap(target, LEN));
}

CASE(managed_to_unmanaged)
{
    char *target = small_memory(32 << 10, 26), *at = memory(LEN, 27);
    evict();
    REMAP(target, at, 32 << 10, 32 << 10, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    say("wrong %zu", wrong(target, 32 << 10, 27));
    say("old place: %d %d", is_readable(at), is_readable(at + (32 << 10)));
    RESULT(munmap(target, 32 << 10));
}

CASE(a_refused_move_leaves_the_target)
{
    char *at = memory(LEN, 28), *target = memory(LEN, 29);
    MUST(munmap(at, LEN));
    evict();
    REMAP(NULL, at, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    say("wrong %zu", wrong(target, LEN, 29));
}

CASE(beyond_the_address_space)
{
    char *at = evicted_memory(LEN, 30);
    REMAP(NULL, at, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)0x7ffffffff000);
    REMAP(NULL, at, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)-PAGE);
    say("wrong %zu", wrong(at, LEN, 30));
}

CASE(a_file_mapping_moves_over_managed_memory)
{
    int file = scratch_file(O_RDWR);
    unsigned char page[PAGE];
    for (unsigned i = 0; i < 8; i++) {
        fill(page, PAGE, 40 + i);
        MUST(write(file, page, PAGE));
    }
    char *mapped = mmap(NULL, 8 * PAGE, RW, MAP_SHARED, file, 0), *target = memory(LEN, 31);
    evict();
    REMAP(target, mapped, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    for (unsigned i = 0; i < 8; i++)
        say("page %u: wrong %zu", i, wrong(target + i * PAGE, PAGE, 40 + i));
    target[5] = 'x';
    char byte = 0;
    RESULT(pread(file, &byte, 1, 5));
    say("byte %c", byte);
    /* Move the mapping out of the window and enlarge it. */
    char *moved = REMAP(NULL, target, 4 * PAGE, 6 * PAGE, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED)
        return;
    say("wrong %zu", wrong(moved + PAGE, PAGE, 41));
    say("old place: %d", is_readable(target));
    say("page 4 at its place: wrong %zu", wrong(target + 4 * PAGE, PAGE, 44));
}

CASE(a_lent_mapping_shrinks)
{
    int file = scratch_file(O_RDWR);
    MUST(ftruncate(file, LEN));
    char *at = memory(LEN, 32);
    char *over = mmap(at, LEN / 2, RW, MAP_SHARED | MAP_FIXED, file, 0);
    say("mapped over: %d", over == at);
    REMAP(at, at, LEN / 2, LEN / 4, 0);
    say("left %d, cut %d", is_readable(at + LEN / 4 - 1), is_readable(at + LEN / 4));
    REMAP(at, at, LEN / 4, LEN / 4, MREMAP_MAYMOVE);
}

CASE(duplicating_a_shared_mapping)
{
    char *at = mmap(NULL, LEN, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0), *target = memory(LEN, 33);
    fill(at, LEN, 34);
    evict();
    REMAP(target, at, 0, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    at[0] ^= 1;
    say("same: %d", at[0] == target[0]);
    say("wrong %zu", wrong(target, LEN, 34));
}

CASE(growing_again_and_again)
{
    size_t len = 128 << 10;
    char *at = memory(len, 35);
    for (int round = 0; round < 5; round++) {
        evict();
        char *moved = mremap(at, len, 2 * len, MREMAP_MAYMOVE);
        if (moved == MAP_FAILED) {
            say("refused");
            return;
        }
        say("wrong %zu, new not zero %zu", wrong(moved, len, 35 + round),
            not_zero(moved + len, len));
        at = moved, len *= 2;
        fill(at, len, 36 + round);
    }
}

CASE(locked_memory_stays_locked)
{
    char *at = memory(LEN, 41), *target = memory(LEN, 42);
    RESULT(mlock(at, 64 << 10));
    evict();
    REMAP(target, at, 64 << 10, 64 << 10, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    RESULT(madvise(target, 64 << 10, MADV_DONTNEED));
    say("wrong %zu", wrong(target, 64 << 10, 41));
    RESULT(munlock(target, 64 << 10));
    RESULT(madvise(target, 64 << 10, MADV_DONTNEED));
}

CASE(what_children_get_moves_along)
{
    char *at = memory(LEN, 43), *target = memory(LEN, 44);
    MUST(madvise(at, LEN, MADV_WIPEONFORK));
    evict();
    REMAP(target, at, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    IN_CHILD("child")
        say("in the child: not zero %zu", not_zero(target, LEN));
    say("wrong %zu", wrong(target, LEN, 43));
}
