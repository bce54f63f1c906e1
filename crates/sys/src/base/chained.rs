//! A handler of a library's in front of what a signal did before: that still happens for what is
//! not the library's.

use crate::signals::{self, Handler, Mask, siginfo_t};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// What a signal did before.
pub(crate) struct Before {
    handler: AtomicUsize,
    flags: AtomicU32,
    mask: AtomicUsize,
    /// A handler that was to be called once (SA_RESETHAND) has been.
    is_spent: AtomicBool,
}

impl Before {
    pub(crate) const fn new() -> Before {
        Before {
            handler: AtomicUsize::new(libc::SIG_DFL),
            flags: AtomicU32::new(0),
            mask: AtomicUsize::new(0),
            is_spent: AtomicBool::new(false),
        }
    }

    /// Notes what a signal does and puts `handler` in force, on the stack of whoever is
    /// interrupted, with the signals of `mask` blocked. By the C library's functions: where the
    /// preloaded runtime has the signal, it sees to it that both get what is theirs.
    pub(crate) fn install(
        &self,
        signal: i32,
        handler: Handler,
        mask: Mask,
        flags: i32,
    ) -> io::Result<()> {
        let mut before = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: without a new action the call only writes what there is to `before`.
        if unsafe { libc::sigaction(signal, null(), before.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has succeeded, and so filled it in.
        let before = unsafe { before.assume_init() };
        self.flags.store(before.sa_flags as u32, Ordering::Relaxed);
        // SAFETY: a set of signals begins with the kernel's 64 bits.
        let before_mask = unsafe { (&raw const before.sa_mask).cast::<Mask>().read() };
        self.mask.store(before_mask as usize, Ordering::Relaxed);
        self.handler.store(before.sa_sigaction, Ordering::Release);
        // SAFETY: integers, a set of bits and no pointer: zero is valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | flags;
        // SAFETY: fills in a local, whose set of signals begins with the kernel's 64 bits. The
        // handler is of the type that SA_SIGINFO asks for, and, as it is safe to call, takes care
        // by itself of what it may do.
        let refused = unsafe {
            (&raw mut action.sa_mask).cast::<Mask>().write(mask);
            libc::sigaction(signal, &raw const action, null_mut())
        };
        if refused == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Does what the signal did before. `is_repeated`: the interrupted instruction is made again
    /// and raises the signal again, unless somebody has sent it.
    ///
    /// # Safety
    /// In a handler of the signal, with its `info` and `context`.
    pub(crate) unsafe fn pass_on(
        &self,
        signal: i32,
        info: *mut siginfo_t,
        context: *mut libc::c_void,
        is_repeated: bool,
    ) {
        // SAFETY: the details that the handler was given.
        let was_sent = unsafe { (*info).si_code } <= 0;
        let flags = self.flags.load(Ordering::Relaxed) as i32;
        let handler = self.handler.load(Ordering::Acquire);
        let once = flags & libc::SA_RESETHAND != 0;
        let is_default =
            handler == libc::SIG_DFL || once && self.is_spent.swap(true, Ordering::AcqRel);
        if !is_default && handler == libc::SIG_IGN && was_sent {
            return;
        }
        if is_default || handler == libc::SIG_IGN {
            // The kernel ends the program for what it did itself, ignored or not.
            // SAFETY: the default action runs no code of this program.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            if was_sent || !is_repeated {
                // SAFETY: `info` is what the handler was given.
                let _ = unsafe { signals::raise_with(signal, info) };
            }
            return;
        }
        let mut mask = self.mask.load(Ordering::Relaxed) as Mask;
        if flags & libc::SA_NODEFER == 0 {
            mask |= signals::bit(signal);
        }
        // SAFETY: the context that the handler was given; nobody else has it.
        let interrupted = unsafe { *signals::interrupted_mask(context) };
        signals::with_blocked(interrupted | mask, || {
            if flags & libc::SA_SIGINFO != 0 {
                // SAFETY: who set the action has said by its flag that the handler is of this
                // type.
                let handler: Handler = unsafe { std::mem::transmute(handler) };
                handler(signal, info, context);
            } else {
                // SAFETY: who set the action has said, without the flag, that it is of this type.
                let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
                handler(signal);
            }
        });
    }
}
