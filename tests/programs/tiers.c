/* Every kind of page (zero, other same-filled, compressible, incompressible) is swapped out,
 * and verified word by word after it is swapped in. This is repeated after the kind of each page
 * has changed and after one word of each page was rewritten.
 *
 *   tiers [--mib N] [--pressure MIB] */
#include "check.h"

enum kind { ZERO, WORD, ALMOST_WORD, TEXT, RANDOM, MIXED, KINDS };

static const uint64_t REPEATED[] = {
    0x3ff0000000000000u, /* 1.0: common in an array of doubles */
    0x0123456789abcdefu, /* no shorter repeated pattern */
    0x2020202020202020u, 0x00000000ffffffffu, UINT64_MAX, 1,
};

static uint64_t word_of(enum kind kind, uint64_t generation, size_t index) {
    size_t page = index / WORDS_PER_PAGE, in_page = index % WORDS_PER_PAGE;
    uint64_t repeated = REPEATED[(page + generation) % (sizeof REPEATED / sizeof *REPEATED)];
    switch (kind) {
    case ZERO:
        return 0;
    case WORD:
        return repeated;
    case ALMOST_WORD: {
        /* One word differs. Its position may be the first or the last. */
        size_t odd = page % 3 == 0 ? 0 : page % 3 == 1 ? WORDS_PER_PAGE - 1
                                                       : mix64(page) % WORDS_PER_PAGE;
        return in_page == odd ? ~repeated : repeated;
    }
    case TEXT: {
        /* A few words of a small vocabulary: compresses like prose. */
        static const char vocabulary[16][9] = {
            "the page", " is away", "; a read", " of disk", " returns", " and the",
            " pool is", " full of", " cold, o", "ld bytes", " that no", " thread ",
            "has read", " lately.", "\nAgain, ", "again.\n ",
        };
        uint64_t word;
        memcpy(&word, vocabulary[random_word(generation, index) % 16], 8);
        return word;
    }
    case RANDOM:
        return random_word(generation, index);
    case MIXED:
        return word_of((enum kind)(mix64(page * 31 + generation) % MIXED), generation, index);
    default:
        abort();
    }
}

static void fill(uint64_t *at, size_t words, enum kind kind, uint64_t generation) {
    for (size_t i = 0; i < words; i++) at[i] = word_of(kind, generation, i);
}

/* Returns true for the word of each page that the partial rewrite changes. */
static bool rewritten(size_t index) {
    return index % WORDS_PER_PAGE == (index / WORDS_PER_PAGE * 5) % WORDS_PER_PAGE;
}

static void verify(const volatile uint64_t *at, size_t words, enum kind kind, uint64_t generation,
                   bool partly_rewritten) {
    for (size_t i = 0; i < words; i++) {
        uint64_t expected = word_of(kind, generation, i), got = at[i];
        if (partly_rewritten && rewritten(i)) expected = i ^ 0x5555;
        CHECK(got == expected,
              "kind %d generation %llu: at %p (word %zu) expected %016llx, got %016llx", kind,
              (unsigned long long)generation, (void *)&at[i], i, (unsigned long long)expected,
              (unsigned long long)got);
    }
}

static void out_and_in(enum kind kind, bool from_malloc) {
    size_t bytes = option_number("mib", 16) * MIB, words = bytes / 8;
    uint64_t *at = from_malloc ? allocate(bytes) : map_pages(bytes);

    fill(at, words, kind, 1);
    evict_data(at, bytes);
    verify(at, words, kind, 1, false);

    /* The same pages now have content of another kind: none of the old copy may be visible. */
    enum kind next = (enum kind)((kind + 1) % KINDS);
    fill(at, words, next, 2);
    evict_data(at, bytes);
    verify(at, words, next, 2, false);

    for (size_t i = 0; i < words; i++)
        if (rewritten(i)) at[i] = i ^ 0x5555;
    evict_data(at, bytes);
    verify(at, words, next, 2, true);
    /* The pages were only read after the swap-in, so the stored copy may be used again. */
    evict_data(at, bytes);
    verify(at, words, next, 2, true);

    if (from_malloc)
        free(at);
    else
        CALL(munmap(at, bytes));
}

static void malloc_zero(void) { out_and_in(ZERO, true); }
static void malloc_word(void) { out_and_in(WORD, true); }
static void malloc_almost_word(void) { out_and_in(ALMOST_WORD, true); }
static void malloc_text(void) { out_and_in(TEXT, true); }
static void malloc_random(void) { out_and_in(RANDOM, true); }
static void malloc_mixed(void) { out_and_in(MIXED, true); }
static void mmap_zero(void) { out_and_in(ZERO, false); }
static void mmap_word(void) { out_and_in(WORD, false); }
static void mmap_almost_word(void) { out_and_in(ALMOST_WORD, false); }
static void mmap_text(void) { out_and_in(TEXT, false); }
static void mmap_random(void) { out_and_in(RANDOM, false); }
static void mmap_mixed(void) { out_and_in(MIXED, false); }

static const struct check_case cases[] = {
    {"malloc-zero", malloc_zero},     {"malloc-word", malloc_word},
    {"malloc-almost-word", malloc_almost_word},
    {"malloc-text", malloc_text},     {"malloc-random", malloc_random},
    {"malloc-mixed", malloc_mixed},   {"mmap-zero", mmap_zero},
    {"mmap-word", mmap_word},         {"mmap-almost-word", mmap_almost_word},
    {"mmap-text", mmap_text},         {"mmap-random", mmap_random},
    {"mmap-mixed", mmap_mixed},
};
CHECK_MAIN(cases)
