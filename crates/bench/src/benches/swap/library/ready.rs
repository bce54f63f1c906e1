//! What the programs of the places are started with: those of others only where they are there.

use super::place::{Needs, Place, region_pages};
use crate::benches::swap::limits::Limits;
use crate::benches::swap::programs::compiled;
use clap::Args;
use softswap_cli::refusal::plain;
use softswap_sys::PAGE_SIZE;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What is allocated at this size and more BigMaac has in files; the heap of umap does likewise.
const LARGE_BYTES: u64 = 64 << 20;

/// What others have made, as far as it is there.
#[derive(Debug, Args)]
pub(super) struct Others {
    /// A Python with numpy, for arrays of a pool, numpy.memmap, Blosc2 and Zarr
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,

    /// The library libumap.so
    #[arg(long, value_name = "FILE")]
    umap: Option<PathBuf>,

    /// The library bigmaac.so
    #[arg(long, value_name = "FILE")]
    bigmaac: Option<PathBuf>,
}

/// How the program of a place is started.
pub(super) struct Ready {
    pub(super) place: Place,
    /// And its first arguments.
    pub(super) program: Vec<OsString>,
    pub(super) environment: Vec<(OsString, OsString)>,
    /// What it has in memory of its own: that comes on top of the limit, as it takes nothing
    /// away from the others either.
    pub(super) own_bytes: u64,
}

impl Ready {
    /// With what it needs in `dir`; or why it is left out.
    pub(super) fn make(
        place: Place,
        (others, limit_bytes): (&Others, u64),
        dir: &Path,
    ) -> Result<Ready, String> {
        let (environment, own_bytes) = (Vec::new(), 0);
        match place.needs() {
            Needs::Python => Ready::of_python(place, others.python.as_deref(), (dir, limit_bytes)),
            Needs::Nothing => Ok(Ready { place, program: task_program()?, environment, own_bytes }),
            Needs::Library(option) => {
                let given = if place == Place::Umap { &others.umap } else { &others.bigmaac };
                let library = given.as_deref().ok_or(format!("give the library with {option}"))?;
                // Absolute, as the loader takes a bare name for that of a system library.
                let library = library
                    .canonicalize()
                    .map_err(|error| format!("{}: {}", library.display(), plain(&error)))?;
                let memory_bytes = Limits::first(limit_bytes).memory_bytes;
                let environment = match place {
                    Place::Umap => umap(&library, memory_bytes, dir)?,
                    _ => bigmaac(&library, dir),
                };
                Ok(Ready { place, program: task_program()?, environment, own_bytes })
            }
        }
    }

    fn of_python(
        place: Place,
        python: Option<&Path>,
        (dir, limit_bytes): (&Path, u64),
    ) -> Result<Ready, String> {
        let pages = region_pages(limit_bytes).to_string();
        let python = python.ok_or("give a Python that has its module with --python")?;
        let script = dir.join("arrays.py");
        std::fs::write(&script, include_str!("arrays.py")).map_err(|error| plain(&error))?;
        let program = vec![python.into(), script.clone().into()];
        let asked = Command::new(python)
            .arg(script)
            .args(["--place", place.name(), "--dir", "/", "--pages", &pages, "--own"])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{}: {}", python.display(), plain(&error)))?;
        let said = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            text.lines().last().unwrap_or("it failed").to_string()
        };
        let own_bytes = said(&asked.stdout).parse();
        let own_bytes =
            own_bytes.map_err(|_| format!("{}: {}", python.display(), said(&asked.stderr)))?;
        Ok(Ready { place, program, environment: Vec::new(), own_bytes })
    }
}

fn task_program() -> Result<Vec<OsString>, String> {
    let program = std::env::current_exe()
        .map_err(|error| format!("cannot find softswap itself: {}", plain(&error)))?;
    Ok(vec![program.into(), "library-task".into()])
}

/// Pages past the page cache, as many as go into the budget.
fn umap(
    library: &Path,
    memory_bytes: u64,
    dir: &Path,
) -> Result<Vec<(OsString, OsString)>, String> {
    let flags = ["-shared", "-fPIC"];
    let heap = compiled(dir, "umap_heap", include_str!("umap_heap.c"), &flags)?;
    let mut preload: OsString = heap.into();
    preload.push(":");
    preload.push(library);
    let pages = memory_bytes / PAGE_SIZE as u64;
    Ok(vec![
        ("LD_PRELOAD".into(), preload),
        ("UMAP_HEAP_DIR".into(), dir.into()),
        ("UMAP_BUFSIZE".into(), pages.to_string().into()),
    ])
}

fn bigmaac(library: &Path, dir: &Path) -> Vec<(OsString, OsString)> {
    let template: PathBuf = dir.join("bigmaac.XXXXXXXX");
    vec![
        ("LD_PRELOAD".into(), library.into()),
        ("BIGMAAC_TEMPLATE".into(), template.into()),
        ("BIGMAAC_MIN_BIGMAAC_SIZE".into(), LARGE_BYTES.to_string().into()),
    ]
}
