//! Only the terminal's sixteen colours, which the user has chosen for the background. They carry no
//! information that the text lacks.

use ratatui::style::{Color, Modifier, Style};

#[derive(Debug, Clone, Copy)]
pub(super) struct Theme {
    has_color: bool,
    is_ascii: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Resident,
    Pool,
    Other,
    Disk,
    Free,
}

impl Theme {
    pub(super) fn of(no_color: bool, is_ascii: bool) -> Theme {
        Theme { has_color: !no_color, is_ascii }
    }

    fn colored(self, color: Color) -> Style {
        if self.has_color { Style::new().fg(color) } else { Style::new() }
    }

    pub(super) fn style_of(self, part: Part) -> Style {
        match part {
            Part::Resident => self.colored(Color::Green),
            Part::Pool => self.colored(Color::Cyan),
            Part::Other => self.colored(Color::Blue),
            Part::Disk => self.colored(Color::Magenta),
            Part::Free => Style::new(),
        }
    }

    pub(super) fn sign_of(self, part: Part) -> &'static str {
        match (part, self.is_ascii) {
            (Part::Resident, false) => "█",
            (Part::Pool, false) => "▓",
            (Part::Other, false) => "▒",
            (Part::Disk, false) => "▚",
            (Part::Free, false) => "░",
            (Part::Resident, true) => "#",
            (Part::Pool, true) => "=",
            (Part::Other, true) => "+",
            (Part::Disk, true) => "%",
            (Part::Free, true) => ".",
        }
    }

    pub(super) fn steps(self) -> &'static [&'static str] {
        match self.is_ascii {
            false => &[" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
            true => &[" ", ".", ":", "-", "=", "+", "*", "#", "@"],
        }
    }

    pub(super) fn warning(self) -> Style {
        self.colored(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(super) fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}
