/* mmap, munmap, mremap, mprotect, madvise, mlock, mincore. */
#include "abi.h"

static void munmap_of_an_unaligned_address(void)
{
    char *at = memory(256 << 10, 1);
    put_out();
    RESULT(munmap(at + 1, PAGE));
    say("wrong %zu", wrong(at, 256 << 10, 1));
}

static void data_survives_being_put_out(void)
{
    char *at = memory(4 * MIB, 2);
    put_out();
    say("wrong %zu", wrong(at, 4 * MIB, 2));
}

ABI_MAIN(CASE(munmap_of_an_unaligned_address), CASE(data_survives_being_put_out))
