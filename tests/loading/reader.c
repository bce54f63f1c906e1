/* Reads all of another process's data in pieces of 64 KiB and of two ranges, like transport
 * layers, and prints how many bytes are wrong or missing. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#define PIECE (64UL << 10)

int main(int count, char **words)
{
    if (count < 4)
        return 2;
    int pid = atoi(words[1]);
    char *from = (char *)strtoul(words[2], NULL, 0);
    size_t bytes = strtoul(words[3], NULL, 0), wrong = 0, unread = 0;
    static unsigned char into[PIECE];
    for (size_t at = 0; at < bytes; at += PIECE) {
        struct iovec ours = { into, PIECE };
        struct iovec theirs[2] = { { from + at, PIECE / 4 }, { from + at + PIECE / 4, PIECE * 3 / 4 } };
        memset(into, 0xee, PIECE);
        if (process_vm_readv(pid, &ours, 1, theirs, 2, 0) != (ssize_t)PIECE)
            unread++;
        for (size_t in = 0; in < PIECE; in += 4096)
            wrong += into[in] != (unsigned char)((at + in) >> 12);
    }
    struct iovec ours = { into, 8 }, nowhere = { (void *)8, 8 };
    ssize_t got = process_vm_readv(pid, &ours, 1, &nowhere, 1, 0);
    printf("unread %zu, wrong %zu, nowhere %zd %s\n", unread, wrong, got, strerror(errno));
    return 0;
}
