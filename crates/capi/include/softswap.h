/* softswap: memory regions larger than DRAM.
 *
 * A pool is a budget of DRAM with swap space on disk. Its regions are plain memory. Pages that
 * are not used for a while are compressed, then written to the disk, encrypted and authenticated.
 * A touch faults them in again.
 *
 * All functions may be called from any thread, but not from signal handlers. Functions that return
 * int return 0 or a negative errno; softswap_strerror_detail() gives the reason. Sizes are in
 * bytes.
 *
 * A system call cannot wait for an evicted page, and fails with EFAULT: softswap_pin() its buffers,
 * or create the pool with guard_calls. A touch of an evicted page raises SIGBUS, or SIGSEGV where
 * userfaultfd is refused, as in containers. The library handles it, and passes such signals for
 * other reasons to the handler that was installed before the first pool. A thread that touches a
 * region must not block the signal, and needs 64 KiB of its stack.
 *
 * Use softswap_advise() for advice. A madvise() that drops pages of a region (MADV_DONTNEED) loses
 * pages that only DRAM holds. A later touch of one, perhaps after seconds, stops the program.
 *
 * A forked child does not inherit pools: a touch of a region raises SIGSEGV, and calls are refused.
 * It may create pools of its own. fork() waits while another thread creates or destroys a pool. Do
 * not fork while another thread is in any other call of the library.
 *
 * Link with -lsoftswap_c (pkg-config softswap_c). */
#ifndef SOFTSWAP_H
#define SOFTSWAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A pool. The handle is never dereferenced, and never reused. */
typedef struct softswap_pool softswap_pool;

/* Zero the structure, then set size. Zero selects the default, also in later versions' fields. */
struct softswap_options {
    size_t size;           /* sizeof(struct softswap_options) */
    uint64_t memory_bytes; /* limit on DRAM, at least 8 MiB; 0 selects 1 GiB, or half of
                              the available memory if that is less */
    const char *swap;      /* "DIRECTORY" on a disk, "DIRECTORY:SIZE", or a swap file or device,
                              separated by line breaks. NULL selects "/var/tmp". Read during the
                              call only. */
    uint32_t no_encrypt;   /* 1 disables encryption of data on the disk */
    uint32_t guard_calls;  /* 1 allows system calls to use regions directly, except calls that name
                              their buffers in a structure (readv, sendmsg). Installs a seccomp
                              filter for the whole process, which cannot be removed. */
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
    SOFTSWAP_WILLNEED = 0,   /* faulted in now, up to half of the budget */
    SOFTSWAP_COLD = 1,       /* evicted before other pages */
    SOFTSWAP_DONTNEED = 2,   /* reads as zero; EBUSY if a part of the region is pinned */
    SOFTSWAP_SEQUENTIAL = 3, /* readahead starts with the first touch */
    SOFTSWAP_RANDOM = 4,     /* a touch reads no other page */
    SOFTSWAP_NORMAL = 5      /* the order is detected (default) */
};

/* Creates a pool; options may be NULL. The caller owns *pool until softswap_pool_destroy(). ENOMEM
 * for too little memory_bytes, or too many pools; ENOENT, EACCES, ENOSPC and the like for swap
 * (EINVAL for a tmpfs, which is DRAM); ENOSYS if the kernel lacks a required feature. */
int softswap_pool_create(const struct softswap_options *options, softswap_pool **pool);

/* Releases the handle; the pool is freed when its last region is unmapped. Ignores NULL. EINVAL
 * for a pool that was destroyed before. */
int softswap_pool_destroy(softswap_pool *pool);

/* Maps len zeroed bytes at *address, until softswap_unmap(). */
int softswap_map(softswap_pool *pool, size_t len, void **address);

/* Unmaps a whole region, given its first address. Ignores NULL. EBUSY if a part of it is pinned;
 * EINVAL if no region is mapped there. */
int softswap_unmap(void *address);

/* Announces the use of a range of one region: enum softswap_advice. */
int softswap_advise(void *address, size_t len, int advice);

/* Keeps a range in DRAM, at its address, until softswap_unpin() of *pin. EAGAIN if the limit on
 * pins is reached: a quarter of the part of the budget that is for pages. */
int softswap_pin(void *address, size_t len, uint64_t *pin);
int softswap_unpin(uint64_t pin);

/* Changes the limit on DRAM: it rises at once, and falls as pages are evicted. */
int softswap_set_memory(softswap_pool *pool, uint64_t bytes);

int softswap_pool_stats(softswap_pool *pool, struct softswap_stats *stats);

/* Returns all figures as one JSON object. *needed, unless needed is NULL, becomes its length with
 * the terminating zero. */
int softswap_pool_stats_json(softswap_pool *pool, char *buffer, size_t len, size_t *needed);

/* Returns the reason of the calling thread's last refusal, in English; empty if there was none. The
 * text is valid until the thread's next refusal. Do not free it. */
const char *softswap_strerror_detail(void);

#ifdef __cplusplus
}
#endif

#endif
