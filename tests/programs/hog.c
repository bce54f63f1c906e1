/* Stores N MiB of incompressible data and touches it continuously, for tests of limits and of
 * killed processes. Prints "ready" when all data is written, works for --seconds (0: until a
 * test stops it, see work_goes_on), then verifies the data and exits, with status 1 if the data
 * is wrong. With --dirty it touches the pages in order, and writes to each.
 *
 *   hog [--mib N] [--seconds S] [--dirty] */
#include "check.h"

static size_t pages;
static uint64_t *memory;

static void expect_page(size_t page) {
    verify_random("hog", memory + page * WORDS_PER_PAGE, PAGE, page);
}

/* Verifies only a part of the page, so that the check takes little time compared with the fault. */
static void expect_line(size_t page) {
    verify_random("hog", memory + page * WORDS_PER_PAGE, 64, page);
}

static void hold(void) {
    pages = option_number("mib", 64) * MIB / PAGE;
    memory = map_pages(pages * PAGE);
    uint64_t random = 7;
    for (size_t page = 0; page < pages; page++) {
        fill_random(memory + page * WORDS_PER_PAGE, PAGE, page);
        /* The pages that were swapped out first must still be correct when space runs out. */
        if (page % 16 == 15) expect_page(next_random(&random) % page);
    }
    puts("ready");
    fflush(stdout);
    if (inject_now()) memory[pages / 2 * WORDS_PER_PAGE] ^= 1;
    bool dirties = option_flag("dirty");
    size_t next = 0;
    for (struct work work = begin_work(); work_goes_on(&work);) {
        size_t page = (dirties ? next++ : next_random(&random)) % pages;
        expect_line(page);
        volatile uint64_t *first = memory + page * WORDS_PER_PAGE;
        if (dirties) *first = *first;
    }
    for (size_t page = 0; page < pages; page++) expect_page(page);
    count_out(memory, pages * PAGE);
}

static const struct check_case cases[] = {{"hold", hold}};
CHECK_MAIN(cases)
