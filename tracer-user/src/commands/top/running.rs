//! The requests that run now, the oldest first: what the agent answers, which rows fit the filter, and how they are drawn.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Text;
use ratatui::widgets::{Cell, Paragraph, Row as Drawn, Table as Grid, TableState};
use serde::Deserialize;
use tracer_model::text::printable;

use super::screen::{BAD, HEAD, time};
use super::table::ClassKey;

/// Rows that are asked for: more than a terminal shows, so that a filter has something to choose from.
pub(super) const ASKED: usize = 500;

/// A call that an open request waits for, as `/api/v1/running` gives it.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct OpenCall {
    request_class: String,
    peer: String,
    peer_port: u16,
    age_s: f64,
}

/// What the thread of an open request does.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Thread {
    state: String,
    kernel_function: String,
}

/// An open request, or an open call of none, as `/api/v1/running` gives it; `_s` are seconds.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct OpenRequest {
    service_name: String,
    request_class: String,
    protocol: String,
    side: String,
    pid: u32,
    age_s: f64,
    p99_s: Option<f64>,
    longer_than_p99: bool,
    cpu_s: f64,
    runqueue_s: f64,
    calls: Vec<OpenCall>,
    calls_open: usize,
    thread: Option<Thread>,
}

/// The answer of `/api/v1/running`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Running {
    running: Vec<OpenRequest>,
    running_total: usize,
}

/// The view of open requests.
#[derive(Debug, Default)]
pub(super) struct RunningView {
    /// The newest answer; `None` before the first.
    newest: Option<Running>,
    selected: usize,
}

impl OpenRequest {
    fn key(&self) -> ClassKey {
        ClassKey {
            service_name: self.service_name.clone(),
            request_class: self.request_class.clone(),
            protocol: self.protocol.clone(),
            side: self.side.clone(),
        }
    }

    /// What it waits for: its oldest open call, or else what its thread does.
    fn waits_for(&self) -> String {
        if let Some(call) = self.calls.iter().max_by(|a, b| a.age_s.total_cmp(&b.age_s)) {
            let more = if self.calls_open > 1 { format!(", {} more", self.calls_open - 1) } else { String::new() };
            let peer = if call.peer.is_empty() {
                String::new()
            } else {
                format!(" at {}:{}", printable(&call.peer), call.peer_port)
            };
            return format!("→ {}{peer} for {}{more}", printable(&call.request_class), time(call.age_s));
        }
        match &self.thread {
            Some(thread) if thread.kernel_function.is_empty() => thread.state.clone(),
            Some(thread) => format!("{} ({})", thread.state, printable(&thread.kernel_function)),
            None => String::new(),
        }
    }
}

impl RunningView {
    /// Takes a new answer.
    pub(super) fn update(&mut self, running: Running, filter: &str) {
        self.newest = Some(running);
        self.move_by(0, filter);
    }

    /// Forgets what is no longer asked for.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The rows that fit the filter.
    fn rows(&self, filter: &str) -> Vec<&OpenRequest> {
        let filter = filter.to_lowercase();
        let fits = |text: &str| text.to_lowercase().contains(&filter);
        let all = self.newest.iter().flat_map(|newest| &newest.running);
        all.filter(|row| fits(&row.service_name) || fits(&row.request_class) || fits(&row.protocol)).collect()
    }

    /// Moves the selection, within the rows.
    pub(super) fn move_by(&mut self, by: isize, filter: &str) {
        let last = self.rows(filter).len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }

    /// The class of the selected row.
    pub(super) fn selected_key(&self, filter: &str) -> Option<ClassKey> {
        self.rows(filter).get(self.selected).map(|row| row.key())
    }

    /// Draws the rows.
    pub(super) fn draw(&self, frame: &mut Frame<'_>, area: Rect, filter: &str) {
        let rows = self.rows(filter);
        if rows.is_empty() {
            let why = match &self.newest {
                None => "asking the agent for the requests that run now …",
                Some(newest) if newest.running.is_empty() => "No request runs now. o: back to the classes",
                Some(_) => "No request that runs now fits the filter. Esc clears it.",
            };
            frame.render_widget(Paragraph::new(why), area);
            return;
        }
        let right = |text: String| Cell::from(Text::from(text).right_aligned());
        let title = |text: &str| right(text.to_owned());
        let total = self.newest.as_ref().map_or(0, |newest| newest.running_total);
        let names = format!("running now: {total}");
        let head = vec![
            title("open for▼"),
            title("p99"),
            title("CPU"),
            title("run queue"),
            title("process"),
            Cell::from(names),
            Cell::from("waits for"),
        ];
        let drawn = rows.iter().map(|row| {
            let age = if row.longer_than_p99 { BAD } else { Style::new() };
            let called = if row.side == "client" { "→ " } else { "" };
            Drawn::new(vec![
                right(time(row.age_s)).style(age),
                right(time(row.p99_s.unwrap_or_default())),
                right(time(row.cpu_s)),
                right(time(row.runqueue_s)),
                right(row.pid.to_string()),
                Cell::from(format!("{}  {called}{}", printable(&row.service_name), printable(&row.request_class))),
                Cell::from(row.waits_for()),
            ])
        });
        let widths = [
            Constraint::Length(9),
            Constraint::Length(8),
            Constraint::Length(8),
            Constraint::Length(9),
            Constraint::Length(8),
            Constraint::Min(24),
            Constraint::Fill(1),
        ];
        let grid = Grid::new(drawn, widths)
            .header(Drawn::new(head).style(HEAD))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let mut state = TableState::default().with_selected(Some(self.selected));
        frame.render_stateful_widget(grid, area, &mut state);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::screen::tests::{drawn, top};
    use super::super::{News, Top};
    use super::*;

    /// As the agent answers.
    fn answer() -> Running {
        let row = |class: &str, age: f64, calls: serde_json::Value, thread: serde_json::Value| {
            json!({
                "trace_id": "0", "span_id": "0", "service_name": "shop", "request_class": class, "protocol": "http",
                "side": "server", "pid": 4711, "tid": 4712, "peer": "10.0.0.1", "peer_port": 5000, "start_ns": 1,
                "age_s": age, "p99_s": 0.25, "longer_than_p99": age > 0.25, "replying": false, "queue_s": 0.0,
                "cpu_s": 0.002, "runqueue_s": 0.0, "blocked_s": age, "calls_open": calls.as_array().map_or(0, Vec::len),
                "calls": calls, "thread": thread,
            })
        };
        let call = |age: f64| {
            json!({
                "span_id": "1", "request_class": "SELECT orders", "protocol": "postgresql", "peer": "10.0.0.9",
                "peer_port": 5432, "age_s": age, "certain": true,
            })
        };
        let lock = json!({ "name": "worker\u{1b}[2J", "state": "lock", "kernel_function": "futex_wait_queue" });
        let rows = json!({ "running_total": 3, "running": [
            row("GET /cart", 12.5, json!([call(0.5), call(12.0)]), json!(null)),
            row("GET /pay\u{1b}[2J", 0.3, json!([]), lock),
            row("GET /quick", 0.1, json!([]), json!(null)),
        ]});
        serde_json::from_value(rows).expect("the API's shape")
    }

    fn with(running: Option<Running>) -> Top {
        let mut top = Top { shows_running: true, ..top() };
        if let Some(running) = running {
            top.take(News::Running(Box::new(running)));
        }
        top
    }

    #[test]
    fn requests_that_run_now_stand_there_with_what_they_wait_for() {
        let text = drawn(&with(Some(answer())), 150, 12);
        assert!(text.contains("running now: 3"), "{text}");
        let line = |class: &str| text.lines().find(|line| line.contains(class)).expect(class).to_owned();
        let cart = line("shop  GET /cart");
        assert!(cart.contains("12.50s") && cart.contains("250ms") && cart.contains("4711"), "{text}");
        assert!(cart.contains("→ SELECT orders at 10.0.0.9:5432 for 12.00s, 1 more"), "{text}");
        assert!(line("shop  GET /pay").contains("lock (futex_wait_queue)"), "{text}");
        assert!(!text.contains('\x1b'), "names from the network cannot steer the terminal");
    }

    #[test]
    fn what_is_not_there_is_told_apart() {
        assert!(drawn(&with(None), 120, 8).contains("asking the agent"));
        assert!(drawn(&with(Some(Running::default())), 120, 8).contains("No request runs now"));
        let mut top = with(Some(answer()));
        top.table.filter = "QUICK".into();
        let text = drawn(&top, 120, 8);
        assert!(text.contains("GET /quick") && !text.contains("GET /cart"), "{text}");
        top.table.filter = "none of this".into();
        assert!(drawn(&top, 120, 8).contains("fits the filter"));
        assert!(top.running.selected_key("none of this").is_none());
    }

    #[test]
    fn the_selection_is_a_class_and_stays_within_the_rows() {
        let mut top = with(Some(answer()));
        top.running.move_by(1, "");
        assert_eq!(top.running.selected_key("").map(|key| key.request_class), Some("GET /pay\u{1b}[2J".into()));
        top.running.move_by(9, "");
        assert_eq!(top.running.selected_key("").map(|key| key.request_class), Some("GET /quick".into()));
        top.take(News::Running(Box::new(Running { running: answer().running[..1].to_vec(), running_total: 1 })));
        assert_eq!(top.running.selected_key("").map(|key| key.request_class), Some("GET /cart".into()));
    }

    #[test]
    fn a_pause_keeps_the_rows() {
        let mut top = with(Some(answer()));
        top.table.paused = true;
        top.take(News::Running(Box::default()));
        assert!(drawn(&top, 120, 8).contains("GET /cart"));
    }
}
