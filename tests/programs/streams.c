/* More C library streams than softswap has buffers outside the window. They are opened, used and
 * closed repeatedly, also in a forked child.
 *
 *   streams [--null MIB]    also writes MIB MiB through one stream to /dev/null */
#include "check.h"

#include <sys/wait.h>

enum { STREAMS = 100, LINES = 400, LINE = 97, ROUNDS = 3 };

static void line_of(char *line, int round, int stream, int number) {
    memset(line, 'a' + (round + stream + number) % 26, LINE - 1);
    memcpy(line, &number, sizeof number);
    memcpy(line + sizeof number, &stream, sizeof stream);
    line[LINE - 1] = '\n';
}

static void write_all(FILE **streams, int count, int round) {
    char line[LINE];
    for (int number = 0; number < LINES; number++)
        for (int stream = 0; stream < count; stream++) {
            line_of(line, round, stream, number);
            CHECK(fwrite(line, 1, LINE, streams[stream]) == LINE, "a line is not written");
        }
}

static void read_all(FILE **streams, int count, int round) {
    char line[LINE], expected[LINE];
    for (int stream = 0; stream < count; stream++) rewind(streams[stream]);
    for (int number = 0; number < LINES; number++)
        for (int stream = 0; stream < count; stream++) {
            line_of(expected, round, stream, number);
            CHECK(fread(line, 1, LINE, streams[stream]) == LINE, "a line is not read");
            if (inject_now()) line[LINE / 2] ^= 1;
            CHECK(memcmp(line, expected, LINE) == 0, "line %d of stream %d changed", number, stream);
        }
}

static void open_all(FILE **streams, int count) {
    for (int stream = 0; stream < count; stream++)
        CHECK((streams[stream] = tmpfile()) != NULL, "tmpfile: %s", strerror(errno));
}

/* A child has its own copy of the parent's buffers, and opens further streams. */
static void in_a_child(FILE **parents) {
    pid_t child = fork();
    CHECK(child >= 0, "fork: %s", strerror(errno));
    if (child == 0) {
        FILE *own[8];
        for (int stream = 0; stream < 8; stream++) fclose(parents[stream]);
        open_all(own, 8);
        write_all(own, 8, 7);
        read_all(own, 8, 7);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child's streams");
}

static void streams(void) {
    FILE *streams[STREAMS];
    for (int round = 0; round < ROUNDS; round++) {
        open_all(streams, STREAMS);
        write_all(streams, STREAMS, round);
        for (int stream = 0; stream < STREAMS; stream++) fflush(streams[stream]);
        in_a_child(streams);
        count_out(streams[0], sizeof *streams[0]);
        read_all(streams, STREAMS, round);
        /* Not in the order in which they were opened. */
        for (int stream = 0; stream < STREAMS; stream++) fclose(streams[stream * 37 % STREAMS]);
    }
    FILE *null = fopen("/dev/null", "w");
    CHECK(null, "/dev/null: %s", strerror(errno));
    for (size_t i = 0; i < option_number("null", 0) << 10; i++) {
        char kib[1024];
        memset(kib, (int)i, sizeof kib);
        CHECK(fwrite(kib, 1, sizeof kib, null) == sizeof kib,
              "a KiB cannot be written to /dev/null");
    }
    fclose(null);
}

static const struct check_case cases[] = {{"streams", streams}};
CHECK_MAIN(cases)
