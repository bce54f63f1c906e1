/* Threads read and write the same pages at random and verify every word.
 *
 * Word i of a page belongs to thread i % T, so that all writers share every page but no word.
 * The expected value of a word follows from its position and from the number of times that its
 * owner rewrote its words of that page. These counts are in unmanaged memory. A quarter of the
 * pages is written once and then read by all threads.
 *
 *   threads [--mib N] [--threads T] [--operations PER_THREAD] [--seconds LIMIT] [--seed S] */
#include "check.h"

static size_t pages, shared_pages, threads, operations;
static uint64_t seed;
static time_t deadline;
static volatile uint64_t *memory;
static uint8_t *generations; /* [page * threads + owner] */
static pthread_barrier_t all_filled;

/* Returns a word of a page. The pages have content of several kinds, so that all tiers are used. */
static uint64_t word_of(size_t page, size_t index, uint8_t generation) {
    uint64_t salt = seed ^ (uint64_t)generation << 56;
    switch (page % 8) {
    case 0:
        return mix64(salt ^ page); /* same-filled while all owners agree */
    case 1:
    case 2:
    case 3:
        return (mix64(salt ^ page) & 0xffff) << 8 | (index & 0xf); /* compressible */
    default:
        return mix64(salt ^ (page << 9 | index));
    }
}

static void expect_word(size_t page, size_t index, uint8_t generation) {
    volatile uint64_t *at = memory + page * WORDS_PER_PAGE + index;
    uint64_t expected = word_of(page, index, generation), got = *at;
    CHECK(got == expected,
          "page %zu word %zu generation %u: at %p expected %016llx, got %016llx", page, index,
          generation, (void *)at, (unsigned long long)expected, (unsigned long long)got);
}

static void verify_own(size_t page, size_t owner) {
    for (size_t i = owner; i < WORDS_PER_PAGE; i += threads)
        expect_word(page, i, generations[page * threads + owner]);
}

static void rewrite_own(size_t page, size_t owner) {
    uint8_t generation = ++generations[page * threads + owner];
    for (size_t i = owner; i < WORDS_PER_PAGE; i += threads)
        memory[page * WORDS_PER_PAGE + i] = word_of(page, i, generation);
}

static void *work(void *argument) {
    size_t me = (size_t)argument;
    for (size_t page = me; page < pages; page += threads) {
        for (size_t i = 0; i < WORDS_PER_PAGE; i++)
            memory[page * WORDS_PER_PAGE + i] = word_of(page, i, 1);
        memset(generations + page * threads, 1, threads);
    }
    pthread_barrier_wait(&all_filled);
    if (me == 0 && inject_now()) memory[(pages / 2) * WORDS_PER_PAGE + 100] ^= 0x10;
    pthread_barrier_wait(&all_filled);

    uint64_t random = mix64(seed + me);
    for (size_t n = 0; n < operations; n++) {
        if (n % 1024 == 0 && deadline && time(NULL) > deadline) break;
        uint64_t choice = next_random(&random);
        size_t page = choice % pages;
        if (page < shared_pages) {
            for (size_t i = 0; i < WORDS_PER_PAGE; i += 5) expect_word(page, i, 1);
            continue;
        }
        verify_own(page, me);
        if (choice >> 62 == 0) rewrite_own(page, me);
    }

    for (size_t page = 0; page < pages; page++) verify_own(page, me);
    return NULL;
}

static void random_access(void) {
    pages = option_number("mib", 64) * MIB / PAGE;
    threads = option_number("threads", 8);
    operations = option_number("operations", 20000);
    seed = option_number("seed", 1);
    size_t limit = option_number("seconds", 0);
    deadline = limit ? time(NULL) + (time_t)limit : 0;
    shared_pages = pages / 4;
    CHECK(threads > 0 && threads <= 64 && pages >= 8, "threads or size out of range");

    memory = map_pages(pages * PAGE);
    generations = map_unmanaged(pages * threads);
    PTHREAD(pthread_barrier_init(&all_filled, NULL, (unsigned)threads));
    pthread_t ids[64];
    for (size_t i = 0; i < threads; i++) PTHREAD(pthread_create(&ids[i], NULL, work, (void *)i));
    for (size_t i = 0; i < threads; i++) PTHREAD(pthread_join(ids[i], NULL));
    count_out((const void *)memory, pages * PAGE);
}

static const struct check_case cases[] = {{"random-access", random_access}};
CHECK_MAIN(cases)
