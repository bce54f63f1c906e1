//! `softswap top`.

mod theme;
mod history;
mod table;
mod screen;
mod keys;
mod bars;
mod draw;
mod terminal;

use crate::tree::Tree;
use screen::Screen;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use terminal::Terminal;
use theme::Theme;

const PAUSE: Duration = Duration::from_secs(1);
/// Rates appear soon.
const FIRST_PAUSE: Duration = Duration::from_millis(300);
/// Delay before a new sample is shown.
const TICK: Duration = Duration::from_millis(100);

/// Fails with the reason.
pub type Set = fn(pid: u32, key: &str, value: &str) -> Result<String, String>;

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Named in the message if there are no trees.
    pub user: String,
    pub only: Option<u32>,
    pub no_color: bool,
    pub ascii: bool,
}

enum Update {
    Sampled(Duration, Vec<Tree>),
    ChangeResult(Result<String, String>),
}

struct Change {
    pid: u32,
    key: String,
    value: String,
}

/// `collect` returns all trees.
///
/// # Errors
/// If the terminal fails.
pub fn show(
    collect: impl FnMut() -> Vec<Tree> + Send + 'static,
    set: Set,
    options: Options,
) -> io::Result<()> {
    let (updates, incoming) = channel();
    let (change_requests, requests) = channel();
    let builder = std::thread::Builder::new().name("sampler".into());
    builder.spawn(move || run_sampler(collect, set, &updates, &requests))?;
    let theme = Theme::of(options.no_color, options.ascii);
    let mut screen = Screen::new(options.user, options.only);
    // Show a quick first sample immediately, but do not wait for slow processes.
    if let Ok(first) = incoming.recv_timeout(TICK) {
        take(&mut screen, first);
    }
    let mut terminal = Terminal::enter()?;
    let ended = handle_input(&mut terminal, &mut screen, theme, &incoming, &change_requests);
    terminal.leave();
    ended
}

fn take(screen: &mut Screen, updates: Update) {
    match updates {
        Update::Sampled(at, trees) => screen.update(at, trees),
        Update::ChangeResult(change_result) => screen.change_result(change_result),
    }
}

fn handle_input(
    terminal: &mut Terminal,
    screen: &mut Screen,
    theme: Theme,
    incoming: &Receiver<Update>,
    change_requests: &Sender<Change>,
) -> io::Result<()> {
    let mut is_old = true;
    loop {
        for updates in incoming.try_iter() {
            take(screen, updates);
            is_old = true;
        }
        if is_old {
            terminal.draw(|frame| draw::draw(frame, screen, theme))?;
        }
        is_old = match terminal.wait(TICK)? {
            terminal::Event::None => false,
            terminal::Event::Resized => true,
            terminal::Event::Ended => return Ok(()),
            terminal::Event::Stopped => {
                terminal.suspend()?;
                true
            }
            terminal::Event::Key(key) => {
                match keys::handle_key(screen, key) {
                    keys::Answer::Continue => {}
                    keys::Answer::Quit => return Ok(()),
                    keys::Answer::Suspend => terminal.suspend()?,
                    keys::Answer::Set { pid, key, value } => {
                        let _ = change_requests.send(Change { pid, key, value });
                    }
                }
                true
            }
        };
    }
}

/// A process that answers slowly must not block the screen.
fn run_sampler(
    mut collect: impl FnMut() -> Vec<Tree>,
    set: Set,
    updates: &Sender<Update>,
    requests: &Receiver<Change>,
) {
    let (started, mut pause) = (Instant::now(), FIRST_PAUSE);
    loop {
        let trees = collect();
        if updates.send(Update::Sampled(started.elapsed(), trees)).is_err() {
            return;
        }
        let next = Instant::now() + std::mem::replace(&mut pause, PAUSE);
        loop {
            match requests.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Change { pid, key, value }) => {
                    if updates.send(Update::ChangeResult(set(pid, &key, &value))).is_err() {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}
