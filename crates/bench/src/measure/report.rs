//! Result of a command: one JSON object, and the same data as tables.

use super::machine::{Machine, Usage};
use super::sample::{Object, object};
use super::tables;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use softswap_cli::output_file::OutputFile;
use softswap_cli::refusal::{OrRefuse, Refusal, USAGE};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// Version of every benchmark's JSON. Increases if a key is removed or its meaning changes.
const SCHEMA: u32 = 3;

pub(crate) struct Log {
    usage: Usage,
    /// `<a>_vs_<b>` is a over b.
    ratios: Object,
    pub(crate) notes: Vec<String>,
}

impl Log {
    pub(crate) fn start() -> Log {
        Log { usage: Usage::now(), ratios: Object::new(), notes: Vec::new() }
    }

    pub(crate) fn ratio(&mut self, name: impl Into<String>, ratio: impl Into<Value>) {
        self.ratios.insert(name.into(), ratio.into());
    }

    /// `figures` are specific to the benchmark.
    pub(crate) fn findings(self, bench: &str, machine: Machine, figures: Object) -> Object {
        let Log { usage, ratios, notes } = self;
        let mut found = object! { schema: SCHEMA, bench, machine };
        found.extend(usage.since());
        found.extend(figures);
        found.extend(object! { ratios, notes });
        found
    }
}

pub(crate) fn progress(steps: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    let style = ProgressStyle::with_template(template);
    style.map_or(bar.clone(), |style| bar.with_style(style))
}

/// On failure adds a note that `name` is left out.
pub(crate) fn or_left_out<T>(
    made: Result<T, String>,
    name: &str,
    notes: &mut Vec<String>,
) -> Option<T> {
    made.map_err(|why| notes.push(format!("{name} is left out: {why}"))).ok()
}

/// Measures, prints tables, and writes JSON to the file `json` (with `-` prints only JSON). Opens
/// the file first, so that an unwritable path fails before the measurement. A failed measurement
/// leaves the file unchanged.
pub(crate) fn write(
    json: Option<&Path>,
    measure: impl FnOnce() -> Result<Object, Refusal>,
) -> Result<ExitCode, Refusal> {
    let Some(path) = json.filter(|path| *path != Path::new("-")) else {
        let found = measure()?;
        let text = if json.is_some() { text_of(&found) } else { tables::of(&found) };
        return print(&text);
    };
    let remedy = "choose another path, or - for standard output";
    let mut file = OutputFile::open("--json", path, USAGE, remedy)?;
    let found = measure()?;
    let written = file.write(&text_of(&found));
    written.or_own(format!("{} cannot be written", path.display()))?;
    print(&tables::of(&found))
}

fn text_of(found: &Object) -> String {
    serde_json::to_string_pretty(found).unwrap_or_default() + "\n"
}

fn print(text: &str) -> Result<ExitCode, Refusal> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // The reader has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.or_own("the result cannot be written"),
    }
    .map(|()| ExitCode::SUCCESS)
}
