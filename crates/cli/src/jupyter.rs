//! `softswap jupyter`: kernels for notebooks that run within a budget.

use crate::library;
use crate::output::{lines as visible_lines, print};
use crate::refusal::{FAILED, OrRefuse, Refusal, plain};
use crate::run::sourced::without_password;
use crate::run::{self, program};
use clap::{Args, Subcommand, ValueHint};
use serde_json::json;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Manage Jupyter kernels that run within a budget of DRAM.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  softswap jupyter install --memory 8G
  softswap jupyter list
  softswap jupyter remove softswap-8g")]
pub(crate) struct JupyterArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Install(InstallArgs),
    /// List the kernels that run under `softswap run`
    #[command(after_long_help = "\
Examples:
  softswap jupyter list")]
    List {
        /// Look in DIR/share/jupyter
        #[arg(long, value_name = "DIR")]
        prefix: Option<PathBuf>,
    },
    /// Remove a kernel that `install` has created
    #[command(after_long_help = "\
Examples:
  softswap jupyter remove softswap-8g")]
    Remove {
        /// The kernel, as `list` shows it
        name: String,
        /// Look in DIR/share/jupyter
        #[arg(long, value_name = "DIR")]
        prefix: Option<PathBuf>,
    },
}

/// Install a Python kernel that runs under `softswap run`; its name in Jupyter shows the budget.
#[derive(Args)]
#[command(after_long_help = "\
The kernel is installed for this user, in JUPYTER_DATA_DIR or ~/.local/share/jupyter. `softswap
jupyter remove NAME` removes it.

Examples:
  softswap jupyter install --memory 8G

Exit status: 0 if it is installed, 2 for a value that cannot be used, 1 if it cannot be written.")]
struct InstallArgs {
    /// The kernel's DRAM budget, as for `softswap run`
    #[arg(long, value_name = "SIZE")]
    memory: String,

    /// Name of the kernel in Jupyter [default: softswap- and the budget]
    #[arg(long)]
    name: Option<String>,

    /// Where its pages are written, as for `softswap run`; may be given several times
    #[arg(long, value_name = "DIR", value_hint = ValueHint::AnyPath)]
    swap: Vec<String>,

    /// The Python to run, with ipykernel [default: python3 in softswap's directory, else in PATH]
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,

    /// Install in DIR/share/jupyter, for instance of a virtual environment
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
}

pub(crate) fn jupyter(args: &JupyterArgs) -> Result<ExitCode, Refusal> {
    match &args.action {
        Action::Install(args) => install(args),
        Action::List { prefix } => list(prefix.as_deref()),
        Action::Remove { name, prefix } => remove(name, prefix.as_deref()),
    }
}

fn bad(why: String) -> Refusal {
    Refusal::usage(format!("jupyter: {why}"))
}

fn kernels(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| runs_softswap(&entry.path()));
    let mut names: Vec<_> =
        ours.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn runs_softswap(dir: &Path) -> bool {
    let text = fs::read_to_string(dir.join("kernel.json")).unwrap_or_default();
    let kernel: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let word = |at: usize| kernel["argv"][at].as_str().unwrap_or_default();
    Path::new(word(0)).file_name() == Some(OsStr::new("softswap")) && word(1) == "run"
}

fn list(prefix: Option<&Path>) -> Result<ExitCode, Refusal> {
    let dir = data_dir(prefix).map_err(bad)?.join("kernels");
    let names = kernels(&dir);
    if names.is_empty() {
        print(&format!("no kernel in {} runs under softswap", dir.display()))?;
    } else {
        print(&visible_lines(&names.join("\n")))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn remove(name: &str, prefix: Option<&Path>) -> Result<ExitCode, Refusal> {
    let dir = data_dir(prefix).map_err(bad)?.join("kernels");
    if !kernels(&dir).iter().any(|known| known == name) {
        let shown = dir.display();
        return Err(bad(format!(
            "{name}: softswap has installed no kernel of this name in {shown}; `softswap jupyter \
             list` shows all"
        )));
    }
    let dir = dir.join(name);
    let what = format!("jupyter: {}", dir.display());
    fs::remove_dir_all(&dir).or_status(FAILED, what)?;
    print(&format!("{name} is removed from {}", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn install(args: &InstallArgs) -> Result<ExitCode, Refusal> {
    run::check_memory(&args.memory)
        .map_err(|why| bad(format!("--memory {}: {why}", args.memory)))?;
    let area = |text: &String| {
        let refuse = |why| bad(format!("--swap {}: {why}", without_password(text)));
        run::absolute_area(text).map_err(refuse)
    };
    let swap = args.swap.iter().map(area).collect::<Result<Vec<_>, _>>()?;
    let name = args.name.clone().unwrap_or_else(|| default_name(&args.memory));
    if !is_name(&name) {
        return Err(bad(format!("--name {name}: use letters, digits, `-`, `_` and `.` only")));
    }
    let own = library::own_executable()?;
    let python = python(&args.python.clone().unwrap_or_else(|| python_of_environment(&own)))?;
    let dir = data_dir(args.prefix.as_deref()).map_err(bad)?.join("kernels").join(&name);
    let text = format!("{:#}\n", kernel(args, swap, &own, &python));
    let written = fs::create_dir_all(&dir).and_then(|()| fs::write(dir.join("kernel.json"), text));
    let shown = dir.display();
    written.map_err(|error| {
        let remedy = "choose another directory with --prefix DIR";
        Refusal::new(FAILED, format!("jupyter: {shown}: {}; {remedy}", plain(&error)))
    })?;
    print(&format!("{name} is installed in {shown}"))?;
    Ok(ExitCode::SUCCESS)
}

fn default_name(memory: &str) -> String {
    let kept = memory.chars().filter(|char| char.is_ascii_alphanumeric() || *char == '.');
    format!("softswap-{}", kept.collect::<String>().to_ascii_lowercase())
}

fn is_name(name: &str) -> bool {
    let fits = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
    !name.is_empty() && name.chars().all(fits) && !name.starts_with('.')
}

/// Softswap's own directory may be a virtual environment, activated or not.
fn python_of_environment(own: &Path) -> PathBuf {
    let sibling = own.with_file_name("python3");
    if sibling.is_file() { sibling } else { PathBuf::from("python3") }
}

/// Links are not resolved: a virtual environment's Python is a link.
fn python(named: &Path) -> Result<PathBuf, Refusal> {
    let path = program::find(named.as_os_str())?;
    let path = std::path::absolute(&path).unwrap_or(path);
    let mut asked = Command::new(&path);
    asked.args(["-c", "import ipykernel"]).stdin(Stdio::null()).stderr(Stdio::null());
    if asked.status().is_ok_and(|status| status.success()) {
        return Ok(path);
    }
    let shown = path.display();
    Err(Refusal::usage(format!(
        "jupyter: {shown} has no ipykernel; `{shown} -m pip install ipykernel`, or choose another \
         Python with --python PROGRAM"
    )))
}

fn data_dir(prefix: Option<&Path>) -> Result<PathBuf, String> {
    let variable =
        |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let below_home = |home: PathBuf| home.join(".local/share");
    let own = || variable("XDG_DATA_HOME").or_else(|| variable("HOME").map(below_home));
    let within = |share: PathBuf| share.join("jupyter");
    match prefix {
        Some(prefix) => Ok(prefix.join("share/jupyter")),
        None => variable("JUPYTER_DATA_DIR")
            .or_else(|| own().map(within))
            .ok_or_else(|| "HOME is not set; choose a directory with --prefix DIR".to_string()),
    }
}

fn kernel(args: &InstallArgs, swap: Vec<String>, own: &Path, python: &Path) -> serde_json::Value {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let mut line = vec![text(own), "run".into(), "--memory".into(), args.memory.clone()];
    line.extend(swap.into_iter().flat_map(|area| ["--swap".into(), area]));
    let rest = ["-m", "ipykernel_launcher", "-f", "{connection_file}"];
    line.extend(["--".into(), text(python)]);
    line.extend(rest.map(String::from));
    let shown = python.file_name().and_then(OsStr::to_str).unwrap_or("Python");
    json!({
        "argv": line,
        "display_name": format!("{shown} (softswap, {})", args.memory),
        "language": "python",
        // Interrupts are messages: a signal to the process group would reach the kernel twice,
        // because softswap receives it, too, and forwards it.
        "interrupt_mode": "message",
        "metadata": { "debugger": true },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_environment_python_is_preferred() {
        let environment = tempfile::tempdir().unwrap();
        let own = environment.path().join("softswap");
        assert_eq!(python_of_environment(&own), Path::new("python3"));
        fs::write(environment.path().join("python3"), "").unwrap();
        assert_eq!(python_of_environment(&own), environment.path().join("python3"));
    }

    #[test]
    fn kernel_name_contains_budget() {
        assert_eq!(default_name("2G"), "softswap-2g");
        assert_eq!(default_name("50%"), "softswap-50");
        assert!(is_name("a-B_1.5") && !is_name("") && !is_name("../a") && !is_name(".hidden"));
    }
}
