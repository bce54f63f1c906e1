//! Hints for command lines that cannot be parsed.

use crate::ctl;
use crate::output::quoted;
use crate::run::sourced::without_password;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use softswap_view::units::visible;
use std::ffi::{OsStr, OsString};
use std::path::Path;

pub(crate) fn exit<C: Parser + CommandFactory>(mut error: clap::Error) -> ! {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(hint) = hint::<C>(&error, &words) {
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    error.exit()
}

const ACTIONS: [&str; 5] = ["get", "set", "populate", "park", "unpark"];

/// Returns a hint for words in the wrong order, and for a name in place of a PID.
fn hint_for_pid(words: &[OsString]) -> Option<String> {
    let words: Vec<_> = words.iter().map(|word| visible(&word.to_string_lossy())).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let is_number = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_digit());
    let is_key = |word: &str| ctl::keys().any(|key| word.split('=').next() == Some(key));
    let pid_among = |first: &str, rest: &[&str]| {
        // In `set KEY VALUE` the last word is not a PID.
        let has_pid_last = first != "set" || rest.len() != 2 || rest[0].contains('=');
        let last = rest.last().filter(|_| has_pid_last);
        let pid = rest.first().into_iter().chain(last).find(|word| is_number(word));
        pid.map_or_else(|| "PID".to_string(), ToString::to_string)
    };
    match words[..] {
        ["ctl", first, ref rest @ ..] if ACTIONS.contains(&first) || is_key(first) => {
            let line = ctl_line(&pid_among(first, rest), &words[1..]);
            Some(format!("the PID comes first: `{line}`"))
        }
        [first, ref rest @ ..] if ACTIONS.contains(&first) => {
            let line = ctl_line(&pid_among(first, rest), &words);
            Some(format!("did you mean `{line}`?"))
        }
        ["ctl", pid, "set", pair] if is_number(pid) && pair.contains('=') => {
            let line = ctl_line(pid, &words[2..]);
            Some(format!("the value is a separate word: `{line}`"))
        }
        ["ctl", pid, key, ..] if is_number(pid) && is_key(key) => {
            Some(format!("did you mean `{}`?", ctl_line(pid, &words[2..])))
        }
        ["ctl", pid, command @ ("stat" | "top" | "record"), ..] if is_number(pid) => {
            Some(format!("did you mean `softswap {command} {pid}`?"))
        }
        ["ctl" | "stat" | "top" | "record", name, ..]
            if !name.starts_with('-') && !is_number(name) =>
        {
            Some("a PID is a number; `pgrep -a NAME` finds it".into())
        }
        ["stat" | "record", ref options @ ..] if options.iter().all(|it| it.starts_with('-')) => {
            Some("`softswap top` shows the PIDs of all programs under softswap".into())
        }
        _ => None,
    }
}

fn ctl_line(pid: &str, words: &[&str]) -> String {
    let rest: Vec<&str> =
        words.iter().filter(|word| **word != pid).flat_map(|word| word.split('=')).collect();
    let action = match rest[..] {
        [first, ..] if ACTIONS.contains(&first) => "",
        [_key] => " get",
        _ => " set",
    };
    format!("softswap ctl {pid}{action} {}", rest.join(" "))
}

fn hint<C: Parser + CommandFactory>(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let is_misplaced = [
        ErrorKind::ValueValidation,
        ErrorKind::MissingRequiredArgument,
        ErrorKind::InvalidSubcommand,
        ErrorKind::UnknownArgument,
    ];
    if is_misplaced.contains(&error.kind())
        && let Some(hint) = hint_for_pid(words)
    {
        return Some(hint);
    }
    let wrong = match (error.kind(), error.context().next()?) {
        (ErrorKind::UnknownArgument, (ContextKind::InvalidArg, ContextValue::String(wrong))) => {
            wrong
        }
        (
            ErrorKind::InvalidSubcommand,
            (ContextKind::InvalidSubcommand, ContextValue::String(wrong)),
        ) => wrong,
        _ => return None,
    };
    let commands = C::command();
    let is_command = |name: &str| words.first().is_some_and(|word| word == name);
    let is_known = commands.get_subcommands().any(|command| is_command(command.get_name()));
    if wrong == "-m" && (is_command("run") || !is_known) {
        return Some("the option for the budget is --memory: `softswap run --memory SIZE`".into());
    }
    let near = commands.get_subcommands().map(clap::Command::get_name);
    let near = near.min_by_key(|name| strsim::osa_distance(name, wrong));
    if let Some(name) = near.filter(|name| strsim::osa_distance(name, wrong) <= 1) {
        return Some(format!("did you mean `softswap {name}`?"));
    }
    if is_known {
        return None;
    }
    // Suggest `softswap run` if the words parse as its arguments.
    let line = ["softswap", "run"].map(OsString::from).into_iter().chain(words.iter().cloned());
    let shown = |word: &OsString| visible(&without_password(&word.to_string_lossy()));
    let mut tip: Vec<_> = line.clone().map(|word| quoted(&shown(&word))).collect();
    C::try_parse_from(line.clone()).ok()?;
    // If parsing fails without the last word, that word is the program.
    let is_program = C::try_parse_from(line.take(words.len() + 1)).is_err();
    if let Some(last) = words.last().filter(|last| is_program && is_command_line(last)) {
        tip.pop();
        tip.push(unquoted(shown(last)));
    }
    Some(format!("to run a program: {}", tip.join(" ")))
}

/// Returns true if a program's name is a whole command line in quotes.
fn is_command_line(name: &OsStr) -> bool {
    name.to_string_lossy().contains(' ') && !Path::new(name).exists()
}

/// A shell must run the line if it has operators of the shell.
fn unquoted(line: String) -> String {
    match line.contains(['|', '&', ';', '<', '>']) {
        true => format!("sh -c {}", quoted(&line)),
        false => line,
    }
}
