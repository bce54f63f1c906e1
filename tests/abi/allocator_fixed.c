/* A non-PIE executable that takes the address of malloc: the address is that of a stub in its own
 * code, which jumps to the C library. It has no malloc of its own. */
#include "abi.h"

static int is_in_code(const void *address)
{
    extern const char __executable_start, etext;
    return (const char *)address >= &__executable_start && (const char *)address < &etext;
}

static void stdio_and_blocks(void)
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
    put_out();
    say("lines: %d", lines > 0);
}

static void blocks_of_the_library(void)
{
    void (*volatile release)(void *) = free;
    void *(*volatile allocate)(size_t) = malloc;
    char *copy = strdup("what the library gave"), *line = NULL;
    size_t len = 0;
    put_out();
    say("%s %d", copy, is_in_code((const void *)allocate));
    release(copy);
    FILE *file = tmpfile();
    fputs("a line\n", file);
    rewind(file);
    say("%zd", getline(&line, &len, file));
    put_out();
    line = realloc(line, 100000);
    memset(line, 1, 100000);
    put_out();
    release(line);
    fclose(file);
}

ABI_MAIN(CASE(stdio_and_blocks), CASE(blocks_of_the_library))
