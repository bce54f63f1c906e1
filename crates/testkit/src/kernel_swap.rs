//! The kernel's own swap: `swapon` and `swapoff` of one area.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Highest priority that the kernel accepts.
pub const HIGHEST_PRIORITY: u16 = 0x7fff;

const PREFER: libc::c_int = 0x8000;

/// Makes the kernel swap to `path`. Areas with a higher priority are filled first. Needs root.
pub fn swap_on(path: &Path, priority: u16) -> io::Result<()> {
    let path = c_path(path)?;
    let flags = PREFER | libc::c_int::from(priority.min(HIGHEST_PRIORITY));
    // SAFETY: the function reads a C string that is valid until it returns.
    done(unsafe { libc::swapon(path.as_ptr(), flags) })
}

/// Stops swapping to `path`, after the kernel has read all its pages back into DRAM. Needs root.
pub fn swap_off(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the function reads a C string that is valid until it returns.
    done(unsafe { libc::swapoff(path.as_ptr()) })
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from)
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
