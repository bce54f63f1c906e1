//! `softswap bench`, `analyze` and `remote`: separate programs, so that the command remains small.

use crate::library;
use crate::refusal::{CANNOT_RUN, NOT_FOUND, Refusal};
use clap::Args;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

pub(crate) const BENCH: &str = "softswap-bench";
pub(crate) use softswap_remote::PROGRAM as REMOTE;

#[derive(Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(crate) struct OtherProgram {
    /// Command and options; --help lists them
    #[arg(value_name = "NAME", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl OtherProgram {
    pub(crate) fn exec(&self, name: &str, first: Option<&str>) -> Result<ExitCode, Refusal> {
        let program = library::own_executable()?.with_file_name(name);
        let error = Command::new(&program).args(first).args(&self.arguments).exec();
        let is_missing = error.kind() == ErrorKind::NotFound;
        let status = if is_missing { NOT_FOUND } else { CANNOT_RUN };
        Err(Refusal::new(status, library::not_run(&program, "runs this command", &error)))
    }
}
