/* Children change more inherited memory than the budget. Some outlive their parent, some fork
 * again, and some are killed.
 *
 *   children [--mib N] [--pressure MIB] */
#include "check.h"
#include <poll.h>
#include <sys/wait.h>

static char *data;
static size_t data_bytes;

static void change(uint64_t seed, const char *when) {
    fill_random(data, data_bytes, seed);
    evict(data, data_bytes);
    if (inject_now()) data[data_bytes / 2] ^= 1;
    verify_random(when, data, data_bytes, seed);
}

static void wait_for(pid_t child) {
    int status;
    EXPECT(child, waitpid(child, &status, 0));
    CHECK(status == 0, "a child ended with status %x", status);
}

static void restore(void) { fill_random(data, data_bytes, 1); }

/* ---- several children that change all inherited memory --------------------------- */

static void each_changes_all(void) {
    enum { CHILDREN = 4 };
    pid_t children[CHILDREN];
    evict(data, data_bytes);
    for (int at = 0; at < CHILDREN; at++) {
        children[at] = CALL(fork());
        if (children[at] == 0) {
            verify_random("what a child inherited", data, data_bytes, 1);
            for (int round = 0; round < 2; round++)
                change(100 + (uint64_t)(10 * at + round), "what a child wrote");
            _exit(0);
        }
    }
    for (int at = 0; at < CHILDREN; at++) wait_for(children[at]);
    verify_random("the parent's data", data, data_bytes, 1);
}

static void both_write(void) {
    evict(data, data_bytes);
    pid_t child = CALL(fork());
    verify_random("the common data", data, data_bytes, 1);
    for (uint64_t round = 0; round < 4; round++)
        change((child ? 200 : 300) + round, "data written at the same time");
    if (child == 0) _exit(0);
    wait_for(child);
    restore();
}

/* ---- a child that outlives its parent ------------------------------------------------------- */

static void one_outlives_its_parent(void) {
    int said[2], gone[2];
    CALL(pipe(said));
    CALL(pipe(gone));
    evict(data, data_bytes);
    pid_t parent = CALL(fork());
    if (parent == 0) {
        change(400, "the parent's changes");
        pid_t child = CALL(fork());
        if (child) _exit(0);
        /* Wait until the parent has exited. */
        char byte;
        close(gone[1]);
        EXPECT(0, read(gone[0], &byte, 1));
        verify_random("data of an exited parent", data, data_bytes, 400);
        change(401, "the child's changes");
        EXPECT(1, write(said[1], "y", 1));
        _exit(0);
    }
    close(gone[1]);
    close(said[1]);
    wait_for(parent);
    char byte;
    CHECK(read(said[0], &byte, 1) == 1, "the child has not finished");
    close(said[0]);
    close(gone[0]);
    verify_random("the first parent's data", data, data_bytes, 1);
}

/* ---- children of children ------------------------------------------------------------------- */

static void generation(uint64_t depth) {
    pid_t child = CALL(fork());
    if (child == 0) {
        verify_random("what a generation inherited", data, data_bytes, 500 + depth);
        /* Change one half. The other half remains shared with the ancestors. */
        fill_random(data, data_bytes / 2, 600 + depth);
        evict(data, data_bytes);
        verify_random("the half that was written", data, data_bytes / 2, 600 + depth);
        change(501 + depth, "changes of one generation");
        if (depth < 3) generation(depth + 1);
        verify_random("what a generation has", data, data_bytes, 501 + depth);
        _exit(0);
    }
    change(700 + depth, "data written while a child runs");
    wait_for(child);
    fill_random(data, data_bytes, 500 + depth);
}

static void children_of_children(void) {
    change(500, "the first parent's data");
    generation(0);
    verify_random("the first parent's data afterwards", data, data_bytes, 500);
    restore();
}

/* ---- killed children ------------------------------------------------------------------------ */

static void some_are_killed(void) {
    uint64_t random = 7;
    for (int round = 0; round < 8; round++) {
        uint64_t seed = 800 + (uint64_t)round;
        change(seed, "before the next child");
        pid_t child = CALL(fork());
        if (child == 0)
            for (uint64_t next = 0;; next++) change(900 + next, "what a child wrote");
        poll(NULL, 0, (int)(next_random(&random) % 60));
        fill_random(data, data_bytes / 4, seed);
        CALL(kill(child, SIGKILL));
        CALL(waitpid(child, NULL, 0));
        verify_random("after a child was killed", data, data_bytes, seed);
    }
    restore();
}

/* ---- with other threads --------------------------------------------------------------------- */

static atomic_bool has_ended;

static void *go_on(void *argument) {
    uint64_t seed = (uintptr_t)argument;
    char *own = map_pages(data_bytes / 4);
    while (!atomic_load(&has_ended)) {
        fill_random(own, data_bytes / 4, ++seed);
        verify_random("what a thread wrote", own, data_bytes / 4, seed);
    }
    CALL(munmap(own, data_bytes / 4));
    return NULL;
}

static void beside_threads(void) {
    pthread_t threads[2];
    atomic_store(&has_ended, false);
    for (uintptr_t at = 0; at < 2; at++)
        PTHREAD(pthread_create(&threads[at], NULL, go_on, (void *)(at << 32)));
    for (int round = 0; round < 3; round++) {
        pid_t child = CALL(fork());
        if (child == 0) {
            verify_random("data that a child of several threads inherited", data, data_bytes, 1);
            change(1000, "changes of a child of several threads");
            _exit(0);
        }
        wait_for(child);
    }
    atomic_store(&has_ended, true);
    for (int at = 0; at < 2; at++) PTHREAD(pthread_join(threads[at], NULL));
    evict(data, data_bytes);
    verify_random("data of the parent with several threads", data, data_bytes, 1);
}

static const struct check_case cases[] = {
    {"each-changes-all", each_changes_all},
    {"both-write", both_write},
    {"one-outlives-its-parent", one_outlives_its_parent},
    {"children-of-children", children_of_children},
    {"some-are-killed", some_are_killed},
    {"beside-threads", beside_threads},
};

int main(int argc, char **argv) {
    check_start(argc, argv);
    data_bytes = option_number("mib", 8) * MIB;
    data = map_pages(data_bytes);
    restore();
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
