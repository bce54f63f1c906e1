//! `softswap top`: what programs under softswap do, on the terminal, until one leaves it.

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

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// Until the second look, so that there are rates soon.
const FIRST_PAUSE: Duration = Duration::from_millis(300);
/// How long a key may wait for the screen.
const TICK: Duration = Duration::from_millis(100);

/// Who knows what there is.
pub trait Source: Send + 'static {
    /// Looks at all trees.
    fn look(&mut self) -> Vec<Tree>;

    /// Changes a setting of a process.
    ///
    /// # Errors
    /// Why it was not changed.
    fn set(&mut self, pid: u32, key: &str, value: &str) -> Result<String, String>;
}

/// What is shown.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Whose trees, for when there are none.
    pub user: String,
    /// Only the tree with this root.
    pub only: Option<u32>,
    /// Whether colours are not wanted.
    pub no_color: bool,
    /// Whether the terminal shows no more than ASCII.
    pub ascii: bool,
}

/// What the screen hears from the thread that looks.
enum News {
    Look(Duration, Vec<Tree>),
    Said(Result<String, String>),
}

/// What that thread is asked to change.
struct Change {
    pid: u32,
    key: String,
    value: String,
}

/// Shows it until the user leaves it.
///
/// # Errors
/// When the terminal fails.
pub fn show(source: impl Source, options: Options) -> io::Result<()> {
    let (news, heard) = channel();
    let (wishes, asked) = channel();
    let looks = std::thread::Builder::new().name("look".into());
    looks.spawn(move || look_again_and_again(source, &news, &asked))?;
    let theme = Theme::of(options.no_color, options.ascii);
    let mut screen = Screen::new(options.user, options.only);
    // What there is at once is on the first picture; what takes longer does not hold it up.
    if let Ok(first) = heard.recv_timeout(TICK) {
        take(&mut screen, first);
    }
    let mut terminal = Terminal::enter()?;
    let ended = attend(&mut terminal, &mut screen, theme, &heard, &wishes);
    terminal.leave();
    ended
}

fn take(screen: &mut Screen, news: News) {
    match news {
        News::Look(at, trees) => screen.look(at, trees),
        News::Said(said) => screen.said(said),
    }
}

fn attend(
    terminal: &mut Terminal,
    screen: &mut Screen,
    theme: Theme,
    heard: &Receiver<News>,
    wishes: &Sender<Change>,
) -> io::Result<()> {
    let mut is_old = true;
    loop {
        for news in heard.try_iter() {
            take(screen, news);
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
                match keys::pressed(screen, key) {
                    keys::Answer::Stay => {}
                    keys::Answer::Leave => return Ok(()),
                    keys::Answer::Suspend => terminal.suspend()?,
                    keys::Answer::Set { pid, key, value } => {
                        let _ = wishes.send(Change { pid, key, value });
                    }
                }
                true
            }
        };
    }
}

/// The thread that looks: a process that is slow to answer does not hold up the screen.
fn look_again_and_again(mut source: impl Source, news: &Sender<News>, asked: &Receiver<Change>) {
    let (started, mut pause) = (Instant::now(), FIRST_PAUSE);
    loop {
        let trees = source.look();
        if news.send(News::Look(started.elapsed(), trees)).is_err() {
            return;
        }
        let next = Instant::now() + std::mem::replace(&mut pause, PAUSE);
        loop {
            match asked.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Change { pid, key, value }) => {
                    if news.send(News::Said(source.set(pid, &key, &value))).is_err() {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}
