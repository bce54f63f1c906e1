//! The terminal: taken, drawn on, and given back as it was, on every way out.

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, KeyEvent, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;
use std::io::{self, Stdout, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The status of one that was told twice to end.
const FAILED: i32 = 1;

/// What the user, or the terminal, did.
pub(super) enum Event {
    None,
    Resized,
    /// A signal, or the terminal is gone.
    Ended,
    /// A signal that asks us to stop for a while.
    Stopped,
    Key(KeyEvent),
}

/// The terminal while it is ours.
pub(super) struct Terminal {
    inner: ratatui::Terminal<CrosstermBackend<Stdout>>,
    ended: Arc<AtomicBool>,
    stopped: Arc<AtomicBool>,
    /// After we were stopped, by whatever it was.
    continued: Arc<AtomicBool>,
}

impl Terminal {
    pub(super) fn enter() -> io::Result<Terminal> {
        let ended = Arc::new(AtomicBool::new(false));
        for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT] {
            // Whoever sends a second one does not want to wait.
            let number = signal.as_raw();
            signal_hook::flag::register_conditional_shutdown(number, FAILED, ended.clone())?;
            signal_hook::flag::register(number, ended.clone())?;
        }
        let [stopped, continued] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        signal_hook::flag::register(Signal::TSTP.as_raw(), stopped.clone())?;
        signal_hook::flag::register(Signal::CONT.as_raw(), continued.clone())?;
        // An error of our own is written to a terminal that shows it.
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            give_back();
            before(info);
        }));
        take()?;
        match ratatui::Terminal::new(CrosstermBackend::new(stdout())) {
            Ok(inner) => Ok(Terminal { inner, ended, stopped, continued }),
            Err(error) => {
                give_back();
                Err(error)
            }
        }
    }

    pub(super) fn leave(self) {
        give_back();
    }

    pub(super) fn draw(&mut self, picture: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        self.inner.draw(picture).map(drop)
    }

    /// What happens within that time.
    pub(super) fn wait(&mut self, limit: Duration) -> io::Result<Event> {
        if self.ended.load(Relaxed) {
            return Ok(Event::Ended);
        }
        if !is_there(limit) {
            return Ok(Event::Ended);
        }
        if self.stopped.swap(false, Relaxed) {
            return Ok(Event::Stopped);
        }
        if self.continued.load(Relaxed) {
            self.take_again()?;
            return Ok(Event::Resized);
        }
        let read = match event::poll(Duration::ZERO) {
            Ok(true) => event::read(),
            Ok(false) => return Ok(Event::None),
            Err(error) => Err(error),
        };
        Ok(match read {
            Ok(event::Event::Key(key)) if key.kind != KeyEventKind::Release => Event::Key(key),
            Ok(event::Event::Resize(..)) => Event::Resized,
            Ok(_) => Event::None,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Event::None,
            // It was closed.
            Err(_) => Event::Ended,
        })
    }

    /// Stops, with the terminal as it was, until somebody lets us go on.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        if is_orphaned() {
            return Ok(());
        }
        give_back();
        signal_hook::low_level::raise(Signal::STOP.as_raw())?;
        self.take_again()
    }

    /// Takes the terminal that others have had meanwhile.
    fn take_again(&mut self) -> io::Result<()> {
        self.continued.store(false, Relaxed);
        // Whoever had it may have left it to lines, which is not known here.
        let _ = disable_raw_mode();
        take()?;
        self.inner.clear()
    }
}

/// Whether nobody would let us go on: no shell that started our group of processes is there. The
/// kernel stops none in such a group by SIGTSTP either.
fn is_orphaned() -> bool {
    use rustix::process::{getpgrp, getppid, getsid};
    let Ok(session) = getsid(None) else { return true };
    let of_parent = getppid().and_then(|parent| getsid(Some(parent)).ok());
    session == getpgrp() || of_parent != Some(session)
}

/// Waits for something to read, or a signal; false where the terminal is gone. Asked of the
/// kernel first: crossterm reads from a terminal that is gone for ever.
fn is_there(limit: Duration) -> bool {
    let stdin = rustix::stdio::stdin();
    let mut waits = [PollFd::new(&stdin, PollFlags::IN)];
    let limit = Timespec::try_from(limit).ok();
    match rustix::event::poll(&mut waits, limit.as_ref()) {
        Ok(0) | Err(_) => true,
        Ok(_) => !waits[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL),
    }
}

fn take() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, Hide)
}

/// A terminal that is gone needs nothing any more.
fn give_back() {
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}
