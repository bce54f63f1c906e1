//! Drawing of the screen.

use super::bars::{bar, fitting, legend};
use super::history::History;
use super::keys::HELP;
use super::screen::{Mode, Screen};
use super::table::{columns, short_bytes, short_count};
use super::theme::{Part, Theme};
use crate::rates::Rates;
use crate::tree::{Process, Shared, State, Tree};
use crate::units::bytes;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Margin, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState, Wrap};
use softswap_engine::base::stats::{TIERS, Tier};

/// From this height each tier gets its own line.
const TALL: u16 = 36;
const LABEL: usize = 9;
const VALUE: usize = 9;
/// The table's title and two processes.
const MIN_TABLE: u16 = 3;
/// Columns in the list of trees: PID, state, memory.
const LIST: [u16; 3] = [7, 13, 18];
const MIN_COMMAND: u16 = 8;
const NONE: &str = "-";

pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen, theme: Theme) {
    let area = frame.area();
    match screen.selected() {
        Some(tree) => draw_tree(frame, area, screen, tree, theme),
        None => draw_empty(frame, area, screen, theme),
    }
    match &screen.mode {
        Mode::Help => draw_help(frame, area, theme),
        Mode::Type { target, text } => {
            let now = target.now.as_ref().map_or_else(String::new, |now| format!(", now {now}"));
            let lines = [
                format!("{} of {}{now}", target.setting.key, target.owner_text),
                format!("for instance {}", target.setting.example),
                format!("> {text}_"),
                "Enter: continue, Esc: cancel".to_string(),
            ];
            draw_box(frame, area, theme, "Change a setting", &lines);
        }
        Mode::Confirm { target, text } => {
            let lines = [
                format!("Set {} of {} to {text}?", target.setting.key, target.owner_text),
                "y: yes, any other key: no".to_string(),
            ];
            draw_box(frame, area, theme, "Confirm", &lines);
        }
        Mode::Watch => {}
    }
}

fn draw_empty(frame: &mut Frame<'_>, area: Rect, screen: &Screen, theme: Theme) {
    let mut lines = vec![Line::styled("softswap top", theme.title()), Line::raw("")];
    let none = format!("No program of {} runs under softswap.", screen.user);
    lines.extend(match (screen.has_sampled, screen.only) {
        (false, _) => vec![
            Line::raw("Looking for programs that run under softswap."),
            Line::raw("If many are busy, it takes some seconds until all have answered."),
        ],
        (true, Some(root)) => vec![Line::raw(format!("The tree of {root} has exited."))],
        (true, None) => vec![
            Line::raw(none),
            Line::raw("Start one: softswap run --memory 2G -- PROGRAM"),
            Line::raw("It will be shown here."),
        ],
    });
    lines.extend([Line::raw(""), Line::raw("q: quit")]);
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }), area);
}

fn draw_tree(frame: &mut Frame<'_>, area: Rect, screen: &Screen, tree: &Tree, theme: Theme) {
    let listed = if screen.trees.len() > 1 {
        (screen.trees.len() as u16).min((area.height / 6).max(2))
    } else {
        0
    };
    let lines = rate_lines(area.height >= TALL);
    // Processes and memory have priority.
    let mut left = area.height.saturating_sub(1 + MIN_TABLE);
    let mut take = |wanted: u16| {
        let taken = wanted.min(left);
        left -= taken;
        Constraint::Length(taken)
    };
    let [foot, list, head, rates] = [1, listed, 5, lines.len() as u16].map(&mut take);
    let parts =
        Layout::vertical([Constraint::Length(1), list, head, rates, Constraint::Min(0), foot]);
    let [title, list, head, rates, table, foot] = parts.areas(area);
    draw_title(frame, title, screen, theme);
    draw_list(frame, list, screen, tree, theme);
    draw_head(frame, head, screen, tree, theme);
    draw_rates(frame, rates, screen.rates(tree.root), screen.history(tree.root), &lines, theme);
    draw_table(frame, table, screen, theme);
    draw_foot(frame, foot, screen, theme);
}

fn draw_title(frame: &mut Frame<'_>, area: Rect, screen: &Screen, theme: Theme) {
    let running = || screen.trees.iter().filter(|tree| !screen.has_ended(tree.root));
    let processes: usize = running().map(|tree| tree.processes.len()).sum();
    let asleep: usize = running().map(|tree| tree.awake_and_asleep().1).sum();
    let trees = counted(running().count(), "tree", "trees");
    let long = format!(
        "softswap top: {trees}, {} ({asleep} asleep)",
        counted(processes, "process", "processes"),
    );
    let width = usize::from(area.width);
    let texts = [long, format!("softswap top: {trees}"), "softswap top".to_string()];
    let text = fitting(width, texts);
    let left = width.saturating_sub(text.len() + 2);
    frame.render_widget(Line::styled(text, theme.title()), area);
    let keys = fitting(left, ["h help  q quit".to_string()]);
    frame.render_widget(Paragraph::new(keys).alignment(Alignment::Right), area);
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// The selected tree is always visible.
fn draw_list(frame: &mut Frame<'_>, area: Rect, screen: &Screen, shown: &Tree, theme: Theme) {
    let mut left = area.width;
    let mut fits = |width: u16| {
        let has_space = width < left;
        left = left.saturating_sub(width + 1);
        has_space
    };
    let mut widths: Vec<Constraint> =
        LIST.into_iter().take_while(|width| fits(*width)).map(Constraint::Length).collect();
    if widths.len() == LIST.len() && fits(MIN_COMMAND) {
        widths.push(Constraint::Fill(1));
    }
    let rows = screen.trees.iter().map(|tree| {
        let has_ended = screen.has_ended(tree.root);
        let state = match screen.rates(tree.root) {
            _ if has_ended => "has ended".to_string(),
            _ if tree.shared.is_some_and(|it| it.is_parked) => "parked".to_string(),
            Some(rates) => format!("stalled {:.0}%", rates.stalled * 100.0),
            None => format!("stalled {NONE}"),
        };
        let used = || tree.processes.iter().filter_map(Process::used_bytes).sum();
        let used = if has_ended { NONE.to_string() } else { short_bytes(used()) };
        let used = format!("{used} of {}", short_bytes(tree.budget_bytes()));
        let cells = [tree.root.to_string(), state, used, tree.command.clone()];
        Row::new(cells.into_iter().take(widths.len()))
    });
    let at = screen.trees.iter().position(|tree| tree.root == shown.root);
    let table = Table::new(rows, widths.clone()).row_highlight_style(theme.selected());
    frame.render_stateful_widget(table, area, &mut TableState::default().with_selected(at));
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, screen: &Screen, tree: &Tree, theme: Theme) {
    let has_ended = screen.has_ended(tree.root);
    let width = usize::from(area.width);
    // An exited tree has no memory.
    let running: &[Process] = if has_ended { &[] } else { &tree.processes };
    let now = Tree { processes: running.to_vec(), ..Tree::default() };
    let sum = now.sum();
    let budget = tree.budget_bytes();
    let asleep_bytes: u64 = running
        .iter()
        .filter(|process| matches!(process.state, State::Asleep))
        .map(|process| process.anonymous_bytes)
        .sum();
    let resident = sum.resident_bytes + asleep_bytes;
    let used = resident + sum.pool_bytes + sum.other_bytes();
    let parts = [
        (Part::Resident, resident),
        (Part::Pool, sum.pool_bytes),
        (Part::Other, sum.other_bytes()),
    ];
    let figure = |text: fn(u64) -> String, amount: u64| match has_ended {
        true => NONE.to_string(),
        false => text(amount),
    };
    let what = if tree.shared.is_some() { "budget " } else { "budgets " };
    let room = width.saturating_sub(what.len());
    let text = amounts(|text| figure(text, used), budget, room);
    let bar_width = room.saturating_sub(text.len().max(24));
    let mut dram = vec![Span::raw(what)];
    dram.extend(bar(theme, &parts, budget, bar_width));
    dram.push(Span::raw(text));
    let shown = [
        (Part::Resident, "resident", figure(bytes, resident)),
        (Part::Pool, "pool", figure(bytes, sum.pool_bytes)),
        (Part::Other, "other", figure(short_bytes, sum.other_bytes())),
        (Part::Free, "free", figure(short_bytes, budget.saturating_sub(used))),
    ];
    let [on_disk, out] = match has_ended {
        true => [Line::raw("on disk -"), Line::raw("out -")],
        false => [disk_line(&now, width, bar_width, theme), swapped_out_line(&now, width, theme)],
    };
    let name = name_line(tree, has_ended, theme);
    let lines = vec![name, Line::from(dram), legend(theme, &shown, width), on_disk, out];
    frame.render_widget(Paragraph::new(lines), area);
}

fn name_line(tree: &Tree, has_ended: bool, theme: Theme) -> Line<'static> {
    let state = match tree.shared {
        _ if has_ended => "has ended ".to_string(),
        Some(Shared { is_parked: true, .. }) => "PARKED ".to_string(),
        Some(Shared { turn_owner_pid: Some(owner), .. }) => format!("turn of {owner}; "),
        _ => String::new(),
    };
    Line::from(vec![
        Span::raw(format!("{} ", tree.root)),
        Span::styled(state, theme.warning()),
        Span::styled(tree.command.clone(), theme.title()),
    ])
}

/// `used` formats the used part of `whole`.
fn amounts(used: impl Fn(fn(u64) -> String) -> String, whole: u64, room: usize) -> String {
    let long = format!(" {} of {}", used(bytes), bytes(whole));
    let short = used(short_bytes);
    fitting(room, [long, format!(" {short} of {}", short_bytes(whole)), format!(" {short}")])
}

fn disk_line(tree: &Tree, width: usize, bar_width: usize, theme: Theme) -> Line<'static> {
    let sum = tree.sum();
    let whole = sum.mapped_bytes.max(sum.disk_bytes);
    let mut disk = vec![Span::raw("on disk ")];
    disk.extend(bar(theme, &[(Part::Disk, sum.disk_bytes)], whole, bar_width));
    let room = width.saturating_sub(8 + bar_width);
    disk.push(Span::raw(amounts(|text| text(sum.disk_bytes), whole, room)));
    Line::from(disk)
}

fn swapped_out_line(tree: &Tree, width: usize, theme: Theme) -> Line<'static> {
    let sum = tree.sum();
    let (awake, asleep) = tree.awake_and_asleep();
    let out = bytes(sum.disk_bytes + sum.pool_pages * softswap_sys::PAGE_SIZE as u64);
    let packed = sum.compression_ratio();
    let packed = packed.map_or_else(String::new, |ratio| format!(", compressed {ratio:.2} to 1"));
    let errors = match sum.errors {
        0 => String::new(),
        errors => format!("; {errors} ERRORS of the disk"),
    };
    let processes = format!("; {awake} awake, {asleep} asleep");
    let mechanism = match sum.mappings_limit {
        0 => "",
        _ => "; faults by page protection",
    };
    let texts = [
        format!("out {out}{packed}{processes}{mechanism}"),
        format!("out {out}{packed}{processes}"),
        format!("out {out}{processes}"),
        format!("out {out}"),
    ];
    let text = fitting(width.saturating_sub(errors.len()), texts);
    Line::from(vec![Span::raw(text), Span::styled(errors, theme.warning())])
}

struct RateLine {
    label: &'static str,
    value: fn(&Rates) -> f64,
    /// Smallest value of a full bar.
    full: f64,
    shown: fn(f64) -> String,
}

fn rate_lines(is_tall: bool) -> Vec<RateLine> {
    fn percent(share: f64) -> String {
        format!("{:.0}%", share * 100.0)
    }
    fn size(bytes: f64) -> String {
        format!("{}/s", short_bytes(bytes as u64))
    }
    fn count(faults: f64) -> String {
        format!("{}/s", short_count(faults))
    }
    let faults = |label, value| RateLine { label, value, full: 20.0, shown: count };
    let mut lines =
        vec![RateLine { label: "stalled", value: |it| it.stalled, full: 1.0, shown: percent }];
    if is_tall {
        let values: [fn(&Rates) -> f64; TIERS.len()] = [
            |it| it.faults_of(Tier::Zero),
            |it| it.faults_of(Tier::Staged),
            |it| it.faults_of(Tier::Standby),
            |it| it.faults_of(Tier::SameFilled),
            |it| it.faults_of(Tier::Pool),
            |it| it.faults_of(Tier::Disk),
        ];
        lines.extend(TIERS.iter().zip(values).map(|(tier, value)| faults(tier.name(), value)));
    } else {
        lines.push(faults("pool", |it| it.faults_of(Tier::Pool)));
        lines.push(faults("disk", |it| it.faults_of(Tier::Disk)));
        lines.push(faults("others", |it| {
            let others = [Tier::Zero, Tier::Staged, Tier::Standby, Tier::SameFilled];
            others.into_iter().fold(0.0, |sum, tier| sum + it.faults_of(tier))
        }));
    }
    let size = |label, value| RateLine { label, value, full: 65536.0, shown: size };
    lines.push(size("read", |it| it.read_bytes));
    lines.push(size("written", |it| it.written_bytes));
    lines
}

fn draw_rates(
    frame: &mut Frame<'_>,
    area: Rect,
    now: Option<Rates>,
    history: Option<&History>,
    lines: &[RateLine],
    theme: Theme,
) {
    let none = History::default();
    let history = history.unwrap_or(&none);
    if usize::from(area.width) < LABEL + VALUE {
        return;
    }
    let width = usize::from(area.width).saturating_sub(LABEL + VALUE + 2).min(120);
    let shown = lines.iter().map(|line| {
        let value = now.map_or_else(|| NONE.into(), |now| (line.shown)((line.value)(&now)));
        let curve = history.sparkline(width, line.full, theme.steps(), line.value);
        Line::raw(format!("{:<LABEL$}{value:>VALUE$}  {curve}", line.label))
    });
    frame.render_widget(Paragraph::new(shown.collect::<Vec<_>>()), area);
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, screen: &Screen, theme: Theme) {
    let columns = columns(area.width);
    let rows = screen.rows();
    let titles = columns.iter().map(|column| {
        let is_sorted = screen.sort.is_by(column);
        let style = if is_sorted { theme.selected() } else { theme.title() };
        aligned(column.title.to_string(), column.is_text()).style(style)
    });
    let at = screen.at(&rows);
    let shown = rows.iter().map(|row| {
        Row::new(columns.iter().map(|column| aligned(column.text(row), column.is_text())))
    });
    let widths = columns.iter().map(|column| Constraint::Length(column.width));
    let table = Table::new(shown, widths)
        .header(Row::new(titles))
        .column_spacing(1)
        .row_highlight_style(theme.selected());
    frame.render_stateful_widget(table, area, &mut TableState::default().with_selected(at));
}

fn aligned(text: String, is_text: bool) -> Line<'static> {
    Line::raw(text).alignment(if is_text { Alignment::Left } else { Alignment::Right })
}

fn draw_foot(frame: &mut Frame<'_>, area: Rect, screen: &Screen, theme: Theme) {
    if let Some((is_done, text)) = &screen.change_result {
        let style = if *is_done { theme.title() } else { theme.warning() };
        return frame.render_widget(Line::styled(text.clone(), style), area);
    }
    let rows = screen.rows();
    let line = match rows.get(screen.at(&rows)) {
        Some(row) if row.has_ended => "this tree has exited  q quit".into(),
        Some(row) => line_of_process(row.process, usize::from(area.width)),
        None => String::new(),
    };
    frame.render_widget(Line::raw(line), area);
}

fn line_of_process(process: &Process, width: usize) -> String {
    let Process { pid, name, budget_bytes, .. } = process;
    match &process.state {
        State::Silent(why) => format!("{pid} ({name}): {why}"),
        State::Asleep => {
            let text = format!("{pid} ({name}) is asleep");
            let budget = bytes(*budget_bytes);
            let long = format!("{text}: its memory fits its budget of {budget}");
            fitting(width, [long, text])
        }
        State::Awake(_) => {
            let keys = "m memory  c codec  p io.poll  < > sort  r reverse  Tab next tree";
            fitting(width, [keys, "h help  < > sort  q quit", "q quit"].map(String::from))
        }
    }
}

fn draw_help(frame: &mut Frame<'_>, area: Rect, theme: Theme) {
    let mut lines: Vec<String> =
        HELP.iter().map(|(keys, meaning)| format!("{keys:<18} {meaning}")).collect();
    lines.push(String::new());
    lines.push("stalled: share of the busy threads' time in which they wait for".into());
    lines.push("pages. resident: uncompressed in DRAM. pool: compressed in DRAM.".into());
    lines.push("MAPS: mappings created by page protection (-: userfaultfd is used).".into());
    lines.push("asleep: the process fits its budget and runs at full speed.".into());
    lines.push("turn of PID: processes of the tree take turns, and PID owns this one.".into());
    draw_box(frame, area, theme, "Help", &lines);
}

fn draw_box(frame: &mut Frame<'_>, area: Rect, theme: Theme, title: &str, lines: &[String]) {
    let longest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let width = (longest as u16 + 4).clamp(30, area.width.max(30)).min(area.width);
    let inner = usize::from(width.saturating_sub(4)).max(1);
    let wrapped: usize = lines.iter().map(|line| line.chars().count().div_ceil(inner).max(1)).sum();
    let height = (wrapped as u16 + 2).min(area.height);
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, place);
    let title = Span::styled(format!(" {title} "), theme.title());
    frame.render_widget(Block::bordered().title(title), place);
    let text: Vec<Line<'_>> = lines.iter().map(|line| Line::raw(line.as_str())).collect();
    let text = Paragraph::new(text).wrap(Wrap { trim: false });
    frame.render_widget(text, place.inner(Margin { horizontal: 2, vertical: 1 }));
}

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
