//! Location of the runtime library.

use crate::refusal::{Refusal, plain};
use object::{NameOrOrdinal, Object, ObjectKind};
use std::path::{Path, PathBuf};

/// The library's name.
pub const NAME: &str = "libsoftswap.so";
/// Environment variable with the library's path.
pub const VARIABLE: &str = "SOFTSWAP_LIBRARY";

/// Symbol that only this library exports.
const SYMBOL: &[u8] = b"softswap_runtime";

/// Finds the library to preload: named by the environment, in the directory of the executable (a
/// build directory), or where `make install` puts it.
pub fn find() -> Result<PathBuf, Refusal> {
    let named = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    let places = match &named {
        Some(path) => vec![PathBuf::from(path)],
        None => {
            let exe = std::env::current_exe().map_err(|error| {
                Refusal::own(format!(
                    "cannot find softswap's own executable ({error}); set {VARIABLE} to the path \
                     of {NAME}"
                ))
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
    // A library in the command's own directory is trusted. If another file were named, the loader
    // would only warn and start the program without it.
    if named.is_some() {
        check_library(&found)?;
    }
    Ok(found)
}

fn check_library(path: &Path) -> Result<(), Refusal> {
    let shown = path.display();
    let bad = |why: String| {
        let advice = format!("set {VARIABLE} to the path of {NAME}, or unset it");
        Refusal::own(format!("{VARIABLE}: {shown} {why}; {advice}"))
    };
    let bytes =
        std::fs::read(path).map_err(|error| bad(format!("cannot be read: {}", plain(&error))))?;
    let file = object::File::parse(&*bytes).map_err(|_| bad("is not a library".into()))?;
    let mut exports = file.exports().into_iter().flatten().flatten();
    let is_it = file.kind() == ObjectKind::Dynamic
        && exports.any(|it| it.name() == NameOrOrdinal::Name(SYMBOL));
    if is_it { Ok(()) } else { Err(bad("is not softswap's runtime library".into())) }
}

fn places_for(exe: &Path) -> Vec<PathBuf> {
    let dir = exe.parent().unwrap_or(Path::new("/"));
    let prefix = dir.parent().unwrap_or(Path::new("/"));
    vec![dir.join(NAME), prefix.join("lib/softswap").join(NAME)]
}

/// Rejects paths that LD_PRELOAD cannot express: it separates entries by colons and spaces and has
/// no quoting.
fn fit_for_preload(path: &Path) -> Result<(), Refusal> {
    let text = path.to_str().unwrap_or(" ");
    if text.contains([':', ' ', '\t', '\n', '$']) {
        return Err(Refusal::own(format!(
            "the path of the runtime library, {path:?}, contains a space, a colon or a $, which \
             LD_PRELOAD cannot contain; move the library, or set {VARIABLE} to a path without \
             them"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_directory_precedes_installation() {
        let places = places_for(Path::new("/opt/x/bin/softswap"));
        assert_eq!(places[0], Path::new("/opt/x/bin/libsoftswap.so"));
        assert_eq!(places[1], Path::new("/opt/x/lib/softswap/libsoftswap.so"));
    }

    #[test]
    fn wrong_library_file_is_rejected() {
        let exe = std::env::current_exe().unwrap();
        let cases = [
            (Path::new("/etc/passwd"), "is not a library"),
            (&*exe, "is not softswap's runtime library"),
            (Path::new("/"), "cannot be read"),
        ];
        for (path, why) in cases {
            let error = check_library(path).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(VARIABLE), "{error}");
        }
    }

    #[test]
    fn unpreloadable_paths_are_rejected() {
        assert!(fit_for_preload(Path::new("/opt/x/libsoftswap.so")).is_ok());
        assert!(fit_for_preload(Path::new("/opt/my programs/libsoftswap.so")).is_err());
        assert!(fit_for_preload(Path::new("/opt/a:b/libsoftswap.so")).is_err());
    }
}
