//! What the screen knows: what there is, what is selected, and what is being typed.

use super::history::History;
use super::table::{Row, Sort};
use crate::rates::{Compared, Comparison, Rates};
use crate::tree::{Process, Tree};
use std::collections::HashMap;
use std::time::Duration;

/// How long a tree that has ended is still shown among others.
const SHOWN_AFTER_END: Duration = Duration::from_secs(10);

/// A setting that can be changed from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) press: char,
    pub(super) key: &'static str,
    pub(super) example: &'static str,
}

pub(super) const SETTINGS: [Setting; 3] = [
    Setting { press: 'm', key: "memory", example: "512M" },
    Setting { press: 'c', key: "codec", example: "auto, lz4, zstd, zstd:3, none" },
    Setting { press: 'p', key: "io.poll", example: "auto, interrupt, poll, hybrid" },
];

/// What keys mean just now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mode {
    Watch,
    Help,
    /// A new value of a setting is being typed.
    Type {
        target: Target,
        text: String,
    },
    /// It is to be confirmed.
    Confirm {
        target: Target,
        text: String,
    },
}

/// Whose setting is being changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) pid: u32,
    /// For people.
    pub(super) whose: String,
    pub(super) setting: Setting,
    pub(super) now: Option<String>,
}

#[derive(Debug)]
pub(super) struct Screen {
    pub(super) user: String,
    pub(super) only: Option<u32>,
    /// Whether it has been looked at all.
    pub(super) has_looked: bool,
    pub(super) trees: Vec<Tree>,
    /// When trees were last seen that are not there any more.
    ended: HashMap<u32, Duration>,
    comparison: Comparison,
    pub(super) compared: Compared,
    histories: HashMap<u32, History>,
    tree: Option<u32>,
    process: Option<u32>,
    pub(super) sort: Sort,
    pub(super) mode: Mode,
    /// What became of the last change: whether it was made, and the words.
    pub(super) said: Option<(bool, String)>,
}

impl Screen {
    pub(super) fn new(user: String, only: Option<u32>) -> Screen {
        Screen {
            user,
            only,
            has_looked: false,
            trees: Vec::new(),
            ended: HashMap::new(),
            comparison: Comparison::default(),
            compared: Compared::default(),
            histories: HashMap::new(),
            tree: only,
            process: None,
            sort: Sort::default(),
            mode: Mode::Watch,
            said: None,
        }
    }

    /// Takes what there is now.
    pub(super) fn look(&mut self, at: Duration, mut trees: Vec<Tree>) {
        trees.retain(|tree| self.only.is_none_or(|only| only == tree.root));
        self.has_looked = true;
        self.compared = self.comparison.look(at, &trees);
        let compared = &mut self.compared;
        for tree in &trees {
            self.ended.remove(&tree.root);
            let mut awake = tree.processes.iter().filter(|it| it.reading().is_some()).peekable();
            // The first look has nothing to compare with. Those that sleep do nothing.
            let is_known = awake.peek().is_none()
                || awake.any(|process| compared.processes.contains_key(&process.pid));
            match compared.trees.get(&tree.root).filter(|_| is_known) {
                Some(rates) => self.histories.entry(tree.root).or_default().push(*rates),
                None => drop(compared.trees.remove(&tree.root)),
            }
        }
        let is_there = |root: u32| trees.iter().any(|tree| tree.root == root);
        let mut gone: Vec<Tree> = std::mem::take(&mut self.trees);
        gone.retain(|tree| !is_there(tree.root));
        for tree in gone {
            let since = *self.ended.entry(tree.root).or_insert(at);
            if self.only.is_some() || at.saturating_sub(since) < SHOWN_AFTER_END {
                trees.push(tree);
            } else {
                self.ended.remove(&tree.root);
                self.histories.remove(&tree.root);
            }
        }
        trees.sort_by_key(|tree| tree.root);
        self.trees = trees;
        if self.selected().is_none() {
            self.tree = self.trees.first().map(|tree| tree.root);
        }
    }

    /// What became of a change.
    pub(super) fn said(&mut self, said: Result<String, String>) {
        self.said = Some(match said {
            Ok(text) => (true, text),
            Err(why) => (false, why),
        });
    }

    /// The tree that is shown.
    pub(super) fn selected(&self) -> Option<&Tree> {
        self.trees.iter().find(|tree| Some(tree.root) == self.tree)
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&self, root: u32) -> bool {
        self.ended.contains_key(&root)
    }

    /// What a tree does, once that is known, and while it is there.
    pub(super) fn rates(&self, root: u32) -> Option<Rates> {
        self.compared.trees.get(&root).copied()
    }

    pub(super) fn history(&self, root: u32) -> Option<&History> {
        self.histories.get(&root)
    }

    /// The processes of the tree that is shown, in order.
    pub(super) fn rows(&self) -> Vec<Row<'_>> {
        let Some(tree) = self.selected() else { return Vec::new() };
        let mut rows = self.sort.rows(&tree.processes, &self.compared);
        let has_ended = self.has_ended(tree.root);
        rows.iter_mut().for_each(|row| row.has_ended = has_ended);
        rows
    }

    /// Where in them the selected one is; the first one if none is.
    pub(super) fn at(&self, rows: &[Row<'_>]) -> usize {
        rows.iter().position(|row| Some(row.process.pid) == self.process).unwrap_or(0)
    }

    /// Selects the process so many further down, or up.
    pub(super) fn step(&mut self, by: isize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let to = self.at(&rows).saturating_add_signed(by).min(last);
        self.process = rows.get(to).map(|row| row.process.pid);
    }

    /// Shows the next tree, or the one before.
    pub(super) fn step_tree(&mut self, to_the_next: bool) {
        let count = self.trees.len();
        let at = self.trees.iter().position(|tree| Some(tree.root) == self.tree).unwrap_or(0);
        let next = if to_the_next { at + 1 } else { at + count.saturating_sub(1) };
        if let Some(tree) = self.trees.get(next % count.max(1)) {
            (self.tree, self.process) = (Some(tree.root), None);
        }
    }

    /// Begins to change a setting of the selected process, or of the tree, where that has the
    /// budget. Says why that cannot be.
    pub(super) fn begin(&mut self, setting: Setting) -> Result<(), String> {
        let tree = self.selected().ok_or("there is nothing to change")?;
        if self.has_ended(tree.root) {
            return Err("this tree has ended".into());
        }
        let target = if setting.key == "memory" && tree.shared.is_some() {
            let now = tree.shared.map(|shared| crate::units::bytes(shared.budget_bytes));
            Target { pid: tree.root, whose: format!("the tree of {}", tree.root), setting, now }
        } else {
            let rows = self.rows();
            let row = rows.get(self.at(&rows)).ok_or("there is no process to change")?;
            let Process { pid, name, .. } = row.process;
            if row.process.reading().is_none() {
                return Err(format!(
                    "process {pid} ({name}) has no engine: what it has fits its budget, and there \
                     is nothing to set"
                ));
            }
            let now = row.process.setting(setting.key).map(ToString::to_string);
            Target { pid: *pid, whose: format!("{name} ({pid})"), setting, now }
        };
        self.mode = Mode::Type { target, text: String::new() };
        Ok(())
    }
}
