//! Test: the table of `softswap run`'s options in docs/reference.md matches the help.

use super::Cli;
use super::reference_tests::REFERENCE;
use clap::CommandFactory;

fn table_of_run() -> String {
    let cli = Cli::command();
    let run = cli.find_subcommand("run").expect("`run` is a subcommand");
    let mut table =
        String::from("| option | environment | default | meaning |\n|---|---|---|---|\n");
    for arg in run.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let Some(long) = arg.get_long().filter(|long| *long != "help" && *long != "version") else {
            continue;
        };
        let value = arg.get_value_names().filter(|_| arg.get_action().takes_values());
        let value = value.map_or(String::new(), |names| format!(" {}", names[0]));
        let short = arg.get_short().map_or(String::new(), |short| format!("`-{short}`, "));
        let help = arg.get_long_help().or(arg.get_help()).expect("each option has a help");
        let help = help.to_string().replace("\n\n", "\u{2}");
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let (before, after) = help.split_once("[default: ").unwrap_or((&help, ""));
        let (default, after) = after.split_once(']').unwrap_or(("", after));
        let default = match default {
            "" if value.is_empty() => "off".to_string(),
            "" => "none".to_string(),
            default => format!("`{default}`"),
        };
        let paragraphs = [before, after].join("\u{2}");
        let paragraphs = paragraphs.split('\u{2}').map(|it| it.trim().trim_end_matches('.'));
        let meaning = paragraphs.filter(|it| !it.is_empty()).collect::<Vec<_>>().join(". ");
        let variable = format!("SOFTSWAP_{}", long.replace('-', "_").to_ascii_uppercase());
        let row =
            format!("{short}`--{long}{value}` \u{1} `{variable}` \u{1} {default} \u{1} {meaning}.");
        table += &format!("| {} |\n", row.replace('|', "\\|").replace('\u{1}', "|"));
    }
    table
}

/// With `SOFTSWAP_WRITE_REFERENCE=1` this test writes the table.
#[test]
fn reference_table_matches_run_help() {
    let begin = "<!-- Written by the test reference_table_matches_run_help. -->\n";
    let (head, rest) = REFERENCE.split_once(begin).expect("a mark precedes the table");
    let (_, tail) = rest.split_once("\n\n").expect("an empty line follows the table");
    let whole = format!("{head}{begin}{}\n{tail}", table_of_run());
    if std::env::var_os("SOFTSWAP_WRITE_REFERENCE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference.md");
        std::fs::write(path, &whole).expect("the reference can be written");
    }
    assert!(
        whole == REFERENCE,
        "the options of `softswap run` have changed: regenerate docs/reference.md with \
         SOFTSWAP_WRITE_REFERENCE=1 cargo test -p softswap-cli --lib reference"
    );
}
