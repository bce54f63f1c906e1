//! Writes the man pages and the completions, from the definitions that parse the command line.
#![forbid(unsafe_code)]

use clap::builder::{PossibleValuesParser, Resettable};
use clap::{Arg, Command, Id};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use softswap_engine::api::live_settings::LIVE_SETTINGS;
use softswap_engine::api::settings::Faults;
use softswap_engine::codec::Choice;
use softswap_engine::store::io::poll::mode::Mode;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

const NAME: &str = "softswap";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Paths below `share` in which each shell searches.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/softswap"),
    (Shell::Zsh, "zsh/site-functions/_softswap"),
    (Shell::Fish, "fish/vendor_completions.d/softswap.fish"),
];

fn main() -> ExitCode {
    let Some(share) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: softswap-manual DIR (writes man pages and completions to DIR)");
        return ExitCode::from(2);
    };
    if let Err(error) = write(&share) {
        eprintln!("softswap-manual: {}: {error}", share.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn write(share: &Path) -> io::Result<()> {
    let pages = share.join("man/man1");
    fs::create_dir_all(&pages)?;
    let mut whole = definition();
    let completed = without_hidden(&whole).version(VERSION).propagate_version(true);
    whole.build();
    write_pages(&whole, &pages)?;
    for (shell, file) in COMPLETIONS {
        let file = share.join(file);
        fs::create_dir_all(file.parent().unwrap_or(share))?;
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut completed.clone(), NAME, &mut script);
        fs::write(file, with_operands(shell, &String::from_utf8_lossy(&script)))?;
    }
    Ok(())
}

/// Includes `bench`, `analyze` and `remote` as defined by the programs that implement them.
fn definition() -> Command {
    let mut whole = softswap_cli::command();
    for other in softswap_bench::command().get_subcommands() {
        let in_its_place = |own: Command| other.clone().display_order(own.get_display_order());
        whole = whole.mut_subcommand(other.get_name(), in_its_place);
    }
    let remote = |own: Command| {
        softswap_remote::command().name("remote").display_order(own.get_display_order())
    };
    whole.mut_subcommand("remote", remote).disable_help_subcommand(true)
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|below| !below.is_hide_set())
}

/// Hidden options and commands are for developers and softswap itself.
fn without_hidden(command: &Command) -> Command {
    // clap keeps names until the process exits.
    let name: &'static str = command.get_name().to_string().leak();
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
    // Conflicts may be with hidden arguments.
    let apart = |argument: &Arg| argument.clone().conflicts_with(Resettable::<Id>::Reset);
    Command::new(name)
        .about(command.get_about().cloned().unwrap_or_default())
        .disable_help_subcommand(true)
        .args(arguments.map(apart).map(with_values))
        .subcommands(shown(command).map(without_hidden))
}

fn page_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

fn write_pages(command: &Command, pages: &Path) -> io::Result<()> {
    let text = page(command)?;
    fs::write(pages.join(format!("{}.1", page_name(command))), text)?;
    shown(command).try_for_each(|below| write_pages(below, pages))
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    // The page includes help that the short help omits.
    let whole_help = |argument: Arg| match (argument.get_long_help(), argument.get_help()) {
        (None, Some(help)) => {
            let help = help.clone();
            argument.long_help(help)
        }
        _ => argument,
    };
    let man = Man::new(command.clone().mut_args(whole_help));
    let man = man.source(format!("{NAME} {VERSION}")).manual("User Commands");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    synopsis(command).to_writer(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if shown(command).next().is_some() {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(notes) = command.get_after_long_help() {
        notes_section(&notes.to_string()).to_writer(&mut text)?;
    }
    see_also(command).to_writer(&mut text)?;
    Ok(text)
}

fn synopsis(command: &Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    for line in usage.trim_start_matches("Usage:").lines() {
        roff.text([bold(line.trim())]).control("br", []);
    }
    roff
}

/// Prose is refilled. Examples become a section. `TERM  meaning` becomes an item.
fn notes_section(notes: &str) -> Roff {
    let mut roff = Roff::new();
    let (mut in_example, mut in_items, mut has_heading) = (false, false, false);
    for line in notes.lines() {
        let is_indented = line.starts_with(' ');
        let line = line.trim();
        if in_items && !is_indented || line.is_empty() {
            roff.control("PP", []);
            in_items = false;
        }
        if in_example && !is_indented {
            roff.control("fi", []);
            (in_example, has_heading) = (false, false);
        }
        if line.starts_with("Example") && line.ends_with(':') {
            roff.control("SH", ["EXAMPLES"]).control("nf", []);
            (in_example, has_heading) = (true, true);
            continue;
        }
        if !has_heading && !line.is_empty() {
            roff.control("SH", ["NOTES"]);
            has_heading = true;
        }
        match line.split_once("  ") {
            _ if line.is_empty() => {}
            Some((term, meaning)) if is_indented && !in_example => {
                roff.control("TP", []).text([bold(term)]).text([roman(meaning.trim())]);
                in_items = true;
            }
            _ => _ = roff.text([roman(line)]),
        }
    }
    if in_example {
        roff.control("fi", []);
    }
    roff
}

/// Returns the values that softswap parses instead of clap.
fn values(option: &str) -> Option<Vec<&'static str>> {
    match option {
        "codec" => Some(Choice::NAMES.map(|(name, _)| name).to_vec()),
        "poll" => Some(Mode::ALL.map(Mode::name).to_vec()),
        "children" => Some(softswap_cli::parsers::CHILDREN.to_vec()),
        "faults" => Some(Faults::NAMES.map(|(name, _)| name).to_vec()),
        _ => None,
    }
}

const OF_PIDS: [&str; 3] = ["stat", "ctl", "record"];
const PIDS: &str = "$(pgrep -x softswap)";

fn with_values(argument: Arg) -> Arg {
    match values(argument.get_id().as_str()) {
        Some(values) => argument.value_parser(PossibleValuesParser::new(values)),
        None => argument,
    }
}

/// Adds operands that clap_complete omits: PIDs, and the keys of `ctl`.
fn with_operands(shell: Shell, script: &str) -> String {
    let keys = LIVE_SETTINGS.map(|setting| setting.key).join(" ") + " turns";
    let mut script = script.to_string();
    match shell {
        Shell::Bash => {
            for name in OF_PIDS {
                let block = format!("softswap__subcmd__{name})\n            opts=\"");
                script = script.replace(&block, &format!("{block}{PIDS} "));
            }
            for action in ["get", "set"] {
                let block = format!("softswap__subcmd__ctl__subcmd__{action})\n");
                let Some((before, after)) = script.split_once(&block) else { continue };
                // The PID precedes the action.
                let after = after.replacen("-eq 3", "-eq 4", 1);
                let after = after.replacen("opts=\"", &format!("opts=\"{keys} "), 1);
                script = format!("{before}{block}{after}");
            }
        }
        Shell::Zsh => {
            script = script.replace(":pid -- The process:_default", ":pid -- The process:_pids");
            script = script
                .replace(":key -- The setting:_default", &format!(":key -- The setting:({keys})"));
        }
        _ => {
            for name in OF_PIDS {
                let condition = format!("__fish_softswap_using_subcommand {name}");
                script += &format!(
                    "complete -c softswap -n \"{condition}\" -f -a \"(pgrep -x softswap)\"\n"
                );
            }
            let condition = "__fish_seen_subcommand_from get set";
            script += &format!("complete -c softswap -n \"{condition}\" -f -a \"{keys}\"\n");
        }
    }
    script
}

/// Refers to the parent command's page, or for the top command to the documents.
fn see_also(command: &Command) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    match command.get_bin_name().and_then(|line| line.rsplit_once(' ')) {
        Some((above, _)) => roff.text([bold(above.replace(' ', "-")), roman("(1)")]),
        None => roff.text([roman("README.md, reference.md and limits.md in share/doc/softswap")]),
    };
    roff
}

#[cfg(test)]
mod tests {
    use super::*;
    use softswap_testkit::documents::{CodeBlock, code_blocks};
    use std::process::{Command as Process, Output};

    fn written() -> tempfile::TempDir {
        let share = tempfile::tempdir().unwrap();
        write(share.path()).unwrap();
        share
    }

    fn names(command: &Command, found: &mut Vec<String>) {
        found.push(page_name(command).to_string());
        shown(command).for_each(|below| names(below, found));
    }

    /// `None` if the tool is not installed.
    fn output(tool: &str, arguments: &[&str], file: &Path) -> Option<Output> {
        let mut process = Process::new(tool);
        process.args(arguments).arg(file).env("LC_ALL", "C.UTF-8").env("MANWIDTH", "80");
        let output = process.env("MANROFFSEQ", "").output();
        output.inspect_err(|_| eprintln!("skipped: {tool} is not installed")).ok()
    }

    fn assert_silent(output: &Output, file: &Path) {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{}: {said}", file.display());
    }

    #[test]
    fn man_pages_render_without_warnings() {
        let share = written();
        let mut whole = definition();
        whole.build();
        let mut expected = Vec::new();
        names(&whole, &mut expected);
        for name in ["softswap", "softswap-run", "softswap-ctl-set", "softswap-bench-swap-in"] {
            assert!(expected.iter().any(|known| known == name), "{name}: {expected:?}");
        }
        for name in &expected {
            let page = share.path().join(format!("man/man1/{name}.1"));
            assert!(fs::read_to_string(&page).unwrap().contains(".SH \"SEE ALSO\""), "{name}");
            let arguments = ["--warnings", "-E", "UTF-8", "-Tutf8", "-Z", "-l"];
            match output("man", &arguments, &page) {
                Some(output) => assert_silent(&output, &page),
                None => return,
            }
        }
        assert_eq!(fs::read_dir(share.path().join("man/man1")).unwrap().count(), expected.len());
    }

    fn commands(line: &str) -> Vec<Vec<String>> {
        let (mut all, mut words) = (Vec::new(), Vec::new());
        let (mut word, mut quote) = (None::<String>, None::<char>);
        for c in line.chars() {
            match (quote, c) {
                (Some(open), _) if c == open => quote = None,
                (None, '\'' | '"') => {
                    quote = Some(c);
                    word = word.or(Some(String::new()));
                }
                (None, ' ') => words.extend(word.take()),
                (None, '|' | '&' | ';' | '<' | '>' | '#') => {
                    words.extend(word.take());
                    all.push(std::mem::take(&mut words));
                }
                _ => word.get_or_insert_default().push(c),
            }
        }
        words.extend(word);
        all.push(words);
        all
    }

    /// Returns the number of `softswap` commands in the line.
    fn assert_accepted(line: &str, place: &str) -> usize {
        let mut count = 0;
        for words in commands(line) {
            let is_softswap = |word: &String| word.rsplit('/').next() == Some("softswap");
            let Some(at) = words.iter().position(is_softswap) else { continue };
            if words.len() == at + 1 {
                continue;
            }
            let pid = |word: &String| match word.as_str() {
                "PID" | "$!" => "4711".to_string(),
                other => other.to_string(),
            };
            let parsed = definition().try_get_matches_from(words[at..].iter().map(pid));
            if let Err(error) = parsed {
                assert!(!error.use_stderr(), "{place}: {line}\n{error}");
            }
            count += 1;
        }
        count
    }

    #[test]
    fn documented_commands_are_accepted() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut pages = vec![root.join("README.md"), root.join("crates/python/README.md")];
        let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
        pages.extend(docs.filter(|path| path.extension().is_some_and(|it| it == "md")));
        let mut count = 0;
        for page in pages {
            let (text, place) = (fs::read_to_string(&page).unwrap(), page.display().to_string());
            for CodeBlock { opening, lines } in code_blocks(&text) {
                let prompt = match opening.split(' ').next() {
                    Some("console") => "$ ",
                    Some("" | "sh" | "yaml" | "systemd") => "",
                    _ => continue,
                };
                let commands = lines.iter().filter_map(|line| line.strip_prefix(prompt));
                count += commands.map(|line| assert_accepted(line, &place)).sum::<usize>();
            }
        }
        assert!(count > 60, "only {count} commands were found");
    }

    fn assert_has_examples(command: &Command) {
        let name = page_name(command);
        let notes = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        let examples = notes.split_once("Examples:\n").map_or("", |(_, after)| after);
        let examples = examples.lines().take_while(|line| line.starts_with(' '));
        let count: usize = examples.map(|line| assert_accepted(line, name)).sum();
        assert!(count > 0, "{name} has no examples");
        shown(command).for_each(assert_has_examples);
    }

    #[test]
    fn every_man_page_has_examples_that_are_accepted() {
        let mut whole = definition();
        whole.build();
        assert_has_examples(&whole);
    }

    #[test]
    fn man_page_contains_options_and_text() {
        let share = written();
        let read = |name: &str| {
            let text = fs::read_to_string(share.path().join("man/man1").join(name)).unwrap();
            text.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "")
        };
        let page = read("softswap-run.1");
        for part in ["--memory", "Use pread and pwrite even", ".TP\n125\nsoftswap itself failed"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("--awake"), "a hidden option is listed: {page}");
        assert!(page.contains("softswap run [OPTIONS] [--] PROGRAM [ARG...]"), "{page}");
        assert!(read("softswap.1").contains(".SH EXAMPLES\n.nf\nsoftswap doctor\nsoftswap run"));
    }

    #[test]
    fn shells_accept_completions() {
        let share = written();
        for (shell, file) in COMPLETIONS {
            let file = share.path().join(file);
            let text = fs::read_to_string(&file).unwrap();
            for hidden in ["swap-in-task", "restorer"] {
                let named = [format!("--{hidden} "), format!(" {hidden} "), format!("'{hidden}:")];
                assert!(!named.iter().any(|named| text.contains(named)), "{shell}: {hidden}");
            }
            assert!(!text.contains("--record"), "{shell}: a hidden option");
            if let Some(output) = output(&shell.to_string(), &["-n"], &file) {
                assert_silent(&output, &file);
            }
        }
    }

    #[test]
    fn bash_completes_commands_and_options() {
        let share = written();
        let file = share.path().join(COMPLETIONS[0].1);
        let completed = |line: &str| {
            let script = format!(
                "source \"$0\"; COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
                 _softswap softswap \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"
                 echo \"${{COMPREPLY[@]}}\""
            );
            let output = output("bash", &["--norc", "-c", &script], &file).unwrap();
            String::from_utf8(output.stdout).unwrap().trim().to_string()
        };
        assert_eq!(completed("softswap do"), "doctor");
        assert_eq!(completed("softswap run --mem"), "--memory --memory-per-process");
        assert_eq!(completed("softswap bench swap-"), "swap-in");
        assert_eq!(completed("softswap run --codec l"), "lz4");
        assert_eq!(completed("softswap ctl 4711 set io.poll_"), "io.poll_sleep");
    }
}
