//! Files of other programs: core files, programs, traces.

use softswap_bench::parsers;
use softswap_sys::PAGE_SIZE;

/// What a core file is said to hold is in it.
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

/// A loader is named in the file, or there is a reason why there is none.
pub(crate) fn elf(input: &[u8]) {
    match softswap_cli::parsers::loader(input) {
        Ok(loader) => {
            let name = loader.as_os_str().as_encoded_bytes();
            assert!(name.is_empty() || input.windows(name.len()).any(|part| part == name));
        }
        Err(why) => assert!(!why.is_empty()),
    }
}

/// Pages are numbered from 0, without a gap.
pub(crate) fn trace(input: &[u8]) {
    let Some(touches) = parsers::trace(input) else { return };
    let most = *touches.iter().max().unwrap();
    assert!((0..=most).all(|page| touches.contains(&page)));
    assert!(touches.windows(2).all(|two| two[0] != two[1]));
}
