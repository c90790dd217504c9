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
pub(super) const HELP: [(&str, &str); 14] = [
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
    ("o", "open: the requests that run now, the oldest first; again: the classes"),
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
        match key.code {
            KeyCode::Char('q') => return Done::Quit,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Esc if self.wanted.is_some() => {
                self.wanted = None;
                self.details = None;
            }
            KeyCode::Esc => self.table.filter.clear(),
            KeyCode::Char('h' | '?') => self.help = !self.help,
            KeyCode::Enter => {
                self.wanted = if self.shows_running {
                    self.running.selected_key(&self.table.filter)
                } else {
                    self.table.selected_key()
                };
                self.details = None;
            }
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::PageUp => self.move_by(-PAGE),
            KeyCode::PageDown => self.move_by(PAGE),
            KeyCode::Home | KeyCode::Char('g') => self.move_by(isize::MIN),
            KeyCode::Char('o') => {
                self.shows_running = !self.shows_running;
                self.running.clear();
                self.wanted = None;
                self.details = None;
            }
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char(letter) => self.press_letter(letter),
            _ => {}
        }
        self.move_by(0);
        Done::GoOn
    }

    /// Letters that change the table of classes.
    fn press_letter(&mut self, letter: char) {
        let table = &mut self.table;
        match letter {
            'c' => table.sort_by(Sort::Cpu),
            'r' => table.sort_by(Sort::Rate),
            'l' => table.sort_by(Sort::Latency),
            'e' => table.sort_by(Sort::Errors),
            'w' => table.sort_by(Sort::Waits),
            'n' => table.sort_by(Sort::Name),
            't' => table.tree = !table.tree,
            'a' => table.clients = !table.clients,
            'p' => table.paused = !table.paused,
            _ => {}
        }
    }

    /// Moves the selection of what is shown, within its rows.
    fn move_by(&mut self, rows: isize) {
        if self.shows_running {
            self.running.move_by(rows, &self.table.filter);
        } else {
            self.table.move_by(rows);
        }
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
        self.move_by(0);
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
    fn requests_that_run_now_are_asked_for_while_they_are_shown() {
        let mut top = Top::default();
        assert!(!top.asked().running);
        press(&mut top, "o");
        assert!(top.asked().running);
        // None is there to look at closely.
        press(&mut top, "jG\n");
        assert_eq!(top.asked().class, None);
        press(&mut top, "o");
        assert!(!top.asked().running);
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
