/* Blocks keep their content when realloc grows and shrinks them, at any address and with pages
 * in any state.
 *
 *   blocks [--mib N] [--steps N] [--pressure MIB] */
#include "check.h"

#include <malloc.h>
#include <sys/wait.h>

static void *resized(void *block, size_t bytes) {
    char *at = realloc(block, bytes);
    CHECK(at != NULL, "realloc to %zu bytes: %s", bytes, strerror(errno));
    CHECK((uintptr_t)at % 16 == 0, "realloc to %zu bytes: %p is not aligned", bytes, (void *)at);
    CHECK(malloc_usable_size(at) >= bytes, "%zu bytes are usable of %zu", malloc_usable_size(at),
          bytes);
    return at;
}

/* Fills bytes from..to of a block whose data is that of `seed`; both are multiples of 8. */
static void fill_piece(char *block, size_t from, size_t to, uint64_t seed) {
    for (size_t i = from / 8; i < to / 8; i++) ((uint64_t *)block)[i] = random_word(seed, i);
}

/* Enlarges a block step by step, like programs that append. */
static char *grown(size_t bytes, size_t step, uint64_t seed) {
    char *block = NULL;
    for (size_t size = 0; size < bytes; size += step) {
        block = resized(block, size + step);
        fill_piece(block, size, size + step, seed);
    }
    return block;
}

static void small_steps(void) {
    size_t bytes = option_number("mib", 24) * MIB;
    size_t step = bytes / option_number("steps", 96) / 8 * 8;
    bytes -= bytes % step;
    char *block = grown(bytes, step, 1);
    evict_data(block, bytes);
    verify_random("a block that grew", block, bytes, 1);
    free(block);
}

static void longer_and_shorter(void) {
    static const size_t sizes[] = {5 * MIB,  3 * MIB, 3 * MIB + 8, 9 * MIB, MIB,
                                   300000,   4 * MIB, 40000,       2 * MIB, 64,
                                   11 * MIB, 800};
    size_t kept = 2 * MIB;
    char *block = resized(NULL, kept);
    fill_random(block, kept, 2);
    evict_data(block, kept);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        block = resized(block, sizes[i]);
        if (sizes[i] < kept) kept = sizes[i];
        verify_random("the kept part of a block", block, kept, 2);
        fill_piece(block, kept / 8 * 8, sizes[i] / 8 * 8, 2);
        kept = sizes[i] / 8 * 8;
        if (i % 3 == 0) evict(block, kept);
    }
    verify_random("the block at the end", block, kept, 2);
    free(block);
    /* glibc frees the block, other allocators shrink it to the minimum. Both are allowed. */
    block = realloc(grown(3 * MIB, MIB, 2), 0);
    free(resized(block, 100));
}

static void blocks_of_every_origin(void) {
    void *aligned;
    EXPECT(0, posix_memalign(&aligned, 1 << 21, 2 * MIB));
    char *blocks[] = {malloc(2 * MIB), calloc(2, MIB), aligned, aligned_alloc(4096, 2 * MIB),
                      memalign(64, 2 * MIB), valloc(2 * MIB)};
    enum { COUNT = sizeof blocks / sizeof *blocks };
    for (size_t i = 0; i < COUNT; i++) fill_random(blocks[i], 2 * MIB, 30 + i);
    evict_data(blocks[3], 2 * MIB);
    for (size_t i = 0; i < COUNT; i++) {
        blocks[i] = reallocarray(blocks[i], 5 + i, MIB);
        CHECK(blocks[i], "reallocarray: %s", strerror(errno));
        memset(blocks[i] + 2 * MIB, 0x3c, (3 + i) * MIB);
    }
    for (size_t i = 0; i < COUNT; i++) {
        verify_random("a block of another origin", blocks[i], 2 * MIB, 30 + i);
        verify_bytes("the added part of a block", blocks[i] + 2 * MIB, (3 + i) * MIB, 0x3c);
        free(blocks[i]);
    }
}

static void what_cannot_be_had(void) {
    char *block = grown(3 * MIB, MIB, 4);
    evict_data(block, 3 * MIB);
    volatile size_t sizes[] = {SIZE_MAX, SIZE_MAX - 4096, PTRDIFF_MAX};
    for (size_t i = 0; i < 3; i++) {
        errno = 0;
        CHECK(realloc(block, sizes[i]) == NULL, "realloc to %zu bytes", sizes[i]);
        EXPECT(ENOMEM, errno);
        CHECK(reallocarray(block, sizes[i], 16) == NULL, "reallocarray of %zu", sizes[i]);
    }
    verify_random("a block that could not grow", block, 3 * MIB, 4);
    block = resized(block, 4 * MIB);
    verify_random("the same block, enlarged later", block, 3 * MIB, 4);
    free(block);
}

/* As many blocks as the tables of a small budget allow. */
static void many_at_once(void) {
    enum { COUNT = 200 };
    char **blocks = map_unmanaged(COUNT * sizeof *blocks);
    for (size_t i = 0; i < COUNT; i++) {
        blocks[i] = resized(resized(malloc(100000), MIB + MIB / 2), 2 * MIB);
        fill_piece(blocks[i], 0, 64, i);
        fill_piece(blocks[i], 2 * MIB - 64, 2 * MIB, i);
    }
    evict_data(blocks[COUNT / 2], 64);
    for (size_t i = 0; i < COUNT; i++) blocks[i] = resized(blocks[i], 4 * MIB);
    for (size_t i = 0; i < COUNT; i++) {
        verify_random("the start of a block", blocks[i], 64, i);
        for (size_t word = (2 * MIB - 64) / 8; word < 2 * MIB / 8; word++)
            CHECK(((uint64_t *)blocks[i])[word] == random_word(i, word), "block %zu, word %zu", i,
                  word);
        free(blocks[i]);
    }
    CALL(munmap(blocks, COUNT * sizeof *blocks));
}

/* ---- several threads ----------------------------------------------------------- */

static atomic_bool stop;

/* Blocks of other threads, which a thread takes, enlarges, verifies and frees. */
static _Atomic(char *) handed_over[8];

static void *grow_and_hand_over(void *argument) {
    uint64_t random = (uintptr_t)argument;
    size_t rounds = option_number("rounds", 60);
    for (size_t round = 0; round < rounds && !atomic_load(&stop); round++) {
        uint64_t choice = next_random(&random);
        size_t bytes = MIB + choice % 64 * 16384;
        char *block = grown(bytes / 16384 * 16384, 16384 << choice % 3, choice >> 32 << 8);
        block = resized(block, MIB / 2 << choice % 2);
        verify_random("a thread's block", block, MIB / 2, choice >> 32 << 8);
        *(uint64_t *)block = choice >> 32;
        char *other = atomic_exchange(&handed_over[choice / 64 % 8], block);
        if (!other) continue;
        uint64_t seed = *(uint64_t *)other << 8;
        other = resized(other, 2 * MIB);
        *(uint64_t *)other = random_word(seed, 0);
        if (round >= rounds / 2 && inject_now()) other[1000] ^= 1;
        verify_random("another thread's block", other, MIB / 2, seed);
        free(other);
    }
    return NULL;
}

static pthread_t threads[4];

static void start_threads(void) {
    atomic_store(&stop, false);
    for (size_t i = 0; i < 4; i++)
        PTHREAD(pthread_create(&threads[i], NULL, grow_and_hand_over, (void *)((i + 1) << 40)));
}

static void end_threads(void) {
    for (size_t i = 0; i < 4; i++) PTHREAD(pthread_join(threads[i], NULL));
    for (size_t i = 0; i < 8; i++) free(atomic_exchange(&handed_over[i], NULL));
}

static void threads_exchange_blocks(void) {
    start_threads();
    end_threads();
}

/* ---- fork ----------------------------------------------------------------------- */

static void in_the_child(char *block) {
    check_failure_status = 3;
    verify_random("in the child", block, 2 * MIB, 6);
    block = resized(block, 3 * MIB);
    fill_piece(block, 2 * MIB, 3 * MIB, 6);
    char *other = grown(2 * MIB, MIB / 4, 7);
    verify_random("in the child, grown", block, 3 * MIB, 6);
    verify_random("in the child, new", other, 2 * MIB, 7);
    block = resized(block, MIB / 2);
    free(other);
    verify_random("in the child, shrunk", block, MIB / 2, 6);
    free(block);
    _exit(0);
}

/* The parent's block does not change when the child writes. */
static void fork_in_between(void) {
    char *block = grown(2 * MIB, MIB / 8, 6);
    start_threads();
    for (size_t i = 0; i < 12; i++) {
        evict(block, 2 * MIB);
        if (i == 6 && inject_now()) block[12345] ^= 1;
        pid_t child = CALL(fork());
        if (child == 0) in_the_child(block);
        int status = -1;
        EXPECT(child, waitpid(child, &status, 0));
        CHECK(status == 0, "child %zu ended with status %x", i, status);
        verify_random("in the parent", block, 2 * MIB, 6);
        block = resized(block, (2 + i % 3) * MIB);
    }
    atomic_store(&stop, true);
    end_threads();
    free(block);
}

static const struct check_case cases[] = {
    {"many-at-once", many_at_once},
    {"small-steps", small_steps},
    {"longer-and-shorter", longer_and_shorter},
    {"blocks-of-every-origin", blocks_of_every_origin},
    {"what-cannot-be-had", what_cannot_be_had},
    {"threads-exchange-blocks", threads_exchange_blocks},
    {"fork-in-between", fork_in_between},
};
CHECK_MAIN(cases)
