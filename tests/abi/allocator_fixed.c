/* A non-PIE executable that takes the address of malloc: this is the address of a stub in the
 * program's code, which jumps to the C library. The program defines no malloc. */
#include "abi.h"

static int is_in_code(const void *address)
{
    extern const char __executable_start, etext;
    return (const char *)address >= &__executable_start && (const char *)address < &etext;
}

CASE(stdio_and_blocks)
{
    void *(*volatile allocate)(size_t) = malloc;
    void (*volatile release)(void *) = free;
    say("a stub: %d", is_in_code((const void *)allocate));
    size_t lines = 0;
    for (int round = 0; round < 200; round++) {
        FILE *file = fopen("/proc/self/status", "r");
        char line[200], *block = allocate(100 + round * 50);
        memset(block, round, 100 + round * 50);
        while (file && fgets(line, sizeof line, file))
            lines += line[0] == 'N';
        if (file)
            fclose(file);
        release(block);
    }
    evict();
    say("lines: %d", lines > 0);
}

CASE(blocks_of_the_library)
{
    void (*volatile release)(void *) = free;
    void *(*volatile allocate)(size_t) = malloc;
    char *copy = strdup("a block of the library"), *line = NULL;
    size_t len = 0;
    evict();
    say("%s %d", copy, is_in_code((const void *)allocate));
    release(copy);
    FILE *file = tmpfile();
    fputs("a line\n", file);
    rewind(file);
    say("%zd", getline(&line, &len, file));
    evict();
    line = realloc(line, 100000);
    memset(line, 1, 100000);
    evict();
    release(line);
    fclose(file);
}
