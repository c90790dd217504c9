//! Shared by the fault tests: load with known truth, its comparison with the reported spans, and the figures of a case,
//! from which `cargo xtask faults` makes a table.
//!
//! **Conservation.** Requests are conserved if every sent request is reported, or counted as lost. The agent counts
//! losses by *operation* (a send or receive that was not reported) and not by request: it cannot know what an operation
//! it did not see held. Every request of [`plans`] is one send and one receive on each end, and so is its reply. So, at
//! one end, an unreported request lost its own operation, and perhaps its reply's; one reported without a whole reply
//! lost its reply's. With `missing` and `unfinished` counted over both ends and `lost` operations counted by the
//! kernel:
//!
//! `missing + unfinished ≤ lost ≤ 2 · missing + unfinished + ends of connections`
//!
//! [`Judged::conserved`] asserts both sides. The first: no loss goes uncounted. The second: nothing is counted that was
//! not lost. In particular, a count of zero means that none is missing.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::time::Duration;

use crate::agent::Agent;
use crate::load::{Loaded, Request};
use crate::metrics::Metrics;
use crate::spans::{Span, Tail};
use crate::vitals::Vitals;
use crate::{Numbers, say};

/// Whether cases run at the full size instead of CI's (`TRACER_FAULTS=full`).
pub fn full() -> bool {
    std::env::var("TRACER_FAULTS").is_ok_and(|size| size == "full")
}

/// `small` normally, `large` at full size.
pub fn size<T>(small: T, large: T) -> T {
    if full() { large } else { small }
}

/// Connections that request as fast as they can, each with paths of its own; their lengths differ, and so do the
/// replies', which echo the path.
pub fn plans(name: &str, connections: u64, each: u64) -> Vec<Vec<Request>> {
    (0..connections)
        .map(|c| {
            let mut numbers = Numbers::new(c + 1);
            let mut one = |r| {
                let filler = "x".repeat(numbers.below(200) as usize);
                Request { pause: Duration::from_micros(200), ..Request::get(format!("/{name}/c{c}r{r}/{filler}")) }
            };
            (0..each).map(&mut one).collect()
        })
        .collect()
}

/// Comparison of one end's spans with the sent requests.
#[derive(Clone, Debug, Default)]
pub struct SpanComparison {
    /// Reported whole, with the status and length that the load generator saw.
    pub right: usize,
    /// Reported as without a (whole) reply.
    pub unfinished: usize,
    /// Not reported.
    pub missing: usize,
    /// Reported with anything else, or more than once.
    pub wrong: Vec<String>,
}

/// Both ends.
#[derive(Clone, Debug, Default)]
pub struct Judged {
    /// Requests that were sent.
    pub sent: usize,
    /// The serving end.
    pub server: SpanComparison,
    /// The client's end.
    pub client: SpanComparison,
}

fn compare(plans: &[Vec<Request>], spans: &[&Span]) -> SpanComparison {
    let mut by_path: HashMap<&str, Vec<&Span>> = HashMap::new();
    for span in spans {
        by_path.entry(span.path.as_str()).or_default().push(span);
    }
    let mut kept = SpanComparison::default();
    for request in plans.iter().flatten() {
        match by_path.get(request.target.as_str()).map(Vec::as_slice) {
            None => kept.missing += 1,
            Some([span]) if span.status == Some(200) && span.outcome == "complete" => {
                if span.body == request.target.len() as u64 {
                    kept.right += 1;
                } else {
                    kept.wrong.push(format!("{span:?}"));
                }
            }
            Some([span]) if span.status.is_none() || span.outcome != "complete" => kept.unfinished += 1,
            Some(several) => kept.wrong.push(format!("{several:?}")),
        }
    }
    kept
}

/// Compares the sent requests with the reported spans.
pub fn judge(plans: &[Vec<Request>], spans: &[Span]) -> Judged {
    let end = |server| {
        let spans: Vec<&Span> = spans.iter().filter(|span| span.server == server).collect();
        compare(plans, &spans)
    };
    Judged { sent: plans.iter().map(Vec::len).sum(), server: end(true), client: end(false) }
}

impl Judged {
    fn of(&self, what: impl Fn(&SpanComparison) -> usize) -> usize {
        what(&self.server) + what(&self.client)
    }

    /// Unreported ends.
    pub fn missing(&self) -> usize {
        self.of(|kept| kept.missing)
    }

    /// Ends reported without a whole reply.
    pub fn unfinished(&self) -> usize {
        self.of(|kept| kept.unfinished)
    }

    /// Ends reported whole.
    pub fn right(&self) -> usize {
        self.of(|kept| kept.right)
    }

    /// Asserts that nothing is wrong, and that the missing ends were counted as lost.
    pub fn covered(&self, lost: f64) {
        for kept in [&self.server, &self.client] {
            assert!(kept.wrong.is_empty(), "{} wrong, first: {}", kept.wrong.len(), kept.wrong[0]);
        }
        let gone = (self.missing() + self.unfinished()) as f64;
        assert!(gone <= lost, "{gone} not reported whole, {lost} counted as lost: {self:?}");
    }

    /// Also asserts that nothing was counted that is not missing; `ends` are operations without bytes: ends of
    /// connections.
    pub fn conserved(&self, lost: f64, ends: usize) {
        self.covered(lost);
        let most = (2 * self.missing() + self.unfinished() + ends) as f64;
        assert!(lost <= most, "{lost} counted as lost, at most {most} are: {self:?}");
    }

    /// Asserts that every request is reported whole at both ends.
    pub fn whole(&self) {
        self.covered(0.0);
        assert_eq!((self.server.right, self.client.right), (self.sent, self.sent), "{self:?}");
    }
}

/// Socket operations the agent counts as not reported.
pub fn operations_lost(metrics: &Metrics) -> f64 {
    let of = |reason| metrics.sum("tracer_events_lost_total", &[("reason", reason)]);
    crate::OPERATION_LOST.into_iter().map(of).sum()
}

/// Spans that were given up early because there was no room for more.
pub fn evicted(metrics: &Metrics) -> f64 {
    let reasons = ["connections_evicted", "spans_evicted"];
    reasons.iter().map(|reason| metrics.sum("tracer_attribution_gaps_total", &[("reason", reason)])).sum()
}

/// Waits until the agent counts no further loss for two of its seconds: it has caught up.
pub fn caught_up(agent: &Agent) {
    let mut before = -1.0;
    crate::wait("the agent to catch up", Duration::from_secs(60), || {
        let now = operations_lost(&agent.metrics());
        let settled = (now - before).abs() < 0.5;
        before = now;
        if settled {
            return Some(());
        }
        std::thread::sleep(Duration::from_millis(2200));
        None
    });
}

/// Waits until the agent's file has spans of both ends of every request of `plans`, or no more come; the comparison
/// then reports what is missing.
pub fn reported(agent: &Agent, plans: &[Vec<Request>]) -> usize {
    let wanted: HashSet<&str> = plans.iter().flatten().map(|request| request.target.as_str()).collect();
    Tail::new(&agent.transactions)
        .until(2 * wanted.len(), Duration::from_secs(20), |span| wanted.contains(span.path.as_str()))
}

/// Figures of one case: a line of the fault table.
#[derive(Clone, Debug)]
pub struct Figures {
    case: &'static str,
    size: String,
    sent: u64,
    failed: u64,
    judged: Option<Judged>,
    counted: Option<f64>,
    attached: Option<usize>,
    growth: Option<(f64, i64)>,
    note: String,
}

impl Figures {
    /// Figures of a case with this name and size.
    pub fn of(case: &'static str, size: impl Into<String>) -> Self {
        Self {
            case,
            size: size.into(),
            sent: 0,
            failed: 0,
            judged: None,
            counted: None,
            attached: None,
            growth: None,
            note: String::new(),
        }
    }

    /// Requests of traced programs, and how many failed.
    pub fn traced(&mut self, sent: u64, failed: u64) -> &mut Self {
        self.sent += sent;
        self.failed += failed;
        self
    }

    /// The same from a finished load.
    pub fn loaded(&mut self, loaded: &Loaded) -> &mut Self {
        self.traced(loaded.answers.len() as u64, loaded.broken().len() as u64)
    }

    /// The reported ends, and operations counted as lost.
    pub fn judged(&mut self, judged: &Judged, counted: f64) -> &mut Self {
        self.judged = Some(judged.clone());
        self.counted = Some(counted);
        self
    }

    /// BPF objects that ended agents left behind.
    pub fn attached(&mut self, left: usize) -> &mut Self {
        self.attached = Some(self.attached.unwrap_or(0) + left);
        self
    }

    /// The agent's resources before and after.
    pub fn growth(&mut self, before: Vitals, after: Vitals) -> &mut Self {
        self.growth = Some((after.rss - before.rss, after.fds as i64 - before.fds as i64));
        self
    }

    /// Any further remark.
    pub fn note(&mut self, note: impl Into<String>) -> &mut Self {
        self.note = note.into();
        self
    }

    /// Prints the figures, passes them to `cargo xtask faults` (a line in the file that `TRACER_FAULTS_FILE` names),
    /// and asserts what holds in every case: no traced program failed, and nothing stays attached.
    pub fn finish(&self) {
        let judged = self.judged.as_ref();
        let wrong = judged.map(|judged| judged.of(|kept| kept.wrong.len()));
        let line = serde_json::json!({
            "case": self.case,
            "size": self.size,
            "sent": self.sent,
            "failed": self.failed,
            "ends": judged.map(|judged| 2 * judged.sent),
            "right": judged.map(Judged::right),
            "unfinished": judged.map(Judged::unfinished),
            "missing": judged.map(Judged::missing),
            "wrong": wrong,
            "counted": self.counted,
            "attached": self.attached,
            "rss_growth": self.growth.map(|(rss, _)| rss),
            "fd_growth": self.growth.map(|(_, fds)| fds),
            "note": self.note,
        });
        say(&format!("FAULT {line}"));
        if let Some(path) = std::env::var_os("TRACER_FAULTS_FILE") {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
            let written = file.and_then(|mut file| writeln!(file, "{line}"));
            assert!(written.is_ok(), "{}: {written:?}", path.display());
        }
        assert_eq!(self.failed, 0, "{}: traced programs noticed", self.case);
        assert_eq!(self.attached.unwrap_or(0), 0, "{}: left attached", self.case);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(right: usize, unfinished: usize, missing: usize) -> SpanComparison {
        SpanComparison { right, unfinished, missing, wrong: Vec::new() }
    }

    fn refuses(check: impl Fn() + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(check).is_err()
    }

    #[test]
    fn what_is_missing_must_be_counted_and_what_is_counted_missing() {
        let judged = Judged { sent: 10, server: kept(7, 1, 2), client: kept(10, 0, 0) };
        for (lost, fine) in [(2.0, false), (3.0, true), (5.0, true), (6.0, false)] {
            let judged = judged.clone();
            assert_eq!(!refuses(move || judged.conserved(lost, 0)), fine, "{lost}");
        }
        let none = Judged { sent: 10, server: kept(10, 0, 0), client: kept(10, 0, 0) };
        none.whole();
        assert!(refuses(move || none.conserved(1.0, 0)));
        assert!(refuses(move || judged.whole()));
    }
}
