//! Writes the closing figures to a file, as JSON or as a page.

use crate::output::print_message;
use crate::output_file::OutputFile;
use crate::refusal::{Refusal, USAGE, plain};
use softswap_engine::api::settings::Config;
use softswap_view::page;
use softswap_view::report::Report;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Refuses a file that two options name.
pub(super) fn open_all(paths: &[PathBuf], log: Option<&Path>) -> Result<Vec<OutputFile>, Refusal> {
    let named_twice = |path: &Path, other: &str| {
        let shown = path.display();
        Refusal::usage(format!(
            "--report {shown}: {other} names the same file; choose another file"
        ))
    };
    let mut files: Vec<OutputFile> = Vec::new();
    for path in paths {
        if files.iter().any(|file| file.is_at(path)) {
            return Err(named_twice(path, "another --report"));
        }
        let file = OutputFile::open("--report", path, USAGE, "choose another path")?;
        if log.is_some_and(|log| file.is_at(log)) {
            return Err(named_twice(path, "--log"));
        }
        files.push(file);
    }
    Ok(files)
}

/// HTML if the file's name ends in `.html` or `.htm`. Prints errors.
pub(super) fn write(mut file: OutputFile, report: &Report) {
    let is_page = file.path.extension().is_some_and(|it| it == "html" || it == "htm");
    let text = match is_page {
        true => serde_json::to_string(report).and_then(|json| page::of(&json)),
        false => serde_json::to_string_pretty(report),
    };
    let written = text.map_err(io::Error::from).and_then(|text| file.write(&(text + "\n")));
    if let Err(error) = written {
        let (path, why) = (file.path.display(), plain(&error));
        print_message(&format!(
            "softswap: the report could not be written to {path}: {why}; the program was not \
             affected"
        ));
    }
}

pub(super) fn settings(config: &Config) -> BTreeMap<String, String> {
    let areas: Vec<_> = config.areas.iter().map(|area| area.path.display().to_string()).collect();
    let settings = [
        ("memory", format!("{}M", config.memory_bytes >> 20)),
        ("codec", config.codec.to_string()),
        ("pool.limit", config.pool.to_string()),
        ("io.poll", config.poll.to_string()),
        ("swap", areas.join(", ")),
        ("encrypt", config.encrypt.to_string()),
    ];
    settings.map(|(key, value)| (key.to_string(), value)).into()
}
