//! Keys of `tracer top`, as in htop and less.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::Top;
use super::table::Sort;

/// Rows of a page.
const PAGE: isize = 15;
/// Most characters of a filter.
const FILTER_MAX: usize = 100;

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    Quit,
    GoOn,
}

/// Keys and what they do, for the help.
pub(super) const HELP: [(&str, &str); 13] = [
    ("↑ ↓ PgUp PgDn Home", "choose a class or service (also j k g)"),
    ("Enter", "where its time goes, and its hottest functions"),
    ("Esc", "back; clear the filter"),
    ("c", "sort by CPU"),
    ("r", "sort by rate"),
    ("l", "sort by latency (p95)"),
    ("e", "sort by errors"),
    ("w", "sort by waits: queue, run queue, blocked"),
    ("n", "sort by name; the same key again turns the order"),
    ("t", "tree: classes below their service"),
    ("a", "all: also calls as their callers see them"),
    ("/", "filter by service, class or protocol"),
    ("p, h, q", "pause, this help, quit"),
];

impl Top {
    /// Does what a key says.
    pub(super) fn press(&mut self, key: KeyEvent) -> Done {
        if key.kind == KeyEventKind::Release {
            return Done::GoOn;
        }
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Done::Quit;
        }
        if self.typing {
            self.type_filter(key.code);
            return Done::GoOn;
        }
        let table = &mut self.table;
        match key.code {
            KeyCode::Char('q') => return Done::Quit,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Esc if self.wanted.is_some() => {
                self.wanted = None;
                self.details = None;
            }
            KeyCode::Esc => table.filter.clear(),
            KeyCode::Char('h' | '?') => self.help = !self.help,
            KeyCode::Enter => {
                self.wanted = table.selected_key();
                self.details = None;
            }
            KeyCode::Up | KeyCode::Char('k') => table.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => table.move_by(1),
            KeyCode::PageUp => table.move_by(-PAGE),
            KeyCode::PageDown => table.move_by(PAGE),
            KeyCode::Home | KeyCode::Char('g') => table.selected = 0,
            KeyCode::Char('c') => table.sort_by(Sort::Cpu),
            KeyCode::Char('r') => table.sort_by(Sort::Rate),
            KeyCode::Char('l') => table.sort_by(Sort::Latency),
            KeyCode::Char('e') => table.sort_by(Sort::Errors),
            KeyCode::Char('w') => table.sort_by(Sort::Waits),
            KeyCode::Char('n') => table.sort_by(Sort::Name),
            KeyCode::Char('t') => table.tree = !table.tree,
            KeyCode::Char('a') => table.clients = !table.clients,
            KeyCode::Char('p') => table.paused = !table.paused,
            KeyCode::Char('/') => self.typing = true,
            _ => {}
        }
        self.table.move_by(0);
        Done::GoOn
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.table.filter.clear();
            }
            KeyCode::Backspace => {
                self.table.filter.pop();
            }
            KeyCode::Char(c) if self.table.filter.chars().count() < FILTER_MAX => self.table.filter.push(c),
            _ => {}
        }
        self.table.move_by(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(top: &mut Top, keys: &str) -> Done {
        keys.chars().fold(Done::GoOn, |_, c| {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                c => KeyCode::Char(c),
            };
            top.press(KeyEvent::new(code, KeyModifiers::NONE))
        })
    }

    #[test]
    fn what_is_typed_into_the_filter_is_no_command() {
        let mut top = Top::default();
        assert_eq!(press(&mut top, "/quit\n"), Done::GoOn);
        assert_eq!((top.table.filter.as_str(), top.typing), ("quit", false));
        press(&mut top, "\x1b");
        assert_eq!(top.table.filter, "");
        assert_eq!(press(&mut top, "q"), Done::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(Top { typing: true, ..Top::default() }.press(interrupt), Done::Quit);
    }

    #[test]
    fn letters_sort_and_turn() {
        let mut top = Top::default();
        press(&mut top, "l");
        assert_eq!((top.table.sort, top.table.ascending), (Sort::Latency, false));
        press(&mut top, "l");
        assert!(top.table.ascending);
        press(&mut top, "tap");
        assert!(top.table.tree && top.table.clients && top.table.paused);
    }
}
