//! Parsers of untrusted files: core files, executables, traces.

use softswap_bench::parsers;
use softswap_sys::PAGE_SIZE;

pub(crate) fn core(input: &[u8]) {
    match parsers::core(input) {
        Some(Ok(runs)) => {
            assert!(!runs.is_empty());
            for (position, pages) in runs {
                let end = position + pages * PAGE_SIZE as u64;
                assert!(pages > 0 && end <= input.len() as u64);
            }
        }
        Some(Err(why)) => assert!(!why.is_empty()),
        None => {}
    }
}

pub(crate) fn elf(input: &[u8]) {
    match softswap_cli::parsers::loader(input) {
        Ok(loader) => {
            let name = loader.as_os_str().as_encoded_bytes();
            assert!(name.is_empty() || input.windows(name.len()).any(|part| part == name));
        }
        Err(why) => assert!(!why.is_empty()),
    }
}

pub(crate) fn trace(input: &[u8]) {
    let Some((pages, touches)) = parsers::trace(input) else { return };
    assert!(touches.iter().all(|page| *page < pages));
}
