//! The programs whose pages are dumped: started here, read when they say that
//! they are ready, ended in any case.

use crate::pages::Page;
use crate::pages::open;
use softswap_cli::refusal::{Refusal, plain};
use softswap_sys::PAGE_SIZE;
use softswap_sys::child::SignalQueue;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// What the compiler keeps of one function of [`source_text`], about.
const BYTES_PER_FUNCTION: usize = 56 << 10;

/// The output of so many is more than a pipe holds: the compiler is not done
/// while nobody reads.
const LEAST_FUNCTIONS: usize = 256;

/// A program and how to make it large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    Python,
    Compiler,
    Database,
}

/// Pages, or why there are none.
pub(super) type Collected = Result<Vec<Page>, String>;

impl Program {
    pub(super) const ALL: [Program; 3] = [Program::Python, Program::Compiler, Program::Database];

    pub(super) fn name(self) -> &'static str {
        match self {
            Program::Python => "python",
            Program::Compiler => "compiler",
            Program::Database => "database",
        }
    }

    /// Runs the program until it has about `pages` pages, and takes up to as
    /// many from it, evenly spread.
    pub(super) fn pages(self, pages: usize, signals: &SignalQueue) -> Result<Collected, Refusal> {
        let goal_bytes = pages * PAGE_SIZE;
        let (command, input) = match self {
            Program::Python => (python(include_str!("data.py"), goal_bytes), None),
            Program::Database => (python(include_str!("database.py"), goal_bytes), None),
            Program::Compiler => match compiler() {
                Ok(command) => (command, Some(source_text(goal_bytes / BYTES_PER_FUNCTION))),
                Err(why) => return Ok(Err(why)),
            },
        };
        let running = match Running::start(command, input, signals) {
            Ok(running) => running,
            Err(why) => return Ok(Err(why)),
        };
        let mut found = Vec::with_capacity(pages);
        open::process(running.child.id())?.read(pages as u64, |chunk| {
            found.extend_from_slice(chunk);
            Ok(())
        })?;
        Ok(Ok(found))
    }
}

fn python(script: &str, goal_bytes: usize) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(goal_bytes.to_string());
    command
}

/// The compiler proper: what `gcc` is to everyone is a small program that starts it.
fn compiler() -> Result<Command, String> {
    const WAY_OUT: &str = "install gcc (`apt install gcc`)";
    let output = Command::new("gcc").arg("-print-prog-name=cc1").stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("gcc cannot be run: {}; {WAY_OUT}", plain(&e)))?;
    let path = String::from_utf8_lossy(&output.stdout).trim().to_string();
    // Where there is no compiler for C, it is the bare name.
    if !std::path::Path::new(&path).is_file() {
        return Err(format!("gcc has no compiler for C; {WAY_OUT}"));
    }
    let mut command = Command::new(path);
    command.args(["-quiet", "-O2", "-", "-o", "-"]);
    Ok(command)
}

/// C that keeps a compiler busy: functions with loops, switches and calls.
fn source_text(functions: usize) -> String {
    let mut text = String::from(
        "typedef struct node { struct node *next; long key; double value[4]; char name[32]; } node;\n",
    );
    for at in 0..functions.max(LEAST_FUNCTIONS) {
        let call = if at == 0 { "0".into() } else { format!("work_{}(head, text, n / 2)", at - 1) };
        let _ = write!(
            text,
            "long work_{at}(node *head, const char *text, long n) {{
  long sum = {at}; double product = {}.5;
  for (node *at = head; at; at = at->next) {{
    switch (at->key % 5) {{
    case 0: sum += at->key * {}; break;
    case 1: product *= at->value[{}] + {}; break;
    case 2: sum ^= (long)at->name[(unsigned long)sum % 32]; break;
    default: at->value[{}] = product / (sum + {}); }}
  }}
  for (long k = 0; k < n; k++) sum = text[k] == {} ? sum + k : sum * 31 + text[k];
  return sum + (long)product + {call};
}}\n",
            at % 7,
            at % 13 + 1,
            at % 4,
            at % 9,
            (at + 1) % 4,
            at + 3,
            at % 128
        );
    }
    text
}

/// A program that has said that it is ready; ended when this goes. It is
/// killed, too, when this process ends, however that comes about.
struct Running {
    child: Child,
    /// A compiler writes on until nobody reads, and stops there; a script waits
    /// for its input to end.
    _output: Option<ChildStdout>,
    _input: Option<ChildStdin>,
}

impl Running {
    /// Starts `command` and waits for its first word. `input` is given to it in
    /// full; without any, its input stays open.
    fn start(
        mut command: Command,
        input: Option<String>,
        signals: &SignalQueue,
    ) -> Result<Running, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Nothing is to be inherited but the standard streams, which are anyway.
        signals.prepare(&mut command, &[std::io::stderr().as_fd()]);
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command
            .spawn()
            .map_err(|error| format!("{name} cannot be started: {}", plain(&error)))?;
        let mut running = Running { child, _output: None, _input: None };
        let to = running.child.stdin.take();
        match (input, to) {
            (Some(text), Some(mut to)) => {
                // A program that has ended does not take it; that shows below.
                std::thread::spawn(move || to.write_all(text.as_bytes()));
            }
            (_, to) => running._input = to,
        }
        let mut from = running.child.stdout.take().ok_or("it has no output")?;
        if from.read(&mut [0]).unwrap_or(0) == 0 {
            let status = running.child.wait().map_or(String::new(), |s| format!(" ({s})"));
            return Err(format!("{name} ended before it was ready{status}"));
        }
        running._output = Some(from);
        Ok(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
