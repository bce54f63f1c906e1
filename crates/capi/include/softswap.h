/* softswap: memory regions larger than DRAM.
 *
 * A pool is a budget of DRAM with disk behind it. A region of it is plain memory: pages that
 * have not been touched for a while are compressed, then written to the disk, encrypted and
 * authenticated; a touch brings them back.
 *
 * All functions may be called from any thread, but not from signal handlers. Those that return
 * int return 0, or a negative errno; softswap_strerror_detail() says more. Sizes are in bytes.
 *
 * A system call cannot wait for a page that is out, and fails with EFAULT: softswap_pin() what
 * is handed to one, or make the pool with guard_calls. A touch is a SIGBUS that the library
 * handles; SIGBUS for other reasons goes to the handler that was there before the first pool. A
 * thread needs 64 KiB of its stack where it touches a region.
 *
 * Advice goes by softswap_advise(): a madvise() that drops pages of a region (MADV_DONTNEED) takes
 * away what only DRAM holds, and ends the program at a later touch, perhaps after seconds.
 *
 * A forked child has nothing of its parent's pools: a touch there is a SIGSEGV, and calls are
 * refused. It may make pools of its own: fork() waits while another thread makes or drops one. Do
 * not fork while another thread is in a call of the library otherwise.
 *
 * Link with -lsoftswap_c (pkg-config softswap_c). */
#ifndef SOFTSWAP_H
#define SOFTSWAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A pool. The handle is never dereferenced, and never used again. */
typedef struct softswap_pool softswap_pool;

/* Set all to zero, then size: what is zero has its default, also what a later version adds. */
struct softswap_options {
    size_t size;           /* sizeof(struct softswap_options) */
    uint64_t memory_bytes; /* the limit on DRAM; 0: 1 GiB. At least 8 MiB. */
    const char *swap;      /* "DIRECTORY" on a disk, "DIRECTORY:SIZE", or a swap file or device;
                              several are separated by line breaks. NULL: "/var/tmp". Read in the
                              call only. */
    uint32_t no_encrypt;   /* 1: what is written to the disk is not encrypted */
    uint32_t guard_calls;  /* 1: system calls may be given regions as they are, but those that name
                              their buffers in a structure (readv, sendmsg). It puts a seccomp filter
                              in force for the whole process, for good. */
};

/* Set size before the call. */
struct softswap_stats {
    size_t size; /* sizeof(struct softswap_stats) */
    uint64_t budget_bytes;
    uint64_t used_bytes;
    uint64_t used_peak_bytes;
    uint64_t faults;
    uint64_t faults_disk;
    uint64_t stalled_ns;
    uint64_t written_bytes;
    uint64_t read_bytes;
};

enum softswap_advice {
    SOFTSWAP_WILLNEED = 0,   /* brought in now, as far as half the budget goes */
    SOFTSWAP_COLD = 1,       /* leaves before others */
    SOFTSWAP_DONTNEED = 2,   /* reads as zero; EBUSY while part of the region is pinned */
    SOFTSWAP_SEQUENTIAL = 3, /* the first touch has what follows brought in */
    SOFTSWAP_RANDOM = 4,     /* nothing is brought in along with a touch */
    SOFTSWAP_NORMAL = 5      /* the order is found out, as at first */
};

/* Makes a pool; options may be NULL. The caller owns *pool, until softswap_pool_destroy(). ENOMEM
 * for too little memory_bytes, or too many pools; ENOENT, EACCES, ENOSPC and their like for swap
 * (EINVAL for a tmpfs, which is DRAM); ENOSYS where the kernel lacks what it takes. */
int softswap_pool_create(const struct softswap_options *options, softswap_pool **pool);

/* Gives the pool up; it ends when its last region is unmapped. NULL is nothing. EINVAL for a
 * pool that was destroyed already. */
int softswap_pool_destroy(softswap_pool *pool);

/* Maps len bytes of zeroes, until softswap_unmap() of *address. */
int softswap_map(softswap_pool *pool, size_t len, void **address);

/* Unmaps a whole region by its first address. NULL is nothing. EBUSY while part of it is pinned;
 * EINVAL where there is none (any more). */
int softswap_unmap(void *address);

/* Says what is expected of a range of one region: enum softswap_advice. */
int softswap_advise(void *address, size_t len, int advice);

/* Keeps a range in DRAM, at its address, until softswap_unpin() of *pin. EAGAIN where pins hold
 * all they may: a quarter of what the budget leaves for pages. */
int softswap_pin(void *address, size_t len, uint64_t *pin);
int softswap_unpin(uint64_t pin);

/* Changes the limit on DRAM: up at once, down as pages leave. */
int softswap_set_memory(softswap_pool *pool, uint64_t bytes);

int softswap_pool_stats(softswap_pool *pool, struct softswap_stats *stats);

/* All figures as one JSON object. *needed, if it is asked for, is its length and a zero byte. */
int softswap_pool_stats_json(softswap_pool *pool, char *buffer, size_t len, size_t *needed);

/* The reason of the calling thread's last refusal, in English; empty before. It stays until the
 * thread's next refusal. Do not free it. */
const char *softswap_strerror_detail(void);

#ifdef __cplusplus
}
#endif

#endif
