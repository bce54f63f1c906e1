/* Keeps N member processes alive, which store incompressible data, change it, verify it, and
 * fork children that continue with the inherited data. Members may be killed; if one exits in
 * any other way than by success or SIGKILL, the program fails. With --seconds 0 it runs until a
 * test stops it, see work_goes_on.
 *
 *   family [--members N] [--mib N] [--depth N] [--seconds S] */
#include "check.h"
#include <sys/wait.h>

static size_t pages;
static uint64_t *block;
static uint32_t *versions; /* of each page */

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static uint64_t seed_of(size_t page) { return page << 32 | versions[page]; }

static void expect_page(size_t page) {
    verify_random("family", block + page * WORDS_PER_PAGE, PAGE, seed_of(page));
}

static void write_page(size_t page, uint32_t version) {
    versions[page] = version;
    fill_random(block + page * WORDS_PER_PAGE, PAGE, seed_of(page));
}

/* Number of children that are left. Being killed is not a failure. */
static size_t reap(size_t left, int flags) {
    int status;
    while (left > 0 && waitpid(-1, &status, flags) > 0) {
        left--;
        bool is_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        CHECK(status == 0 || is_killed, "a child ended with status %x", status);
    }
    return left;
}

static void live(uint64_t until_ms, size_t depth) {
    uint64_t random = mix64((uint64_t)getpid());
    size_t children = 0;
    uint64_t fork_at_ms = now_ms() + next_random(&random) % 400;
    while (now_ms() < until_ms) {
        for (int turn = 0; turn < 64; turn++) {
            size_t page = next_random(&random) % pages;
            expect_page(page);
            if (turn % 4 == 0) write_page(page, versions[page] + 1 + (uint32_t)depth);
        }
        children = reap(children, WNOHANG);
        if (depth == 0 || children >= 2 || now_ms() < fork_at_ms) continue;
        fork_at_ms = now_ms() + 100 + next_random(&random) % 400;
        pid_t child = CALL(fork());
        if (child == 0) {
            uint64_t ends_ms = now_ms() + 100 + next_random(&random) % 600;
            live(ends_ms < until_ms ? ends_ms : until_ms, depth - 1);
            _exit(0);
        }
        children++;
    }
    for (size_t page = 0; page < pages; page++) expect_page(page);
    reap(children, 0);
}

static void member(void) {
    pages = option_number("mib", 32) * MIB / PAGE;
    block = map_pages(pages * PAGE);
    versions = calloc(pages, sizeof *versions);
    for (size_t page = 0; page < pages; page++) write_page(page, 1);
    if (inject_now()) block[pages / 2 * WORDS_PER_PAGE] ^= 1;
    live(now_ms() + option_number("seconds", 2) * 1000, option_number("depth", 2));
}

static void nursery(void) {
    size_t members = option_number("members", 4), alive = 0;
    const char *seconds = option_number("seconds", 2) > 0 ? option_text("seconds", "2") : "3";
    for (struct work work = begin_work(); work_goes_on(&work);) {
        for (; alive < members; alive++)
            if (CALL(fork()) == 0) {
                CALL(execl("/proc/self/exe", "family", inject_now() ? "--corrupt" : "--only",
                           "member", "--mib", option_text("mib", "32"), "--depth",
                           option_text("depth", "2"), "--seconds", seconds, NULL));
            }
        usleep(2000);
        alive = reap(alive, WNOHANG);
    }
    reap(alive, 0);
}

static const struct check_case cases[] = {{"nursery", nursery}, {"member", member}};
CHECK_MAIN(cases)
