//! Staging frames: pages between their place in the window and their stored copy.

use super::{Mechanism, Window, Writes};
use crate::futex;
use crate::memory::{PAGE_SIZE, Page};
use crate::uffd::Partial;
use std::io;
use std::sync::atomic::Ordering;

const EMPTY: u8 = 0;
const FULL: u8 = 1;
const CLAIMED: u8 = 2;

impl Window {
    /// Moves pages to empty frames from `frame`; the first [`Partial::pages`] are full then.
    pub fn take_out(&self, page: u64, count: usize, frame: usize) -> Partial {
        let frames = &self.frames[frame..frame + count];
        assert!(frames.iter().all(|f| f.load(Ordering::Acquire) == EMPTY), "frame in use");
        let to = self.staging + frame * PAGE_SIZE;
        let from = self.address(page, count);
        let partial = match &self.mechanism {
            Mechanism::Userfaultfd(uffd) => uffd.move_pages(to, from, count * PAGE_SIZE),
            Mechanism::Protection(access) => {
                // SAFETY: the frames are empty, so nothing refers to their bytes.
                let to =
                    unsafe { std::slice::from_raw_parts_mut(to as *mut u8, count * PAGE_SIZE) };
                let error = access.take(page as usize, to).err();
                Partial { pages: if error.is_none() { count } else { 0 }, error }
            }
        };
        for state in &frames[..partial.pages] {
            state.store(FULL, Ordering::Release);
        }
        partial
    }

    /// Takes a page out without MOVE, which kernels may lack, or refuse for the page's protection.
    pub fn take_out_by_copy(&self, page: u64, frame: usize, scratch: &mut Page) -> io::Result<()> {
        assert!(self.frames[frame].load(Ordering::Acquire) == EMPTY, "frame in use");
        // Protect the page first, because a store between copy and drop would be lost.
        self.set_writes(page, 1, Writes::Caught)?;
        if let Err(error) = self.take_page(page, &mut scratch.0) {
            let _ = self.allow_writes(page);
            return Err(error);
        }
        if let Err(error) = self.copy_to(frame, &scratch.0) {
            self.put_back(page, &scratch.0, Writes::Allowed);
            return Err(error);
        }
        Ok(())
    }

    /// Fills an empty frame with `bytes`, the only copy of a page.
    pub fn fill_frame(&self, frame: usize, bytes: &[u8; PAGE_SIZE]) -> io::Result<()> {
        assert!(self.frames[frame].load(Ordering::Acquire) == EMPTY, "frame in use");
        self.copy_to(frame, bytes)
    }

    fn copy_to(&self, frame: usize, bytes: &[u8; PAGE_SIZE]) -> io::Result<()> {
        let to = self.staging + frame * PAGE_SIZE;
        match &self.mechanism {
            Mechanism::Userfaultfd(uffd) => {
                uffd.copy(to, bytes, Writes::Allowed).error.map_or(Ok(()), Err)?;
            }
            // SAFETY: the frame is empty, so nothing refers to its bytes, and it is writable.
            Mechanism::Protection(_) => unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, PAGE_SIZE);
            },
        }
        self.frames[frame].store(FULL, Ordering::Release);
        Ok(())
    }

    /// Returns `None` if the frame is empty or already claimed.
    #[must_use]
    pub fn claim_frame(&self, frame: usize) -> Option<StagedFrame<'_>> {
        self.frames[frame]
            .compare_exchange(FULL, CLAIMED, Ordering::AcqRel, Ordering::Acquire)
            .ok()
            .map(|_| StagedFrame { window: self, frame })
    }

    /// Drops the content of frames, after waiting for claimed ones. Returns how many were full.
    pub fn empty_frames(&self, frame: usize, count: usize) -> usize {
        let mut full = 0;
        let frames = &self.frames[frame..frame + count];
        for state in frames {
            let mut turns = 0;
            while let Err(seen) =
                state.compare_exchange(FULL, CLAIMED, Ordering::AcqRel, Ordering::Acquire)
            {
                if seen == EMPTY {
                    break;
                }
                futex::relax(&mut turns);
            }
            full += usize::from(state.load(Ordering::Acquire) == CLAIMED);
        }
        let start = self.staging + frame * PAGE_SIZE;
        // After a failure the frames stay populated, so they must not be reused.
        let dropped = self.advise(start, count * PAGE_SIZE, libc::MADV_DONTNEED).is_ok();
        for state in frames {
            if dropped {
                state.store(EMPTY, Ordering::Release);
            }
        }
        full
    }
}

/// A claimed full staging frame, which is neither moved nor emptied while this value exists.
#[derive(Debug)]
pub struct StagedFrame<'w> {
    window: &'w Window,
    frame: usize,
}

impl StagedFrame<'_> {
    pub fn bytes(&self) -> &[u8; PAGE_SIZE] {
        let address = self.window.staging + self.frame * PAGE_SIZE;
        // SAFETY: the frame was FULL, so its page is present, aligned and readable. CLAIMED
        // prevents all other threads from moving, emptying or filling it while `self` exists.
        unsafe { &*(address as *const [u8; PAGE_SIZE]) }
    }

    /// Returns the page. On success the frame is empty (page moved) or still full (page copied).
    pub fn restore_to(self, page: u64) -> Result<(), (Self, io::Error)> {
        let window = self.window;
        let from = window.staging + self.frame * PAGE_SIZE;
        if window.use_move {
            let moved = window.move_pages(window.address(page, 1), from, PAGE_SIZE);
            if moved.pages == 1 {
                window.frames[self.frame].store(EMPTY, Ordering::Release);
                std::mem::forget(self);
                return Ok(());
            }
        }
        match window.install(page, self.bytes(), Writes::Allowed).error {
            None => Ok(()),
            Some(error) => Err((self, error)),
        }
    }
}

impl Drop for StagedFrame<'_> {
    fn drop(&mut self) {
        self.window.frames[self.frame].store(FULL, Ordering::Release);
    }
}
