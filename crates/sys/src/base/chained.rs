//! A library's signal handler, which performs the previous action for signals of others.

use crate::signals::{self, Context, Handler, Mask, siginfo_t};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

pub(crate) struct Before {
    handler: AtomicUsize,
    flags: AtomicU32,
    mask: AtomicUsize,
    /// True if a one-shot handler (SA_RESETHAND) has run.
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

    /// Records the action of a signal and installs `handler`, by the C library's `sigaction`: a
    /// preloaded runtime interposes that call, and calls both handlers.
    pub(crate) fn install(
        &self,
        signal: i32,
        handler: Handler,
        mask: Mask,
        flags: i32,
    ) -> io::Result<()> {
        let mut before = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: without a new action the call only writes the current one to `before`.
        if unsafe { libc::sigaction(signal, null(), before.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has succeeded, so it has initialized `before`.
        let before = unsafe { before.assume_init() };
        self.flags.store(before.sa_flags as u32, Ordering::Relaxed);
        // SAFETY: the C library's set of signals begins with the kernel's 64 bits.
        let before_mask = unsafe { (&raw const before.sa_mask).cast::<Mask>().read() };
        self.mask.store(before_mask as usize, Ordering::Relaxed);
        self.handler.store(before.sa_sigaction, Ordering::Release);
        // SAFETY: zero is valid for all fields: integers, a set of bits, and no restorer.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | flags;
        // SAFETY: the mask of `action`, a local, begins with the kernel's 64 bits. `handler` has
        // the type that SA_SIGINFO needs. As a safe function it must be sound in a signal handler.
        let refused = unsafe {
            (&raw mut action.sa_mask).cast::<Mask>().write(mask);
            libc::sigaction(signal, &raw const action, null_mut())
        };
        if refused == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Performs the previous action. `is_repeated`: the instruction will raise the signal again.
    pub(crate) fn pass_on(
        &self,
        signal: i32,
        info: &mut siginfo_t,
        context: Context<'_>,
        is_repeated: bool,
    ) {
        let was_sent = info.si_code <= 0;
        let flags = self.flags.load(Ordering::Relaxed) as i32;
        let handler = self.handler.load(Ordering::Acquire);
        let is_one_shot = flags & libc::SA_RESETHAND != 0;
        let is_default =
            handler == libc::SIG_DFL || is_one_shot && self.is_spent.swap(true, Ordering::AcqRel);
        if !is_default && handler == libc::SIG_IGN && was_sent {
            return;
        }
        if is_default || handler == libc::SIG_IGN {
            // The kernel terminates the program for a synchronous signal even if it is ignored.
            // SAFETY: the default action runs no code of this program.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            if was_sent || !is_repeated {
                let _ = signals::raise_with(signal, info);
            }
            return;
        }
        let mut mask = self.mask.load(Ordering::Relaxed) as Mask;
        if flags & libc::SA_NODEFER == 0 {
            mask |= signals::bit(signal);
        }
        signals::with_blocked(context.mask() | mask, || {
            if flags & libc::SA_SIGINFO != 0 {
                // SAFETY: the action was set with SA_SIGINFO, so the handler has this type.
                let handler: Handler = unsafe { std::mem::transmute(handler) };
                handler(signal, info, context);
            } else {
                // SAFETY: the action was set without SA_SIGINFO, so the handler has this type.
                let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
                handler(signal);
            }
        });
    }
}
