/* Processes that together need more memory than there is.
 *
 *   takers --only readers [--mib N] [--processes N] [--touches N]
 *   takers --only tree [--mib N] [--touches N] [--seed N]
 *
 * readers: each process touches random pages of its own memory, and verifies them.
 * tree: a random tree of processes that wait for each other. A plan lists steps of one or more
 * processes. Each process makes its steps in the order of the plan, so the tree always exits. The
 * first process makes the same plan alone, in little memory, and compares the results. */
#include "check.h"
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define MAX_PROCESSES 16
#define STEPS 24
#define MAX_SENT ((size_t)64) /* pages: more than a pipe or a socket holds */

/* Shared by all processes, and not managed. */
static struct {
    pthread_barrier_t started;
    pthread_mutex_t mutex;
    uint64_t locked, results[MAX_PROCESSES];
    atomic_uint arrived[STEPS];
} *shared;

static void make_shared(size_t processes) {
    shared = map_unmanaged(sizeof *shared);
    pthread_barrierattr_t barrier;
    PTHREAD(pthread_barrierattr_init(&barrier));
    PTHREAD(pthread_barrierattr_setpshared(&barrier, PTHREAD_PROCESS_SHARED));
    PTHREAD(pthread_barrier_init(&shared->started, &barrier, (unsigned)processes));
    pthread_mutexattr_t mutex;
    PTHREAD(pthread_mutexattr_init(&mutex));
    PTHREAD(pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED));
    PTHREAD(pthread_mutex_init(&shared->mutex, &mutex));
}

/* If the parent exits early, the child dies, too. */
static bool fork_child(void) {
    bool is_child = CALL(fork()) == 0;
    if (is_child) CALL(prctl(PR_SET_PDEATHSIG, SIGKILL));
    return is_child;
}

static void wait_for_children(void) {
    for (int status, child; (child = wait(&status)) > 0;)
        CHECK(status == 0, "process %d: status %x", child, status);
}

/* A word of each page is different, the others are random. */
static uint64_t *memory_of(size_t self, size_t pages) {
    uint64_t *memory = filled(pages * PAGE, self);
    for (size_t page = 0; page < pages; page++)
        memory[page * WORDS_PER_PAGE] = random_word(self, page);
    return memory;
}

static void readers(void) {
    size_t pages = option_number("mib", 16) * MIB / PAGE, touches = option_number("touches", 4000);
    size_t processes = option_number("processes", 3);
    make_shared(processes);
    for (size_t self = 0; self < processes; self++) {
        if (!fork_child()) continue;
        uint64_t *memory = memory_of(self, pages), state = self << 32;
        if (self == 0 && inject_now()) memory[0] ^= 1, touches = pages * 64;
        /* All begin together. Otherwise one could exit before the next one starts. */
        pthread_barrier_wait(&shared->started);
        for (size_t i = 0; i < touches; i++) {
            size_t page = next_random(&state) % pages;
            uint64_t got = memory[page * WORDS_PER_PAGE], expected = random_word(self, page);
            CHECK(got == expected, "page %zu of process %zu: expected %016llx, got %016llx", page,
                  self, (unsigned long long)expected, (unsigned long long)got);
        }
        _exit(0);
    }
    wait_for_children();
}

/* ---- random trees --------------------------------------------------------- */

/* The processes of a step: two in a pipe or socket, from `from` to `to`; all in `mask` otherwise. */
static struct step {
    enum { PIPE, SOCKET, FILE_LOCK, MUTEX, MEETING, KINDS } kind;
    size_t from, to, page, count, touches;
    unsigned mask;
    int ends[2];
} plan[STEPS];

static struct process {
    size_t parent, pages;
    bool inherits; /* its memory is the parent's, as at the start */
    uint64_t *words, value, random;
} tree[MAX_PROCESSES];
static size_t processes;
static int lock_file;

static void make_plan(void) {
    uint64_t random = option_number("seed", 1) << 32;
    size_t mib = option_number("mib", 24), touches = option_number("touches", 3000);
    processes = 2 + next_random(&random) % 4;
    for (size_t self = 0; self < processes; self++) {
        struct process *it = &tree[self];
        it->parent = self ? next_random(&random) % self : 0;
        it->inherits = self && next_random(&random) % 6 == 0;
        it->pages = (mib / 2 + next_random(&random) % mib) * MIB / PAGE;
        if (it->inherits) it->pages = tree[it->parent].pages;
        it->value = it->random = next_random(&random);
    }
    for (struct step *step = plan; step < plan + STEPS; step++) {
        step->kind = next_random(&random) % KINDS;
        step->from = next_random(&random) % processes;
        step->to = (step->from + 1 + next_random(&random) % (processes - 1)) % processes;
        step->mask = (unsigned)(next_random(&random) % (1u << processes));
        if (step->kind <= SOCKET) step->mask = 1u << step->from | 1u << step->to;
        step->count = 1 + next_random(&random) % MAX_SENT;
        step->page = next_random(&random) % 1024;
        step->touches = next_random(&random) % touches;
        if (step->kind == PIPE) CALL(pipe(step->ends));
        if (step->kind == SOCKET) CALL(socketpair(AF_UNIX, SOCK_STREAM, 0, step->ends));
    }
    lock_file = CALL(memfd_create("lock", MFD_CLOEXEC));
    EXPECT(8, pwrite(lock_file, &(uint64_t){0}, 8, 0));
}

/* Reads and writes random pages, of `stride` words each. */
static void touch_some(struct process *it, size_t touches, size_t stride) {
    for (size_t i = 0; i < touches; i++) {
        uint64_t *word = it->words + next_random(&it->random) % it->pages * stride;
        it->value = mix64(it->value + *word);
        if (i % 4 == 0) *word = it->value;
    }
}

static uint64_t sum(struct process *it, size_t stride) {
    for (size_t page = 0; page < it->pages; page++)
        it->value = mix64(it->value + it->words[page * stride]);
    return it->value;
}

static void transfer(ssize_t (*call)(int, void *, size_t), int file, void *at, size_t bytes) {
    for (ssize_t done; bytes > 0; at = (char *)at + done, bytes -= (size_t)done)
        CHECK((done = CALL(call(file, at, bytes))) > 0, "the other end is closed");
}

static ssize_t write_from(int file, void *at, size_t bytes) { return write(file, at, bytes); }

static void lock_whole_file(short type) {
    CALL(fcntl(lock_file, F_SETLKW, &(struct flock){.l_type = type, .l_whence = SEEK_SET}));
}

static void meet(atomic_uint *arrived, unsigned all) {
    unsigned now = atomic_fetch_add(arrived, 1) + 1;
    if (now == all) syscall(SYS_futex, arrived, FUTEX_WAKE, MAX_PROCESSES, NULL, NULL, 0);
    while ((now = atomic_load(arrived)) < all)
        syscall(SYS_futex, arrived, FUTEX_WAIT, now, NULL, NULL, 0);
}

static uint64_t *sent_pages(const struct step *step, size_t self, size_t stride) {
    return tree[self].words + step->page % (tree[self].pages - MAX_SENT) * stride;
}

static void make_step(struct step *step, size_t self) {
    struct process *it = &tree[self];
    uint64_t *at = sent_pages(step, self, WORDS_PER_PAGE), count;
    size_t bytes = step->count * PAGE;
    bool is_from = self == step->from;
    if (step->kind == FILE_LOCK) lock_whole_file(F_WRLCK);
    if (step->kind == MUTEX) PTHREAD(pthread_mutex_lock(&shared->mutex));
    touch_some(it, step->touches, WORDS_PER_PAGE);
    switch (step->kind) {
    case PIPE:
        if (is_from) transfer(write_from, step->ends[1], at, bytes);
        else transfer(read, step->ends[0], at, bytes);
        break;
    case SOCKET:
        if (is_from) transfer(write_from, step->ends[1], at, bytes);
        else transfer(read, step->ends[0], at, bytes);
        if (is_from) transfer(read, step->ends[1], &it->value, 8);
        else transfer(write_from, step->ends[0], &it->value, 8);
        break;
    case FILE_LOCK:
        EXPECT(8, pread(lock_file, &count, 8, 0));
        count++;
        EXPECT(8, pwrite(lock_file, &count, 8, 0));
        lock_whole_file(F_UNLCK);
        break;
    case MUTEX:
        shared->locked++;
        PTHREAD(pthread_mutex_unlock(&shared->mutex));
        break;
    default: meet(&shared->arrived[step - plan], (unsigned)__builtin_popcount(step->mask));
    }
}

static void fork_children(size_t of, bool inherit);

static void be(size_t self) {
    struct process *it = &tree[self];
    fork_children(self, false);
    if (!it->inherits) it->words = memory_of(self, it->pages);
    fork_children(self, true);
    for (struct step *step = plan; step < plan + STEPS; step++)
        if (step->mask >> self & 1) make_step(step, self);
    shared->results[self] = sum(it, WORDS_PER_PAGE);
    wait_for_children();
    _exit(0);
}

static void fork_children(size_t of, bool inherit) {
    for (size_t child = of + 1; child < processes; child++) {
        if (tree[child].parent != of || tree[child].inherits != inherit || !fork_child()) continue;
        tree[child].words = tree[of].words;
        be(child);
    }
}

/* Makes all steps of the plan, in memory of a word for each page. */
static void make_all_steps(void) {
    uint64_t locked[KINDS] = {0};
    for (size_t self = 0; self < processes; self++) {
        struct process *it = &tree[self];
        it->words = allocate(it->pages * 8);
        for (size_t page = 0; page < it->pages; page++)
            it->words[page] = it->inherits ? tree[it->parent].words[page] : random_word(self, page);
    }
    for (struct step *step = plan; step < plan + STEPS; step++) {
        for (size_t self = 0; self < processes; self++) {
            if (!(step->mask >> self & 1)) continue;
            touch_some(&tree[self], step->touches, 1);
            locked[step->kind]++;
        }
        if (step->kind > SOCKET) continue;
        memcpy(sent_pages(step, step->to, 1), sent_pages(step, step->from, 1), step->count * 8);
        if (step->kind == SOCKET) tree[step->from].value = tree[step->to].value;
    }
    uint64_t count;
    EXPECT(8, pread(lock_file, &count, 8, 0));
    CHECK(count == locked[FILE_LOCK] && shared->locked == locked[MUTEX], "a lock was not held");
    for (size_t self = 0; self < processes; self++)
        CHECK(shared->results[self] == sum(&tree[self], 1), "process %zu: wrong result", self);
}

static void random_tree(void) {
    make_plan();
    make_shared(processes);
    if (fork_child()) be(0);
    wait_for_children();
    if (inject_now()) shared->results[processes - 1] ^= 1;
    make_all_steps();
}

static const struct check_case cases[] = {{"readers", readers}, {"tree", random_tree}};
CHECK_MAIN(cases)
