//! Location of the runtime library.

use crate::refusal::{OrRefuse, Refusal, plain};
use object::{NameOrOrdinal, Object, ObjectKind};
use softswap_engine::api::settings::ENV_PREFIX;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

pub const NAME: &str = "libsoftswap.so";
pub const VARIABLE: &str = "SOFTSWAP_LIBRARY";

const SYMBOL: &[u8] = b"softswap_runtime";
const REINSTALL: &str =
    "install softswap again, as before (wheel, package, `make install` or `make build`)";

/// Searches the environment's path, the executable's directory, and where `make install` puts it.
pub fn find() -> Result<PathBuf, Refusal> {
    let named = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    let places = match &named {
        Some(path) => vec![PathBuf::from(path)],
        None => places_for(&own_executable().map_err(|refusal| {
            Refusal::own(format!("{refusal}; set {VARIABLE} to the path of {NAME}"))
        })?),
    };
    let Some(found) = places.iter().find(|path| path.is_file()) else {
        let looked: Vec<_> = places.iter().map(|path| path.display().to_string()).collect();
        return Err(Refusal::own(format!(
            "the runtime library {NAME} is missing: looked for {}; {REINSTALL}, or set {VARIABLE} \
             to its path",
            looked.join(" and ")
        )));
    };
    let found = found.canonicalize().unwrap_or_else(|_| found.clone());
    fit_for_preload(&found)?;
    // If a path given by the user were another file, the loader would only warn and start the
    // program without softswap.
    if named.is_some() {
        check_library(&found)?;
    }
    Ok(found)
}

/// The directory also has softswap's other programs.
pub fn own_executable() -> Result<PathBuf, Refusal> {
    std::env::current_exe().or_own("cannot find softswap's own executable")
}

pub(crate) fn not_run(program: &Path, what_it_does: &str, error: &io::Error) -> String {
    let (shown, name) = (program.display(), program.file_name().unwrap_or_default().display());
    match error.kind() {
        io::ErrorKind::NotFound => {
            format!("{name}, which {what_it_does}, is missing: looked for {shown}; {REINSTALL}")
        }
        _ => format!("{shown} cannot be run: {}", plain(error)),
    }
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
    let is_runtime = file.kind() == ObjectKind::Dynamic
        && exports.any(|it| it.name() == NameOrOrdinal::Name(SYMBOL));
    if is_runtime { Ok(()) } else { Err(bad("is not softswap's runtime library".into())) }
}

fn places_for(exe: &Path) -> Vec<PathBuf> {
    let dir = exe.parent().unwrap_or(Path::new("/"));
    let prefix = dir.parent().unwrap_or(Path::new("/"));
    vec![dir.join(NAME), prefix.join("lib/softswap").join(NAME)]
}

/// This process may run under another softswap.
pub fn remove_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.as_bytes().starts_with(ENV_PREFIX.as_bytes()) {
            command.env_remove(name);
        }
    }
}

pub fn preloading(library: &Path) -> OsString {
    let mut preload = OsString::from(library);
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    preload
}

/// Inside another run a command inherits the preloads.
pub(crate) fn remove_preload(command: &mut Command) {
    let preload = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let is_other = |path: &&[u8]| !path.is_empty() && !path.ends_with(NAME.as_bytes());
    let paths = preload.as_bytes().split(|byte| b": ".contains(byte));
    let others: Vec<_> = paths.filter(is_other).collect();
    match others.is_empty() {
        true => command.env_remove("LD_PRELOAD"),
        false => command.env("LD_PRELOAD", OsString::from_vec(others.join(&b':'))),
    };
}

/// Colons and spaces separate entries of LD_PRELOAD, which has no quoting.
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
