//! Test: docs/reference.md contains all command line arguments, also of `softswap-bench`.

use super::Cli;
use clap::{Arg, Command, CommandFactory};

pub(crate) const REFERENCE: &str = include_str!("../../../docs/reference.md");

pub(crate) fn section(path: &str) -> Option<&'static str> {
    let (_, text) = REFERENCE.split_once(&format!("# `{path}`\n"))?;
    Some(text.split("# `softswap ").next().unwrap_or(text))
}

/// Finds whole words only: `--swap-in` is not `--swap`.
pub(crate) fn names(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part)
    })
}

fn spellings(arg: &Arg) -> Vec<String> {
    let mut words = Vec::new();
    words.extend(arg.get_long().map(|long| format!("--{long}")));
    words.extend(arg.get_short().map(|short| format!("-{short}")));
    if words.is_empty() {
        words.extend(arg.get_value_names().into_iter().flatten().map(|name| name.to_string()));
    }
    // clap reports `true` and `false` as values of a flag; users never type them.
    if arg.get_action().takes_values() {
        words.extend(arg.get_possible_values().iter().map(|value| value.get_name().to_string()));
    }
    words
}

fn find_missing(command: &Command, path: &str, part: &str, missing: &mut Vec<String>) {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    for word in shown.flat_map(spellings) {
        if !names(part, &word) {
            missing.push(format!("{path} {word}"));
        }
    }
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        let name = below.get_name();
        let path = format!("{path} {name}");
        // `ctl get` has no separate heading.
        match section(&path).or_else(|| names(part, name).then_some(part)) {
            Some(part) => find_missing(below, &path, part, missing),
            None => missing.push(path),
        }
    }
}

#[test]
fn reference_lists_every_command_and_option() {
    let mut missing = Vec::new();
    find_missing(&Cli::command(), "softswap", "", &mut missing);
    assert!(missing.is_empty(), "missing in docs/reference.md: {missing:#?}");
}
