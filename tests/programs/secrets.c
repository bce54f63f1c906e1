/* Stores secret data, for tests that search the disk and core dumps for it. Each page contains
 * a text. The rest of half of the pages is random; the others are partly random, so that the
 * text is visible in their compressed form.
 *
 *   secrets            writes and verifies the data, and exits
 *   secrets KEY_FILE   also copies the engine's key to KEY_FILE, and dumps core;
 *                      exits with 3 if the key is not locked, 4 if core dumps are not permitted */
#include "check.h"
#include <sys/resource.h>

#define PAGES ((size_t)6144)

static const char text[] = "this plaintext is known to the test";
/* The core dump contains this buffer, because it is unmanaged. The executable does not contain
 * the text that the program writes into the buffer. */
static volatile char dumped[64];

static void fill(uint64_t *memory) {
    for (size_t page = 0; page < PAGES; page++) {
        fill_random(memory + page * WORDS_PER_PAGE, PAGE, page);
        if (page % 64 < 32) memset(memory + page * WORDS_PER_PAGE + 200, 7, PAGE - 1600);
        memcpy(memory + page * WORDS_PER_PAGE + 100, text, sizeof text);
    }
}

static void compare(const uint64_t *memory) {
    for (size_t page = 0; page < PAGES; page++)
        if (memcmp(memory + page * WORDS_PER_PAGE + 100, text, sizeof text) != 0)
            check_fail(__FILE__, __LINE__, "page %zu has changed", page);
}

/* Copies the key, which is in the only locked mapping, directly from there: the dump would contain
 * a copy in the program's memory. */
static int copy_key(const char *path) {
    int file = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    FILE *maps = fopen("/proc/self/smaps", "r");
    if (file < 0 || maps == NULL) return 1;
    char line[512];
    unsigned long start = 0, end = 0, from, to;
    int found = 0;
    while (fgets(line, sizeof line, maps) != NULL) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) start = from, end = to;
        if (strncmp(line, "VmFlags:", 8) != 0) continue;
        if (strstr(line, " lo ") == NULL) continue;
        found++;
        if (write(file, (void *)start, end - start) != (ssize_t)(end - start)) return 1;
    }
    fclose(maps);
    close(file);
    return found == 1 ? 0 : 3;
}

int main(int argc, char **argv) {
    uint64_t *memory = map_pages(PAGES * PAGE);
    fill(memory);
    compare(memory);
    if (argc > 1) {
        struct rlimit limit;
        getrlimit(RLIMIT_CORE, &limit);
        if (limit.rlim_max != RLIM_INFINITY) return 4;
        limit.rlim_cur = RLIM_INFINITY;
        setrlimit(RLIMIT_CORE, &limit);
        int refused = copy_key(argv[1]);
        if (refused) return refused;
        for (int at = 0; at < 64; at++) dumped[at] = (char)(at * 37 + 11);
        abort();
    }
    puts("ok secrets");
}
