//! Building blocks of the console's pages. Their policy forbids inline style, so bars are SVG.

use std::fmt::{self, Display, Write as _};

use axum::http::StatusCode;
use axum::response::Html;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tracer_host::guard::shed::Level;
use tracer_model::text;
use tracer_model::{Queues, Side, Span};
use tracer_results::store::{SpanView, seconds};

use super::Health;
use super::api::ClassView;

/// Text escaped for HTML, including attributes. Class names come from the wire.
pub(super) struct Safe<'a>(pub(super) &'a str);

impl Display for Safe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in text::printable(self.0).chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Escaped in a query string: everything but letters, digits and these.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// Text escaped for a query string.
pub(super) struct Encoded<'a>(pub(super) &'a str);

impl Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", utf8_percent_encode(self.0, QUERY))
    }
}

/// A time in a suitable unit.
pub(super) struct Time(pub(super) f64);

impl Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0.0 => f.write_str("0"),
            s if s < 0.001 => write!(f, "{:.0}&nbsp;µs", s * 1e6),
            s if s < 0.1 => write!(f, "{:.1}&nbsp;ms", s * 1e3),
            s if s < 1.0 => write!(f, "{:.0}&nbsp;ms", s * 1e3),
            s => write!(f, "{s:.2}&nbsp;s"),
        }
    }
}

/// A page of the console.
pub(super) struct Page<'a> {
    /// Which of the scripts' pages draws it; empty: none.
    kind: &'static str,
    title: &'a str,
    /// Seconds until browsers load it again; only without scripts.
    refresh: Option<u32>,
}

/// What a page's scripts and styles are.
const HEAD: &str = "<meta name=viewport content=\"width=device-width,initial-scale=1\"><link rel=icon href=\"data:,\">\
    <link rel=stylesheet href=/assets/vendor/uplot/uPlot.min.css><link rel=stylesheet href=/assets/console.css>";
const SCRIPTS: &str = "<script defer src=/assets/vendor/uplot/uPlot.iife.min.js></script>\
    <script defer src=/assets/vendor/dagre/dagre.min.js></script><script type=module src=/assets/console.js></script>";

impl<'a> Page<'a> {
    /// A page that scripts draw; browsers show its body where scripts are off.
    pub(super) fn drawn(kind: &'static str, title: &'a str, refresh: Option<u32>) -> Self {
        Self { kind, title, refresh }
    }

    /// The whole page around `body`.
    pub(super) fn render(&self, health: &Health, body: &str) -> Html<String> {
        let Self { kind, title, refresh } = self;
        let again = refresh
            .map_or_else(String::new, |s| format!("<meta http-equiv=\"refresh\" content=\"{}\">", s.clamp(1, 3600)));
        let (again, content) = if kind.is_empty() {
            (again, body.to_owned())
        } else {
            let without = if again.is_empty() { again } else { format!("<noscript>{again}</noscript>") };
            (without, format!("<div id=app></div><noscript>{body}</noscript>"))
        };
        let ratio = health.host_cpu.capture_ratio().map_or_else(|| "–".into(), |ratio| format!("{ratio:.3}"));
        let notices = health.not_ready.len() + health.degraded.len() + usize::from(health.level > Level::Full);
        let (state, word) = match (health.not_ready.is_empty(), notices) {
            (false, _) => ("bad", "not ready".to_owned()),
            (true, 0) => ("ok", "healthy".to_owned()),
            (true, 1) => ("some", "1 notice".to_owned()),
            (true, count) => ("some", format!("{count} notices")),
        };
        Html(format!(
            "<!doctype html><html lang=en><head><meta charset=utf-8><title>{title} · tracer</title>{again}{HEAD}{SCRIPTS}</head>\
             <body data-page=\"{kind}\"><a class=skip href=#main>To the content</a>\
             <header><a href=/ class=brand>tracer</a><span class=pill>{host}</span>\
             <a class=\"pill state-{state}\" id=state href=/health title=\"What the agent cannot see, and why\">{word}</a>\
             <a class=pill id=capture href=/health title=\"CPU attributed to requests, overhead and kernel, divided by the CPU that the system says was used. 1 = nothing is missing.\">capture ratio <b>{ratio}</b></a>\
             <a class=pill id=lost href=/health title=\"Records the kernel side could not deliver since the agent started. The health page has the reasons.\">lost <b>{lost}</b></a>\
             <span class=grow></span><span id=tools></span></header><main id=main>{content}</main></body></html>",
            title = Safe(title),
            host = Safe(&health.host),
            lost = health.events_lost(),
        ))
    }
}

/// An error, for people.
pub(super) fn error_page(status: StatusCode, what: &str) -> Html<String> {
    Html(format!(
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>{status} · tracer</title>{HEAD}</head><body>\
         <header><a href=/ class=brand>tracer</a></header><main id=main><section class=card><h2>{status}</h2><p>{}</p>\
         <p><a href=/>All services</a></p></section></main></body></html>",
        Safe(what)
    ))
}

/// Where the time of a request goes, as one bar.
pub(super) fn bar(class: &ClassView) -> String {
    let apart = class.accept_queue_s + class.socket_queue_s;
    let mut all = vec![
        ("accept", class.accept_queue_s),
        ("queue", (class.queue_s - apart).max(0.0)),
        ("socket", class.socket_queue_s),
    ];
    all.extend(parts([class.cpu_s, class.runqueue_s, class.downstream_s, class.blocked_s]));
    let mut out = String::from("<svg class=bar viewBox=\"0 0 100 10\" preserveAspectRatio=none>");
    let _ = shares(&mut out, &all, class.mean_s + class.queue_s, 0.0, 100.0, "height=10");
    out.push_str("</svg>");
    out
}

/// Where a span lies in its transaction, and below that where its time went: by shares, not by when.
pub(super) struct Lane<'a> {
    pub(super) view: &'a SpanView<'a>,
    /// When the transaction began, nanoseconds since the epoch, and how long it took, seconds.
    pub(super) begin_ns: i64,
    pub(super) whole_s: f64,
}

impl Display for Lane<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { view, begin_ns, whole_s } = self;
        let span = &*view.span;
        let percent = |seconds: f64| seconds / whole_s * 100.0;
        let (begins, duration) = ((view.start_ns() - begin_ns) as f64 / 1e9, seconds(span.duration()));
        let left = percent(begins);
        let width = percent(duration).max(0.3);
        f.write_str("<svg class=lane viewBox=\"0 0 100 10\" preserveAspectRatio=none>")?;
        // Side by side, what was last at the end.
        let mut end = left;
        for (class, what, waited) in queues(span) {
            if waited > 0.0 {
                let queue = percent(waited);
                end -= queue;
                write!(
                    f,
                    "<rect class={class} x={end:.2} width={queue:.2} height=6><title>{what} {}</title></rect>",
                    Time(waited)
                )?;
            }
        }
        write!(
            f,
            "<rect class={} x={left:.2} width={width:.2} height=6><title>{} after the beginning, for {}",
            span.side.name(),
            Time(begins),
            Time(duration)
        )?;
        if let Some(waited) = span.pool_queue {
            write!(f, "; its jobs waited {} for threads", Time(seconds(waited)))?;
        }
        if let Some(after) = span.after_reply {
            let (time, cpu) = (seconds(after.time), seconds(after.cpu));
            write!(f, "; after the reply its worker went on for {}, with {} of CPU", Time(time), Time(cpu))?;
        }
        f.write_str("</title></rect>")?;
        // A call waits for its answer: what it does meanwhile is its request's.
        if span.side == Side::Server {
            let parts = parts([span.cost.cpu, span.cost.runq, span.downstream, span.cost.blocked].map(seconds));
            shares(f, &parts, duration, left, width, "y=7 height=3")?;
        }
        f.write_str("</svg>")
    }
}

/// Where a span waited before it was read, last first: colour, words, seconds.
fn queues(span: &Span) -> [(&'static str, &'static str, f64); 2] {
    match span.queues() {
        Some(Queues { accept, socket }) => {
            [("socket", "in the socket", seconds(socket)), ("accept", "waiting to be accepted", seconds(accept))]
        }
        None => [("queue", "waiting to be accepted or in the socket", seconds(span.queue())), ("accept", "", 0.0)],
    }
}

/// Names of parts of a time: on CPU, waiting for one, downstream and blocked. A thread is blocked while it waits for a
/// call: what is downstream is not counted twice.
fn parts([cpu, runq, down, blocked]: [f64; 4]) -> [(&'static str, f64); 4] {
    [("cpu", cpu), ("runq", runq), ("down", down), ("blocked", (blocked - down).max(0.0))]
}

/// Parts of `whole`, seconds, side by side between `left` and `left + width`.
fn shares(
    out: &mut impl fmt::Write,
    parts: &[(&str, f64)],
    whole: f64,
    left: f64,
    width: f64,
    place: &str,
) -> fmt::Result {
    let mut at = 0.0;
    for (name, seconds) in parts {
        // Sums of parts can be the whole and a rounding error.
        let share = (seconds / whole.max(1e-9) * width).min(width - at).max(0.0);
        if share >= width * 0.005 {
            write!(
                out,
                "<rect class={name} x={:.2} width={share:.2} {place}><title>{name} {}</title></rect>",
                left + at,
                Time(*seconds)
            )?;
        }
        at += share;
    }
    Ok(())
}

/// What the colours of [`bar`] mean.
pub(super) const LEGEND: &str = "<p class=legend><svg class=key><rect class=accept width=12 height=12 /></svg> accept queue <svg class=key><rect class=socket width=12 height=12 /></svg> socket queue <svg class=key><rect class=queue width=12 height=12 /></svg> either <svg class=key><rect class=cpu width=12 height=12 /></svg> on CPU <svg class=key><rect class=runq width=12 height=12 /></svg> run queue <svg class=key><rect class=down width=12 height=12 /></svg> downstream <svg class=key><rect class=blocked width=12 height=12 /></svg> blocked otherwise</p>";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_the_wire_are_text() {
        assert_eq!(Safe("<a href=\"x\">'&").to_string(), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;");
        assert_eq!(Safe("a\u{202e}b\n").to_string(), "a\\u{202e}b\\u{a}");
        assert_eq!(Encoded("GET /a b&c=é").to_string(), "GET%20/a%20b%26c%3D%C3%A9");
        for (seconds, text) in [(0.0, "0"), (0.000_25, "250&nbsp;µs"), (0.0123, "12.3&nbsp;ms"), (2.5, "2.50&nbsp;s")]
        {
            assert_eq!(Time(seconds).to_string(), text);
        }
    }

    #[test]
    fn parts_that_are_more_than_the_whole_are_shown() {
        // Each is a part; together they are beyond the width by what rounding leaves, or by much.
        let rounded = [("cpu", 0.1), ("queue", 0.2), ("down", 0.7), ("runq", 1e-9)];
        for parts in [&rounded[..], &[("cpu", 3.0); 3]] {
            let mut out = String::new();
            shares(&mut out, parts, 1.0, 0.1, 0.3, "y=1").expect("text");
            assert!(!out.contains("width=-"), "{out}");
        }
    }
}
