//! Named swap areas: a file or a block device with a header.
//!
//! [`Storage::open`] claims the file; all later checks use its descriptor. Only [`Storage::format`]
//! changes anything. Its caller first runs [`Storage::check_layout`] and its own checks.
//!
//! A file is accessed through its file system, unless [`super::raw`] verifies its blocks. Its
//! layout is always checked: writing a page must not allocate space while memory is short.

use super::cluster::CLUSTER_SLOTS;
use super::contents::{self, HEAD_BYTES, Kind, Magic};
use super::header::{HEADER_OFFSET, Header, HeaderError};
use bytesize::ByteSize;
use softswap_sys::exclusive_file::{ClaimError, Claimed, claim};
use softswap_sys::file::{SwapFile, errno, plain};
use softswap_sys::file_layout::{self, Flaw};
use softswap_sys::{PAGE_SIZE, Page};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

const PAGE_BYTES: u64 = PAGE_SIZE as u64;
/// Slots are allocated from whole clusters.
pub(crate) const MIN_PAGES: u64 = CLUSTER_SLOTS as u64;
/// A header cannot describe more.
pub(crate) const MAX_PAGES: u64 = 1 << 32;

/// An area that this process claimed.
#[derive(Debug)]
pub struct Activated {
    /// No other program can claim it while it is open.
    pub file: SwapFile,
    pub header: Header,
    pub pieces: Option<u64>,
    pub is_device: bool,
    pub warnings: Vec<Warning>,
}

/// Reason why an area cannot be used. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ActivateError {
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(
        "{} cannot be read ({}), and was not changed: choose another file or device",
        path.display(),
        plain(cause)
    )]
    Io { path: PathBuf, cause: io::Error },
    #[error(
        "{} {}: choose a larger one, or enlarge it{}",
        path.display(), too_small(*bytes), how_to_enlarge(path, *is_device)
    )]
    TooSmall { path: PathBuf, bytes: u64, is_device: bool },
    /// An unusable file without a swap header, probably given by mistake.
    #[error("{} {why}: {}", path.display(), how_to_create(*is_raw))]
    NotSwapFile { path: PathBuf, why: String, errno: i32, is_raw: bool },
    #[error(
        "{} has {}, but the swap area in it has only {}; at least {} are needed: format it again \
         with `{} {}`, or choose another file or device",
        path.display(), exact_size(*bytes), exact_size(*area_bytes),
        ByteSize(MIN_PAGES * PAGE_BYTES), mkswap(*is_raw), path.display()
    )]
    AreaTooSmall { path: PathBuf, bytes: u64, area_bytes: u64, is_raw: bool },
    #[error(
        "{} contains {found}{}, and was not changed: choose another file or device, or overwrite \
         it with `{} {}`",
        path.display(), if *has_header { " and a swap header" } else { "" }, mkswap(*is_raw),
        path.display()
    )]
    Holds { path: PathBuf, found: &'static str, has_header: bool, is_raw: bool },
    #[error("{} cannot be used: {cause}; {}", path.display(), header_remedy(path, cause, *is_raw))]
    Header { path: PathBuf, cause: HeaderError, is_raw: bool },
    #[error(
        "{} has a hole at byte {offset}, but a swap file must have all its blocks: fill it with \
         `fallocate -l {bytes} {}`, or with `dd` from /dev/zero if the file system does not \
         support that",
        path.display(), path.display()
    )]
    Hole { path: PathBuf, offset: u64, bytes: u64 },
    #[error(
        "{} shares storage with another file from byte {offset} on (a reflink or a snapshot), so \
         that writing would need new space: create a new file with `fallocate -l {bytes} FILE`, \
         or choose another file or device",
        path.display()
    )]
    Shared { path: PathBuf, offset: u64, bytes: u64 },
    #[error(
        "{} is compressed, encrypted or packed by its file system from byte {offset} on, so that \
         writing may need new space: disable that and create a new file with `fallocate -l \
         {bytes} FILE`, or choose another file or device",
        path.display()
    )]
    Packed { path: PathBuf, offset: u64, bytes: u64 },
}

/// Shows bytes if the size must be exact, or rounds to the size with which it is compared.
fn exact_size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        _ => format!("{} ({bytes} bytes)", ByteSize(bytes)),
    }
}

fn too_small(bytes: u64) -> String {
    let (size, min) = (exact_size(bytes), ByteSize(MIN_PAGES * PAGE_BYTES));
    format!("has {size}, too little for a swap area, which needs at least {min}")
}

fn how_to_create(is_raw: bool) -> &'static str {
    match is_raw {
        true => "create a swap file with `fallocate -l SIZE FILE` and `softswap mkswap --raw FILE`",
        false => {
            "give a directory, or create a swap file with `fallocate -l SIZE FILE` and `softswap \
             mkswap FILE`"
        }
    }
}

fn how_to_enlarge(path: &Path, is_device: bool) -> String {
    match is_device {
        true => String::new(),
        false => format!(" with `fallocate -l SIZE {}`", path.display()),
    }
}

fn mkswap(is_raw: bool) -> &'static str {
    if is_raw { "softswap mkswap --raw --force" } else { "softswap mkswap --force" }
}

fn header_remedy(path: &Path, cause: &HeaderError, is_raw: bool) -> String {
    let (command, shown) = (mkswap(is_raw), path.display());
    match cause {
        HeaderError::NoSignature => {
            let command = if is_raw { command } else { "softswap mkswap" };
            format!("format it with `{command} {shown}`, which destroys its content")
        }
        HeaderError::TooShort { header_pages, .. } => format!(
            "restore its size of {}, or format it again with `{command} {shown}`",
            exact_size(header_pages * PAGE_BYTES)
        ),
        _ => format!("format it again with `{command} {shown}`, or choose another file or device"),
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    #[error("it is larger than the size in its swap header; {} are not used", ByteSize(*bytes))]
    PartlyUnused { bytes: u64 },
    #[error("it is larger than a swap header can describe; {} are not used", ByteSize(*bytes))]
    BeyondHeader { bytes: u64 },
    #[error("insecure permissions {mode:04o}, fix with: chmod 0600 {}", path.display())]
    Insecure { path: PathBuf, mode: u32 },
    #[error(
        "it belongs to user {owner}, who can read it; fix with: chown 0 {}",
        path.display()
    )]
    UntrustedOwner { path: PathBuf, owner: u32 },
    #[error("it refuses O_DIRECT; pages pass through the page cache, which uses DRAM")]
    PageCache,
    #[error("its file system keeps files in DRAM; writing pages there frees no memory")]
    InMemory,
    #[error(
        "its file system writes every page to a new block, which uses free space; create it \
         again, with `chattr +C {}` while it is empty",
        path.display()
    )]
    CopyOnWrite { path: PathBuf },
    #[error(
        "its first sector is a boot sector or a partition table; softswap will overwrite any \
         partitions on it"
    )]
    BootSector,
}

#[derive(Debug)]
pub struct Storage {
    path: PathBuf,
    claimed: Claimed,
    head: Vec<u8>,
}

impl Storage {
    /// Claims the file or device and reads its first bytes. Fails if another program uses it, or if
    /// it is not storage, too small or unreadable.
    pub fn open(path: &Path) -> Result<Self, ActivateError> {
        let mut claimed = claim(path)?;
        let bytes = claimed.len_bytes;
        if bytes / PAGE_BYTES < MIN_PAGES {
            let (path, is_device) = (path.to_owned(), claimed.is_device);
            return Err(ActivateError::TooSmall { path, bytes, is_device });
        }
        let head = read_head(&mut claimed.file)
            .map_err(|cause| ActivateError::Io { path: path.to_owned(), cause })?;
        Ok(Self { path: path.to_owned(), claimed, head })
    }

    /// Opens an area for use: unlike for formatting, a file that is too small or not accessible is
    /// an error of its own if it has no swap header.
    pub(super) fn open_area(path: &Path, is_raw: bool) -> Result<Self, ActivateError> {
        Self::open(path).map_err(|error| {
            let (why, errno) = match &error {
                ActivateError::TooSmall { bytes, is_device: false, .. } => {
                    (too_small(*bytes), errno::EINVAL)
                }
                ActivateError::Claim(claim @ ClaimError::Denied { cause, .. })
                    if path.is_file() =>
                {
                    let why =
                        format!("may not be read and written by this user ({})", plain(cause));
                    (why, claim.raw_os_error())
                }
                _ => return error,
            };
            match has_swap_header(path) {
                // A file that cannot be read may have a header.
                Some(true) | None => error,
                Some(false) => {
                    ActivateError::NotSwapFile { path: path.to_owned(), why, errno, is_raw }
                }
            }
        })
    }

    /// Limited to what a header can describe.
    pub fn pages(&self) -> u64 {
        (self.claimed.len_bytes / PAGE_BYTES).min(MAX_PAGES)
    }

    pub fn is_device(&self) -> bool {
        self.claimed.is_device
    }

    pub fn file(&self) -> &SwapFile {
        &self.claimed.file
    }

    pub fn contents(&self) -> impl Iterator<Item = &'static Magic> {
        contents::recognise(&self.head)
    }

    /// Checks that each page has a separate block: no holes, no shared storage. Returns the number
    /// of extents, if known.
    pub fn check_layout(&self, pages: u64) -> Result<Option<u64>, ActivateError> {
        if self.is_device() {
            return Ok(Some(1));
        }
        let (path, bytes) = (self.path.clone(), pages * PAGE_BYTES);
        match file_layout::examine(&self.claimed.file, bytes) {
            Ok(Ok(pieces)) => Ok(pieces),
            Ok(Err(Flaw::Hole(offset))) => Err(ActivateError::Hole { path, offset, bytes }),
            Ok(Err(Flaw::Shared(offset))) => Err(ActivateError::Shared { path, offset, bytes }),
            Ok(Err(Flaw::Packed(offset))) => Err(ActivateError::Packed { path, offset, bytes }),
            Err(cause) => Err(ActivateError::Io { path, cause }),
        }
    }

    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let Claimed { file, is_device, mode, untrusted_owner, len_bytes } = &self.claimed;
        let path = || self.path.clone();
        // The system sets the permissions of devices.
        if !is_device && mode & 0o077 != 0 {
            warnings.push(Warning::Insecure { path: path(), mode: *mode });
        }
        if let Some(owner) = untrusted_owner.filter(|_| !is_device) {
            warnings.push(Warning::UntrustedOwner { path: path(), owner });
        }
        if file.is_in_memory() && !is_device {
            warnings.push(Warning::InMemory);
        } else if !file.is_direct() {
            warnings.push(Warning::PageCache);
        }
        if !is_device && file.is_copied_on_write() {
            warnings.push(Warning::CopyOnWrite { path: path() });
        }
        if len_bytes / PAGE_BYTES > MAX_PAGES {
            let bytes = len_bytes - MAX_PAGES * PAGE_BYTES;
            warnings.push(Warning::BeyondHeader { bytes });
        }
        warnings
    }

    /// Writes `header`, waits until the device has it, and reads it back.
    ///
    /// Magic numbers of other formats are zeroed, with the first 1024 bytes if a format begins in
    /// them, so that tools recognise only swap. Otherwise these bytes keep their content. Fails
    /// with the kernel's error, or EIO if the bytes differ; the first pages are then unknown.
    pub fn format(&mut self, header: &Header) -> io::Result<()> {
        let old: Vec<_> = self.contents().collect();
        let mut changed = Vec::new();
        for magic in old {
            if magic.offset < HEADER_OFFSET {
                self.head[..HEADER_OFFSET].fill(0);
            } else {
                self.head[magic.offset..][..magic.bytes.len()].fill(0);
                changed.push(magic.offset / PAGE_SIZE);
            }
        }
        changed.retain(|&page| page > 0);
        for &page in &changed {
            self.write_page(page)?;
        }
        // At no time are two formats recognisable.
        self.claimed.file.sync()?;
        if let Some(first) = self.head.first_chunk_mut() {
            header.write_to(first);
        }
        self.write_page(0)?;
        self.claimed.file.sync()?;
        for &page in changed.iter().chain(&[0]) {
            let expected = &self.head[page * PAGE_SIZE..][..PAGE_SIZE];
            if read_page(&self.claimed.file, page)?.0 != *expected {
                return Err(io::Error::from_raw_os_error(errno::EIO));
            }
        }
        Ok(())
    }

    fn write_page(&self, page: usize) -> io::Result<()> {
        // O_DIRECT needs an aligned buffer.
        let mut buf = Box::new(Page([0; PAGE_SIZE]));
        buf.0.copy_from_slice(&self.head[page * PAGE_SIZE..][..PAGE_SIZE]);
        match self.claimed.file.write_at(&buf.0, page as u64 * PAGE_BYTES)? {
            PAGE_SIZE => Ok(()),
            _ => Err(io::Error::from_raw_os_error(errno::EIO)),
        }
    }

    /// Changes nothing. With `is_raw`, messages name commands for [`super::raw`].
    pub(super) fn activate(self, is_raw: bool) -> Result<Activated, ActivateError> {
        let path = || self.path.clone();
        let header = Header::parse(&self.head, self.pages());
        if let Some(magic) = self.contents().find(|magic| magic.kind == Kind::Data) {
            let has_header = !matches!(header, Err(HeaderError::NoSignature));
            let found = magic.name;
            return Err(ActivateError::Holds { path: path(), found, has_header, is_raw });
        }
        let header =
            header.map_err(|cause| ActivateError::Header { path: path(), cause, is_raw })?;
        if header.pages() < MIN_PAGES {
            let area_bytes = header.pages() * PAGE_BYTES;
            let bytes = self.claimed.len_bytes;
            return Err(ActivateError::AreaTooSmall { path: path(), bytes, area_bytes, is_raw });
        }
        let pieces = self.check_layout(header.pages())?;
        let mut warnings = self.warnings();
        if self.pages() > header.pages() {
            let bytes = (self.pages() - header.pages()) * PAGE_BYTES;
            warnings.push(Warning::PartlyUnused { bytes });
        }
        if self.contents().any(|magic| magic.kind == Kind::BootSector) {
            warnings.push(Warning::BootSector);
        }
        let is_device = self.is_device();
        Ok(Activated { pieces, is_device, file: self.claimed.file, header, warnings })
    }
}

fn read_page(file: &SwapFile, page: usize) -> io::Result<Box<Page>> {
    let mut buf = Box::new(Page([0; PAGE_SIZE]));
    match file.read_at(&mut buf.0, page as u64 * PAGE_BYTES)? {
        PAGE_SIZE => Ok(buf),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Falls back to buffered I/O: direct I/O may fail even if the open succeeded.
fn read_head(file: &mut SwapFile) -> io::Result<Vec<u8>> {
    if let Err(error) = read_page(file, 0)
        && file.is_direct()
        && error.raw_os_error() == Some(errno::EINVAL)
    {
        file.disable_direct_io()?;
    }
    let mut head = Vec::with_capacity(HEAD_BYTES);
    for page in 0..HEAD_BYTES / PAGE_SIZE {
        head.extend_from_slice(&read_page(file, page)?.0);
    }
    Ok(head)
}

const _: () = assert!(HEAD_BYTES as u64 <= MIN_PAGES * PAGE_BYTES);

/// The header may be of any kind, and unusable. `None` if the file cannot be read.
fn has_swap_header(path: &Path) -> Option<bool> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(HEAD_BYTES as u64).read_to_end(&mut head).ok()?;
    Some(!matches!(Header::parse(&head, MAX_PAGES), Err(HeaderError::NoSignature)))
}

/// Claims the area at `path` and checks header and layout. Changes nothing.
pub fn activate(path: &Path) -> Result<Activated, ActivateError> {
    Storage::open_area(path, false)?.activate(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{FileExt, PermissionsExt};

    const MIB: u64 = 1 << 20;

    struct AreaFile {
        _dir: tempfile::TempDir,
        path: PathBuf,
    }

    fn area(bytes: u64, header_pages: Option<u64>) -> AreaFile {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("swap");
        fs::write(&path, vec![0; bytes as usize]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        if let Some(pages) = header_pages {
            put_header(&path, &header(pages));
        }
        AreaFile { _dir: dir, path }
    }

    fn header(pages: u64) -> Header {
        let last_page = (pages - 1) as u32;
        let (uuid, label) = ([7; 16], *b"label\0\0\0\0\0\0\0\0\0\0\0");
        Header { last_page, bad_pages: vec![3], uuid, label, is_byte_swapped: false }
    }

    fn put_header(path: &Path, header: &Header) {
        let mut page = [0; PAGE_SIZE];
        header.write_to(&mut page);
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&page, 0).unwrap();
    }

    /// Checks that the file is unchanged.
    fn refused(path: &Path) -> ActivateError {
        let state = || (fs::read(path).unwrap(), fs::metadata(path).unwrap().modified().unwrap());
        let before = state();
        let error = activate(path).unwrap_err();
        assert!(before == state(), "{error}");
        error
    }

    #[test]
    fn file_is_activated_as_its_header_states() {
        let swap_file = area(4 * MIB, Some(1024));
        let activated = activate(&swap_file.path).unwrap();
        assert_eq!(activated.header, header(1024));
        assert!(!activated.is_device && activated.pieces.is_none_or(|pieces| pieces > 0));
        let of_file_system = |warning: &Warning| {
            matches!(warning, Warning::InMemory | Warning::PageCache | Warning::CopyOnWrite { .. })
        };
        assert!(activated.warnings.iter().all(of_file_system), "{:?}", activated.warnings);
    }

    #[test]
    fn hole_is_rejected_only_within_pages() {
        let swap_file = area(2 * MIB, Some(768));
        let file = fs::OpenOptions::new().write(true).open(&swap_file.path).unwrap();
        file.set_len(3 * MIB).unwrap();
        file.sync_all().unwrap();
        let error = refused(&swap_file.path);
        let found = matches!(error, ActivateError::Hole { offset, .. } if offset == 2 * MIB);
        assert!(found, "{error}");
        put_header(&swap_file.path, &header(512));
        activate(&swap_file.path).unwrap();
    }

    #[test]
    fn only_file_with_header_is_to_be_enlarged() {
        let swap_file = area(MIB, Some(512));
        let text = refused(&swap_file.path).to_string();
        let enlarge = format!("enlarge it with `fallocate -l SIZE {}`", swap_file.path.display());
        assert!(text.contains(&enlarge) && text.contains("1.0 MiB (1048576 bytes)"), "{text}");
        let other_file = area(100, None);
        let error = refused(&other_file.path);
        assert!(matches!(error, ActivateError::NotSwapFile { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("has 100 bytes, too little") && !text.contains("enlarge"), "{text}");
        assert!(text.contains("give a directory") && text.contains("mkswap FILE"), "{text}");
    }

    #[test]
    fn file_system_signature_is_not_overwritten() {
        let swap_file = area(2 * MIB, Some(512));
        let file = fs::OpenOptions::new().write(true).open(&swap_file.path).unwrap();
        file.write_all_at(b"\x55\xaa", 0x1fe).unwrap();
        let activated = activate(&swap_file.path).unwrap();
        assert!(activated.warnings.contains(&Warning::BootSector));
        drop(activated);
        file.write_all_at(b"XFSB", 0).unwrap();
        let error = refused(&swap_file.path);
        assert!(matches!(error, ActivateError::Holds { has_header: true, .. }), "{error}");
        assert!(error.to_string().contains("an XFS file system and a swap header"), "{error}");
    }

    #[test]
    fn formatting_leaves_header_and_boot_sector() {
        let swap_file = area(2 * MIB, None);
        fs::write(&swap_file.path, vec![0x11; 2 * MIB as usize]).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&swap_file.path).unwrap();
        file.write_all_at(b"_BHRfS_M", 0x1_0040).unwrap();
        Storage::open(&swap_file.path).unwrap().format(&header(512)).unwrap();
        let now = fs::read(&swap_file.path).unwrap();
        assert!(now[..1024].iter().all(|&byte| byte == 0x11), "the boot sector is unchanged");
        assert!(now[4096..0x1_0040].iter().all(|&byte| byte == 0x11));
        assert_eq!(now[0x1_0040..0x1_0049], [0, 0, 0, 0, 0, 0, 0, 0, 0x11]);
        assert!(now[0x1_0048..].iter().all(|&byte| byte == 0x11));
        assert_eq!(activate(&swap_file.path).unwrap().header, header(512));
        // Erases a file system that begins in the first sector.
        file.write_all_at(b"XFSB", 0).unwrap();
        Storage::open(&swap_file.path).unwrap().format(&header(512)).unwrap();
        assert!(fs::read(&swap_file.path).unwrap()[..1024].iter().all(|&byte| byte == 0));
        assert_eq!(activate(&swap_file.path).unwrap().header, header(512));
    }
}
