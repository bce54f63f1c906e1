//! Watches the block map of a raw swap file, whose blocks the tree writes through the device.
//!
//! Each process compares the map twice a second while it writes. A thread of `run` compares it
//! every second, and at once if inotify reports an event of the file. If the map changed, or the
//! file is no longer immutable, the area is stopped, and `run` prints a message.

use crate::swapon_raw::Raw;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use softswap_engine::store::io::MapGuard;
use softswap_shared::cluster_table::ClusterTable;
use softswap_sys::file::SwapFile;
use softswap_sys::raw_mark::{self, RawMark};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

const PERIOD: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The drop of `mark` removes the immutable flag, so it must come after that of `guard`, which
/// releases the file's lock.
pub(super) struct RawWatch {
    path: PathBuf,
    guard: Option<Arc<MapGuard>>,
    /// Write end of a pipe. Closing it stops the thread.
    end: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    is_reported: bool,
    /// Processes set their marks (file locks) on the device.
    pub(super) device: SwapFile,
    mark: RawMark,
}

impl RawWatch {
    /// The block map of `raw` is verified.
    pub(super) fn new(
        raw: Raw,
        path: PathBuf,
        file: &Arc<SwapFile>,
        pages: u64,
        table: ClusterTable,
    ) -> RawWatch {
        let proven = raw.file.fingerprint();
        let guard = MapGuard::new(Arc::clone(file), pages, proven, Some(table));
        RawWatch {
            path,
            guard: Some(Arc::new(guard)),
            end: None,
            thread: None,
            is_reported: false,
            device: raw.file.device,
            mark: raw.mark,
        }
    }

    /// The thread inherits the blocked signals.
    ///
    /// # Errors
    /// If the kernel refuses inotify, a pipe or a thread.
    pub(super) fn start(&mut self, file: &SwapFile) -> io::Result<()> {
        let events = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        // A program that removes the immutable flag causes no event, but must open the file for it.
        let changes = inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::OPEN
            | inotify::WatchFlags::ATTRIB
            | inotify::WatchFlags::MOVE_SELF
            | inotify::WatchFlags::DELETE_SELF;
        // Without inotify, the periodic check still finds changes.
        let _ = inotify::add_watch(&events, path, changes);
        let (ended, end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let Some(guard) = self.guard.clone() else { return Ok(()) };
        let was_immutable = self.mark.is_immutable();
        let watch = move || {
            while wait(&events, &ended) && !guard.has_stopped() {
                let _ = guard.check();
                if was_immutable && !raw_mark::is_immutable(guard.file().as_fd()) {
                    guard.stop();
                    break;
                }
            }
        };
        self.thread = Some(std::thread::Builder::new().name("raw-watch".into()).spawn(watch)?);
        self.end = Some(end);
        Ok(())
    }

    /// Returns a message once after the map has changed.
    pub(super) fn news(&mut self) -> Option<String> {
        let has_stopped = self.guard.as_ref().is_some_and(|guard| guard.has_stopped());
        (has_stopped && !std::mem::replace(&mut self.is_reported, true)).then(|| {
            format!(
                "the file system has moved or freed blocks of {}, the file is no longer immutable, or \
                 the kernel swaps to it: softswap writes nothing more there, and moves its pages to other \
                 areas; it stops a program that needs a page whose block has moved; find the \
                 program that changed the file",
                self.path.display()
            )
        })
    }
}

impl Drop for RawWatch {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.guard = None;
    }
}

/// Returns false at the end.
fn wait(events: &OwnedFd, ended: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(events, PollFlags::IN), PollFd::new(ended, PollFlags::IN)];
    let _ = poll(&mut fds, Some(&PERIOD));
    if !fds[1].revents().is_empty() {
        return false;
    }
    // Discard the events: the block map shows the change.
    let mut buffer = [0; 4096];
    while rustix::io::read(events, &mut buffer[..]).is_ok_and(|count| count > 0) {}
    true
}
