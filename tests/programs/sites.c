/* Touches memory in several functions, of which one does not wait for pages, for tests of
 * `softswap record`. Prints "ready"; works for --seconds (0: until a test stops it, see
 * work_goes_on), then verifies the memory and exits, with status 1 if the memory is wrong.
 *
 *   sites [--seconds S] [--made 1]
 *
 * touch_cold, called by look_up, reads random words of 96 MiB that make_cold has allocated;
 * touch_hot increments a word of each of 64 pages in order. take_in makes a system call
 * that writes to cold memory. With --made, code generated at run time touches cold memory, too,
 * and /tmp/perf-PID.map names this code jitted_touch. */
#include "check.h"

#define COLD_PAGES (96 * MIB / PAGE)
#define HOT_PAGES ((size_t)64)
#define OWN __attribute__((noinline, noclone))

static uint64_t *cold, *hot;
static volatile uint64_t sink;

OWN static uint64_t *make_cold(void) {
    uint64_t *memory = malloc(COLD_PAGES * PAGE);
    for (size_t page = 0; page < COLD_PAGES; page++)
        fill_random(memory + page * WORDS_PER_PAGE, PAGE, page);
    return memory;
}

OWN static uint64_t *make_hot(void) {
    return calloc(HOT_PAGES, PAGE);
}

OWN static uint64_t touch_cold(size_t page) {
    return cold[page * WORDS_PER_PAGE + 7];
}

OWN static uint64_t touch_hot(size_t page) {
    return ++hot[page * WORDS_PER_PAGE];
}

/* Adds a stack frame between the caller and the called function. */
OWN static uint64_t look_up(uint64_t key) {
    volatile uint64_t seen[32];
    seen[key % 32] = touch_cold(key % COLD_PAGES);
    return seen[key % 32] + 1;
}

/* Makes the kernel write a byte of a page that touch_cold does not read. */
OWN static void take_in(int zero, size_t page) {
    CALL(read(zero, (char *)(cold + page * WORDS_PER_PAGE) + PAGE - 1, 1));
}

/* mov rax, [rdi]; ret */
static const unsigned char code[] = {0x48, 0x8b, 0x07, 0xc3};
typedef uint64_t (*touch_function)(const uint64_t *);

OWN static touch_function make_code(void) {
    void *made = mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(made != MAP_FAILED, "no code");
    memcpy(made, code, sizeof code);
    char name[64];
    snprintf(name, sizeof name, "/tmp/perf-%d.map", getpid());
    FILE *map = fopen(name, "w");
    CHECK(map != NULL, "%s", name);
    fprintf(map, "%lx %zx jitted_touch\n", (unsigned long)made, sizeof code);
    fclose(map);
    return (touch_function)made;
}

static void sites(void) {
    touch_function made = option_number("made", 0) ? make_code() : NULL;
    int zero = open("/dev/zero", O_RDONLY);
    CHECK(zero >= 0, "/dev/zero");
    cold = make_cold();
    hot = make_hot();
    puts("ready");
    fflush(stdout);
    if (inject_now()) cold[7] ^= 1;
    uint64_t random = 7;
    for (struct work work = begin_work(); work_goes_on(&work);) {
        size_t page = next_random(&random) % COLD_PAGES;
        sink += look_up(next_random(&random));
        for (size_t i = 0; i < HOT_PAGES; i++) sink += touch_hot(i);
        if (random / 2 % 16 == 0) take_in(zero, page);
        if (made) sink += made(cold + (next_random(&random) % COLD_PAGES) * WORDS_PER_PAGE);
    }
    for (size_t page = 0; page < COLD_PAGES; page++) {
        unsigned char *last = (unsigned char *)(cold + (page + 1) * WORDS_PER_PAGE) - 1;
        unsigned char expected[PAGE];
        fill_random((uint64_t *)expected, PAGE, page);
        CHECK(*last == expected[PAGE - 1] || *last == 0, "page %zu", page);
        *last = expected[PAGE - 1];
        verify_random("sites", cold + page * WORDS_PER_PAGE, PAGE, page);
    }
    count_out(cold, COLD_PAGES * PAGE);
}

static const struct check_case cases[] = {{"sites", sites}};
CHECK_MAIN(cases)
