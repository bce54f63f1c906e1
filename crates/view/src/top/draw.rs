//! The picture.

use super::bars::{bar, legend};
use super::history::History;
use super::keys::HELP;
use super::screen::{Mode, Screen};
use super::table::{columns, short_bytes, short_count};
use super::theme::{Part, Theme};
use crate::rates::Rates;
use crate::tree::{Process, State, Tree};
use crate::units::bytes;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Margin, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState, Wrap};
use softswap_engine::base::stats::{TIERS, Tier};

/// From this height on each tier has a line of its own.
const TALL: u16 = 36;
/// Before a sparkline: what it is, and how much now.
const LABEL: usize = 9;
const VALUE: usize = 9;

pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen, theme: Theme) {
    let area = frame.area();
    match screen.selected() {
        Some(tree) => draw_tree(frame, area, screen, tree, theme),
        None => draw_nothing(frame, area, screen, theme),
    }
    match &screen.mode {
        Mode::Help => draw_help(frame, area, theme),
        Mode::Type { target, text } => {
            let now = target.now.as_ref().map_or_else(String::new, |now| format!(", now {now}"));
            let lines = [
                format!("{} of {}{now}", target.setting.key, target.whose),
                format!("for instance {}", target.setting.example),
                format!("> {text}_"),
                "Enter goes on, Esc changes nothing".to_string(),
            ];
            draw_box(frame, area, theme, "Change a setting", &lines);
        }
        Mode::Confirm { target, text } => {
            let lines = [
                format!("Set {} of {} to {text}?", target.setting.key, target.whose),
                "y does it, any other key does not".to_string(),
            ];
            draw_box(frame, area, theme, "Confirm", &lines);
        }
        Mode::Watch => {}
    }
}

fn draw_nothing(frame: &mut Frame<'_>, area: Rect, screen: &Screen, theme: Theme) {
    let lines = vec![
        Line::styled("softswap top", theme.title()),
        Line::raw(""),
        Line::raw(format!("No program of {} runs under softswap.", screen.user)),
        Line::raw("Start one: softswap run --memory 2G -- PROGRAM"),
        Line::raw("It will be shown here."),
        Line::raw(""),
        Line::raw("q leaves"),
    ];
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }), area);
}

fn draw_tree(frame: &mut Frame<'_>, area: Rect, screen: &Screen, tree: &Tree, theme: Theme) {
    let listed = if screen.trees.len() > 1 {
        (screen.trees.len() as u16).min((area.height / 6).max(2))
    } else {
        0
    };
    let lines = rate_lines(area.height >= TALL);
    let parts = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(listed),
        Constraint::Length(5),
        Constraint::Length(lines.len() as u16),
        Constraint::Min(2),
        Constraint::Length(1),
    ]);
    let [title, list, head, rates, table, foot] = parts.areas(area);
    draw_title(frame, title, screen, theme);
    draw_list(frame, list, screen, tree, theme);
    draw_head(frame, head, screen, tree, theme);
    draw_rates(frame, rates, screen.history(tree.root), &lines, theme);
    draw_table(frame, table, screen, theme);
    draw_foot(frame, foot, screen, theme);
}

fn draw_title(frame: &mut Frame<'_>, area: Rect, screen: &Screen, theme: Theme) {
    let count = |it: fn(&Tree) -> usize| screen.trees.iter().map(it).sum::<usize>();
    let processes = count(|tree| tree.processes.len());
    let asleep = count(|tree| tree.awake_and_asleep().1);
    let text = format!(
        "softswap top: {}, {} ({asleep} asleep)",
        counted(screen.trees.len(), "tree", "trees"),
        counted(processes, "process", "processes"),
    );
    frame.render_widget(Line::styled(text, theme.title()), area);
    let keys = Paragraph::new("h help  q leave").alignment(Alignment::Right);
    frame.render_widget(keys, area);
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// A line for each tree, with the one that is shown among them.
fn draw_list(frame: &mut Frame<'_>, area: Rect, screen: &Screen, shown: &Tree, theme: Theme) {
    let rows = screen.trees.iter().map(|tree| {
        let rates = screen.rates(tree.root);
        let used: u64 = tree.processes.iter().map(Process::used_bytes).sum();
        let state = match screen.has_ended(tree.root) {
            true => "has ended".to_string(),
            false => format!("stalled {:.0}%", rates.stalled * 100.0),
        };
        Row::new(vec![
            tree.root.to_string(),
            state,
            format!("{} of {}", short_bytes(used), short_bytes(tree.budget_bytes())),
            tree.command.clone(),
        ])
    });
    let widths = [8, 13, 18].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    let at = screen.trees.iter().position(|tree| tree.root == shown.root);
    let table = Table::new(rows, widths).row_highlight_style(theme.selected());
    frame.render_stateful_widget(table, area, &mut TableState::default().with_selected(at));
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, screen: &Screen, tree: &Tree, theme: Theme) {
    let sum = tree.sum();
    let (awake, asleep) = tree.awake_and_asleep();
    let budget = tree.budget_bytes();
    let mut name = Line::raw(format!("{} ", tree.root));
    if screen.has_ended(tree.root) {
        name.push_span(Span::styled("has ended ", theme.warning()));
    }
    name.push_span(Span::styled(tree.command.clone(), theme.title()));
    let asleep_bytes: u64 = tree
        .processes
        .iter()
        .filter(|process| matches!(process.state, State::Asleep))
        .map(|process| process.anonymous_bytes)
        .sum();
    let resident = sum.resident_bytes + asleep_bytes;
    let parts = [
        (Part::Resident, resident),
        (Part::Pool, sum.pool_bytes),
        (Part::Other, sum.other_bytes()),
    ];
    let used = resident + sum.pool_bytes + sum.other_bytes();
    let what = if tree.shared.is_some() { "budget " } else { "budgets" };
    let mut dram = vec![Span::raw(format!("{what} "))];
    let amounts = format!(" {} of {}", bytes(used), bytes(budget));
    let width = usize::from(area.width).saturating_sub(what.len() + 1 + amounts.len().max(24));
    dram.extend(bar(theme, &parts, budget, width));
    dram.push(Span::raw(amounts));
    let out = sum.disk_bytes + sum.pool_pages * softswap_sys::PAGE_SIZE as u64;
    let mut disk = vec![Span::raw("on disk ")];
    let whole = sum.mapped_bytes.max(sum.disk_bytes);
    disk.extend(bar(theme, &[(Part::Disk, sum.disk_bytes)], whole, width));
    disk.push(Span::raw(format!(" {} of {}", bytes(sum.disk_bytes), bytes(whole))));
    let free = budget.saturating_sub(used);
    let packed = sum.compression_ratio();
    let packed = packed.map_or_else(String::new, |ratio| format!(", packed {ratio:.2} to 1"));
    let mut last =
        vec![Span::raw(format!("out {}{packed}; {awake} awake, {asleep} asleep", bytes(out)))];
    if sum.errors > 0 {
        last.push(Span::styled(format!("; {} ERRORS of the disk", sum.errors), theme.warning()));
    }
    let lines = vec![
        name,
        Line::from(dram),
        legend(
            theme,
            &[
                (Part::Resident, "resident", bytes(resident)),
                (Part::Pool, "pool", bytes(sum.pool_bytes)),
                (Part::Other, "other", short_bytes(sum.other_bytes())),
                (Part::Free, "free", short_bytes(free)),
            ],
        ),
        Line::from(disk),
        Line::from(last),
    ];
    frame.render_widget(Paragraph::new(lines), area);
}

/// A line with a sparkline.
struct RateLine {
    label: &'static str,
    value: fn(&Rates) -> f64,
    /// What a full sign is at least.
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
            |it| it.faults_of(Tier::Filled),
            |it| it.faults_of(Tier::Pool),
            |it| it.faults_of(Tier::Disk),
        ];
        lines.extend(TIERS.iter().zip(values).map(|(tier, value)| faults(tier.name(), value)));
    } else {
        lines.push(faults("pool", |it| it.faults_of(Tier::Pool)));
        lines.push(faults("disk", |it| it.faults_of(Tier::Disk)));
        lines.push(faults("others", |it| {
            it.returns() - it.faults_of(Tier::Pool) - it.faults_of(Tier::Disk)
                + it.faults_of(Tier::Zero)
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
    history: Option<&History>,
    lines: &[RateLine],
    theme: Theme,
) {
    let none = History::default();
    let history = history.unwrap_or(&none);
    let now = history.last();
    let width = usize::from(area.width).saturating_sub(LABEL + VALUE + 2).min(120);
    let shown = lines.iter().map(|line| {
        let value = (line.shown)((line.value)(&now));
        let curve = history.sparkline(width, line.full, theme.steps(), line.value);
        Line::raw(format!("{:<LABEL$}{value:>VALUE$}  {curve}", line.label))
    });
    frame.render_widget(Paragraph::new(shown.collect::<Vec<_>>()), area);
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, screen: &Screen, theme: Theme) {
    let columns = columns(area.width);
    let rows = screen.rows();
    let titles = columns.iter().map(|column| {
        let title = column.title();
        let is_sorted = *column == screen.sort.column;
        let style = if is_sorted { theme.selected() } else { theme.title() };
        aligned(title.to_string(), column.is_text()).style(style)
    });
    let at = screen.at(&rows);
    let shown = rows.iter().map(|row| {
        Row::new(columns.iter().map(|column| aligned(column.text(row), column.is_text())))
    });
    let widths = columns.iter().map(|column| Constraint::Length(column.width()));
    let table = Table::new(shown, widths)
        .header(Row::new(titles))
        .column_spacing(1)
        .row_highlight_style(theme.selected());
    frame.render_stateful_widget(table, area, &mut TableState::default().with_selected(at));
}

fn aligned(text: String, is_text: bool) -> Line<'static> {
    Line::raw(text).alignment(if is_text { Alignment::Left } else { Alignment::Right })
}

/// What became of a change, or what there is to know of the selected process.
fn draw_foot(frame: &mut Frame<'_>, area: Rect, screen: &Screen, theme: Theme) {
    let line = if let Some((is_done, text)) = &screen.said {
        let style = if *is_done { theme.title() } else { theme.warning() };
        Line::styled(text.clone(), style)
    } else {
        let rows = screen.rows();
        let process = rows.get(screen.at(&rows)).map(|row| row.process);
        Line::raw(match process.map(|process| (process, &process.state)) {
            Some((process, State::Silent(why))) => {
                format!("{} ({}): {why}", process.pid, process.name)
            }
            Some((process, State::Asleep)) => format!(
                "{} ({}) sleeps: what it has fits its budget of {}",
                process.pid,
                process.name,
                bytes(process.budget_bytes)
            ),
            _ => "m memory  c codec  p io.poll  < > sort  r reverse  Tab next tree".into(),
        })
    };
    frame.render_widget(line, area);
}

fn draw_help(frame: &mut Frame<'_>, area: Rect, theme: Theme) {
    let mut lines: Vec<String> =
        HELP.iter().map(|(keys, meaning)| format!("{keys:<18} {meaning}")).collect();
    lines.push(String::new());
    lines.push("stalled: for how much of its busy threads' time a program waits for".into());
    lines.push("pages. resident: as the program has them. pool: compressed in DRAM.".into());
    lines.push("asleep: what a process has fits its budget, and costs nothing yet.".into());
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
