//! Finds the program, and checks before its start that the runtime can be loaded.

use crate::output::quoted;
use crate::refusal::{CANNOT_RUN, NOT_FOUND, Refusal, plain};
use object::Endianness;
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::read::elf::{FileHeader, NoteIterator, ProgramHeader};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Maximum depth of nested interpreters; the kernel follows four.
const DEPTH: usize = 5;
const HEAD_BYTES: usize = 4096;
/// Largest supported file offset of the end of the program headers.
const FARTHEST_TABLE_BYTES: u64 = 64 << 20;
/// Maximum number of bytes read of a note segment. Linkers write less.
const NOTES_BYTES: u64 = 64 << 10;
const GO_BUILD_ID: u32 = 4;
const NO_PRELOAD: &str = "softswap works by preloading a library";
const LOADER: &str = "ld-linux-x86-64.so.2";
const SHELL_BUILTINS: [&str; 14] = [
    "alias", "bg", "cd", "eval", "exec", "exit", "export", "fg", "jobs", "set", "source", "ulimit",
    "umask", "unset",
];

/// Searches as a shell does.
pub(crate) fn find(name: &OsStr) -> Result<PathBuf, Refusal> {
    let path = look_up(name)?;
    check(&path, DEPTH)?;
    Ok(path)
}

fn cannot(path: &Path, why: impl std::fmt::Display) -> Refusal {
    Refusal::new(CANNOT_RUN, format!("{}: {why}", path.display()))
}

fn look_up(name: &OsStr) -> Result<PathBuf, Refusal> {
    let shown = name.to_string_lossy();
    if name.is_empty() {
        return Err(Refusal::new(NOT_FOUND, "the program's name is empty"));
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match fs::metadata(&path) {
            Ok(_) => executable(&path).map(|()| path),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(Refusal::new(NOT_FOUND, format!("{shown}: no such program; check the path")))
            }
            Err(error) => Err(cannot(&path, plain(&error))),
        };
    }
    let search = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let mut refused = None;
    for dir in std::env::split_paths(&search) {
        // An empty entry of PATH is the working directory.
        let dir = if dir.as_os_str().is_empty() { PathBuf::from(".") } else { dir };
        let path = dir.join(name);
        match fs::metadata(&path) {
            Ok(meta) if meta.is_file() => match executable(&path) {
                Ok(()) => return Ok(path),
                Err(refusal) => refused = refused.or(Some(refusal)),
            },
            _ => {}
        }
    }
    Err(refused.unwrap_or_else(|| {
        if shown.contains(' ') {
            return Refusal::new(
                NOT_FOUND,
                format!(
                    "\"{shown}\": no program in PATH has this name; leave out the quotes \
                     ({shown}), or run it by a shell: softswap run -- sh -c {}",
                    quoted(&shown)
                ),
            );
        }
        Refusal::new(NOT_FOUND, not_found(&shown))
    }))
}

fn not_found(name: &str) -> String {
    if let Some((variable, _)) = name.split_once('=').filter(|(before, _)| !before.is_empty()) {
        return format!(
            "{name}: not a program; to set the variable {variable}: softswap run -- env {} \
             PROGRAM",
            quoted(name)
        );
    }
    if SHELL_BUILTINS.contains(&name) {
        return format!(
            "{name}: not a program, but built into the shell: softswap run -- sh -c '{name} ...'"
        );
    }
    if is_python(Path::new(name)) {
        return format!(
            "{name}: no such program in PATH; for the script in this directory: {}",
            by_python(name)
        );
    }
    format!(
        "{name}: no such program in PATH; install it, or give its path (./{name}), or for an alias \
         the command that it stands for"
    )
}

fn is_python(path: &Path) -> bool {
    path.extension() == Some(OsStr::new("py")) && path.is_file()
}

fn by_python(script: &str) -> String {
    format!("softswap run -- python3 {}", quoted(script))
}

fn executable(path: &Path) -> Result<(), Refusal> {
    if path.is_dir() {
        return Err(cannot(path, "is a directory, not a program"));
    }
    if rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_err() {
        let remedy = match is_python(path) {
            true => by_python(&path.to_string_lossy()),
            false => format!("`chmod +x {}` if it is a program", path.display()),
        };
        return Err(cannot(path, format!("found, but not executable for this user; {remedy}")));
    }
    Ok(())
}

fn check(path: &Path, depth: usize) -> Result<(), Refusal> {
    // An executable file may be unreadable: then it is not checked.
    let Ok(file) = File::open(path) else {
        return Ok(());
    };
    let mut head = Vec::new();
    if (&file).take(HEAD_BYTES as u64).read_to_end(&mut head).is_err() {
        return Ok(());
    }
    if head.starts_with(b"#!") {
        return check_interpreter(path, &head, depth);
    }
    if !head.starts_with(&elf::ELFMAG) {
        // Like a shell, exec passes a file of unknown format to /bin/sh.
        return if head.contains(&0) {
            Err(cannot(path, "is neither an ELF program nor a script (exec format error)"))
        } else {
            check(Path::new("/bin/sh"), depth.saturating_sub(1))
        };
    }
    let read_at = |bytes: &mut [u8], position| file.read_at(bytes, position);
    let loader = loader_of(read_at, &head).map_err(|why| cannot(path, why))?;
    check_loader(path, &loader)?;
    check_secure_execution(path, &file)
}

fn check_interpreter(path: &Path, head: &[u8], depth: usize) -> Result<(), Refusal> {
    if depth == 0 {
        return Err(cannot(
            path,
            format!(
                "it is in a chain of more than {DEPTH} scripts, each the interpreter of the one \
                 before; name a binary in its first line (`#!`)"
            ),
        ));
    }
    let line = head[2..].split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_whitespace();
    let Some(interpreter) = words.next() else {
        return Err(cannot(path, "its first line `#!` names no interpreter"));
    };
    let interpreter = Path::new(interpreter);
    if let Err(error) = fs::metadata(interpreter) {
        return Err(cannot(
            path,
            format!(
                "its interpreter {} cannot be used: {}; install it, or correct the first line",
                interpreter.display(),
                plain(&error)
            ),
        ));
    }
    executable(interpreter)?;
    let through = |refusal: Refusal| {
        Refusal::new(refusal.status, format!("{}: its interpreter {refusal}", path.display()))
    };
    check(interpreter, depth - 1).map_err(through)?;
    if interpreter.file_name() == Some(OsStr::new("env"))
        && let Some(name) = named_by_env(words)
    {
        find_bounded(OsStr::new(name), depth - 1).map_err(through)?;
    }
    Ok(())
}

fn find_bounded(name: &OsStr, depth: usize) -> Result<(), Refusal> {
    check(&look_up(name)?, depth)
}

/// `None` if options hide the program's name.
fn named_by_env<'a>(words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut words = words.skip_while(|&word| word == "-S" || word == "-i" || word.contains('='));
    words.next().filter(|word| !word.starts_with('-'))
}

/// Fails if the program requests no loader, or cannot be loaded by glibc's. `head` is the start of
/// the file, `read_at` reads the rest.
pub(crate) fn loader_of(
    read_at: impl Fn(&mut [u8], u64) -> std::io::Result<usize>,
    head: &[u8],
) -> Result<PathBuf, String> {
    let truncated = || "is a damaged ELF program (exec format error)".to_string();
    let class = head.get(4).ok_or_else(truncated)?;
    if *class != elf::ELFCLASS64.0 {
        return Err(format!(
            "is a 32-bit program, and {NO_PRELOAD} for 64-bit programs; use its 64-bit build"
        ));
    }
    let header = FileHeader64::<Endianness>::parse(head).map_err(|_| truncated())?;
    let endian = header.endian().map_err(|_| truncated())?;
    if header.e_machine(endian) != elf::EM_X86_64 {
        return Err(format!(
            "is built for another processor, and {NO_PRELOAD} for x86-64; use its x86-64 build"
        ));
    }
    let table = usize::from(header.e_phnum(endian)) * usize::from(header.e_phentsize(endian));
    let end = header.e_phoff(endian).checked_add(table as u64).ok_or_else(truncated)?;
    let mut bytes = head.to_vec();
    if end > bytes.len() as u64 {
        bytes = vec![0; end.min(FARTHEST_TABLE_BYTES) as usize];
        let got = read_at(&mut bytes, 0).map_err(|_| truncated())?;
        bytes.truncate(got);
    }
    let headers = header.program_headers(endian, &bytes[..]).map_err(|_| truncated())?;
    let Some(interp) = headers.iter().find(|header| header.p_type(endian) == elf::PT_INTERP) else {
        return Err(explain_static(headers, endian, read_at));
    };
    let mut name = vec![0; (interp.p_filesz(endian) as usize).min(HEAD_BYTES)];
    match read_at(&mut name, interp.p_offset(endian)) {
        Ok(got) if got == name.len() => {}
        _ => return Err(truncated()),
    }
    name.truncate(name.iter().position(|&byte| byte == 0).unwrap_or(name.len()));
    Ok(PathBuf::from(OsString::from_vec(name)))
}

/// Recognizes the kind of program by its ELF notes, which stripping preserves: glibc's start files
/// have a tag for the required kernel, Go a build ID.
fn explain_static(
    headers: &[ProgramHeader64<Endianness>],
    endian: Endianness,
    read_at: impl Fn(&mut [u8], u64) -> std::io::Result<usize>,
) -> String {
    let (mut is_go, mut is_glibc) = (false, false);
    for header in headers.iter().filter(|header| header.p_type(endian) == elf::PT_NOTE) {
        let mut bytes = vec![0; header.p_filesz(endian).min(NOTES_BYTES) as usize];
        let got = read_at(&mut bytes, header.p_offset(endian)).unwrap_or(0);
        let align = if header.p_align(endian) == 8 { 8 } else { 4 };
        let notes = NoteIterator::<FileHeader64<Endianness>>::new(endian, align, &bytes[..got]);
        let Ok(mut notes) = notes else { continue };
        while let Ok(Some(note)) = notes.next() {
            let kind = note.n_type(endian).0;
            is_go |= note.name() == elf::ELF_NOTE_GO && kind == GO_BUILD_ID;
            is_glibc |= note.name() == elf::ELF_NOTE_GNU && kind == elf::NT_GNU_ABI_TAG.0;
        }
    }
    let (kind, instead) = if is_go {
        (
            "is a Go program, statically linked",
            "build it with cgo (CGO_ENABLED=1, and a package that uses it), without -static",
        )
    } else if is_glibc {
        ("is statically linked", "use a dynamically linked build (without -static)")
    } else {
        (
            "is statically linked without glibc, as with musl",
            "use a dynamically linked glibc build (for Rust: target x86_64-unknown-linux-gnu)",
        )
    };
    format!("{kind}, and {NO_PRELOAD}, which needs a dynamic loader; {instead}")
}

/// Returns true for a program into which glibc's loader never loads a library.
pub(super) fn never_loads_libraries(path: &str) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let mut head = Vec::new();
    if (&file).take(HEAD_BYTES as u64).read_to_end(&mut head).is_err() {
        return false;
    }
    let read_at = |bytes: &mut [u8], position| file.read_at(bytes, position);
    match loader_of(read_at, &head) {
        Ok(loader) => loader.file_name() != Some(OsStr::new(LOADER)),
        Err(_) => true,
    }
}

fn check_loader(path: &Path, loader: &Path) -> Result<(), Refusal> {
    let shown = loader.display();
    let name = loader.file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with("ld-musl") {
        return Err(cannot(
            path,
            format!(
                "is built for the musl C library ({shown}), and softswap's runtime for glibc; \
                     use a glibc build of the program"
            ),
        ));
    }
    if name != LOADER {
        return Err(cannot(
            path,
            format!(
                "requires the loader {shown}, and softswap's runtime needs glibc's {LOADER}; use \
                 a glibc build of the program"
            ),
        ));
    }
    if !loader.exists() {
        return Err(cannot(
            path,
            format!(
                "requires the loader {shown}, which does not exist here; install glibc (libc6)"
            ),
        ));
    }
    Ok(())
}

/// If the kernel gives a program more rights than its caller has, the loader ignores LD_PRELOAD.
fn check_secure_execution(path: &Path, file: &File) -> Result<(), Refusal> {
    let Ok(meta) = file.metadata() else {
        return Ok(());
    };
    let no_set_id = rustix::fs::fstatvfs(file)
        .is_ok_and(|fs| fs.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID));
    if no_set_id || rustix::thread::no_new_privs().unwrap_or(false) {
        return Ok(());
    }
    const GROUP_EXECUTE: u32 = 0o010;
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    let sets_group = meta.mode() & libc::S_ISGID != 0 && meta.mode() & GROUP_EXECUTE != 0;
    let (what, rights) = if meta.mode() & libc::S_ISUID != 0 && meta.uid() != user {
        (format!("setuid (it runs as user {})", meta.uid()), "the setuid bit")
    } else if sets_group && meta.gid() != group {
        (format!("setgid (it runs as group {})", meta.gid()), "the setgid bit")
    } else if user != 0 && has_capabilities(path) {
        ("given file capabilities".to_string(), "the capabilities")
    } else {
        return Ok(());
    };
    Err(cannot(
        path,
        format!(
            "is {what}, and {NO_PRELOAD}, which the loader ignores for programs that gain rights; \
             run a copy without {rights} (`cp {0} DIR/`), or run softswap as the user it runs as",
            path.display()
        ),
    ))
}

fn has_capabilities(path: &Path) -> bool {
    rustix::fs::getxattr(path, "security.capability", &mut [0u8; 64][..]).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn refusal(path: &Path) -> (u8, String) {
        let refusal = find(path.as_os_str()).unwrap_err();
        (refusal.status, refusal.to_string())
    }

    #[test]
    fn programs_are_searched_like_in_a_shell() {
        assert!(find(OsStr::new("sh")).unwrap().ends_with("sh"));
        let missing = find(OsStr::new("no-such-program-here")).unwrap_err();
        assert_eq!(missing.status, NOT_FOUND);
        assert_eq!(refusal(Path::new("/no/such/program")).0, NOT_FOUND);
        assert_eq!(refusal(Path::new("/")).0, CANNOT_RUN);
    }

    #[test]
    fn words_for_shell_are_explained() {
        for (name, remedy) in [
            ("FOO=1", "softswap run -- env FOO=1 PROGRAM"),
            ("cd", "softswap run -- sh -c 'cd ...'"),
            ("no-such.py", "give its path (./no-such.py)"),
            ("ll", "the command that it stands for"),
        ] {
            assert!(not_found(name).contains(remedy), "{}", not_found(name));
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("job.py");
        fs::write(&path, "").unwrap();
        let shown = path.to_str().unwrap();
        assert!(not_found(shown).ends_with(&format!("softswap run -- python3 {shown}")));
        let (status, text) = refusal(&path);
        assert!(status == CANNOT_RUN && text.ends_with(&by_python(shown)), "{text}");
    }

    #[test]
    fn interpreter_of_script_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(find(script(dir, "a", "#!/bin/sh\ntrue\n").as_os_str()).is_ok());
        assert!(find(script(dir, "b", "#! /usr/bin/env -S sh -e\ntrue\n").as_os_str()).is_ok());
        assert!(find(script(dir, "c", "echo plain text\n").as_os_str()).is_ok());
        let (status, text) = refusal(&script(dir, "d", "#!/no/such/interpreter\n"));
        assert!(status == CANNOT_RUN && text.contains("/no/such/interpreter"), "{text}");
        let (status, text) = refusal(&script(dir, "e", "#!/usr/bin/env no-such-program-here\n"));
        assert!(status == NOT_FOUND && text.contains("no-such-program-here"), "{text}");
        let own = dir.join("f");
        let (status, _) = refusal(&script(dir, "f", &format!("#!{}\n", own.display())));
        assert_eq!(status, CANNOT_RUN);
    }

    #[test]
    fn env_command_is_recognised() {
        let named = |line: &'static str| named_by_env(line.split_whitespace());
        assert_eq!(named("python3"), Some("python3"));
        assert_eq!(named("-S python3 -u"), Some("python3"));
        assert_eq!(named("-S A=b python3"), Some("python3"));
        assert_eq!(named("-u NAME python3"), None);
    }

    #[test]
    fn foreign_and_damaged_elf_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = fs::read("/bin/sh").unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = script(dir.path(), name, "");
            fs::write(&path, bytes).unwrap();
            path
        };
        assert!(find(write("same", &bytes).as_os_str()).is_ok());
        bytes[18] = 0xB7; // AArch64
        assert!(refusal(&write("foreign", &bytes)).1.contains("another processor"));
        bytes[4] = 1;
        assert!(refusal(&write("narrow", &bytes)).1.contains("32-bit"));
        assert!(refusal(&write("tiny", b"\x7fELF")).1.contains("damaged"));
        assert!(refusal(&write("short", b"\x7fELF\x02\x01\x01")).1.contains("damaged"));
        assert!(refusal(&write("data", b"ab\0cd")).1.contains("exec format"));
    }

    #[test]
    fn only_glibc_loader_is_accepted() {
        let check = |loader: &str| check_loader(Path::new("p"), Path::new(loader));
        assert!(check("/lib64/ld-linux-x86-64.so.2").is_ok());
        assert!(check("/lib/ld-musl-x86_64.so.1").unwrap_err().to_string().contains("musl"));
        assert!(check("/no/such/ld-linux-x86-64.so.2").unwrap_err().to_string().contains("libc6"));
        assert!(check("/libexec/ld-elf.so.1").is_err());
    }
}
