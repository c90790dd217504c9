//! Pieces of the console's pages. The policy of the pages allows no inline style: bars are SVG.

use std::fmt::{self, Display, Write as _};

use axum::response::Html;

use super::Health;
use super::api::ClassView;
use crate::guard::shed::Level;

/// Text made safe for HTML, attributes included. Names of classes come from the wire.
pub(super) struct Safe<'a>(pub(super) &'a str);

impl Display for Safe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
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

/// Text made safe for a query string.
pub(super) struct Encoded<'a>(pub(super) &'a str);

impl Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
                f.write_char(char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

/// A time in the unit that suits it.
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

/// A whole page around `body`.
pub(super) fn page(title: &str, refresh: Option<u32>, health: &Health, body: &str) -> Html<String> {
    let again =
        refresh.map_or_else(String::new, |s| format!("<meta http-equiv=\"refresh\" content=\"{}\">", s.clamp(1, 3600)));
    let ratio = health.books.capture_ratio().map_or_else(|| "–".into(), |ratio| format!("{ratio:.3}"));
    let state = if health.not_ready.is_empty() { "ready" } else { "not ready" };
    let mut notes = String::new();
    for note in health.not_ready.iter().chain(&health.degraded) {
        let _ = write!(notes, "<p class=note>{}</p>", Safe(note));
    }
    if health.level > Level::Full {
        let _ = write!(
            notes,
            "<p class=note>Load is shed (level {} of 4): {}.</p>",
            health.level as u8,
            health.level.what()
        );
    }
    Html(format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">{again}\
         <title>{title} · tracer</title><link rel=stylesheet href=/style.css>\
         <header><a href=/ class=brand>tracer</a><span>{host}</span><span>{state}</span>\
         <span title=\"CPU attributed / CPU the system says was used\">capture ratio <b>{ratio}</b></span>\
         <span>events lost <b>{lost}</b></span><span>sampling <b>{hertz}</b> Hz</span>\
         <span>agent <b>{cpu:.1}</b> s CPU, <b>{rss:.0}</b> MB</span></header><main>{notes}{body}</main></html>",
        title = Safe(title),
        host = Safe(&health.host),
        lost = health.lost,
        hertz = health.hertz,
        cpu = health.own_cpu_s,
        rss = health.own_rss as f64 / 1e6,
    ))
}

/// Where the time of a request goes, as one bar.
pub(super) fn bar(class: &ClassView) -> String {
    let whole = (class.mean_s + class.queue_s).max(1e-9);
    // A thread is blocked while it waits for a call: what is downstream is not counted twice.
    let blocked = (class.blocked_s - class.downstream_s).max(0.0);
    let parts = [
        ("queue", class.queue_s),
        ("cpu", class.cpu_s),
        ("runq", class.runqueue_s),
        ("down", class.downstream_s),
        ("blocked", blocked),
    ];
    let mut out = String::from("<svg class=bar viewBox=\"0 0 100 10\" preserveAspectRatio=none>");
    let mut at = 0.0;
    for (name, seconds) in parts {
        let share = (seconds / whole * 100.0).clamp(0.0, 100.0 - at);
        if share >= 0.5 {
            let _ = write!(
                out,
                "<rect class={name} x={at:.1} width={share:.1} height=10><title>{name} {}</title></rect>",
                Time(seconds)
            );
        }
        at += share;
    }
    out.push_str("</svg>");
    out
}

/// Where a unit lies in its transaction; `left` and `width` in percent.
pub(super) fn lane(side: &str, left: f64, width: f64) -> String {
    format!(
        "<svg class=lane viewBox=\"0 0 100 10\" preserveAspectRatio=none><rect class={side} x={left:.2} width={width:.2} height=10 /></svg>"
    )
}

/// What the colours of [`bar`] mean.
pub(super) const LEGEND: &str = "<p class=legend><svg class=key><rect class=queue width=12 height=12 /></svg> queue <svg class=key><rect class=cpu width=12 height=12 /></svg> on CPU <svg class=key><rect class=runq width=12 height=12 /></svg> run queue <svg class=key><rect class=down width=12 height=12 /></svg> downstream <svg class=key><rect class=blocked width=12 height=12 /></svg> blocked otherwise</p>";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_the_wire_are_text() {
        assert_eq!(Safe("<a href=\"x\">'&").to_string(), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;");
        assert_eq!(Encoded("GET /a b&c=é").to_string(), "GET%20/a%20b%26c%3D%C3%A9");
        for (seconds, text) in [(0.0, "0"), (0.000_25, "250&nbsp;µs"), (0.0123, "12.3&nbsp;ms"), (2.5, "2.50&nbsp;s")]
        {
            assert_eq!(Time(seconds).to_string(), text);
        }
    }
}
