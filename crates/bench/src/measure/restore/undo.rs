//! What is to be put back, the latest change first.

use super::{group, zram};
use rustix::process::{Pid, Signal, kill_process};
use softswap_cli::refusal::plain;
use softswap_sys::kernel_swap::swap_off;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A group can be removed once its last process is really gone, and an area
/// once what was in it has been freed.
const ATTEMPTS: u32 = 500;
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Directory(PathBuf),
    Zram(u32),
    Swapping(PathBuf),
    Setting {
        path: PathBuf,
        was: String,
    },
    /// By a group of version 2 to those in it.
    MemoryHandedDown(PathBuf),
    Group(PathBuf),
}

#[derive(Default)]
pub(crate) struct Undo {
    changes: Vec<Change>,
    /// Locked while this lives.
    pub(crate) held: Option<fs::File>,
}

impl Undo {
    pub(crate) fn note(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// What a setting was before its first change.
    pub(crate) fn was(&self, setting: &Path) -> Option<&str> {
        self.changes.iter().find_map(|change| match change {
            Change::Setting { path, was } if path == setting => Some(was.as_str()),
            _ => None,
        })
    }

    /// Puts one change back before its time; it must have been noted.
    pub(crate) fn one(&mut self, change: &Change) -> Result<(), String> {
        let at = self.changes.iter().rposition(|noted| noted == change);
        let at = at.ok_or_else(|| format!("{change:?} is not a change of this restorer's"))?;
        put_back(change)?;
        self.changes.remove(at);
        Ok(())
    }

    /// Puts everything back; what could not be, in words.
    pub(crate) fn all(mut self) -> Vec<String> {
        let mut failed = Vec::new();
        while let Some(change) = self.changes.pop() {
            failed.extend(put_back(&change).err());
        }
        failed
    }
}

fn put_back(change: &Change) -> Result<(), String> {
    match change {
        Change::Directory(path) => fs::remove_dir_all(path)
            .map_err(|e| format!("{} could not be removed: {}", path.display(), plain(&e))),
        Change::Zram(number) => zram::remove(*number),
        Change::Swapping(path) => patiently(|| swap_off(path)).map_err(|e| {
            format!("`swapoff {}` is left to do, it failed: {}", path.display(), plain(&e))
        }),
        Change::Setting { path, was } => fs::write(path, was).map_err(|e| {
            format!("{} could not be set back to {was}: {}", path.display(), plain(&e))
        }),
        Change::MemoryHandedDown(parent) => group::keep_memory_back(parent),
        Change::Group(path) => patiently(|| {
            processes(path).into_iter().for_each(|pid| {
                let _ = kill_process(pid, Signal::KILL);
            });
            fs::remove_dir(path)
        })
        .map_err(|e| format!("{} could not be removed: {}", path.display(), plain(&e))),
    }
}

fn patiently(act: impl Fn() -> std::io::Result<()>) -> std::io::Result<()> {
    let mut tried = act();
    for _ in 1..ATTEMPTS {
        if tried.is_ok() {
            break;
        }
        std::thread::sleep(PAUSE);
        tried = act();
    }
    tried
}

fn processes(group: &Path) -> Vec<Pid> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_change_is_put_back_first_and_the_first_value_counts() {
        let top = tempfile::tempdir().unwrap();
        let (dir, setting) = (top.path().join("dir"), top.path().join("dir/setting"));
        fs::create_dir(&dir).unwrap();
        fs::write(&setting, "new").unwrap();
        let mut undo = Undo::default();
        undo.note(Change::Directory(dir.clone()));
        undo.note(Change::Setting { path: setting.clone(), was: "old".into() });
        assert_eq!(undo.was(&setting), Some("old"));
        undo.one(&Change::Setting { path: setting.clone(), was: "old".into() }).unwrap();
        assert_eq!(fs::read_to_string(&setting).unwrap(), "old");
        assert_eq!(undo.all(), Vec::<String>::new());
        assert!(!dir.exists());
    }

    #[test]
    fn what_was_not_changed_here_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let why = Undo::default().one(&Change::Directory(dir.path().into())).unwrap_err();
        assert!(why.contains("not a change of this restorer's") && dir.path().exists(), "{why}");
    }

    #[test]
    fn what_cannot_be_put_back_is_told() {
        let mut undo = Undo::default();
        undo.note(Change::Setting { path: "/no/such/setting".into(), was: "Y".into() });
        assert!(undo.all()[0].contains("/no/such/setting could not be set back to Y"));
    }
}
