//! The plots as files of their own, as documents show them.

use super::plots::Plot;
use softswap_cli::refusal::{Refusal, plain};
use std::fs;
use std::path::{Path, PathBuf};

/// The directory that the plots go to, if any.
pub(super) struct PlotDir(Option<PathBuf>);

impl PlotDir {
    /// Makes it before anything is measured.
    pub(super) fn open(path: Option<&Path>) -> Result<PlotDir, Refusal> {
        if let Some(path) = path {
            fs::create_dir_all(path).map_err(|error| {
                Refusal::usage(format!(
                    "--plots {}: the directory cannot be made: {}; choose another path",
                    path.display(),
                    plain(&error)
                ))
            })?;
        }
        Ok(PlotDir(path.map(Path::to_path_buf)))
    }

    /// Writes each plot as NAME.svg.
    pub(super) fn write(&self, plots: &[Plot]) -> Result<(), Refusal> {
        let Some(dir) = &self.0 else { return Ok(()) };
        for Plot { name, svg, .. } in plots {
            let path = dir.join(format!("{name}.svg"));
            fs::write(&path, svg).map_err(|error| {
                Refusal::own(format!("{} cannot be written: {}", path.display(), plain(&error)))
            })?;
        }
        Ok(())
    }
}
