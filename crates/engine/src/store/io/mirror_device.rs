//! A file with a second copy in the memory of other machines.
//!
//! Pages are sent without waiting. Reads use the side that was faster so far, and occasionally
//! probe the other one. The file has all pages, so a page lost by the cluster costs only time.

use super::poll::Polling;
use super::{Device, DeviceProperties, FileDevice, IoError, Lane, Piece, RemoteDevice};
use softswap_sys::PAGE_SIZE;
use softswap_sys::raw::now_ns;
use softswap_sys::segment::StaticRange;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// One in this many reads uses the side that was slower so far.
const PROBE: u32 = 64;

/// A device with a file and a cluster.
///
/// ```
/// use softswap_engine::store::io::{Device, Lane, MirrorDevice, RemoteDevice};
/// use softswap_shared::request_queue::{RequestQueue, SHAPE};
/// use softswap_testkit::SimDevice;
/// use std::os::fd::AsRawFd;
/// let (fd, words) = softswap_sys::shared::create(SHAPE.words()).unwrap();
/// let queue = RequestQueue::create(words, SHAPE, 1024, 1_000_000);
/// let cluster = RemoteDevice::open(queue, fd.as_raw_fd()).unwrap();
/// let device = MirrorDevice::new(Box::new(SimDevice::new(1 << 20, 1)), cluster);
/// let (mut lane, mut page) = (device.open_lane(), [0; 4096]);
/// device.grow(0, 4096).unwrap();
/// device.write(&mut lane, 0, &[7; 4096]).unwrap();
/// // No cluster answers.
/// device.read(&mut lane, 0, &mut page).unwrap();
/// assert_eq!(page, [7; 4096]);
/// ```
pub struct MirrorDevice {
    file: Box<dyn Device>,
    cluster: RemoteDevice,
    file_time: ReadTime,
    cluster_time: ReadTime,
    reads: AtomicU32,
}

/// Mean time of a read of one page; a new sample has the weight 1/8.
#[derive(Debug, Default)]
struct ReadTime(AtomicU64);

impl ReadTime {
    fn ns(&self) -> Option<u64> {
        Some(self.0.load(Relaxed)).filter(|ns| *ns != 0)
    }

    fn note(&self, ns: u64) {
        let mean = self.ns().map_or(ns, |mean| mean - mean / 8 + ns / 8);
        self.0.store(mean.max(1), Relaxed);
    }

    fn note_none(&self, ns: u64) {
        self.0.store(ns.max(self.ns().unwrap_or(0)), Relaxed);
    }
}

impl MirrorDevice {
    pub fn new(file: Box<dyn Device>, cluster: RemoteDevice) -> MirrorDevice {
        let (file_time, cluster_time) = Default::default();
        MirrorDevice { file, cluster, file_time, cluster_time, reads: AtomicU32::new(0) }
    }

    /// Returns the file alone, which has all pages, if there is no queue behind the descriptor.
    pub(crate) fn over(file: FileDevice, queue_fd: Option<i32>) -> Box<dyn Device> {
        match queue_fd.and_then(|fd| RemoteDevice::inherited(fd).ok()) {
            Some(cluster) => Box::new(MirrorDevice::new(Box::new(file), cluster)),
            None => Box::new(file),
        }
    }

    fn prefers_cluster(&self) -> bool {
        let is_faster = match (self.file_time.ns(), self.cluster_time.ns()) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(file), Some(cluster)) => cluster < file,
        };
        let is_probe = self.reads.fetch_add(1, Relaxed) % PROBE == PROBE - 1;
        is_faster != is_probe
    }

    fn read_timeout_ns(&self) -> u64 {
        (2 * self.file_time.ns().unwrap_or(0)).max(1_000_000)
    }

    /// Reads from the cluster if it is preferred. Returns false if the buffer was not filled.
    fn read_cluster(&self, offset: u64, buf: &mut [u8]) -> bool {
        if !self.cluster.may_have(offset, buf.len()) || !self.prefers_cluster() {
            return false;
        }
        let read_timeout_ns = self.read_timeout_ns();
        let is_read = self.cluster.read_within(offset, buf, read_timeout_ns);
        if !is_read {
            self.cluster_time.note_none(read_timeout_ns);
        }
        is_read
    }
}

impl Device for MirrorDevice {
    fn open_lane(&self) -> Lane {
        self.file.open_lane()
    }

    fn expect_buffers(&mut self, range: Option<StaticRange>) {
        self.file.expect_buffers(range);
    }

    /// Times only reads of single pages that a thread waits for.
    fn read_pieces(
        &self,
        lane: &mut Lane,
        pieces: &mut [Piece<&mut [u8]>],
        polling: Option<&Polling>,
    ) -> Result<(), IoError> {
        let is_page = matches!(&*pieces, [page] if page.buf.len() == PAGE_SIZE);
        let is_measured = polling.is_some() && is_page;
        let start = now_ns();
        if pieces.iter_mut().all(|piece| self.read_cluster(piece.offset, piece.buf)) {
            if is_measured {
                self.cluster_time.note(now_ns() - start);
            }
            return Ok(());
        }
        let start = now_ns();
        self.file.read_pieces(lane, pieces, polling)?;
        if is_measured {
            self.file_time.note(now_ns() - start);
        }
        Ok(())
    }

    fn write_pieces(&self, lane: &mut Lane, pieces: &[Piece<&[u8]>]) -> Result<(), IoError> {
        self.file.write_pieces(lane, pieces)?;
        self.cluster.send(pieces);
        Ok(())
    }

    /// Grows the file. The cluster stores a second copy of as much as it has space for.
    fn grow(&self, from: u64, bytes: u64) -> Result<(), IoError> {
        self.file.grow(from, bytes)?;
        let _ = self.cluster.grow(from, bytes);
        Ok(())
    }

    fn truncate(&self, offset: u64) -> Result<(), IoError> {
        self.file.truncate(offset)?;
        self.cluster.send_truncate(offset);
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), IoError> {
        self.cluster.send_discard(offset, bytes);
        self.file.discard(offset, bytes)
    }

    fn free_bytes(&self) -> Result<u64, IoError> {
        self.file.free_bytes()
    }

    fn inherit(&self) -> bool {
        self.cluster.inherit();
        self.file.inherit()
    }

    fn describe(&self) -> DeviceProperties {
        self.file.describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::io::poll::mode::Mode;
    use crate::store::io::sim_device::SimDevice;
    use softswap_shared::request_queue::{RequestQueue, SHAPE};
    use std::os::fd::AsRawFd;

    #[test]
    fn only_reads_of_single_pages_are_timed() {
        let (fd, words) = softswap_sys::shared::create(SHAPE.words()).unwrap();
        let queue = RequestQueue::create(words, SHAPE, 1024, 1_000_000);
        let cluster = RemoteDevice::open(queue, fd.as_raw_fd()).unwrap();
        let file = SimDevice::new(1 << 20, 1);
        file.grow(0, 4 * PAGE_SIZE as u64).unwrap();
        let device = MirrorDevice::new(Box::new(file), cluster);
        let (mut lane, mut bytes) = (device.open_lane(), [0; 4 * PAGE_SIZE]);
        let polling = Polling::for_tests(Mode::Interrupt);
        for (pages, is_timed) in [(4, false), (1, true)] {
            let buf = &mut bytes[..pages * PAGE_SIZE];
            device.read_page(&mut lane, 0, buf, &polling).unwrap();
            assert_eq!(device.file_time.ns().is_some(), is_timed, "{pages} pages");
        }
    }
}
