//! Handling of keys.

use super::screen::{Mode, SETTINGS, Screen};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Continue,
    Quit,
    Suspend,
    Set { pid: u32, key: String, value: String },
}

const MAX_VALUE: usize = 40;
const PAGE: isize = 10;

pub(super) fn handle_key(screen: &mut Screen, key: KeyEvent) -> Answer {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if is_control => return Answer::Quit,
        KeyCode::Char('z') if is_control => return Answer::Suspend,
        _ => {}
    }
    match std::mem::replace(&mut screen.mode, Mode::Watch) {
        Mode::Watch => watch(screen, key.code),
        // Any key closes the help.
        Mode::Help => Answer::Continue,
        Mode::Type { target, mut text } => {
            match key.code {
                KeyCode::Esc => return Answer::Continue,
                KeyCode::Enter if text.is_empty() => return Answer::Continue,
                KeyCode::Enter => {
                    screen.mode = Mode::Confirm { target, text };
                    return Answer::Continue;
                }
                KeyCode::Backspace => drop(text.pop()),
                KeyCode::Char('u') if is_control => text.clear(),
                KeyCode::Char(sign) if !is_control && text.len() < MAX_VALUE => text.push(sign),
                _ => {}
            }
            screen.mode = Mode::Type { target, text };
            Answer::Continue
        }
        // Any key except yes cancels.
        Mode::Confirm { target, text } => match key.code {
            KeyCode::Char('y' | 'Y') => {
                let (pid, key) = (target.pid, target.setting.key.to_string());
                Answer::Set { pid, key, value: text }
            }
            _ => {
                screen.change_result(Err(format!("{} was not changed", target.setting.key)));
                Answer::Continue
            }
        },
    }
}

fn watch(screen: &mut Screen, code: KeyCode) -> Answer {
    screen.change_result = None;
    match code {
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => return Answer::Quit,
        KeyCode::Char('h' | '?') | KeyCode::F(1) => screen.mode = Mode::Help,
        KeyCode::Down | KeyCode::Char('j') => screen.step(1),
        KeyCode::Up | KeyCode::Char('k') => screen.step(-1),
        KeyCode::PageDown => screen.step(PAGE),
        KeyCode::PageUp => screen.step(-PAGE),
        KeyCode::Tab => screen.step_tree(true),
        KeyCode::BackTab => screen.step_tree(false),
        KeyCode::Right | KeyCode::Char('>') => screen.sort.step(true),
        KeyCode::Left | KeyCode::Char('<') => screen.sort.step(false),
        KeyCode::Char('r') => screen.sort.is_reversed = !screen.sort.is_reversed,
        KeyCode::Char(press) => {
            let setting = SETTINGS.into_iter().find(|setting| setting.press == press);
            if let Some(Err(why)) = setting.map(|setting| screen.begin(setting)) {
                screen.change_result(Err(why));
            }
        }
        _ => {}
    }
    Answer::Continue
}

pub(super) const HELP: [(&str, &str); 9] = [
    ("Up, Down, j, k", "select a process"),
    ("Tab, Shift-Tab", "show the next tree, the one before"),
    ("<, >, Left, Right", "sort by the column to the left, to the right"),
    ("r", "reverse the order"),
    ("m", "change the budget (memory) of the process, or of its tree"),
    ("c", "change how its pages are compressed (codec)"),
    ("p", "change how it waits for the disk (io.poll)"),
    ("h, ?", "this help"),
    ("q, Esc, Ctrl-C", "quit; Ctrl-Z suspends"),
];
