//! `softswap bench`, `softswap analyze` and `softswap remote`: implemented by separate programs in
//! the same directory, so that the command stays small.

use crate::refusal::{CANNOT_RUN, NOT_FOUND, Refusal, plain};
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
    /// Replaces this process by the other program, with all arguments unchanged.
    pub(crate) fn exec(&self, name: &str, first: Option<&str>) -> Result<ExitCode, Refusal> {
        let own = std::env::current_exe().map_err(|error| {
            Refusal::own(format!("cannot find softswap's own executable ({error})"))
        })?;
        let program = own.with_file_name(name);
        let error = Command::new(&program).args(first).args(&self.arguments).exec();
        let shown = program.display();
        Err(match error.kind() {
            ErrorKind::NotFound => Refusal::new(
                NOT_FOUND,
                format!(
                    "{name}, which runs this command, is missing: looked for {shown}; build it \
                     with `make build`, or install it with `make install`"
                ),
            ),
            _ => Refusal::new(CANNOT_RUN, format!("{shown} cannot be run: {}", plain(&error))),
        })
    }
}
