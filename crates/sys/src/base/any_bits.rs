//! Types of which every bit pattern is a valid value: those of the kernel's interface.

/// # Safety
/// Every bit pattern is a valid value: the type consists of integers, raw pointers and padding.
pub unsafe trait AnyBits: Copy {
    #[must_use]
    fn zeroed() -> Self {
        // SAFETY: every bit pattern is a valid value.
        unsafe { std::mem::zeroed() }
    }
}

macro_rules! any_bits {
    ($($type:ty),* $(,)?) => {
        // SAFETY: integers, and structures of the C library or the kernel with integers and raw
        // pointers.
        $(unsafe impl AnyBits for $type {})*
    };
}

any_bits! {
    u32, u64, [usize; 2], libc::iovec, libc::mmsghdr, libc::msghdr,
    libc::shmid_ds, libc::siginfo_t, libc::sigset_t, libc::sock_fprog, libc::stack_t, libc::stat, libc::statfs,
    libc::sysinfo, libc::ucontext_t,
}
