//! The device most swap areas sit on: an unnamed file in a directory.

use super::{Device, Facts, IoError, Lane, Operation, transfer_whole};
use softswap_sys::file::{SwapFile, errno};
use softswap_sys::ring::{Ring, Target};
use std::io;
use std::os::fd::AsFd;

/// Requests that a lane's ring keeps in flight. A lane serves one fault, or
/// one batch that extents and devices split a few ways at most.
const LANE_ENTRIES: u32 = 8;

/// A swap file as a device.
#[derive(Debug)]
pub struct FileDevice {
    file: SwapFile,
    io_uring: bool,
}

impl FileDevice {
    /// Serves `file`, through io_uring where this process may use it and
    /// `avoid_io_uring` does not rule it out.
    #[must_use]
    pub fn new(file: SwapFile, avoid_io_uring: bool) -> Self {
        let io_uring = !avoid_io_uring && open_ring(&file).is_ok();
        Self { file, io_uring }
    }

    /// One transfer on the lane. A ring that fails as such is left for good,
    /// and the transfer repeated without it; repeating is harmless, since the
    /// same bytes go to the same place.
    fn step(
        &self,
        lane: &mut Lane,
        through_ring: impl FnOnce(&mut Ring) -> io::Result<usize>,
        plainly: impl FnOnce(&SwapFile) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if let Lane::Ring(ring) = lane {
            match through_ring(ring) {
                Err(_) if !ring.is_usable() => {
                    // Not dropped: that would call into the C library from a
                    // fault handler, and close a number that may by now be
                    // somebody else's descriptor.
                    std::mem::forget(std::mem::replace(lane, Lane::Plain));
                }
                result => return result,
            }
        }
        plainly(&self.file)
    }
}

impl Device for FileDevice {
    fn open_lane(&self) -> Lane {
        if !self.io_uring {
            return Lane::Plain;
        }
        open_ring(&self.file).map_or(Lane::Plain, Lane::Ring)
    }

    fn read(&self, lane: &mut Lane, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        transfer_whole(Operation::Read, offset, buf.len(), |done| {
            let at = offset + done as u64;
            // Both ways need the buffer, one after the other.
            let rest = std::cell::RefCell::new(&mut buf[done..]);
            self.step(
                lane,
                |ring| ring.read(Target::Attached, &mut rest.borrow_mut(), at),
                |file| file.read_at(&mut rest.borrow_mut(), at),
            )
        })
    }

    fn write(&self, lane: &mut Lane, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        transfer_whole(Operation::Write, offset, buf.len(), |done| {
            let (at, rest) = (offset + done as u64, &buf[done..]);
            self.step(
                lane,
                |ring| ring.write(Target::Attached, rest, at),
                |file| file.write_at(rest, at),
            )
        })
    }

    fn grow(&self, from: u64, bytes: u64) -> Result<(), IoError> {
        self.file
            .allocate(from, bytes)
            .map_err(|error| IoError::from_os(Operation::Grow, from, bytes, &error))
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), IoError> {
        match self.file.punch(offset, bytes) {
            // A hint: without holes the storage merely stays claimed.
            Err(error) if error.raw_os_error() == Some(errno::EOPNOTSUPP) => Ok(()),
            Err(error) => Err(IoError::from_os(Operation::Discard, offset, bytes, &error)),
            Ok(()) => Ok(()),
        }
    }

    fn free_bytes(&self) -> Result<u64, IoError> {
        self.file.free_bytes().map_err(|error| IoError::from_os(Operation::Measure, 0, 0, &error))
    }

    fn describe(&self) -> Facts {
        Facts { io_uring: self.io_uring, direct: self.file.is_direct() }
    }
}

fn open_ring(file: &SwapFile) -> io::Result<Ring> {
    let mut ring = Ring::new(LANE_ENTRIES)?;
    ring.attach(file.as_fd())?;
    Ok(ring)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::IoErrorKind;
    use softswap_sys::memory::reserve_bytes;
    use std::path::Path;

    fn round_trip(directory: &Path, avoid_io_uring: bool) {
        let device = FileDevice::new(SwapFile::open(directory).unwrap(), avoid_io_uring);
        assert!(!(avoid_io_uring && device.describe().io_uring));
        let mut lane = device.open_lane();
        device.grow(0, 1 << 20).unwrap();
        let (written, read) = (reserve_bytes(65536).unwrap(), reserve_bytes(65536).unwrap());
        for (index, byte) in written.iter_mut().enumerate() {
            *byte = (index / 7) as u8;
        }
        device.write(&mut lane, 40960, written).unwrap();
        device.read(&mut lane, 40960, read).unwrap();
        assert!(written == read);
        device.discard(40960, 4096).unwrap();
    }

    #[test]
    fn a_file_returns_what_was_written_with_and_without_io_uring() {
        let directory = tempfile::tempdir().unwrap();
        round_trip(directory.path(), false);
        round_trip(directory.path(), true);
    }

    #[test]
    fn a_file_in_memory_works_whether_or_not_it_takes_direct_io() {
        let shared_memory = Path::new("/dev/shm");
        if SwapFile::open(shared_memory).is_err() {
            eprintln!("skipped, no writable {}", shared_memory.display());
            return;
        }
        round_trip(shared_memory, false);
        round_trip(shared_memory, true);
    }

    #[test]
    fn reading_what_was_never_stored_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        for avoid_io_uring in [false, true] {
            let file = SwapFile::open(directory.path()).unwrap();
            let device = FileDevice::new(file, avoid_io_uring);
            device.grow(0, 8192).unwrap();
            let buf = reserve_bytes(16384).unwrap();
            let error = device.read(&mut device.open_lane(), 0, buf).unwrap_err();
            assert_eq!((error.kind, error.transferred), (IoErrorKind::Stopped, 8192));
        }
    }

    #[test]
    fn a_lane_whose_ring_breaks_goes_on_without_it() {
        let directory = tempfile::tempdir().unwrap();
        let device = FileDevice::new(SwapFile::open(directory.path()).unwrap(), false);
        let mut lane = device.open_lane();
        let Lane::Ring(ring) = &mut lane else {
            eprintln!("skipped, no io_uring here");
            return;
        };
        ring.retire();
        let (written, read) = (reserve_bytes(4096).unwrap(), reserve_bytes(4096).unwrap());
        written.fill(0x42);
        device.write(&mut lane, 0, written).unwrap();
        assert!(matches!(lane, Lane::Plain));
        device.read(&mut lane, 0, read).unwrap();
        assert!(written == read);
    }
}
