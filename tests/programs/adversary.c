/* A child process of another user attacks its parent, with knowledge of softswap's source. It
 * searches for data that the parent writes after the fork. (worker.c tests rings, writes and
 * raw forks.)
 *
 *   adversary --swap DIR [--rounds N] [--seconds N]
 *
 * The parent fills memory, forks, and writes pages with a marker until the child has finished
 * its rounds. The child drops its privileges and, in each round, searches
 *   - each mapping and each descriptor that it has, for the marker,
 *   - the parent itself (/proc/PID/mem, process_vm_readv, pidfd_getfd, ptrace),
 *   - the swap file, decrypted with each 32 bytes of its own memory that may be a key,
 *     and with the keys that follow from these by the tree of key epochs.
 * The program holds the marker inverted, so a copy of it can only come from the parent. The
 * same attack must open pages that were sealed before the fork, for which the child has the
 * keys: otherwise the test would always pass.
 *
 * Exits with 1 if the child found such data or the attack is too weak, and with 3 if the
 * processor has no AES instructions. */
#include "check.h"
#include <immintrin.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define BEFORE_PAGES ((size_t)8192)
#define AFTER_PAGES ((size_t)8192)
#define TEXT 16

/* The markers, inverted. */
static const unsigned char hidden[2][TEXT] = {
    {0x9d, 0x9a, 0x99, 0x90, 0x8d, 0x9a, 0xdf, 0x8b, 0x97, 0x9a, 0xdf, 0x99, 0x90, 0x8d, 0x94, 0xd1},
    {0x9e, 0x99, 0x8b, 0x9a, 0x8d, 0xdf, 0xdf, 0x8b, 0x97, 0x9a, 0xdf, 0x99, 0x90, 0x8d, 0x94, 0xd1},
};
enum { BEFORE, AFTER };

static void write_pages(unsigned char *memory, size_t pages, int which, unsigned round) {
    for (size_t page = 0; page < pages; page++) {
        unsigned char *at = memory + page * PAGE;
        for (int i = 0; i < TEXT; i++) at[i] = hidden[which][i] ^ 0xff;
        memset(at + TEXT, 7, PAGE - TEXT);
        memcpy(at + 64, &page, sizeof page);
        memcpy(at + 72, &round, sizeof round);
    }
}

static bool is_marker(const unsigned char *at, int which) {
    for (int i = 0; i < TEXT; i++)
        if (at[i] + hidden[which][i] != 0xff) return false;
    return true;
}

static size_t markers_in(const unsigned char *bytes, size_t len, int which) {
    size_t found = 0;
    const unsigned char first = hidden[which][0] ^ 0xff, *end = bytes + len;
    for (const unsigned char *at = bytes; (size_t)(end - at) >= TEXT; at++) {
        at = memchr(at, first, (size_t)(end - at) - TEXT + 1);
        if (at == NULL) break;
        found += is_marker(at, which);
    }
    return found;
}

/* Bypasses the C library, so that softswap hides nothing from this process. */
static long raw(long number, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 asm("r10") = d, r8 asm("r8") = e, r9 asm("r9") = f;
    asm volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8),
                 "r"(r9) : "rcx", "r11", "memory");
    return result;
}

/* Buffer of the child for reads. It is unmanaged. */
static unsigned char piece[MIB] __attribute__((aligned(4096)));
static size_t found_count;

static void learn(const char *where, const char *what, size_t count) {
    if (count == 0) return;
    found_count += count;
    fprintf(stderr, "adversary: %zu times in %s %s\n", count, where, what);
}

/* ---- ciphers ------------------------------------------------------------- */

#define ROUNDS 14
#define AES __attribute__((target("aes,sse4.1")))

AES static __m128i mixed(__m128i key, __m128i word) {
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    key = _mm_xor_si128(key, _mm_slli_si128(key, 8));
    return _mm_xor_si128(key, word);
}

AES static void expand(const unsigned char *bytes, __m128i *keys) {
    keys[0] = _mm_loadu_si128((const __m128i *)bytes);
    keys[1] = _mm_loadu_si128((const __m128i *)(bytes + 16));
#define STEP(i, constant) \
    keys[i] = mixed(keys[i - 2], _mm_shuffle_epi32(_mm_aeskeygenassist_si128(keys[i - 1], constant), 0xff))
#define HALF(i) \
    keys[i] = mixed(keys[i - 2], _mm_shuffle_epi32(_mm_aeskeygenassist_si128(keys[i - 1], 0), 0xaa))
    STEP(2, 1), HALF(3), STEP(4, 2), HALF(5), STEP(6, 4), HALF(7), STEP(8, 8), HALF(9);
    STEP(10, 16), HALF(11), STEP(12, 32), HALF(13), STEP(14, 64);
}

/* Decrypts the first block of a page that was sealed for a slot. */
AES static void first_block(const __m128i *keys, uint64_t slot, uint32_t generation,
                            const unsigned char *sealed, unsigned char *plain) {
    unsigned char counter[16] = {0};
    memcpy(counter, &slot, 8);
    memcpy(counter + 8, &generation, 4);
    counter[15] = 2;
    __m128i block = _mm_xor_si128(_mm_loadu_si128((__m128i *)counter), keys[0]);
    for (int i = 1; i < ROUNDS; i++) block = _mm_aesenc_si128(block, keys[i]);
    block = _mm_aesenclast_si128(block, keys[ROUNDS]);
    block = _mm_xor_si128(block, _mm_loadu_si128((const __m128i *)sealed));
    _mm_storeu_si128((__m128i *)plain, block);
}

static uint32_t turned(uint32_t x, int by) { return x >> by | x << (32 - by); }

/* Returns the first 32 bits after the binary point. */
static uint32_t fraction_of_root(unsigned n, int degree) {
    uint64_t root = 0;
    for (uint64_t bit = (uint64_t)1 << 38; bit; bit >>= 1) {
        unsigned __int128 power = root | bit;
        for (int i = 1; i < degree; i++) power *= root | bit;
        if (power <= (unsigned __int128)n << 32 * degree) root |= bit;
    }
    return (uint32_t)root;
}

/* SHA-256 of at most 55 bytes. */
static void sha256(const unsigned char *bytes, size_t len, unsigned char *hash) {
    static uint32_t k[64], start[8];
    if (k[0] == 0)
        for (int n = 2, count = 0; count < 64; n++) {
            int prime = 1;
            for (int i = 2; i * i <= n; i++) prime &= n % i != 0;
            if (!prime) continue;
            if (count < 8) start[count] = fraction_of_root(n, 2);
            k[count++] = fraction_of_root(n, 3);
        }
    unsigned char block[64] = {0};
    memcpy(block, bytes, len);
    block[len] = 0x80;
    block[62] = len * 8 >> 8, block[63] = len * 8;
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | block[4 * i + 1] << 16 | block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7] + (turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3) +
               (turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(s, start, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t one = s[7] + (turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25)) +
                       ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
        uint32_t two = (turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22)) +
                       ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 28);
        s[4] += one, s[0] = one + two;
    }
    for (int i = 0; i < 32; i++) hash[i] = (start[i / 4] + s[i / 4]) >> (24 - i % 4 * 8);
}

/* ---- the swap file ------------------------------------------------------- */

/* Slots to decrypt, written before and after the fork. */
#define SLOTS 8
#define GENERATIONS 6
static struct slot {
    uint64_t number;
    unsigned char sealed[16];
} slots[2][SLOTS];
static size_t slot_count[2];
/* Key epoch of the child: the parent has forked twice before. */
#define EPOCH 2
#define DEPTH 32
static size_t opened[2], derived[2];

static bool opens(const unsigned char *key, int which) {
    __m128i keys[ROUNDS + 1];
    unsigned char plain[16];
    expand(key, keys);
    for (size_t i = 0; i < slot_count[which]; i++)
        for (uint32_t generation = 1; generation <= GENERATIONS; generation++) {
            first_block(keys, slots[which][i].number, generation, slots[which][i].sealed, plain);
            if (is_marker(plain, which)) return true;
        }
    return false;
}

static void try_key(const unsigned char *key) {
    for (int which = BEFORE; which <= AFTER; which++) opened[which] += opens(key, which);
}

/* Treats the bytes as a node of the tree of epochs, at each level. */
static void try_node(const unsigned char *node) {
    static const char label[] = "softswap key epoch";
    unsigned char block[sizeof label + 32], below[32];
    for (uint32_t epoch = 0; epoch <= EPOCH + 2; epoch++) {
        int which = epoch > EPOCH ? AFTER : BEFORE;
        if (which == BEFORE && (epoch != 0 || derived[BEFORE])) continue;
        for (int level = 0; level < DEPTH; level++) {
            memcpy(below, node, 32);
            for (int at = level; at < DEPTH; at++) {
                memcpy(block, label, sizeof label - 1);
                memcpy(block + sizeof label - 1, below, 32);
                block[sizeof label + 31] = epoch >> (DEPTH - 1 - at) & 1;
                sha256(block, sizeof block, below);
            }
            derived[which] += opens(below, which);
        }
    }
}

/* Returns true if most of the 32 bytes differ, as in random keys. */
static bool may_be_key(const unsigned char *bytes) {
    uint64_t seen[4] = {0};
    for (int i = 0; i < 32; i++) seen[bytes[i] / 64] |= (uint64_t)1 << bytes[i] % 64;
    int count = 0;
    for (int i = 0; i < 4; i++) count += __builtin_popcountll(seen[i]);
    return count >= 25;
}

/* ---- searches ------------------------------------------------------- */

static pid_t parent;

static void look_at_range(unsigned long start, unsigned long end, const char *name, bool is_small) {
    static int nodes;
    for (unsigned long at = start; at < end;) {
        size_t len = end - at < sizeof piece ? end - at : sizeof piece;
        struct iovec to = {piece, len}, from = {(void *)at, len};
        long got = raw(SYS_process_vm_readv, getpid(), (long)&to, 1, (long)&from, 1, 0);
        if (got <= 0) {
            at += PAGE;
            continue;
        }
        learn("memory", name, markers_in(piece, (size_t)got, AFTER));
        for (size_t i = 0; i + 32 <= (size_t)got; i += is_small ? 1 : 8) {
            if (!may_be_key(piece + i)) continue;
            try_key(piece + i);
            if (is_small && nodes++ < 20000) try_node(piece + i);
        }
        at += (size_t)got;
    }
}

/* <linux/fs.h>, Linux 6.7. */
struct region {
    uint64_t start, end, categories;
};
struct scan {
    uint64_t size, flags, start, end, walk_end, regions, region_count, most_pages;
    uint64_t inverted, wanted, wanted_any, returned;
};
#define SCAN _IOWR('f', 16, struct scan)
#define IS_PRESENT ((uint64_t)1 << 3)

/* Searches only the present pages of a large mapping. */
static void look_at_present(unsigned long start, unsigned long end, const char *name) {
    static struct region found[256];
    int pagemap = open("/proc/self/pagemap", O_RDONLY);
    struct scan scan = {.size = sizeof scan, .start = start, .end = end,
                        .regions = (uint64_t)found, .region_count = 256,
                        .wanted = IS_PRESENT, .returned = IS_PRESENT};
    while (scan.start < end) {
        long count = raw(SYS_ioctl, pagemap, SCAN, (long)&scan, 0, 0, 0);
        if (count < 0) break;
        for (long i = 0; i < count; i++) look_at_range(found[i].start, found[i].end, name, false);
        if (scan.walk_end <= scan.start) break;
        scan.start = scan.walk_end;
    }
    close(pagemap);
}

static void look_at_memory(void) {
    /* Read the maps completely before the search, because reads change them. */
    static char text[MIB];
    int maps = open("/proc/self/maps", O_RDONLY);
    size_t len = 0;
    for (ssize_t got; len < sizeof text - 1 && (got = read(maps, text + len, sizeof text - 1 - len)) > 0;)
        len += (size_t)got;
    close(maps);
    text[len] = 0;
    for (char *rest = text, *line; (line = strsep(&rest, "\n")) != NULL;) {
        unsigned long start, end;
        char rights[8], name[200] = "";
        if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %199s", &start, &end, rights, name) < 3) continue;
        if (rights[0] != 'r' || (start >= (unsigned long)piece && start < (unsigned long)piece + MIB)) continue;
        if (strstr(name, "[v")) continue;
        if (end - start > 64 * MIB) look_at_present(start, end, name);
        else look_at_range(start, end, name, end - start <= 4 * PAGE && rights[3] == 'p' && !name[0]);
    }
}

#define MOST_SLOTS (1 << 18)
static unsigned char (*heads)[16];

static bool is_swap(const char *name) {
    const char *directory = option_text("swap", "/var/tmp");
    return strncmp(name, directory, strlen(directory)) == 0;
}

/* Searches a file. If it is in the swap directory, also collects slots. */
static void look_at_file(int fd, const char *name, int which, bool is_first) {
    for (off_t at = 0;;) {
        long got = raw(SYS_pread64, fd, (long)piece, sizeof piece, at, 0, 0);
        if (got <= 0) break;
        learn("file", name, markers_in(piece, (size_t)got, AFTER));
        for (long i = 0; is_swap(name) && i + (long)PAGE <= got; i += (long)PAGE) {
            uint64_t number = (uint64_t)(at + i) / PAGE;
            if (number >= MOST_SLOTS || number == 0 || !may_be_key(piece + i)) continue;
            bool is_new = memcmp(heads[number], piece + i, 16) != 0;
            memcpy(heads[number], piece + i, 16);
            bool is_wanted = which == BEFORE ? is_first : is_new;
            /* Choose slots from the whole file. */
            if (is_wanted && slot_count[which] < SLOTS && number % 97 == 0) {
                struct slot *slot = &slots[which][slot_count[which]++];
                slot->number = number;
                memcpy(slot->sealed, piece + i, 16);
            }
        }
        at += got;
    }
}

static void look_at_descriptors(int which, bool is_first) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    int most = limit.rlim_max > 1 << 20 ? 1 << 20 : (int)limit.rlim_max;
    for (int fd = 3; fd < most; fd++) {
        if (raw(SYS_fcntl, fd, F_GETFD, 0, 0, 0, 0) < 0) continue;
        char path[64], name[200] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t len = readlink(path, name, sizeof name - 1);
        name[len > 0 ? len : 0] = 0;
        struct stat status;
        if (raw(SYS_fstat, fd, (long)&status, 0, 0, 0, 0) < 0) continue;
        if (S_ISREG(status.st_mode) || S_ISBLK(status.st_mode))
            look_at_file(fd, name, which, is_first);
        void *mapped = mmap(NULL, MIB, PROT_READ, MAP_SHARED, fd, 0);
        if (mapped != MAP_FAILED) {
            look_at_range((unsigned long)mapped, (unsigned long)mapped + MIB, name, false);
            munmap(mapped, MIB);
        }
    }
}

static void look_at_parent(const void *wanted) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", parent);
    int mem = open(path, O_RDONLY);
    if (mem >= 0) learn("the parent:", "/proc/PID/mem", 1);
    struct iovec to = {piece, PAGE}, from = {(void *)wanted, PAGE};
    if (raw(SYS_process_vm_readv, parent, (long)&to, 1, (long)&from, 1, 0) > 0)
        learn("the parent:", "process_vm_readv", 1);
    long pidfd = raw(SYS_pidfd_open, parent, 0, 0, 0, 0, 0);
    for (int fd = 0; pidfd >= 0 && fd < 1024; fd++)
        if (raw(SYS_pidfd_getfd, pidfd, fd, 0, 0, 0, 0) >= 0) learn("the parent:", "pidfd_getfd", 1);
    close((int)pidfd);
    if (raw(SYS_ptrace, PTRACE_SEIZE, parent, 0, 0, 0, 0) == 0) learn("the parent:", "ptrace", 1);
}

/* ---- parent and child ----------------------------------------------------- */

static void attack(int rounds_done, int finished, const unsigned char *before,
                   const unsigned char *after) {
    bool is_other = getuid() == 0;
    if (is_other) {
        CALL(setresgid(65534, 65534, 65534));
        CALL(setresuid(65534, 65534, 65534));
    }
    prctl(PR_SET_DUMPABLE, 1);
    heads = mmap(NULL, MOST_SLOTS * 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    look_at_descriptors(BEFORE, true);
    size_t tried = 0, rounds = option_number("rounds", 2), seconds = option_number("seconds", 0);
    time_t end = time(NULL) + (time_t)seconds;
    CHECK(write(finished, "s", 1) == 1, "the parent has ended");
    for (size_t round = 0; round < rounds || time(NULL) < end; round++) {
        char done;
        CHECK(read(rounds_done, &done, 1) == 1, "the parent has ended");
        if (is_other) look_at_parent(after);
        look_at_descriptors(AFTER, false);
        /* A read of a permitted page makes the child load the keys that it may have. */
        for (size_t page = 0; page < BEFORE_PAGES; page++)
            CHECK(is_marker(before + page * PAGE, BEFORE), "page %zu is wrong", page);
        look_at_memory();
        tried += slot_count[AFTER];
        slot_count[AFTER] = 0;
    }
    fprintf(stderr, "adversary: before the fork: %zu by keys, %zu by nodes; after it, of %zu slots: %zu, %zu; else %zu\n",
            opened[BEFORE], derived[BEFORE], tried, opened[AFTER], derived[AFTER], found_count);
    CHECK(opened[AFTER] + derived[AFTER] + found_count == 0,
          "the child has found data of the parent");
    CHECK(opened[BEFORE] > 0 && derived[BEFORE] > 0,
          "the attack finds no key from before the fork");
    CHECK(tried > 0, "the swap file has no page from after the fork");
    _exit(0);
}

static pid_t forked_off(void) {
    pid_t pid = CALL(fork());
    if (pid == 0) _exit(0);
    EXPECT(pid, waitpid(pid, NULL, 0));
    return pid;
}

int main(int argc, char **argv) {
    check_argc = argc, check_argv = argv, check_program = "adversary";
    if (!__builtin_cpu_supports("aes")) return 3;
    unsigned char *before = (unsigned char *)map_pages(BEFORE_PAGES * PAGE);
    unsigned char *after = (unsigned char *)map_pages(AFTER_PAGES * PAGE);
    write_pages(before, BEFORE_PAGES, BEFORE, 0);
    /* The second block evicts the first one. */
    memset(after, 1, AFTER_PAGES * PAGE);
    forked_off();
    forked_off();
    int rounds_done[2], finished[2];
    CALL(pipe(rounds_done));
    CALL(pipe(finished));
    parent = getpid();
    pid_t child = CALL(fork());
    if (child == 0) attack(rounds_done[0], finished[1], before, after);
    close(finished[1]);
    char byte;
    CHECK(read(finished[0], &byte, 1) == 1, "the child has ended");
    struct pollfd end = {finished[0], POLLIN, 0};
    for (unsigned round = 1; poll(&end, 1, 0) == 0; round++) {
        write_pages(after, AFTER_PAGES, AFTER, round);
        for (size_t page = 0; page < AFTER_PAGES; page++)
            CHECK(is_marker(after + page * PAGE, AFTER), "page %zu is wrong", page);
        fcntl(rounds_done[1], F_SETFL, O_NONBLOCK);
        if (write(rounds_done[1], "r", 1) < 0) usleep(1000);
    }
    int status;
    EXPECT(child, waitpid(child, &status, 0));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child: %d", status);
    for (size_t page = 0; page < BEFORE_PAGES; page++)
        CHECK(is_marker(before + page * PAGE, BEFORE), "page %zu is wrong", page);
    puts("ok adversary");
}
