/* Rewrites and verifies its memory continuously until SIGTERM: for faults that are injected at
 * any moment. Half of the pages compress. Prints
 * "ready" when everything is written once; after SIGTERM it verifies all and prints "ok".
 * If a byte is wrong, it exits with status 1.
 *
 *   steady [--mib N] [--threads N] [--beat FILE]
 *
 * FILE holds, for each thread, the time (CLOCK_MONOTONIC, ns) of its last step. */
#include "check.h"

#define MAX_THREADS 16
#define STRIDE 8 /* words: a cache line for each thread's time */

static size_t pages, threads;
static uint64_t *memory;
static uint32_t *generations; /* not managed: expected values must not be swapped */
static volatile uint64_t *beats;
static atomic_size_t written;
static atomic_bool stop;

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static uint64_t word_of(size_t page, size_t word) {
    uint64_t seed = page << 32 | generations[page];
    return page % 2 ? random_word(seed, word) : random_word(seed, word % 16);
}

static void write_page(size_t page) {
    generations[page]++;
    for (size_t word = 0; word < WORDS_PER_PAGE; word++)
        memory[page * WORDS_PER_PAGE + word] = word_of(page, word);
}

static void verify_page(size_t page) {
    for (size_t word = 0; word < WORDS_PER_PAGE; word++) {
        uint64_t got = memory[page * WORDS_PER_PAGE + word], expected = word_of(page, word);
        CHECK(got == expected, "page %zu, word %zu: expected %016llx, got %016llx", page, word,
              (unsigned long long)expected, (unsigned long long)got);
    }
}

/* A thread owns the pages whose number modulo the threads is its own. */
static void *work(void *argument) {
    size_t thread = (uintptr_t)argument;
    uint64_t random = thread << 40;
    for (size_t page = thread; page < pages; page += threads) {
        beats[thread * STRIDE] = now_ns();
        write_page(page);
        atomic_fetch_add(&written, 1);
    }
    while (!atomic_load(&stop)) {
        beats[thread * STRIDE] = now_ns();
        uint64_t choice = next_random(&random);
        size_t page = choice % (pages / threads) * threads + thread;
        verify_page(page);
        if (choice >> 62 == 0) write_page(page);
    }
    return NULL;
}

static void on_term(int signal) {
    (void)signal;
    atomic_store(&stop, true);
}

static void run(void) {
    threads = option_number("threads", 2);
    CHECK(threads > 0 && threads <= MAX_THREADS, "%zu threads", threads);
    pages = option_number("mib", 48) * MIB / PAGE / threads * threads;
    struct sigaction action = {.sa_handler = on_term};
    CALL(sigaction(SIGTERM, &action, NULL));
    generations = map_unmanaged(pages * sizeof *generations);
    size_t beat_bytes = MAX_THREADS * STRIDE * 8;
    const char *path = option_text("beat", NULL);
    if (path) {
        int file = CALL(open(path, O_RDWR));
        CALL(ftruncate(file, (off_t)beat_bytes));
        beats = mmap(NULL, beat_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        CHECK(beats != MAP_FAILED, "mmap of %s: %s", path, strerror(errno));
        close(file);
    } else {
        beats = map_unmanaged(beat_bytes);
    }
    memory = map_pages(pages * PAGE);
    pthread_t others[MAX_THREADS];
    for (size_t i = 1; i < threads; i++)
        PTHREAD(pthread_create(&others[i], NULL, work, (void *)i));
    pthread_t first;
    PTHREAD(pthread_create(&first, NULL, work, NULL));
    while (atomic_load(&written) < pages && !atomic_load(&stop)) usleep(1000);
    puts("ready");
    fflush(stdout);
    PTHREAD(pthread_join(first, NULL));
    for (size_t i = 1; i < threads; i++) PTHREAD(pthread_join(others[i], NULL));
    if (inject_now()) memory[WORDS_PER_PAGE] ^= 1;
    for (size_t page = 0; page < pages; page++) {
        beats[0] = now_ns();
        verify_page(page);
    }
}

static const struct check_case cases[] = {{"run", run}};
CHECK_MAIN(cases)
