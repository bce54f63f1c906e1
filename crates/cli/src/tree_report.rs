//! Figures of a process tree with a shared budget, which `softswap run` sends to `softswap stat`.

use serde::Serialize;
use softswap_engine::api::control_protocol::pairs;
use softswap_view::report::{Process, UnmanagedProcess};
use softswap_view::summary::process_table;
use softswap_view::units::{bytes, visible};
use std::fmt::Write as _;

#[derive(Debug, Serialize, PartialEq, Eq)]
pub(crate) struct TreeReport {
    pub(crate) budget_bytes: u64,
    pub(crate) granted_bytes: u64,
    /// Sum of the usage that the processes have published.
    pub(crate) used_bytes: u64,
    pub(crate) turns: Turns,
    pub(crate) parked: Option<Parked>,
    pub(crate) processes: Vec<Process>,
    /// Running processes without a share of the budget.
    pub(crate) unmanaged: Vec<UnmanagedProcess>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, PartialEq, Eq)]
pub(crate) struct Turns {
    pub(crate) taken: u64,
    /// 0 without a turn.
    pub(crate) owner_pid: u32,
    /// Time for which processes have taken turns, in seconds.
    pub(crate) taking_s: u64,
}

#[derive(Debug, Clone, Copy, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Parking {
    Evicting,
    Stopped,
}

#[derive(Debug, Clone, Copy, Serialize, PartialEq, Eq)]
pub(crate) struct Parked {
    pub(crate) progress: Parking,
    pub(crate) stopped: u64,
    pub(crate) processes: u64,
    /// Anonymous memory in DRAM before, and now.
    pub(crate) before_bytes: u64,
    pub(crate) left_bytes: u64,
    pub(crate) largest_pid: u32,
    pub(crate) largest_bytes: u64,
    pub(crate) largest_sleeps: bool,
}

impl Parked {
    /// From this size a process is named.
    const NAMED_BYTES: u64 = 32 << 20;

    fn to_text(self) -> String {
        let is_stopped = u8::from(self.progress == Parking::Stopped);
        let Parked { stopped, processes, before_bytes, left_bytes, .. } = self;
        let Parked { largest_pid, largest_bytes, largest_sleeps, .. } = self;
        format!(
            "tree_parked {is_stopped} {stopped} {processes} {before_bytes} {left_bytes} \
             {largest_pid} {largest_bytes} {}\n",
            u8::from(largest_sleeps)
        )
    }

    fn parse(text: &str) -> Option<Parked> {
        let mut numbers = text.split(' ').map(|word| word.parse::<u64>().ok());
        let mut next = || numbers.next()?;
        Some(Parked {
            progress: if next()? == 1 { Parking::Stopped } else { Parking::Evicting },
            stopped: next()?,
            processes: next()?,
            before_bytes: next()?,
            left_bytes: next()?,
            largest_pid: u32::try_from(next()?).ok()?,
            largest_bytes: next()?,
            largest_sleeps: next()? == 1,
        })
    }

    pub(crate) fn for_people(&self) -> String {
        let Parked { stopped, processes, largest_pid, .. } = self;
        let [left, before, largest] =
            [self.left_bytes, self.before_bytes, self.largest_bytes].map(bytes);
        let state = match self.progress {
            Parking::Evicting => "processes are evicting memory".to_string(),
            Parking::Stopped => format!("{stopped} of {processes} processes stopped"),
        };
        let named = match self.largest_bytes > Parked::NAMED_BYTES {
            true if self.largest_sleeps => {
                format!("; process {largest_pid} keeps {largest}: its memory fits the budget")
            }
            true => format!("; process {largest_pid} keeps {largest}"),
            false => String::new(),
        };
        format!("{state}; {left} in DRAM, {before} before{named}")
    }
}

impl TreeReport {
    /// Sorts the processes by decreasing share.
    pub(crate) fn of(budget_bytes: u64, mut processes: Vec<Process>) -> TreeReport {
        processes.sort_by_key(|process| std::cmp::Reverse(process.granted_bytes));
        TreeReport {
            budget_bytes,
            granted_bytes: processes.iter().map(|process| process.granted_bytes).sum(),
            used_bytes: processes.iter().map(|process| process.used_bytes).sum(),
            processes,
            turns: Turns::default(),
            parked: None,
            unmanaged: Vec::new(),
        }
    }

    /// Writes one fact per line, for the control socket.
    pub(crate) fn to_text(&self) -> String {
        let Turns { taken, owner_pid, taking_s } = self.turns;
        let mut text = format!(
            "tree_budget_bytes {}\ntree_turns {taken} {owner_pid} {taking_s}\n",
            self.budget_bytes
        );
        self.parked.iter().for_each(|parked| text.push_str(&parked.to_text()));
        for process in &self.processes {
            let Process { pid, granted_bytes, used_bytes, used_peak_bytes, .. } = process;
            let Process { faults, stalled_ns, name, .. } = process;
            let _ = writeln!(
                text,
                "process {pid} {granted_bytes} {used_bytes} {used_peak_bytes} {faults} \
                 {stalled_ns} {name}"
            );
        }
        for process in &self.unmanaged {
            let UnmanagedProcess { pid, name, anonymous_bytes, anonymous_peak_bytes } = process;
            let _ =
                writeln!(text, "unmanaged {pid} {anonymous_bytes} {anonymous_peak_bytes} {name}");
        }
        text
    }

    /// Returns `None` if a process, not `softswap run`, has answered.
    pub(crate) fn parse(body: &str) -> Option<TreeReport> {
        let (mut budget_bytes, mut processes, mut unmanaged) = (None, Vec::new(), Vec::new());
        let (mut turns, mut parked) = (Turns::default(), None);
        for (name, rest) in pairs(body) {
            match name {
                "tree_budget_bytes" => budget_bytes = rest.parse().ok(),
                "tree_turns" => turns = Turns::parse(rest).unwrap_or_default(),
                "tree_parked" => parked = Parked::parse(rest),
                "process" => processes.extend(parse_process(rest)),
                "unmanaged" => unmanaged.extend(parse_unmanaged(rest)),
                _ => {}
            }
        }
        Some(TreeReport { turns, parked, unmanaged, ..TreeReport::of(budget_bytes?, processes) })
    }

    pub(crate) fn for_people(&self, pid: u32) -> String {
        let count = self.processes.len();
        let mut text = format!("softswap: the tree of `softswap run` (pid {pid})\n");
        let [budget, granted, used] =
            [self.budget_bytes, self.granted_bytes, self.used_bytes].map(bytes);
        let processes = if count == 1 { "process" } else { "processes" };
        let _ = writeln!(
            text,
            "  budget     {budget}: {granted} granted to {count} {processes}, {used} used"
        );
        if self.processes.is_empty() {
            text.push_str("  asleep     the memory of its processes fits the budget\n");
        } else {
            let table = process_table(&self.processes);
            let _ = writeln!(text, "  tree       {table}");
        }
        if let Some(parked) = self.parked {
            let _ = writeln!(text, "  PARKED     {}", parked.for_people());
        }
        let Turns { taken, owner_pid, taking_s } = self.turns;
        if owner_pid != 0 {
            let _ = writeln!(
                text,
                "  turns      {taken}: processes have taken turns for {taking_s} s; pid \
                 {owner_pid} owns the present one"
            );
        } else if taken > 0 {
            let _ = writeln!(text, "  turns      {taken}; none now");
        }
        for UnmanagedProcess { pid, name, anonymous_bytes, anonymous_peak_bytes } in &self.unmanaged
        {
            let [now, peak] = [*anonymous_bytes, *anonymous_peak_bytes].map(bytes);
            let _ = writeln!(
                text,
                "  UNMANAGED  {name} (pid {pid}): {now} private memory now, {peak} at peak, no \
                 limit"
            );
        }
        text
    }
}

impl Turns {
    fn parse(text: &str) -> Option<Turns> {
        let mut numbers = text.split(' ').map(|word| word.parse::<u64>().ok());
        let [taken, owner, taking_s] = [numbers.next()??, numbers.next()??, numbers.next()??];
        Some(Turns { taken, owner_pid: u32::try_from(owner).ok()?, taking_s })
    }
}

fn parse_unmanaged(text: &str) -> Option<UnmanagedProcess> {
    let mut words = text.splitn(4, ' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let pid = u32::try_from(number()?).ok()?;
    let [anonymous_bytes, anonymous_peak_bytes] = [number()?, number()?];
    let name = visible(words.next()?);
    Some(UnmanagedProcess { pid, name, anonymous_bytes, anonymous_peak_bytes })
}

fn parse_process(text: &str) -> Option<Process> {
    let mut words = text.splitn(7, ' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    Some(Process {
        pid: u32::try_from(number()?).ok()?,
        granted_bytes: number()?,
        used_bytes: number()?,
        used_peak_bytes: number()?,
        faults: number()?,
        stalled_ns: number()?,
        name: visible(words.next()?),
        ..Process::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_round_trips() {
        let of = |pid, granted_bytes| Process {
            pid,
            name: format!("a name {pid}"),
            granted_bytes,
            used_bytes: granted_bytes / 2,
            used_peak_bytes: granted_bytes,
            faults: granted_bytes / 3,
            stalled_ns: 77,
            ..Process::default()
        };
        let mut report = TreeReport::of(9 << 20, vec![of(7, 1 << 20), of(8, 5 << 20)]);
        let name = "another name".to_string();
        report.parked = Some(Parked {
            progress: Parking::Stopped,
            stopped: 1,
            processes: 2,
            before_bytes: 99 << 20,
            left_bytes: 40 << 20,
            largest_pid: 7,
            largest_bytes: 33 << 20,
            largest_sleeps: true,
        });
        report.turns = Turns { taken: 5, owner_pid: 8, taking_s: 3 };
        report.unmanaged =
            vec![UnmanagedProcess { pid: 9, name, anonymous_bytes: 3, anonymous_peak_bytes: 4 }];
        assert_eq!(report.granted_bytes, 6 << 20);
        assert_eq!(report.processes[0].granted_bytes, 5 << 20);
        assert_eq!(TreeReport::parse(&report.to_text()).as_ref(), Some(&report));
        assert!(report.for_people(1).contains("a name 8"));
        let parked = "1 of 2 processes stopped; 40.0 MiB in DRAM, 99.0 MiB before; process 7 keeps \
                      33.0 MiB: its memory fits the budget";
        assert!(report.for_people(1).contains(parked), "{}", report.for_people(1));
        assert!(report.for_people(1).contains("turns for 3 s; pid 8 owns the present one"));
        assert_eq!(TreeReport::parse("uptime_ns 5\nsetting codec lz4\n"), None);
    }
}
