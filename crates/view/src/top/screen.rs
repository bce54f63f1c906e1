//! State of the screen: trees, selection, and input.

use super::history::History;
use super::table::{Row, Sort};
use crate::rates::{Compared, Comparison, Rates};
use crate::tree::{Process, Tree};
use std::collections::HashMap;
use std::time::Duration;

/// Unless requested by PID.
const EXITED_SHOWN_FOR: Duration = Duration::from_secs(10);

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

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mode {
    Watch,
    Help,
    Type { target: Target, text: String },
    Confirm { target: Target, text: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) pid: u32,
    pub(super) owner_text: String,
    pub(super) setting: Setting,
    pub(super) now: Option<String>,
}

#[derive(Debug)]
pub(super) struct Screen {
    pub(super) user: String,
    pub(super) only: Option<u32>,
    pub(super) has_sampled: bool,
    pub(super) trees: Vec<Tree>,
    /// First sample without each exited tree.
    ended: HashMap<u32, Duration>,
    comparison: Comparison,
    pub(super) compared: Compared,
    histories: HashMap<u32, History>,
    tree: Option<u32>,
    process: Option<u32>,
    pub(super) sort: Sort,
    pub(super) mode: Mode,
    /// Success, and a message.
    pub(super) change_result: Option<(bool, String)>,
}

impl Screen {
    pub(super) fn new(user: String, only: Option<u32>) -> Screen {
        Screen {
            user,
            only,
            has_sampled: false,
            trees: Vec::new(),
            ended: HashMap::new(),
            comparison: Comparison::default(),
            compared: Compared::default(),
            histories: HashMap::new(),
            tree: only,
            process: None,
            sort: Sort::default(),
            mode: Mode::Watch,
            change_result: None,
        }
    }

    pub(super) fn update(&mut self, at: Duration, mut trees: Vec<Tree>) {
        trees.retain(|tree| self.only.is_none_or(|only| only == tree.root));
        self.has_sampled = true;
        self.compared = self.comparison.update(at, &trees);
        let compared = &mut self.compared;
        for tree in &trees {
            self.ended.remove(&tree.root);
            let mut awake = tree.processes.iter().filter(|it| it.reading().is_some()).peekable();
            // Awake processes have rates from the second sample on. Trees that sleep have none to
            // wait for.
            let is_known = awake.peek().is_none()
                || awake.any(|process| compared.processes.contains_key(&process.pid));
            match compared.trees.get(&tree.root).filter(|_| is_known) {
                Some(rates) => self.histories.entry(tree.root).or_default().push(*rates),
                None => drop(compared.trees.remove(&tree.root)),
            }
        }
        let is_there = |root: u32| trees.iter().any(|tree| tree.root == root);
        let mut exited: Vec<Tree> = std::mem::take(&mut self.trees);
        exited.retain(|tree| !is_there(tree.root));
        for tree in exited {
            let since = *self.ended.entry(tree.root).or_insert(at);
            if self.only.is_some() || at.saturating_sub(since) < EXITED_SHOWN_FOR {
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

    pub(super) fn change_result(&mut self, change_result: Result<String, String>) {
        self.change_result = Some(match change_result {
            Ok(text) => (true, text),
            Err(why) => (false, why),
        });
    }

    pub(super) fn selected(&self) -> Option<&Tree> {
        self.trees.iter().find(|tree| Some(tree.root) == self.tree)
    }

    pub(super) fn has_ended(&self, root: u32) -> bool {
        self.ended.contains_key(&root)
    }

    /// `None` for exited trees, and until rates are known.
    pub(super) fn rates(&self, root: u32) -> Option<Rates> {
        self.compared.trees.get(&root).copied()
    }

    pub(super) fn history(&self, root: u32) -> Option<&History> {
        self.histories.get(&root)
    }

    pub(super) fn rows(&self) -> Vec<Row<'_>> {
        let Some(tree) = self.selected() else { return Vec::new() };
        let mut rows = self.sort.rows(&tree.processes, &self.compared);
        let has_ended = self.has_ended(tree.root);
        rows.iter_mut().for_each(|row| row.has_ended = has_ended);
        rows
    }

    pub(super) fn at(&self, rows: &[Row<'_>]) -> usize {
        rows.iter().position(|row| Some(row.process.pid) == self.process).unwrap_or(0)
    }

    pub(super) fn step(&mut self, by: isize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let to = self.at(&rows).saturating_add_signed(by).min(last);
        self.process = rows.get(to).map(|row| row.process.pid);
    }

    pub(super) fn step_tree(&mut self, to_the_next: bool) {
        let count = self.trees.len();
        let at = self.trees.iter().position(|tree| Some(tree.root) == self.tree).unwrap_or(0);
        let next = if to_the_next { at + 1 } else { at + count.saturating_sub(1) };
        if let Some(tree) = self.trees.get(next % count.max(1)) {
            (self.tree, self.process) = (Some(tree.root), None);
        }
    }

    /// Changes the selected process, or its tree if that has the budget. Fails with the reason.
    pub(super) fn begin(&mut self, setting: Setting) -> Result<(), String> {
        let tree = self.selected().ok_or("there is nothing to change")?;
        if self.has_ended(tree.root) {
            return Err("this tree has exited".into());
        }
        let target = if setting.key == "memory" && tree.shared.is_some() {
            let now = tree.shared.map(|shared| crate::units::bytes(shared.budget_bytes));
            Target {
                pid: tree.root,
                owner_text: format!("the tree of {}", tree.root),
                setting,
                now,
            }
        } else {
            let rows = self.rows();
            let row = rows.get(self.at(&rows)).ok_or("there is no process to change")?;
            let Process { pid, name, .. } = row.process;
            if row.process.reading().is_none() {
                return Err(format!(
                    "process {pid} ({name}) is asleep: its memory fits its budget, so it has no \
                     settings yet"
                ));
            }
            let now = row.process.setting(setting.key).map(ToString::to_string);
            Target { pid: *pid, owner_text: format!("{name} ({pid})"), setting, now }
        };
        self.mode = Mode::Type { target, text: String::new() };
        Ok(())
    }
}
