//! Where the runtime library is.

use crate::refusal::Refusal;
use std::path::{Path, PathBuf};

/// The library's name.
pub const NAME: &str = "libsoftswap.so";
/// Names the library outright.
pub const VARIABLE: &str = "SOFTSWAP_LIBRARY";

/// The library to preload: named by the environment, beside the executable
/// (a build directory), or where `make install` puts it.
pub fn find() -> Result<PathBuf, Refusal> {
    let named = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    let places = match named {
        Some(path) => vec![PathBuf::from(path)],
        None => {
            let exe = std::env::current_exe().map_err(|error| {
                Refusal::own(format!("cannot tell where softswap itself is ({error}); set {VARIABLE} to the path of {NAME}"))
            })?;
            places_for(&exe)
        }
    };
    let Some(found) = places.iter().find(|path| path.is_file()) else {
        let looked: Vec<_> = places.iter().map(|path| path.display().to_string()).collect();
        return Err(Refusal::own(format!(
            "the runtime library {NAME} is missing: looked for {}; \
             install it with `make install`, or set {VARIABLE} to its path",
            looked.join(" and ")
        )));
    };
    let found = found.canonicalize().unwrap_or_else(|_| found.clone());
    fit_for_preload(&found)?;
    Ok(found)
}

fn places_for(exe: &Path) -> Vec<PathBuf> {
    let dir = exe.parent().unwrap_or(Path::new("/"));
    let prefix = dir.parent().unwrap_or(Path::new("/"));
    vec![dir.join(NAME), prefix.join("lib/softswap").join(NAME)]
}

/// LD_PRELOAD separates its entries by colons and spaces and has no quoting.
fn fit_for_preload(path: &Path) -> Result<(), Refusal> {
    let text = path.to_str().unwrap_or(" ");
    if text.contains([':', ' ', '\t', '\n', '$']) {
        return Err(Refusal::own(format!(
            "the runtime library lies at {path:?}, which LD_PRELOAD cannot express \
             (no spaces, colons or $); move it, or set {VARIABLE} to a path without them"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_directory_comes_before_an_installation() {
        let places = places_for(Path::new("/opt/x/bin/softswap"));
        assert_eq!(places[0], Path::new("/opt/x/bin/libsoftswap.so"));
        assert_eq!(places[1], Path::new("/opt/x/lib/softswap/libsoftswap.so"));
    }

    #[test]
    fn paths_that_cannot_be_preloaded_are_refused() {
        assert!(fit_for_preload(Path::new("/opt/x/libsoftswap.so")).is_ok());
        assert!(fit_for_preload(Path::new("/opt/my programs/libsoftswap.so")).is_err());
        assert!(fit_for_preload(Path::new("/opt/a:b/libsoftswap.so")).is_err());
    }
}
