/* Stores N MiB of text like a server's log, each line different, and reads all of it twice. The
 * working set fits the budget only if it is compressed.
 *
 *   text [--mib N] */
#include "check.h"

static const char *const PATHS[] = {
    "/index.html", "/static/app.js", "/api/v1/users", "/api/v1/orders",
};

static size_t write_line(char *at, size_t room, uint64_t line) {
    uint64_t random = mix64(line);
    int length = snprintf(
        at, room,
        "10.0.%u.%u - - [21/Nov/2026:%02u:%02u:%02u] \"GET %s HTTP/1.1\" %u %u "
        "\"-\" \"Mozilla/5.0 (X11; Linux x86_64)\" request %llu\n",
        (unsigned)(random & 3), (unsigned)(random >> 2 & 15), (unsigned)(line / 360000 % 24),
        (unsigned)(line / 6000 % 60), (unsigned)(line / 100 % 60), PATHS[random >> 8 & 3],
        random >> 16 & 31 ? 200u : 404u, (unsigned)(random >> 32 & 4095),
        (unsigned long long)line);
    return (size_t)length;
}

/* Iterates over all lines, and compares or writes them. */
static void each_line(char *text, size_t bytes, bool writes) {
    char line[256];
    uint64_t number = 0;
    for (size_t at = 0; at < bytes; number++) {
        size_t length = write_line(line, sizeof line, number);
        size_t fits = length < bytes - at ? length : bytes - at;
        if (writes)
            memcpy(text + at, line, fits);
        else
            CHECK(memcmp(text + at, line, fits) == 0, "line %llu changed",
                  (unsigned long long)number);
        at += fits;
    }
}

static void text(void) {
    size_t bytes = option_number("mib", 16) * MIB;
    char *memory = (char *)map_pages(bytes);
    each_line(memory, bytes, true);
    count_out((uint64_t *)memory, bytes);
    if (inject_now()) memory[bytes / 2] ^= 1;
    for (int round = 0; round < 2; round++) each_line(memory, bytes, false);
}

static const struct check_case cases[] = {{"text", text}};
CHECK_MAIN(cases)
