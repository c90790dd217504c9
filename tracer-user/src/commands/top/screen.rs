//! Draws `tracer top`.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as Drawn, Table as Grid, TableState};
use tracer_model::text::printable;

use super::Top;
use super::details::Details;
use super::keys::HELP;
use super::table::{Class, Sort, TableRow};

pub(super) const HEAD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().fg(Color::DarkGray);
pub(super) const BAD: Style = Style::new().fg(Color::Red);

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, top: &Top) {
    let areas = Layout::vertical([Constraint::Length(2), Constraint::Min(3), Constraint::Length(1)]);
    let [head, body, foot] = areas.areas(frame.area());
    frame.render_widget(headline(top), head);
    match &top.wanted {
        Some(key) => match top.table.class(key) {
            Some((class, cores)) => class_page(frame, body, &class, cores, top.details.as_ref()),
            None => frame.render_widget("The agent does not have this class any more. Esc: back", body),
        },
        None if top.shows_running => top.running.draw(frame, body, &top.table.filter),
        None => classes(frame, body, top),
    }
    frame.render_widget(footline(top), foot);
    if top.help {
        help(frame, body);
    }
}

fn headline(top: &Top) -> Text<'static> {
    let Some(now) = &top.table.now else { return Text::raw("") };
    let health = &now.health;
    let ratio = health.capture_ratio.map_or_else(|| "–".into(), |ratio| format!("{ratio:.3}"));
    let lost = Style::new().fg(if health.events_lost == 0 { Color::Green } else { Color::Yellow });
    let served = now.classes.iter().filter(|class| class.side == "server");
    let (rate, errors) =
        served.fold((0.0, 0.0), |(rate, errors), class| (rate + class.rate_per_s, errors + class.error_rate_per_s));
    let first = Line::from(vec![
        Span::styled(format!("tracer  {}", printable(&health.host)), HEAD),
        Span::raw(format!("  {}  {rate:.1} requests/s  ", top.url)),
        Span::styled(format!("{errors:.1} errors/s"), if errors > 0.0 { BAD } else { Style::new() }),
        Span::raw(format!("  capture ratio {ratio}  ")),
        Span::styled(format!("records lost {}", health.events_lost), lost),
    ]);
    let agent = format!(
        "agent {:.1} % of a core, {} MB{}{}",
        health.agent.cpu_cores * 100.0,
        health.agent.memory_bytes / 1_000_000,
        if health.ready { "" } else { "  NOT READY: see /readyz" },
        if top.table.paused { "  PAUSED" } else { "" },
    );
    let second = match &top.trouble {
        Some(why) => Line::styled(printable(why).into_owned(), BAD),
        None => Line::styled(agent, DIM),
    };
    Text::from(vec![first, second])
}

fn footline(top: &Top) -> Line<'static> {
    if top.typing {
        return Line::from(vec![Span::styled("filter: ", HEAD), Span::raw(format!("{}▏", top.table.filter))]);
    }
    let filter = if top.table.filter.is_empty() { String::new() } else { format!("  filter: {}", top.table.filter) };
    Line::styled(
        format!(
            "q quit  h help  Enter details  c/r/l/e/w/n sort  t tree  a all  o running now  / filter  p pause{filter}"
        ),
        DIM,
    )
}

const COLUMNS: [(&str, Option<Sort>, u16); 9] = [
    ("CPU %", Some(Sort::Cpu), 7),
    ("req/s", Some(Sort::Rate), 9),
    ("err/s", Some(Sort::Errors), 7),
    ("p50", None, 8),
    ("p95", Some(Sort::Latency), 8),
    ("p99", None, 8),
    ("CPU/req", None, 8),
    ("waits", Some(Sort::Waits), 8),
    ("class", Some(Sort::Name), 20),
];

fn classes(frame: &mut Frame<'_>, area: Rect, top: &Top) {
    let table = &top.table;
    let arrow = if table.ascending { "▲" } else { "▼" };
    let head = COLUMNS.map(|(name, sort, _)| {
        let mark = if sort == Some(table.sort) { arrow } else { "" };
        let text = Text::from(format!("{name}{mark}"));
        Cell::from(if sort == Some(Sort::Name) { text } else { text.right_aligned() })
    });
    let rows = table.rows();
    if rows.is_empty() {
        let why = if table.filter.is_empty() {
            "No requests yet. Protocols in the clear are traced as soon as somebody uses them (docs/protocols.md)."
        } else {
            "No class fits the filter. Esc clears it."
        };
        frame.render_widget(Paragraph::new(why), area);
        return;
    }
    let drawn = rows.iter().map(|row| drawn(row, table.tree));
    let mut widths: Vec<Constraint> = COLUMNS.iter().map(|(_, _, width)| Constraint::Length(*width)).collect();
    if let Some(last) = widths.last_mut() {
        *last = Constraint::Min(20);
    }
    let grid = Grid::new(drawn, widths)
        .header(Drawn::new(head).style(HEAD))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default().with_selected(Some(table.selected));
    frame.render_stateful_widget(grid, area, &mut state);
}

fn drawn(row: &TableRow, tree: bool) -> Drawn<'static> {
    let right = |text: String| Cell::from(Text::from(text).right_aligned());
    match row {
        TableRow::Service(sums) => {
            let text =
                format!("{}  {} classes, overhead {:.1} %", printable(&sums.name), sums.classes, sums.overhead * 100.0);
            let mut cells = vec![right(percent(sums.cpu)), right(rate(sums.rate)), right(rate(sums.errors))];
            cells.extend((0..5).map(|_| Cell::from("")));
            cells.push(Cell::from(text));
            Drawn::new(cells).style(HEAD)
        }
        TableRow::Class(class, cores) => {
            let error = if class.error_rate_per_s > 0.0 { BAD } else { Style::new() };
            let name = printable(&class.request_class);
            let called = if class.side == "client" { "→ " } else { "" };
            let name = if tree {
                format!("  {called}{name}")
            } else {
                format!("{}  {called}{name}", printable(&class.service_name))
            };
            Drawn::new(vec![
                right(percent(*cores)),
                right(rate(class.rate_per_s)),
                right(rate(class.error_rate_per_s)).style(error),
                right(time(class.p50_s)),
                right(time(class.p95_s)),
                right(time(class.p99_s)),
                right(time(class.cpu_s)),
                right(time(class.waits())),
                Cell::from(name),
            ])
        }
    }
}

fn class_page(frame: &mut Frame<'_>, area: Rect, class: &Class, cores: f64, details: Option<&Details>) {
    let mut lines = vec![
        Line::styled(format!("{}  {}", printable(&class.service_name), printable(&class.request_class)), HEAD),
        Line::raw(format!(
            "{} {}, {}/s, {} errors/s, {} % CPU; mean {}, p50 {}, p95 {}, p99 {}",
            class.protocol,
            class.side,
            rate(class.rate_per_s),
            rate(class.error_rate_per_s),
            percent(cores).trim(),
            time(class.mean_s),
            time(class.p50_s),
            time(class.p95_s),
            time(class.p99_s)
        )),
        Line::raw(""),
        Line::styled("Where a request's time goes (means; parallel work counts several times)", HEAD),
    ];
    let parts = [
        ("queue", class.queue_s, Color::Yellow),
        ("CPU", class.cpu_s, Color::Green),
        ("run queue", class.runqueue_s, Color::Red),
        ("blocked", class.blocked_s, Color::Blue),
        ("downstream", class.downstream_s, Color::Magenta),
    ];
    let most = parts.iter().map(|(_, seconds, _)| *seconds).fold(0.0, f64::max);
    for (name, seconds, colour) in parts {
        let width = if most > 0.0 { (seconds / most * 40.0).round() as usize } else { 0 };
        lines.push(Line::from(vec![
            Span::raw(format!("  {name:<10} {:>8} ", time(seconds))),
            Span::styled("█".repeat(width), Style::new().fg(colour)),
        ]));
    }
    lines.extend([Line::raw(""), Line::styled("Hottest functions (CPU by samples, themselves)", HEAD)]);
    match details {
        None => lines.push(Line::styled("  asking the agent for the stacks …", DIM)),
        Some(details) if details.micros == 0 => {
            lines.push(Line::styled("  no samples: the class used too little CPU, or sampling is off", DIM));
        }
        Some(details) => lines.extend(details.hottest.iter().map(|(name, count)| {
            let share = *count as f64 / details.micros as f64 * 100.0;
            Line::raw(format!("  {share:>5.1} % {:>9}  {}", time(*count as f64 / 1e6), printable(name)))
        })),
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let lines: Vec<Line<'_>> = HELP.iter().map(|(keys, what)| Line::raw(format!(" {keys:<20} {what}"))).collect();
    let (width, height) = (74.min(area.width), (HELP.len() as u16 + 2).min(area.height));
    let place = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title("Keys")), place);
}

/// Cores as percent of one core.
fn percent(cores: f64) -> String {
    format!("{:.1}", cores * 100.0)
}

fn rate(per_second: f64) -> String {
    if per_second >= 100.0 { format!("{per_second:.0}") } else { format!("{per_second:.1}") }
}

/// Seconds with three digits or so and a unit.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        s if s <= 0.0 => "–".into(),
        s if s < 1e-3 => format!("{:.0}µs", s * 1e6),
        s if s < 0.1 => format!("{:.2}ms", s * 1e3),
        s if s < 1.0 => format!("{:.0}ms", s * 1e3),
        s => format!("{s:.2}s"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Instant;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::table::{Health, Snapshot};
    use super::*;

    pub(in super::super) fn drawn(top: &Top, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, top)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let lines = buffer.content().chunks(usize::from(width));
        lines.map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect::<String>() + "\n").collect()
    }

    pub(in super::super) fn top() -> Top {
        let class = Class {
            service_name: "shop".into(),
            request_class: "GET /cart\x1b[2J".into(),
            side: "server".into(),
            rate_per_s: 12.0,
            error_rate_per_s: 0.5,
            p95_s: 0.000_137,
            cpu_s: 0.002,
            downstream_s: 0.05,
            ..Class::default()
        };
        let mut top = Top::default();
        let snapshot =
            Snapshot { at: Instant::now(), classes: vec![class], services: Vec::new(), health: Health::default() };
        top.table.update(snapshot);
        top
    }

    #[test]
    fn a_class_stands_there_with_its_figures() {
        let text = drawn(&top(), 120, 12);
        assert!(
            text.contains("CPU %▼")
                && text.contains("12.0")
                && text.contains("137µs")
                && text.contains("shop  GET /cart"),
            "{text}"
        );
        assert!(!text.contains('\x1b'), "names from the network cannot steer the terminal");
    }

    #[test]
    fn one_class_shows_where_its_time_goes() {
        let mut top = top();
        top.wanted = top.table.selected_key();
        let key = top.wanted.clone().expect("a class");
        top.details = Some(Details { class: key, micros: 4000, hottest: vec![("render".into(), 3000)] });
        let text = drawn(&top, 100, 30);
        assert!(text.contains("downstream  50.00ms ████") && text.contains("75.0 %    3.00ms  render"), "{text}");
    }

    #[test]
    fn no_terminal_is_too_small() {
        for (width, height) in [(1, 1), (3, 2), (20, 4), (200, 3)] {
            for (help, shows_running) in [(false, false), (true, false), (false, true)] {
                let mut top = Top { shows_running, help, ..top() };
                drawn(&top, width, height);
                top.wanted = top.table.selected_key();
                drawn(&top, width, height);
            }
        }
    }
}
