//! Opens the storage of the configured areas: directories, named areas (of this process or shared
//! by its tree), and areas on a cluster of servers.

use crate::door::settings::{AreaSpec, Inherited};
use crate::store::io::{FileDevice, MirrorDevice, RemoteDevice};
use crate::store::swap::areas::{Backing, Layout};
use crate::store::swap::header::Header;
use crate::store::swap::named::{ActivateError, Activated, activate};
use crate::store::swap::{CLUSTER_SLOTS, Discard, FixedPages, SharedPages};
use softswap_shared::cluster_table::{ClusterTables, MARK_OF_TREE, SharedArea};
use softswap_shared::request_queue::NoArea;
use softswap_sys::file::{FileError, SwapFile};
use softswap_sys::{PAGE_SIZE, Page, open_mark, own_descriptors};
use std::path::PathBuf;
use std::sync::Arc;

/// Failure to open an area.
///
/// ```
/// use softswap_engine::door::{open_areas::open, settings::AreaSpec};
/// let specs = [AreaSpec::new("/nowhere/swap")];
/// let error = open(&specs, None, 0, true).next().unwrap().err().unwrap();
/// assert!(error.to_string().contains("/nowhere/swap"));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No file can be created in the directory.
    #[error(transparent)]
    Directory(#[from] FileError),
    /// The named file or device is not usable.
    #[error(transparent)]
    Named(#[from] ActivateError),
    /// The cluster has no area for this process.
    #[error(transparent)]
    Cluster(#[from] NoArea),
    /// The area shared by the tree cannot be reached.
    #[error(
        "this process cannot open the swap area {} of its tree: a parent process has closed \
         descriptors that it did not open, or the area was overwritten; start the program without \
         that parent, or add a directory with --swap", path.display()
    )]
    Unreachable {
        /// The area.
        path: PathBuf,
    },
}

/// Opens the areas. Those without a priority come after all others, in the given order, as with
/// `swapon`. `tables` are for areas shared by a tree of processes.
///
/// # Errors
/// An error takes the place of each area that is not usable.
pub fn open<'s>(
    specs: &'s [AreaSpec],
    tables: Option<&'s ClusterTables>,
    reserve_bytes: u64,
    avoid_io_uring: bool,
) -> impl Iterator<Item = Result<Backing, OpenError>> + 's {
    specs.iter().enumerate().map(move |(order, spec)| {
        let discard = spec.discard;
        let backing = match spec.inherited {
            Some(Inherited::File(number)) => {
                let lost = || OpenError::Unreachable { path: spec.path.clone() };
                let tables = tables.ok_or_else(lost)?;
                shared(spec, number, tables, avoid_io_uring).ok_or_else(lost)?
            }
            Some(Inherited::RequestQueue(number)) => {
                let device = Box::new(RemoteDevice::inherited(number)?);
                Backing { discard, ..Backing::growing(device, spec.limit_bytes, 0) }
            }
            Some(Inherited::Mirror(_)) | None if spec.path.is_dir() => {
                let file = SwapFile::open(&spec.path)?;
                let mirror = spec.inherited.and_then(Inherited::mirror);
                let device = MirrorDevice::over(FileDevice::new(file, avoid_io_uring), mirror);
                Backing { discard, ..Backing::growing(device, spec.limit_bytes, reserve_bytes) }
            }
            Some(Inherited::Mirror(_)) | None => {
                let area = activate(&spec.path)?;
                let (pages, discard) = (pages_of(&area.header), discard_of(&area, discard));
                let device = Box::new(FileDevice::new(area.file, avoid_io_uring));
                Backing { device, layout: Layout::Fixed(pages), priority: 0, discard, poll: None }
            }
        };
        Ok(Backing { priority: spec.priority_among(order), poll: spec.poll, ..backing })
    })
}

/// Returns the discard mode of a named area: none for a file, which would get holes and could not
/// be used again.
#[must_use]
pub fn discard_of(area: &Activated, asked: Discard) -> Discard {
    if area.is_device { asked } else { Discard::None }
}

/// Returns the pages described by a header, at their offsets in the file or device.
fn pages_of(header: &Header) -> FixedPages {
    FixedPages {
        pages: header.pages(),
        spans: vec![(0, header.pages(), 0)],
        bad_pages: header.bad_pages.iter().map(|page| u64::from(*page)).collect(),
    }
}

/// Opens a shared area by an inherited descriptor. Reopens it for this process if permitted, else
/// uses the inherited open file. Returns `None` if the descriptor was reused, or the area has
/// changed.
fn shared(
    spec: &AreaSpec,
    number: i32,
    tables: &ClusterTables,
    avoid_io_uring: bool,
) -> Option<Backing> {
    let inherited = SwapFile::inherited(number).ok()?;
    let header = read_header(&inherited)?;
    let pages = Arc::new(pages_of(&header));
    let table = tables.table(shared_area(&inherited, pages.pages))?;
    // Programs after exec, and started processes, use it, too.
    own_descriptors::keep(number);
    let opened = SwapFile::reopened(number).ok().and_then(|file| {
        let mark = table.mark(|mark| open_mark::put(&file, mark).ok())?;
        Some((file, mark))
    });
    let (file, mark) = opened.unwrap_or((inherited, MARK_OF_TREE));
    let file = Arc::new(file);
    let device = Box::new(FileDevice::new(Arc::clone(&file), avoid_io_uring));
    let layout =
        Layout::Shared(SharedPages { pages, table, mark, file: Some(file), inherited: number });
    Some(Backing { device, layout, priority: 0, discard: spec.discard, poll: None })
}

/// Reads the header of an area that was validated before.
fn read_header(file: &SwapFile) -> Option<Header> {
    // Aligned, as O_DIRECT requires.
    let mut page = Box::new(Page([0; PAGE_SIZE]));
    let read = file.read_at(&mut page.0, 0).ok()?;
    let pages = file.len_bytes().ok()? / PAGE_SIZE as u64;
    (read == PAGE_SIZE).then(|| Header::parse(&page.0, pages).ok())?
}

fn shared_area(file: &SwapFile, pages: u64) -> SharedArea {
    let (device, inode) = file.identity();
    SharedArea { device, inode, clusters: pages.div_ceil(CLUSTER_SLOTS as u64) as usize }
}

/// Marks an area that `softswap run` has claimed for its tree.
///
/// # Errors
/// If its file system does not support locks.
pub fn claim_for_tree(area: &Activated) -> std::io::Result<SharedArea> {
    open_mark::put(&area.file, MARK_OF_TREE)?;
    Ok(shared_area(&area.file, area.header.pages()))
}
