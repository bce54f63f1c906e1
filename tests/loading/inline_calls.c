// A library that maps and transfers memory with its own system-call instructions, like rustix.
long inline_call(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

// Loads the number directly before the instruction, as in inlined code.
long inline_mmap(long address, long len, long prot, long flags) {
    register long r10 __asm__("r10") = flags, r8 __asm__("r8") = -1, r9 __asm__("r9") = 0;
    long result;
    __asm__ volatile("movl $9, %%eax\n\tsyscall"
                     : "=&a"(result)
                     : "D"(address), "S"(len), "d"(prot), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

long inline_mprotect(long address, long len, long prot) { return inline_call(10, address, len, prot, 0, 0, 0); }
long inline_munmap(long address, long len) { return inline_call(11, address, len, 0, 0, 0, 0); }
long inline_mremap(long old, long old_len, long len, long flags) {
    return inline_call(25, old, old_len, len, flags, 0, 0);
}
long inline_madvise(long address, long len, long advice) { return inline_call(28, address, len, advice, 0, 0, 0); }
