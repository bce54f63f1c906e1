//! Runs commands in `README.md` and `docs/` that are marked `tested`, and parses files.

use crate::common::{bin_dir, is_installed, json_file, skip};
use crate::support::{Ended, disk_dir, finish, plain, python};
use softswap_testkit::documents::code_blocks;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

const PAGES: [(&str, &str); 9] = [
    ("README.md", include_str!("../../../../README.md")),
    ("start.md", include_str!("../../../../docs/start.md")),
    ("budget.md", include_str!("../../../../docs/budget.md")),
    ("containers.md", include_str!("../../../../docs/containers.md")),
    ("notebooks.md", include_str!("../../../../docs/notebooks.md")),
    ("clusters.md", include_str!("../../../../docs/clusters.md")),
    ("disks.md", include_str!("../../../../docs/disks.md")),
    ("debugging.md", include_str!("../../../../docs/debugging.md")),
    ("library.md", include_str!("../../../../docs/library.md")),
];

const JOB: &str = "print(sum(len(str(n) * 20) for n in range(100_000)))\n";
const DEFAULT: &str = r#"{
    "defaultAction": "SCMP_ACT_ERRNO",
    "defaultErrnoRet": 1,
    "archMap": [{ "architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"] }],
    "syscalls": [
        { "names": ["read", "write"], "action": "SCMP_ACT_ALLOW" },
        {
            "names": ["process_madvise"],
            "action": "SCMP_ACT_ALLOW",
            "includes": { "caps": ["CAP_SYS_PTRACE"] }
        }
    ]
}"#;

pub(crate) fn blocks(opening: &str) -> Vec<(&'static str, String)> {
    let of_page = |(name, page): (&'static str, &str)| {
        let blocks = code_blocks(page).into_iter().filter(|block| block.opening == opening);
        blocks.map(|block| (name, block.lines.join("\n") + "\n")).collect::<Vec<_>>()
    };
    let found: Vec<_> = PAGES.into_iter().flat_map(of_page).collect();
    assert!(!found.is_empty(), "no page has a block of {opening}");
    found
}

/// Returns the lines after the shell's prompts `$ ` and `> `.
fn commands(transcript: &str) -> String {
    let command = |line: &str| {
        let text = line.strip_prefix("$ ").or_else(|| line.strip_prefix("> "))?;
        Some(format!("{text}\n"))
    };
    transcript.lines().filter_map(command).collect()
}

fn run(dir: &Path, program: &str, arguments: &[&str]) -> Ended {
    finish(&mut command_in(dir, program, arguments))
}

pub(crate) fn command_in(dir: &Path, program: &str, arguments: &[&str]) -> Command {
    let (_, table) = &blocks("python table.py")[0];
    for (name, text) in [("job.py", JOB), ("table.py", table), ("default.json", DEFAULT)] {
        std::fs::write(dir.join(name), text).unwrap();
    }
    let path = format!("{}:{}", bin_dir().display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(dir).env("PATH", path).env("SOFTSWAP_RESERVE", "0");
    command
}

fn parses(with: &str, text: &str) -> Ended {
    plain(python(), &["-c", with, text])
}

#[test]
fn documented_commands_run() {
    let transcripts = blocks("console tested").into_iter();
    let transcripts = transcripts.map(|(page, text)| (page, commands(&text)));
    let mut dirs = HashMap::new();
    for (page, text) in blocks("sh tested").into_iter().chain(transcripts) {
        // Blocks of a page use the files of earlier ones. Swap files must be on a disk.
        let dir = dirs.entry(page).or_insert_with(disk_dir);
        let ended = run(dir.path(), "bash", &["-euc", &text]);
        ended.expect_success(&format!("{page}:\n{text}"));
        if text.contains("--profile") {
            let profile = json_file(&dir.path().join("softswap.json"));
            let added = &profile["syscalls"][2];
            assert_eq!(added["action"], "SCMP_ACT_ALLOW", "{profile}");
            assert!(added["names"].as_array().unwrap().contains(&"userfaultfd".into()));
        }
    }
}

#[test]
fn files_for_other_programs_are_valid() {
    for (format, module, load) in [
        ("yaml", "yaml", "assert isinstance(yaml.safe_load(sys.argv[1]), dict)"),
        ("toml", "tomllib", "tomllib.loads(sys.argv[1])"),
    ] {
        if !parses(&format!("import {module}"), "").status.success() {
            skip(&format!("python3 has no module {module}"));
            continue;
        }
        for (page, text) in blocks(format) {
            let ended = parses(&format!("import sys, {module}; {load}"), &text);
            ended.expect_success(&format!("{page}:\n{text}"));
        }
    }
}

#[test]
fn systemd_unit_is_accepted() {
    if !is_installed("systemd-analyze") {
        return;
    }
    for (page, text) in blocks("systemd") {
        let dir = tempfile::tempdir().unwrap();
        let unit = dir.path().join("analysis.service");
        let softswap = bin_dir().join("softswap").display().to_string();
        let text = text.replace("/usr/local/bin/softswap", &softswap);
        std::fs::write(&unit, text.replace("/usr/bin/python3", &python().display().to_string()))
            .unwrap();
        let verify = ["verify", "--man=no", unit.to_str().unwrap()];
        let ended = run(dir.path(), "systemd-analyze", &verify);
        ended.expect_success(&format!("{page}:\n{text}"));
        assert!(!ended.stderr.contains("analysis.service"), "{page}: {}", ended.stderr);
    }
}
