//! The terminal in raw mode, restored on every exit.

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

/// Exit status after a second termination signal.
const FAILED: i32 = 1;

pub(super) enum Event {
    None,
    Resized,
    /// Terminated, or the terminal was closed.
    Ended,
    Stopped,
    Key(KeyEvent),
}

pub(super) struct Terminal {
    inner: ratatui::Terminal<CrosstermBackend<Stdout>>,
    ended: Arc<AtomicBool>,
    stopped: Arc<AtomicBool>,
    /// Set by SIGCONT, after any stop.
    continued: Arc<AtomicBool>,
}

impl Terminal {
    pub(super) fn enter() -> io::Result<Terminal> {
        let ended = Arc::new(AtomicBool::new(false));
        for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT] {
            // A second signal exits immediately.
            let number = signal.as_raw();
            signal_hook::flag::register_conditional_shutdown(number, FAILED, ended.clone())?;
            signal_hook::flag::register(number, ended.clone())?;
        }
        let [stopped, continued] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        signal_hook::flag::register(Signal::TSTP.as_raw(), stopped.clone())?;
        signal_hook::flag::register(Signal::CONT.as_raw(), continued.clone())?;
        // Makes a panic's message visible.
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
        take()?;
        match ratatui::Terminal::new(CrosstermBackend::new(stdout())) {
            Ok(inner) => Ok(Terminal { inner, ended, stopped, continued }),
            Err(error) => {
                restore();
                Err(error)
            }
        }
    }

    pub(super) fn leave(self) {
        restore();
    }

    pub(super) fn draw(
        &mut self,
        rendered: impl FnOnce(&mut ratatui::Frame<'_>),
    ) -> io::Result<()> {
        self.inner.draw(rendered).map(drop)
    }

    pub(super) fn wait(&mut self, limit: Duration) -> io::Result<Event> {
        if self.ended.load(Relaxed) {
            return Ok(Event::Ended);
        }
        if !wait_for_input(limit) {
            return Ok(Event::Ended);
        }
        if self.stopped.swap(false, Relaxed) {
            return Ok(Event::Stopped);
        }
        if self.continued.load(Relaxed) {
            self.retake()?;
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
            // The terminal was closed.
            Err(_) => Event::Ended,
        })
    }

    pub(super) fn suspend(&mut self) -> io::Result<()> {
        if is_orphaned() {
            return Ok(());
        }
        restore();
        signal_hook::low_level::raise(Signal::STOP.as_raw())?;
        self.retake()
    }

    /// Sets up the terminal again after other programs have used it.
    fn retake(&mut self) -> io::Result<()> {
        self.continued.store(false, Relaxed);
        // Another program may have reset raw mode unknown to crossterm.
        let _ = disable_raw_mode();
        take()?;
        self.inner.clear()
    }
}

/// No shell would continue an orphaned group. The kernel does not stop it by SIGTSTP either.
fn is_orphaned() -> bool {
    use rustix::process::{getpgrp, getppid, getsid};
    let Ok(session) = getsid(None) else { return true };
    let of_parent = getppid().and_then(|parent| getsid(Some(parent)).ok());
    session == getpgrp() || of_parent != Some(session)
}

/// Returns false if the terminal was closed, from which crossterm would read forever.
fn wait_for_input(limit: Duration) -> bool {
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

/// The terminal may be closed, so errors are ignored.
fn restore() {
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}
