/* Memory calls have the same effect on swapped-out pages as on resident pages.
 *
 *   mappings [--pressure MIB] */
#include "check.h"

#include <malloc.h>

#define SIZE (4 * MIB)

static void expect_zero(const char *what, const void *at, size_t bytes) {
    verify_bytes(what, at, bytes, 0);
}

/* Verifies bytes from..to of a mapping whose data was filled from `at` on. */
static void verify_piece(const char *what, const char *at, size_t from, size_t to, uint64_t seed) {
    for (size_t i = from / 8; i < to / 8; i++) {
        uint64_t got, expected = random_word(seed, i);
        memcpy(&got, at + i * 8, 8);
        CHECK(got == expected, "%s: at %p (byte %zu) expected %016llx, got %016llx", what,
              (const void *)(at + i * 8), i * 8, (unsigned long long)expected,
              (unsigned long long)got);
    }
}

/* ---- munmap ---------------------------------------------------------------- */

static void unmapped_memory_faults(void) {
    char *at = filled(SIZE, 1);
    evict(at, SIZE);
    if (!inject_now()) CALL(munmap(at, SIZE));
    expect_segv("after munmap", at + MIB, false);
    expect_segv("after munmap", at + SIZE - 1, true);
    char *fresh = filled(SIZE, 2); /* probably the same address */
    CALL(munmap(fresh, SIZE));
    expect_segv("after the second munmap", fresh, false);
}

static void partial_munmap(void) {
    char *at = filled(SIZE, 3);
    evict_data(at, MIB);
    CALL(munmap(at + MIB, MIB));
    verify_piece("before the hole", at, 0, MIB, 3);
    verify_piece("behind the hole", at, 2 * MIB, SIZE, 3);
    expect_segv("hole", at + MIB, false);
    expect_segv("hole", at + 2 * MIB - 1, true);
    char *other = filled(MIB, 4); /* may fill the hole */
    evict(at, MIB);
    verify_piece("before the hole", at, 0, MIB, 3);
    verify_random("other", other, MIB, 4);
    verify_piece("behind the hole", at, 2 * MIB, SIZE, 3);
    CALL(munmap(other, MIB));
    CALL(munmap(at, SIZE)); /* across the hole: allowed */
    expect_segv("after munmap of all", at, false);
}

static void memory_is_fresh_again(void) {
    for (int i = 0; i < 20; i++) {
        char *at = map_pages(SIZE);
        if (i == 10 && inject_now()) at[MIB] = 1;
        expect_zero("fresh mapping", at, SIZE);
        fill_random(at, SIZE, 5);
        if (i % 5 == 0) evict(at, SIZE);
        CALL(munmap(at, SIZE));
    }
}

static void many_mappings(void) {
    enum { COUNT = 1500 };
    uint64_t **at = allocate(COUNT * sizeof *at);
    for (size_t i = 0; i < COUNT; i++) {
        at[i] = map_pages(MIB);
        at[i][i] = mix64(i);
    }
    for (size_t i = 0; i < COUNT; i += 2) CALL(munmap(at[i], MIB));
    evict_data(&at[COUNT / 2 | 1][COUNT / 2 | 1], 8);
    for (size_t i = 1; i < COUNT; i += 2) {
        CHECK(at[i][i] == mix64(i), "mapping %zu: at %p expected %016llx, got %016llx", i,
              (void *)&at[i][i], (unsigned long long)mix64(i), (unsigned long long)at[i][i]);
        CALL(munmap(at[i], MIB));
    }
    free(at);
}

static void refused_calls(void) {
    char *at = map_pages(SIZE);
    errno = 0;
    CHECK(mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED &&
              errno == EINVAL,
          "mmap of 0 bytes: %s", strerror(errno));
    EXPECT_ERRNO(EINVAL, munmap(at + 1, PAGE));
    EXPECT_ERRNO(EINVAL, mprotect(at + 1, PAGE, PROT_READ));
    EXPECT_ERRNO(EINVAL, madvise(at + 1, PAGE, MADV_DONTNEED));
    EXPECT_ERRNO(EINVAL, madvise(at, PAGE, 12345));
    if (!inject_now()) CALL(munmap(at, SIZE));
    EXPECT_ERRNO(ENOMEM, mprotect(at, PAGE, PROT_READ));
    EXPECT_ERRNO(ENOMEM, madvise(at, PAGE, MADV_DONTNEED));
    errno = 0;
    CHECK(mremap(at, SIZE, 2 * SIZE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT,
          "mremap of unmapped memory: %s", strerror(errno));
}

/* ---- mremap ----------------------------------------------------------------- */

static void remap_grows(void) {
    char *at = filled(SIZE, 10);
    evict_data(at, SIZE);
    char *moved = mremap(at, SIZE, 4 * SIZE, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED, "mremap: %s", strerror(errno));
    verify_piece("grown mapping", moved, 0, SIZE, 10);
    expect_zero("new part", moved + SIZE, 3 * SIZE);
    fill_random(moved, 4 * SIZE, 11);
    evict(moved, 4 * SIZE);
    verify_random("grown mapping", moved, 4 * SIZE, 11);
    if (moved != at) expect_segv("old place", at, false);
    CALL(munmap(moved, 4 * SIZE));
    expect_segv("after munmap", moved + 3 * SIZE, false);
}

static void remap_in_place(void) {
    char *at = filled(2 * SIZE, 12);
    CALL(munmap(at + SIZE, SIZE)); /* room to grow */
    evict_data(at, SIZE);
    char *same = mremap(at, SIZE, SIZE + MIB, 0);
    CHECK(same == at || (same == MAP_FAILED && errno == ENOMEM),
          "mremap in place: got %p for %p, %s", (void *)same, (void *)at, strerror(errno));
    verify_piece("after growing in place", at, 0, SIZE, 12);
    size_t size = same == at ? SIZE + MIB : SIZE;
    if (same == at) expect_zero("new part", at + SIZE, MIB);
    EXPECT(1, mremap(at, size, size, 0) == at);

    /* No space: the neighbour must not be overwritten. */
    char *pair = filled(2 * SIZE, 13);
    errno = 0;
    CHECK(mremap(pair, SIZE, SIZE + PAGE, 0) == MAP_FAILED && errno == ENOMEM,
          "mremap into a neighbour: %s", strerror(errno));
    verify_random("both neighbours", pair, 2 * SIZE, 13);
    CALL(munmap(pair, 2 * SIZE));
    CALL(munmap(at, size));
}

static void remap_shrinks(void) {
    char *at = filled(SIZE, 14);
    evict_data(at, MIB);
    EXPECT(1, mremap(at, SIZE, MIB, 0) == at);
    verify_piece("the remaining part", at, 0, MIB, 14);
    expect_segv("cut off part", at + MIB, false);
    expect_segv("cut off part", at + SIZE - 1, true);
    char *grown = mremap(at, MIB, SIZE, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED, "mremap: %s", strerror(errno));
    expect_zero("grown after shrinking", grown + MIB, SIZE - MIB);
    CALL(munmap(grown, SIZE));
}

static void remap_to_a_place(void) {
    char *at = filled(SIZE, 15), *target = filled(SIZE, 16);
    evict_data(at, SIZE);
    void *moved = mremap(at, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    CHECK(moved == target, "mremap to %p: got %p, %s", (void *)target, moved, strerror(errno));
    verify_random("moved mapping", target, SIZE, 15);
    expect_segv("old place", at, false);
    CALL(munmap(target, SIZE));
}

/* ---- madvise, mincore, mlock ------------------------------------------------- */

static void dont_need_gives_zeros(void) {
    char *at = filled(SIZE, 20);
    evict(at, SIZE);
    if (!inject_now()) CALL(madvise(at + MIB, MIB, MADV_DONTNEED));
    expect_zero("dropped part (out)", at + MIB, MIB);
    verify_piece("before the dropped part", at, 0, MIB, 20);
    verify_piece("behind the dropped part", at, 2 * MIB, SIZE, 20);
    CALL(madvise(at, MIB, MADV_DONTNEED)); /* these pages are resident */
    expect_zero("dropped part (resident)", at, MIB);
    fill_random(at, SIZE, 21);
    evict(at, SIZE);
    verify_random("rewritten after dropping", at, SIZE, 21);
    CALL(munmap(at, SIZE));
}

static void free_keeps_or_zeroes(void) {
    char *at = filled(SIZE, 22);
    CALL(madvise(at, SIZE, MADV_FREE));
    if (inject_now()) at[MIB] ^= 1;
    evict(at, SIZE);
    for (size_t page = 0; page < SIZE; page += PAGE)
        if (*(volatile char *)(at + page) || at[page + 8] || at[page + 16])
            verify_piece("page kept after MADV_FREE", at, page, page + PAGE, 22);
        else
            expect_zero("page dropped after MADV_FREE", at + page, PAGE);
    fill_random(at, SIZE, 23);
    evict(at, SIZE);
    verify_random("written after MADV_FREE", at, SIZE, 23);
    CALL(munmap(at, SIZE));
}

static void hints_change_nothing(void) {
    static const int hints[] = {MADV_NORMAL,     MADV_RANDOM,     MADV_SEQUENTIAL,
                                MADV_WILLNEED,   MADV_NOHUGEPAGE, MADV_DONTFORK,
                                MADV_DOFORK,     MADV_DONTDUMP,   MADV_DODUMP};
    char *at = filled(SIZE, 24);
    evict_data(at, SIZE);
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        CHECK(madvise(at, SIZE, hints[i]) == 0, "madvise %d: %s", hints[i], strerror(errno));
    /* The kernel may refuse these hints. The data must not change. */
    static const int optional[] = {MADV_HUGEPAGE, MADV_COLD, MADV_PAGEOUT, MADV_POPULATE_READ,
                                   MADV_POPULATE_WRITE, MADV_MERGEABLE, MADV_UNMERGEABLE};
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++)
        (void)!madvise(at, SIZE, optional[i]);
    (void)!mlock(at, 64 * 1024);
    (void)!munlock(at, 64 * 1024);
    EXPECT(0, msync(at, SIZE, MS_SYNC));
    evict(at, SIZE);
    verify_random("after all hints", at, SIZE, 24);
    CALL(munmap(at, SIZE));
}

static void residency_is_reported(void) {
    char *at = filled(SIZE, 25);
    unsigned char state[SIZE / PAGE];
    memset(state, 0xee, sizeof state);
    CALL(mincore(at, SIZE, state));
    for (size_t i = 0; i < sizeof state; i++)
        CHECK((state[i] & ~1) == 0, "mincore: page %zu has state %02x", i, state[i]);
    evict_data(at, SIZE);
    CALL(mincore(at, SIZE, state));
    verify_random("after mincore", at, SIZE, 25);
    CALL(munmap(at, SIZE));
    EXPECT_ERRNO(ENOMEM, mincore(at, SIZE, state));
}

/* ---- mprotect ---------------------------------------------------------------- */

static void no_access(void) {
    char *at = filled(SIZE, 30);
    evict_data(at, SIZE);
    CALL(mprotect(at + MIB, MIB, PROT_NONE));
    expect_segv("PROT_NONE", at + MIB, false);
    expect_segv("PROT_NONE", at + 2 * MIB - 1, true);
    verify_piece("before PROT_NONE", at, 0, MIB, 30);
    evict(at, MIB); /* inaccessible pages may be swapped out as well */
    expect_segv("PROT_NONE", at + MIB + 4097, false);
    CALL(mprotect(at + MIB, MIB, PROT_READ | PROT_WRITE));
    verify_random("after PROT_NONE", at, SIZE, 30);
    CALL(munmap(at, SIZE));
}

static void read_only(void) {
    char *at = filled(SIZE, 31);
    evict_data(at, SIZE);
    CALL(mprotect(at, SIZE, PROT_READ));
    expect_segv("write to a page that was out", at + MIB, true);
    verify_random("read only", at, SIZE, 31);
    evict(at, SIZE);
    verify_random("read only, second time", at, SIZE, 31);
    expect_segv("write to a resident page", at + MIB, true);
    CALL(mprotect(at, SIZE, PROT_READ | PROT_WRITE));
    fill_random(at, SIZE, 32);
    evict(at, SIZE);
    verify_random("writable again", at, SIZE, 32);
    CALL(munmap(at, SIZE));

    char *untouched = map_pages(SIZE);
    CALL(mprotect(untouched, SIZE, PROT_READ));
    expect_zero("read only, never written", untouched, SIZE);
    expect_segv("write to a page never written", untouched + SIZE - 1, true);
    CALL(munmap(untouched, SIZE));
}

/* Reserves memory, then makes it accessible piece by piece, like allocators and thread stacks. */
static void reserve_then_open(void) {
    char *at = mmap(NULL, 64 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED, "mmap PROT_NONE: %s", strerror(errno));
    expect_segv("reserved", at + MIB, false);
    for (size_t i = 0; i < 8; i++) {
        char *piece = at + i * 8 * MIB;
        CALL(mprotect(piece, MIB, PROT_READ | PROT_WRITE));
        fill_random(piece, MIB, 40 + i);
    }
    evict_data(at, MIB);
    for (size_t i = 0; i < 8; i++) {
        verify_random("opened piece", at + i * 8 * MIB, MIB, 40 + i);
        expect_segv("behind an opened piece", at + i * 8 * MIB + MIB, true);
    }
    CALL(munmap(at, 64 * MIB));
}

/* Like GHC's runtime, which reserves its heap and commits it piece by piece. */
static void reserve_a_terabyte(void) {
    size_t bytes = ((size_t)1 << 40) + MIB;
    char *at = mmap((void *)0x4200000000, bytes, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED, "mmap PROT_NONE: %s", strerror(errno));
    for (size_t i = 0; i < 8; i++) {
        char *piece = mmap(at + (i << 37), MIB, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(piece == at + (i << 37), "MAP_FIXED: got %p, %s", (void *)piece, strerror(errno));
        fill_random(piece, MIB, 60 + i);
    }
    evict_data(at, MIB);
    for (size_t i = 0; i < 8; i++) {
        verify_random("committed piece", at + (i << 37), MIB, 60 + i);
        expect_segv("behind a committed piece", at + (i << 37) + MIB, true);
    }
    CALL(munmap(at + ((size_t)1 << 37), (size_t)1 << 38));
    expect_segv("unmapped", at + ((size_t)1 << 37), false);
    verify_random("before", at, MIB, 60);
    verify_random("behind", at + ((size_t)3 << 37), MIB, 63);
    CALL(munmap(at, bytes));
}

/* Like wasmtime's pooling allocator: slots of a large reservation are opened by mprotect. */
static void reserve_four_terabytes(void) {
    size_t bytes = (size_t)4 << 40, apart = bytes / 64;
    char *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED, "mmap PROT_NONE: %s", strerror(errno));
    for (size_t i = 0; i < 64; i++) {
        CALL(mprotect(at + i * apart, MIB / 8, PROT_READ | PROT_WRITE));
        fill_random(at + i * apart, MIB / 8, 70 + i);
    }
    evict_data(at, MIB / 8);
    for (size_t i = 0; i < 64; i++) {
        verify_random("opened piece", at + i * apart, MIB / 8, 70 + i);
        expect_segv("behind an opened piece", at + i * apart + MIB / 8, true);
    }
    CALL(madvise(at, bytes, MADV_DONTNEED));
    expect_zero("given back", at + apart, MIB / 8);
    CALL(munmap(at, bytes));
}

/* ---- MAP_FIXED ----------------------------------------------------------------- */

static void fixed_anonymous(void) {
    char *at = filled(SIZE, 50);
    evict_data(at, MIB);
    void *over = mmap(at + MIB, MIB, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(over == at + MIB, "MAP_FIXED: got %p, %s", over, strerror(errno));
    expect_zero("mapped over", at + MIB, MIB);
    verify_piece("before", at, 0, MIB, 50);
    verify_piece("behind", at, 2 * MIB, SIZE, 50);
    fill_random(over, MIB, 51);
    evict(at, SIZE);
    verify_random("mapped over", over, MIB, 51);
    errno = 0;
    CHECK(mmap(at, MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) ==
                  MAP_FAILED && errno == EEXIST,
          "MAP_FIXED_NOREPLACE over a mapping: %s", strerror(errno));
    void *closed = mmap(at + 2 * MIB, MIB, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    CHECK(closed == at + 2 * MIB, "MAP_FIXED PROT_NONE: %s", strerror(errno));
    expect_segv("closed by MAP_FIXED", at + 2 * MIB, false);
    verify_piece("behind", at, 3 * MIB, SIZE, 50);
    CALL(munmap(at, SIZE));
}

static int file_with(size_t bytes, uint64_t seed) {
    const char *directory = getenv("TMPDIR");
    int file = CALL(open(directory ? directory : "/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    char *data = allocate(bytes);
    fill_random(data, bytes, seed);
    EXPECT(bytes, write(file, data, bytes));
    free(data);
    return file;
}

static void fixed_file(void) {
    int file = file_with(MIB, 52);
    char *at = filled(SIZE, 53);
    evict_data(at, MIB);
    void *over = mmap(at + MIB, MIB, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0);
    CHECK(over == at + MIB, "MAP_FIXED of a file: got %p, %s", over, strerror(errno));
    verify_random("file mapped over", over, MIB, 52);
    expect_segv("write to the file's pages", over, true);
    evict(at, MIB);
    verify_piece("before the file", at, 0, MIB, 53);
    verify_random("file mapped over", over, MIB, 52);
    verify_piece("behind the file", at, 2 * MIB, SIZE, 53);
    /* System calls must also use the file's pages, and not the earlier content. */
    int ends[2];
    char got[4000];
    CALL(pipe2(ends, O_CLOEXEC));
    EXPECT(sizeof got, write(ends[1], over, sizeof got));
    EXPECT(sizeof got, read(ends[0], got, sizeof got));
    verify_random("write from the file's pages", got, sizeof got, 52);
    CALL(close(ends[0]));
    CALL(close(ends[1]));
    CALL(munmap(at, SIZE));
    expect_segv("after munmap", over, false);
    CALL(close(file));
}

/* ---- unmanaged memory ------------------------------------------------------------ */

static void file_and_shared_mappings(void) {
    int file = file_with(SIZE, 60);
    char *private = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    char *shared = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(private != MAP_FAILED && shared != MAP_FAILED, "mmap: %s", strerror(errno));
    verify_random("private file mapping", private, SIZE, 60);
    fill_random(private, SIZE, 61);
    verify_random("shared file mapping", shared, SIZE, 60);
    fill_random(shared, SIZE, 62);
    char *anonymous = map_unmanaged(SIZE);
    fill_random(anonymous, SIZE, 63);
    sweep();
    if (inject_now()) shared[MIB] ^= 1;
    verify_random("private file mapping", private, SIZE, 61);
    verify_random("shared anonymous mapping", anonymous, SIZE, 63);
    char got[PAGE];
    EXPECT(PAGE, pread(file, got, PAGE, MIB));
    for (size_t i = 0; i < PAGE / 8; i++) {
        uint64_t word;
        memcpy(&word, got + i * 8, 8);
        CHECK(word == random_word(62, MIB / 8 + i), "file behind the shared mapping: word %zu", i);
    }
    CALL(munmap(private, SIZE));
    CALL(munmap(shared, SIZE));
    CALL(munmap(anonymous, SIZE));
    CALL(close(file));
}

#ifdef __x86_64__
/* Like a just-in-time compiler: code is written as data and later made executable. */
static void code_pages(void) {
    char *at = map_pages(SIZE);
    for (size_t page = 0; page < SIZE / PAGE; page++) {
        unsigned char code[] = {0xb8, 0, 0, 0, 0, 0xc3}; /* mov eax, page; ret */
        uint32_t value = (uint32_t)page;
        memcpy(code + 1, &value, 4);
        memcpy(at + page * PAGE, code, sizeof code);
    }
    evict(at, SIZE);
    if (inject_now()) at[100 * PAGE + 1] ^= 1;
    CALL(mprotect(at, SIZE, PROT_READ | PROT_EXEC));
    for (int round = 0; round < 2; round++) {
        for (size_t page = 0; page < SIZE / PAGE; page++) {
            int (*function)(void);
            void *entry = at + page * PAGE;
            memcpy(&function, &entry, sizeof function);
            EXPECT((int)page, function());
        }
        evict(at, SIZE);
    }
    CALL(munmap(at, SIZE));
    void *mixed = mmap(NULL, SIZE, PROT_READ | PROT_WRITE | PROT_EXEC,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mixed != MAP_FAILED, "mmap executable: %s", strerror(errno));
    memcpy(mixed, "\xb8\x2a\x00\x00\x00\xc3", 6);
    sweep();
    int (*function)(void);
    memcpy(&function, &mixed, sizeof function);
    EXPECT(42, function());
    CALL(munmap(mixed, SIZE));
}
#endif

static void sparse(void) {
    size_t bytes = (size_t)64 << 30;
    char *at = map_pages(bytes);
    uint64_t random = 70;
    enum { TOUCHED = 2000 };
    for (size_t i = 0; i < TOUCHED; i++) {
        size_t offset = next_random(&random) % (bytes / 8) * 8;
        memcpy(at + offset, &offset, 8);
    }
    evict(at, PAGE);
    random = 70;
    for (size_t i = 0; i < TOUCHED; i++) {
        size_t offset = next_random(&random) % (bytes / 8) * 8, got;
        if (i == TOUCHED / 2 && inject_now()) at[offset] ^= 1;
        memcpy(&got, at + offset, 8);
        CHECK(got == offset, "sparse: at %p expected %zx, got %zx", (void *)(at + offset), offset,
              got);
    }
    for (size_t i = 0; i < 100; i++) { /* other pages, never written */
        size_t page = next_random(&random) % (bytes / PAGE) * PAGE;
        (void)*(volatile char *)(at + page);
    }
    CALL(munmap(at, bytes));
    expect_segv("after munmap", at + bytes / 2, false);
}

/* ---- brk ----------------------------------------------------------------------- */

static void program_break(void) {
    char *start = sbrk(0);
    char *old = sbrk(MIB);
    CHECK(old == start, "sbrk: expected %p, got %p (%s)", (void *)start, (void *)old,
          strerror(errno));
    EXPECT(1, (char *)sbrk(0) == start + MIB);
    expect_zero("new break", start, MIB);
    fill_random(start, MIB, 80);
    evict_data(start, MIB);
    verify_random("break", start, MIB, 80);
    CALL(brk(start + 2 * MIB));
    fill_random(start + MIB, MIB, 81);
    evict(start, 2 * MIB);
    verify_random("break", start, MIB, 80);
    verify_random("raised break", start + MIB, MIB, 81);
    CHECK(sbrk(-(intptr_t)(2 * MIB)) == start + 2 * MIB, "sbrk down: %s", strerror(errno));
    EXPECT(1, sbrk(0) == start);
    CALL(brk(start + MIB));
    char *page = (char *)(((uintptr_t)start + PAGE - 1) / PAGE * PAGE);
    expect_zero("break raised again", page, MIB - PAGE);
    CALL(brk(start));
    EXPECT_ERRNO(ENOMEM, brk((void *)(uintptr_t)-PAGE));
}

/* ---- malloc ---------------------------------------------------------------------- */

static void calloc_is_zero(void) {
    for (size_t size = 16; size <= 32 * MIB; size *= 4) {
        enum { BLOCKS = 16 };
        size_t blocks = size > MIB ? 2 : BLOCKS;
        char *at[BLOCKS];
        for (int round = 0; round < 2; round++) {
            for (size_t i = 0; i < blocks; i++) {
                at[i] = calloc(size / 8, 8);
                CHECK(at[i], "calloc of %zu: %s", size, strerror(errno));
                if (round && i && inject_now()) at[i][size / 2] = 1;
                expect_zero("calloc", at[i], size);
                memset(at[i], 0xff, size);
            }
            if (round == 0 && size >= MIB) evict(at[0], size);
            for (size_t i = 0; i < blocks; i++) free(at[i]);
        }
    }
}

static void realloc_keeps(void) {
    char *at = NULL;
    size_t old = 0;
    for (size_t size = 1; size <= 64 * MIB; size = size * 3 + 5) {
        at = realloc(at, size);
        CHECK(at, "realloc to %zu: %s", size, strerror(errno));
        verify_piece("grown by realloc", at, 0, old / 8 * 8, 90);
        fill_random(at, size, 90);
        if (size > 64 * 1024) evict_data(at, size);
        old = size;
    }
    for (size_t size = old / 3; size > 8; size /= 3) {
        at = realloc(at, size);
        CHECK(at, "realloc to %zu: %s", size, strerror(errno));
        verify_piece("shrunk by realloc", at, 0, size / 8 * 8, 90);
    }
    free(at);
    at = realloc(NULL, 100);
    CHECK(at, "realloc of NULL");
    free(at);
}

static void alignment(void) {
    for (size_t align = sizeof(void *); align <= 4 * MIB; align *= 2) {
        void *at[3] = {NULL, aligned_alloc(align, align * 2), memalign(align, align + 1)};
        EXPECT(0, posix_memalign(&at[0], align, 3 * align + 1));
        if (inject_now()) at[0] = (char *)at[0] + 1;
        for (size_t i = 0; i < 3; i++) {
            CHECK(at[i] && (uintptr_t)at[i] % align == 0, "aligned to %zu: got %p (way %zu)", align,
                  at[i], i);
            fill_random(at[i], align, align);
            CHECK(malloc_usable_size(at[i]) >= align, "usable size %zu of %zu",
                  malloc_usable_size(at[i]), align);
        }
        if (align == MIB) evict(at[0], align);
        for (size_t i = 0; i < 3; i++) {
            verify_random("aligned block", at[i], align, align);
            free(at[i]);
        }
    }
    void *at = NULL;
    EXPECT(EINVAL, posix_memalign(&at, 3, 100));
    at = valloc(100);
    CHECK(at && (uintptr_t)at % PAGE == 0, "valloc: %p", at);
    free(at);
}

static void usable_size(void) {
    for (size_t size = 0; size < 10 * MIB; size = size * 2 + 1) {
        char *at = malloc(size);
        size_t usable = malloc_usable_size(at);
        CHECK(at && usable >= size, "usable size %zu of %zu", usable, size);
        char *neighbour = allocate(size + 1);
        fill_random(at, usable, size);
        evict_data(at, usable < MIB && size ? usable : 1);
        verify_bytes("neighbour", neighbour, size + 1, 0xa5);
        verify_random("whole usable size", at, usable, size);
        free(at);
        free(neighbour);
    }
}

static void impossible_sizes(void) {
    /* Volatile, so that the compiler does not compute the result. */
    volatile size_t huge = SIZE_MAX / 2;
    if (inject_now()) huge = 100;
    errno = 0;
    CHECK(malloc(huge) == NULL && errno == ENOMEM, "malloc of half of the address space");
    errno = 0;
    CHECK(calloc(huge, 4) == NULL && errno == ENOMEM, "calloc that overflows");
    char *at = allocate(100);
    fill_random(at, 100, 91);
    CHECK(realloc(at, huge) == NULL, "realloc to half of the address space");
    verify_random("after a refused realloc", at, 100, 91);
    free(at);
    free(NULL);
    CHECK(mmap(NULL, huge & ~(PAGE - 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
               0) == MAP_FAILED,
          "mmap of half of the address space");
}

/* Blocks of all sizes are allocated and freed while most of them are swapped out. */
static void random_blocks(void) {
    enum { BLOCKS = 4000 };
    struct { char *at; size_t size; uint64_t seed; } *blocks = calloc(BLOCKS, sizeof *blocks);
    CHECK(blocks, "calloc");
    uint64_t random = 92;
    for (size_t n = 0; n < 40000; n++) {
        size_t i = next_random(&random) % BLOCKS;
        if (blocks[i].at) {
            verify_random("block", blocks[i].at, blocks[i].size, blocks[i].seed);
            free(blocks[i].at);
        }
        /* Most blocks are small. */
        uint64_t draw = next_random(&random);
        size_t size = draw % 100 ? draw % 2000 + 1 : draw % (512 * 1024) + 1;
        blocks[i].at = malloc(size);
        blocks[i].size = size;
        blocks[i].seed = draw;
        CHECK(blocks[i].at, "malloc of %zu: %s", size, strerror(errno));
        fill_random(blocks[i].at, size, draw);
        if (n % 10000 == 9999) evict_data(blocks[i].at, size);
    }
    for (size_t i = 0; i < BLOCKS; i++) {
        if (blocks[i].at) verify_random("block", blocks[i].at, blocks[i].size, blocks[i].seed);
        free(blocks[i].at);
    }
    free(blocks);
}

static const struct check_case cases[] = {
    {"unmapped-memory-faults", unmapped_memory_faults},
    {"partial-munmap", partial_munmap},
    {"memory-is-fresh-again", memory_is_fresh_again},
    {"many-mappings", many_mappings},
    {"refused-calls", refused_calls},
    {"remap-grows", remap_grows},
    {"remap-in-place", remap_in_place},
    {"remap-shrinks", remap_shrinks},
    {"remap-to-a-place", remap_to_a_place},
    {"dont-need-gives-zeros", dont_need_gives_zeros},
    {"free-keeps-or-zeroes", free_keeps_or_zeroes},
    {"hints-change-nothing", hints_change_nothing},
    {"residency-is-reported", residency_is_reported},
    {"no-access", no_access},
    {"read-only", read_only},
    {"reserve-then-open", reserve_then_open},
    {"reserve-a-terabyte", reserve_a_terabyte},
    {"reserve-four-terabytes", reserve_four_terabytes},
    {"fixed-anonymous", fixed_anonymous},
    {"fixed-file", fixed_file},
    {"file-and-shared-mappings", file_and_shared_mappings},
#ifdef __x86_64__
    {"code-pages", code_pages},
#endif
    {"sparse", sparse},
    {"program-break", program_break},
    {"calloc-is-zero", calloc_is_zero},
    {"realloc-keeps", realloc_keeps},
    {"alignment", alignment},
    {"usable-size", usable_size},
    {"impossible-sizes", impossible_sizes},
    {"random-blocks", random_blocks},
};
CHECK_MAIN(cases)
