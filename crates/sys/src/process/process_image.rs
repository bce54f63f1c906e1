//! Addresses at which the kernel and the loader have mapped this program.

use std::sync::OnceLock;

/// Returns an address in the executable's code and one in this library's, for finding gaps nearby.
///
/// ```
/// use softswap_sys::process_image;
///
/// let here = process_image::code as *const () as usize;
/// assert!(process_image::code().iter().any(|code| code.abs_diff(here) < 1 << 30));
/// ```
pub fn code() -> [usize; 2] {
    // SAFETY: the function takes a number, and reads the auxiliary vector.
    let entry = unsafe { libc::getauxval(libc::AT_ENTRY) } as usize;
    [entry, code as *const () as usize]
}

/// Returns the end of the program's data segment; `None` without program headers.
///
/// ```
/// use softswap_sys::process_image;
///
/// static mut DATA: u64 = 1;
/// let end = process_image::data_end().unwrap();
/// assert!(end.abs_diff(&raw const DATA as usize) < 1 << 30);
/// ```
pub fn data_end() -> Option<usize> {
    static END: OnceLock<Option<usize>> = OnceLock::new();
    *END.get_or_init(|| {
        let headers = headers()?;
        let own = headers.iter().find(|header| header.p_type == libc::PT_PHDR);
        let base =
            own.map_or(0, |own| (headers.as_ptr() as usize).wrapping_sub(own.p_vaddr as usize));
        let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let ends = loaded.map(|header| (header.p_vaddr + header.p_memsz) as usize);
        Some(base.wrapping_add(ends.max()?))
    })
}

fn headers() -> Option<&'static [libc::Elf64_Phdr]> {
    // SAFETY: the function takes a number, and reads the auxiliary vector.
    let [at, count, size] = [libc::AT_PHDR, libc::AT_PHNUM, libc::AT_PHENT]
        .map(|kind| unsafe { libc::getauxval(kind) } as usize);
    if at == 0 || size != size_of::<libc::Elf64_Phdr>() {
        return None;
    }
    // SAFETY: the kernel has mapped `count` program headers of this size at `at`, in a segment of
    // the program that stays mapped, and nothing writes to them.
    Some(unsafe { std::slice::from_raw_parts(at as *const libc::Elf64_Phdr, count) })
}
