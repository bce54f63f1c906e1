use super::super::keys::{Answer, handle_key};
use super::*;
use crate::reading::Reading;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::time::Duration;

const SIZES: [(u16, u16); 4] = [(80, 24), (200, 60), (40, 12), (10, 3)];

fn process(pid: u32, name: &str, looks: u64) -> Process {
    let mut reading = Reading {
        budget_bytes: 256 << 20,
        used_bytes: 250 << 20,
        resident_bytes: 180 << 20,
        pool_bytes: 60 << 20,
        disk_bytes: 86 << 20,
        mapped_bytes: 1 << 30,
        pages_pooled: 6000,
        pooled_bytes: 4 << 20,
        stalled_ns: looks * 500_000_000,
        bytes_read: looks * (12 << 20),
        ..Reading::default()
    };
    reading.faults[Tier::Pool as usize] = looks * 12_345;
    Process {
        pid,
        name: name.into(),
        state: State::Awake(Box::new(reading)),
        budget_bytes: 256 << 20,
        anonymous_bytes: 251 << 20,
        cpu: Duration::from_millis(500 * looks),
        threads: 1,
        settings: vec![("codec".into(), "auto".into())],
        ..Process::default()
    }
}

fn asleep(pid: u32, name: &str) -> Process {
    Process { state: State::Asleep, anonymous_bytes: 5 << 20, ..process(pid, name, 0) }
}

fn tree(root: u32, processes: Vec<Process>) -> Tree {
    Tree { root, command: format!("python3 analysis-{root}.py"), shared: None, processes }
}

fn after(looks: u64, trees: impl Fn(u64) -> Vec<Tree>) -> Screen {
    let mut screen = Screen::new("somebody".into(), None);
    (1..=looks).for_each(|sample| screen.update(Duration::from_secs(sample), trees(sample)));
    screen
}

fn rendered(screen: &Screen, (width, height): (u16, u16), theme: Theme) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, screen, theme)).unwrap();
    let cells = terminal.backend().buffer().content();
    let line = |cells: &[ratatui::buffer::Cell]| {
        cells.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_string()
    };
    cells.chunks(usize::from(width)).map(line).collect::<Vec<_>>().join("\n")
}

fn press(screen: &mut Screen, code: KeyCode) -> Answer {
    handle_key(screen, KeyEvent::new(code, KeyModifiers::NONE))
}

fn type_in(screen: &mut Screen, text: &str) {
    text.chars().for_each(|sign| assert_eq!(press(screen, KeyCode::Char(sign)), Answer::Continue));
}

#[test]
fn page_protection_is_shown_with_its_mappings() {
    let by_protection = |sample| {
        let mut process = process(8, "python3", sample);
        if let State::Awake(reading) = &mut process.state {
            (reading.mappings, reading.mappings_limit) = (16_061, 58_977);
        }
        vec![tree(7, vec![process])]
    };
    let shown = rendered(&after(2, by_protection), (200, 60), Theme::of(true, false));
    for part in ["faults by page protection", "MAPS", "16.1k"] {
        assert!(shown.contains(part), "{part:?} is missing in\n{shown}");
    }
}

#[test]
fn tree_view_shows_all_details() {
    let screen =
        after(5, |sample| vec![tree(7, vec![process(8, "python3", sample), asleep(9, "sh")])]);
    for size in [(80, 24), (200, 60)] {
        let shown = rendered(&screen, size, Theme::of(true, false));
        for part in [
            "softswap top: 1 tree, 2 processes (1 asleep)",
            "7 python3 analysis-7.py",
            "resident 185.0 MiB",
            "pool 60.0 MiB",
            "86.0 MiB of 1.0 GiB",
            "compressed 5.86 to 1",
            "1 awake, 1 asleep",
            "stalled        50%",
            "12.3k/s",
            "12.0M/s",
            "STALL%",
            "asleep",
        ] {
            assert!(shown.contains(part), "{part:?} is missing at {size:?} in:\n{shown}");
        }
        assert_eq!(shown.contains("standby"), size.1 > 24, "{shown}");
        assert_eq!(shown.contains("WRITE/S"), size.0 > 80, "{shown}");
    }
}

#[test]
fn every_size_is_drawn_and_ascii_mode_is_ascii() {
    let mut screen = after(3, |sample| {
        let many = (0..100).map(|at| process(100 + at, "worker", sample)).collect();
        vec![tree(1, many), tree(2, vec![asleep(3, "sleeper")])]
    });
    for mode in [Mode::Watch, Mode::Help] {
        for size in SIZES {
            screen.mode = mode.clone();
            assert!(!rendered(&screen, size, Theme::of(false, false)).is_empty());
            let plain = rendered(&screen, size, Theme::of(true, true));
            // Boxes are drawn with line characters.
            assert!(mode == Mode::Help || plain.is_ascii(), "{plain}");
        }
    }
    let nothing = after(2, |_| Vec::new());
    let shown = rendered(&nothing, (80, 24), Theme::of(true, false));
    assert!(shown.contains("No program of somebody runs under softswap."), "{shown}");
}

#[test]
fn no_colour_mode_has_no_colour() {
    let screen = after(3, |sample| vec![tree(7, vec![process(8, "python3", sample)])]);
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    for (no_color, expected) in [(true, false), (false, true)] {
        let theme = Theme::of(no_color, false);
        terminal.draw(|frame| draw(frame, &screen, theme)).unwrap();
        let cells = terminal.backend().buffer().content();
        let is_colored = cells.iter().any(|cell| cell.fg != ratatui::style::Color::Reset);
        assert_eq!(is_colored, expected);
        assert!(cells.iter().all(|cell| cell.bg == ratatui::style::Color::Reset));
    }
}

#[test]
fn exited_tree_is_marked_and_removed_later() {
    let trees = |sample: u64| {
        let mut trees = vec![tree(1, vec![process(2, "long", sample)])];
        trees.extend((sample <= 3).then(|| tree(5, vec![process(6, "short", sample)])));
        trees
    };
    let shown = rendered(&after(4, trees), (80, 24), Theme::of(true, false));
    assert!(shown.contains("has ended") && shown.contains("1 tree, 1 process"), "{shown}");
    let shown = rendered(&after(20, trees), (80, 24), Theme::of(true, false));
    assert!(!shown.contains("has ended") && shown.contains("1 tree,"), "{shown}");
    // A tree requested by PID remains.
    let mut screen = Screen::new("somebody".into(), Some(5));
    (1..=30).for_each(|sample| screen.update(Duration::from_secs(sample), trees(sample)));
    let shown = rendered(&screen, (80, 24), Theme::of(true, false));
    assert!(shown.contains("5 has ended python3 analysis-5.py"), "{shown}");
    // No figures of the exited tree.
    for part in ["0 trees, 0 processes", "- of 256.0 MiB", "resident -", "out -", "6 short"] {
        assert!(shown.contains(part), "{part:?} is missing in:\n{shown}");
    }
    let row = shown.lines().find(|line| line.contains("6 short")).unwrap();
    assert_eq!(row.split_whitespace().skip(2).collect::<Vec<_>>().join(" "), "ended - - - - - -");
    let stalled = shown.lines().find(|line| line.starts_with("stalled")).unwrap();
    assert_eq!(stalled.split_whitespace().nth(1), Some("-"), "{shown}");
    assert!(!shown.contains("awake"), "{shown}");
}

#[test]
fn first_screen_shows_pending_state() {
    let theme = Theme::of(true, false);
    let shown = rendered(&Screen::new("somebody".into(), None), (80, 24), theme);
    assert!(shown.contains("softswap top") && shown.contains("Looking for programs"), "{shown}");
    assert!(!shown.contains("No program"), "{shown}");
    let trees = |sample| vec![tree(7, vec![process(8, "python3", sample)])];
    let value = |shown: &str, label: &str| {
        let line = shown.lines().find(|line| line.starts_with(label)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_string()
    };
    let first = rendered(&after(1, trees), (80, 24), theme);
    for label in ["stalled", "pool", "disk", "others", "read", "written"] {
        assert_eq!(value(&first, label), "-", "{first}");
    }
    let second = rendered(&after(2, trees), (80, 24), theme);
    let values = ["stalled", "pool", "others"].map(|label| value(&second, label));
    assert_eq!(values, ["50%", "12.3k/s", "0/s"], "{second}");
}

#[test]
fn small_screen_shows_complete_fields() {
    let screen = after(3, |sample| {
        vec![tree(7, vec![process(8, "python3", sample)]), tree(9, vec![process(10, "b", sample)])]
    });
    // All figures that may appear.
    let whole = "2 7 8 9 10 250.0M 256.0M 250.0 256.0 180.0 60.0 86.0 1.0 86.0M 1.0G 109.4 5.86 1 0 \
                 50% 50 12.3k 12.3k/s 0/s 12.0M/s 0B/s 180.0M 60.0M 10.0M 6.0M analysis-7.py \
                 analysis-9.py python3 analysis-7 analysis-9";
    let whole: Vec<&str> = whole.split(' ').collect();
    let is_figure = |word: &&str| word.starts_with(|sign: char| sign.is_ascii_digit());
    for (width, height) in [(40, 10), (40, 24), (30, 8), (20, 5), (20, 24), (60, 12)] {
        let shown = rendered(&screen, (width, height), Theme::of(true, true));
        let words = shown.split(|sign: char| sign.is_whitespace() || ",;()".contains(sign));
        for word in words.filter(is_figure) {
            assert!(whole.contains(&word), "{word:?} at {width}x{height} in:\n{shown}");
        }
        assert!(shown.contains("250.0M"), "{width}x{height}:\n{shown}");
    }
}

#[test]
fn setting_change_needs_confirmation() {
    let mut screen = after(2, |sample| vec![tree(7, vec![process(8, "python3", sample)])]);
    press(&mut screen, KeyCode::Char('c'));
    let shown = rendered(&screen, (80, 24), Theme::of(true, false));
    assert!(shown.contains("codec of python3 (8), now auto"), "{shown}");
    type_in(&mut screen, "zsdt");
    (0..3).for_each(|_| drop(press(&mut screen, KeyCode::Backspace)));
    type_in(&mut screen, "std");
    press(&mut screen, KeyCode::Enter);
    let shown = rendered(&screen, (80, 24), Theme::of(true, false));
    assert!(shown.contains("Set codec of python3 (8) to zstd?"), "{shown}");
    let wanted = Answer::Set { pid: 8, key: "codec".into(), value: "zstd".into() };
    assert_eq!(press(&mut screen, KeyCode::Char('y')), wanted);
    // Any other key changes nothing.
    for keys in [vec![KeyCode::Esc], vec![KeyCode::Char('1'), KeyCode::Enter, KeyCode::Char('n')]] {
        press(&mut screen, KeyCode::Char('m'));
        keys.into_iter().for_each(|key| assert_eq!(press(&mut screen, key), Answer::Continue));
        assert_eq!(screen.mode, Mode::Watch);
    }
}

#[test]
fn tree_budget_is_shared_and_sleeping_process_has_no_settings() {
    let shared =
        Some(Shared { budget_bytes: 96 << 20, granted_bytes: 90 << 20, ..Shared::default() });
    let mut screen = after(2, |_| vec![Tree { shared, ..tree(7, vec![asleep(8, "sh")]) }]);
    press(&mut screen, KeyCode::Char('m'));
    type_in(&mut screen, "1G");
    press(&mut screen, KeyCode::Enter);
    let wanted = Answer::Set { pid: 7, key: "memory".into(), value: "1G".into() };
    assert_eq!(press(&mut screen, KeyCode::Char('y')), wanted);
    press(&mut screen, KeyCode::Char('c'));
    let shown = rendered(&screen, (120, 24), Theme::of(true, false));
    assert!(shown.contains("process 8 (sh) is asleep"), "{shown}");
    assert_eq!(screen.mode, Mode::Watch);
}

#[test]
fn turns_and_parked_trees_are_shown() {
    let shared = Shared { budget_bytes: 96 << 20, ..Shared::default() };
    let screen = after(2, |sample| {
        let owner = Shared { turn_owner_pid: Some(8), ..shared };
        let taking_turns = tree(7, vec![process(8, "python3", sample)]);
        let parked = Shared { is_parked: true, ..shared };
        vec![
            Tree { shared: Some(owner), ..taking_turns },
            Tree { shared: Some(parked), ..tree(9, vec![asleep(10, "sh")]) },
        ]
    });
    let shown = rendered(&screen, (80, 24), Theme::of(true, false));
    let list: Vec<_> = shown.lines().filter(|line| line.contains("parked")).collect();
    assert!(list.len() == 1 && list[0].starts_with('9'), "{shown}");
    assert!(shown.contains("7 turn of 8; python3 analysis-7.py"), "{shown}");
    let mut screen = screen;
    press(&mut screen, KeyCode::Tab);
    let shown = rendered(&screen, (80, 24), Theme::of(true, false));
    assert!(shown.contains("9 PARKED python3 analysis-9.py"), "{shown}");
}

#[test]
fn keys_select_sort_and_quit() {
    let mut screen = after(3, |sample| {
        vec![
            tree(1, vec![process(2, "a", sample), process(3, "b", sample)]),
            tree(5, vec![asleep(6, "c")]),
        ]
    });
    press(&mut screen, KeyCode::Down);
    press(&mut screen, KeyCode::Down);
    assert_eq!(screen.at(&screen.rows()), 1);
    press(&mut screen, KeyCode::Char('r'));
    assert_eq!((screen.rows()[0].process.pid, screen.at(&screen.rows())), (3, 0));
    press(&mut screen, KeyCode::Tab);
    assert_eq!(screen.selected().unwrap().root, 5);
    press(&mut screen, KeyCode::BackTab);
    assert_eq!(screen.selected().unwrap().root, 1);
    press(&mut screen, KeyCode::Char('?'));
    assert_eq!(press(&mut screen, KeyCode::Char('q')), Answer::Continue);
    let control = |sign| KeyEvent::new(KeyCode::Char(sign), KeyModifiers::CONTROL);
    assert_eq!(handle_key(&mut screen, control('z')), Answer::Suspend);
    assert_eq!(handle_key(&mut screen, control('c')), Answer::Quit);
    assert_eq!(press(&mut screen, KeyCode::Char('q')), Answer::Quit);
}
