/* Random memory calls, checked against a model of the memory's content. At the same time,
 * another thread and a signal handler touch their own memory, and children verify inherited
 * memory.
 *
 * Results are compared line by line with those of Linux, and contents with the model. To run
 * the program manually, for any number of steps, without and under softswap:
 * ABI_FUZZ_STEPS=100000 ABI_FUZZ_SEED=7 PROGRAM from_the_environment */
#include "abi.h"
#include <sys/time.h>

enum { PAGES = 384, MOST = 48, FILE_PAGES = 64, STEPS = 250, LOCKABLE = 96 };
#define RW (PROT_READ | PROT_WRITE)

struct page {
    int mapped, prot, locked, withheld, wiped, is_file;
    unsigned mapping;  /* number of the call that mapped it: pages of one call are one mapping */
    uint64_t holds;    /* each word is this value plus its index; 0: zeroes */
    uint64_t fresh;    /* content after the content is dropped */
};

static struct page model[PAGES];
static unsigned mappings;
static char *arena;
static int file;
static uint64_t state;
static size_t mistakes;

static uint64_t next(void)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state * 2685821657736338717UL >> 11;
}

static uint64_t word(uint64_t holds, size_t at)
{
    return holds ? holds ^ at * 0x9e3779b97f4a7c15UL : 0;
}

static char *address(size_t page) { return arena + page * PAGE; }

static void write_page(size_t page, uint64_t holds)
{
    uint64_t *words = (uint64_t *)address(page);
    for (size_t i = 0; i < PAGE / 8; i++)
        words[i] = word(holds, i);
    model[page].holds = holds;
}

static size_t wrong_words(size_t page, uint64_t holds)
{
    const volatile uint64_t *words = (uint64_t *)address(page);
    size_t count = 0;
    for (size_t i = 0; i < PAGE / 8; i++)
        count += words[i] != word(holds, i);
    return count;
}

/* Checks all readable memory. In a child, checks the inherited memory. */
static void check(const char *who, int is_child)
{
    for (size_t page = 0; page < PAGES; page++) {
        struct page *it = &model[page];
        if (!it->mapped || !(it->prot & PROT_READ) || (is_child && it->withheld))
            continue;
        size_t count = wrong_words(page, is_child && it->wiped ? 0 : it->holds);
        if (count) {
            say("%s: page %zu: %zu words are wrong", who, page, count);
            mistakes++;
        }
    }
}

static int all(size_t from, size_t count, int (*is)(const struct page *))
{
    for (size_t i = from; i < from + count; i++)
        if (!is(&model[i]))
            return 0;
    return 1;
}
static int is_mapped(const struct page *p) { return p->mapped; }
static int is_open(const struct page *p) { return !p->mapped || p->prot & PROT_READ; }
static int is_anonymous(const struct page *p) { return !p->is_file; }
static int is_of_a_file(const struct page *p) { return p->is_file; }
static int is_unlocked(const struct page *p) { return !p->mapped || !p->locked; }
static int is_locked(const struct page *p) { return p->mapped && p->locked; }

static int is_one_mapping(size_t from, size_t count)
{
    for (size_t i = from; i < from + count; i++)
        if (!model[i].mapped || model[i].mapping != model[from].mapping ||
            model[i].prot != model[from].prot || model[i].locked != model[from].locked ||
            model[i].withheld != model[from].withheld || model[i].wiped != model[from].wiped)
            return 0;
    return 1;
}

static void forget(size_t from, size_t count)
{
    memset(&model[from], 0, count * sizeof *model);
}

/* After a call on a part of a mapping, the model keeps the parts separate. Linux may merge them
 * later, which the model cannot predict. */
static void cut(size_t from, size_t count)
{
    size_t end = from + count, i = from;
    unsigned last = model[end - 1].mapping;
    while (i < end) {
        unsigned was = model[i].mapping;
        for (mappings++; i < end && model[i].mapping == was; i++)
            model[i].mapping = mappings;
    }
    for (mappings++; i < PAGES && model[i].mapping == last; i++)
        model[i].mapping = mappings;
}

static long note(const char *what, size_t from, size_t count, long result)
{
    int error = errno;
    say("%s %zu+%zu: %s", what, from, count, result == -1 ? strerrorname_np(error) : "done");
    return result;
}
/* Addresses are never negative; only MAP_FAILED is -1. */
#define NOTE(what, from, count, call) note(what, from, count, (long)(call))

static void map_anonymous(size_t from, size_t count, int flags)
{
    static const int prots[] = {RW, RW, RW, PROT_READ, PROT_NONE};
    int prot = prots[next() % 5];
    if (NOTE("map", from, count,
             mmap(address(from), count * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0)) ==
        -1)
        return;
    forget(from, count);
    mappings++;
    for (size_t i = from; i < from + count; i++)
        model[i].mapped = 1, model[i].prot = prot, model[i].mapping = mappings;
}

static uint64_t file_holds(size_t page) { return 0xf00d0000 + page + 1; }

static void map_file(size_t from, size_t count, int flags)
{
    size_t first = next() % (FILE_PAGES - MOST);
    int bad = next() % 4 == 0;
    if (NOTE(bad ? "map of no file" : "map file", from, count,
             mmap(address(from), count * PAGE, RW, MAP_PRIVATE | flags, bad ? -1 : file,
                  first * PAGE)) == -1)
        return;
    forget(from, count);
    mappings++;
    for (size_t i = 0; i < count; i++) {
        struct page *it = &model[from + i];
        it->mapped = it->is_file = 1, it->prot = RW, it->mapping = mappings;
        it->holds = it->fresh = file_holds(first + i);
    }
}

static void unmap(size_t from, size_t count)
{
    if (NOTE("unmap", from, count, munmap(address(from), count * PAGE)) == 0)
        forget(from, count);
}

static void protect(size_t from, size_t count)
{
    static const int prots[] = {RW, RW, PROT_READ, PROT_NONE, PROT_READ | PROT_EXEC};
    int prot = prots[next() % 5];
    NOTE("protect", from, count, mprotect(address(from), count * PAGE, prot));
    cut(from, count);
    for (size_t i = from; i < from + count && model[i].mapped; i++)
        model[i].prot = prot;
}

static void drop(size_t from, size_t count)
{
    int locked = all(from, count, is_locked);
    if (!locked && !all(from, count, is_unlocked))
        return;
    NOTE("drop", from, count, madvise(address(from), count * PAGE, MADV_DONTNEED));
    for (size_t i = from; i < from + count && !locked; i++)
        model[i].holds = model[i].fresh;
}

static void at_fork(size_t from, size_t count)
{
    static const int advice[] = {MADV_DONTFORK, MADV_DOFORK, MADV_WIPEONFORK, MADV_KEEPONFORK};
    size_t which = next() % 4;
    if (!all(from, count, is_anonymous))
        return;
    NOTE("at fork", from, count, madvise(address(from), count * PAGE, advice[which]));
    cut(from, count);
    for (size_t i = from; i < from + count; i++) {
        if (!model[i].mapped)
            continue;
        if (which < 2)
            model[i].withheld = which == 0;
        else
            model[i].wiped = which == 2;
    }
}

static void lock(size_t from, size_t count)
{
    int on = next() % 2;
    size_t locked = 0;
    for (size_t i = 0; i < PAGES; i++)
        locked += model[i].locked;
    if (!all(from, count, is_open) || (on && locked + count > LOCKABLE))
        return;
    if (on)
        NOTE("lock", from, count, mlock(address(from), count * PAGE));
    else
        NOTE("unlock", from, count, munlock(address(from), count * PAGE));
    cut(from, count);
    for (size_t i = from; i < from + count && model[i].mapped; i++)
        model[i].locked = on;
}

static void move(size_t from, size_t count)
{
    size_t to = next() % (PAGES - MOST), len = 1 + next() % MOST;
    int keeps = next() % 4 == 0;
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED | (keeps ? MREMAP_DONTUNMAP : 0);
    if (!is_one_mapping(from, count) || (model[from].is_file && len > count))
        return;
    /* Either the copy or the source is locked afterwards. This case is not modelled. */
    if (keeps && (model[from].locked || model[from].is_file))
        return;
    if (NOTE(keeps ? "move and keep" : "move", from, count,
             mremap(address(from), count * PAGE, len * PAGE, flags, address(to))) == -1)
        return;
    struct page moved[MOST];
    memcpy(moved, &model[from], count * sizeof *moved);
    mappings++;
    for (size_t i = from; i < from + count; i++) {
        if (keeps)
            model[i].holds = 0;
        else
            forget(i, 1);
    }
    for (size_t i = 0; i < len; i++) {
        model[to + i] = moved[i < count ? i : count - 1];
        model[to + i].mapping = mappings;
        if (i >= count)
            model[to + i].holds = model[to + i].fresh = 0;
    }
}

static void resize(size_t from, size_t count)
{
    size_t len = 1 + next() % MOST, end = from + (len > count ? len : count);
    if (!is_one_mapping(from, count) || end > PAGES || model[from].is_file)
        return;
    /* Only the end of a mapping can grow, and the end of the arena is excluded. */
    if (NOTE("resize", from, count, mremap(address(from), count * PAGE, len * PAGE, 0)) == -1)
        return;
    if (len < count)
        forget(from + len, count - len);
    for (size_t i = count; i < len; i++) {
        model[from + i] = model[from];
        model[from + i].holds = model[from + i].fresh = 0;
    }
}

static void touch(size_t from, size_t count)
{
    for (size_t i = from; i < from + count; i++)
        if (model[i].mapped && (model[i].prot & RW) == RW)
            write_page(i, next() | 1);
}

/* Transfers through a pipe must fail with EFAULT if the memory cannot be read or written. */
static void transfer(size_t from, size_t count)
{
    int ends[2];
    size_t len = count > 8 ? 8 : count;
    if (!all(from, len, is_anonymous) && !all(from, len, is_of_a_file))
        return;
    MUST(pipe(ends));
    long sent = write(ends[1], address(from), len * PAGE);
    say("sent %zu+%zu: %ld", from, len, sent == -1 ? -(long)errno : sent);
    size_t to = next() % (PAGES - MOST);
    int is_alike = all(to, len, is_anonymous) || all(to, len, is_of_a_file);
    if (sent == (long)(len * PAGE) && is_alike && all(to, len, is_mapped)) {
        long got = read(ends[0], address(to), len * PAGE);
        say("got %zu+%zu: %ld", to, len, got == -1 ? -(long)errno : got);
        uint64_t held[8];
        for (size_t i = 0; i < len; i++)
            held[i] = model[from + i].holds;
        for (size_t i = 0; got > 0 && i < (size_t)got / PAGE; i++)
            model[to + i].holds = held[i];
    }
    close(ends[0]), close(ends[1]);
}

static void look_in_a_child(void)
{
    IN_CHILD("child") {
        mistakes = 0;
        check("child", 1);
        _exit(mistakes != 0);
    }
}

/* ---- concurrent activity ---- */

static char *other_memory;
static volatile int continues = 1;

static void *touch_beside(void *unused)
{
    (void)unused;
    for (uint64_t round = 1; continues; round++) {
        for (size_t at = 0; at < MIB; at += PAGE)
            *(volatile uint64_t *)(other_memory + at) += 1;
        struct timespec pause = {0, 2000000};
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static void on_alarm(int signal)
{
    (void)signal;
    static size_t at;
    *(volatile uint64_t *)(other_memory + MIB + at) += 1;
    at = (at + 5 * PAGE) % MIB;
}

static void run_from(uint64_t seed, size_t steps)
{
    state = seed * 0x9e3779b97f4a7c15UL | 1;
    for (int i = 0; i < 16; i++)
        next();
    file = scratch_file(O_RDWR);
    for (size_t page = 0; page < FILE_PAGES; page++) {
        uint64_t words[PAGE / 8];
        for (size_t i = 0; i < PAGE / 8; i++)
            words[i] = word(file_holds(page), i);
        MUST(write(file, words, PAGE));
    }
    other_memory = memory(2 * MIB, 1);
    memset(other_memory, 0, 2 * MIB);
    evict();
    pthread_t thread;
    pthread_create(&thread, NULL, touch_beside, NULL);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 3000}, {0, 3000}};
    /* The kernel maps nothing at these addresses, so holes remain unmapped. */
    arena = mmap((void *)0x300000000000, PAGES * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (arena == MAP_FAILED)
        must_("mmap", -1);
    mappings++;
    for (size_t i = 0; i < PAGES; i++)
        model[i].mapped = 1, model[i].prot = RW, model[i].mapping = mappings;
    touch(0, PAGES);
    setitimer(ITIMER_REAL, &often, NULL);
    for (size_t step = 0; step < steps && !mistakes; step++) {
        size_t from = next() % (PAGES - MOST), count = 1 + next() % MOST;
        int replaces = next() % 4 ? MAP_FIXED : MAP_FIXED_NOREPLACE;
        switch (next() % 12) {
        case 0: map_anonymous(from, count, replaces); break;
        case 1: map_file(from, count, replaces); break;
        case 2: unmap(from, count); break;
        case 3: protect(from, count); break;
        case 4: drop(from, count); break;
        case 5: at_fork(from, count); break;
        case 6: lock(from, count); break;
        case 7: move(from, 1 + count % 6); break;
        case 8: resize(from, 1 + count % 6); break;
        case 9: transfer(from, count); break;
        default: touch(from, count); break;
        }
        if (step % 64 == 63)
            evict();
        if (step % 40 == 39)
            look_in_a_child();
        if (step % 16 == 15)
            check("after a while", 0);
    }
    check("at the end", 0);
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    continues = 0;
    pthread_join(thread, NULL);
    say("mistakes %zu", mistakes);
}

CASE(seed_1) { run_from(1, STEPS); }
CASE(seed_2) { run_from(2, STEPS); }
CASE(seed_3) { run_from(3, STEPS); }
CASE(seed_4) { run_from(4, STEPS); }

CASE(from_the_environment)
{
    const char *seed = getenv("ABI_FUZZ_SEED"), *steps = getenv("ABI_FUZZ_STEPS");
    run_from(seed ? strtoul(seed, NULL, 10) : 5, steps ? strtoul(steps, NULL, 10) : STEPS);
}
