//! Spans as the agent writes them with `--transactions`: one JSON object per line.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A finished span: the fields that tests use.
#[derive(Clone, Debug)]
pub struct Span {
    /// Its id.
    pub id: String,
    /// The span that caused it.
    pub parent: Option<String>,
    /// Its transaction.
    pub trace: String,
    /// Service.
    pub service: String,
    /// Request class.
    pub class: String,
    /// Protocol.
    pub protocol: String,
    /// Whether it is the server side; else the client side.
    pub server: bool,
    /// Process.
    pub pid: u32,
    /// Nanoseconds since the epoch.
    pub start_ns: i64,
    /// Seconds.
    pub duration_s: f64,
    /// Seconds from the arrival of its first byte until it was read.
    pub queue_s: f64,
    /// The part of these seconds before its connection was accepted, if known.
    pub accept_queue_s: Option<f64>,
    /// The part of these seconds after that, if known.
    pub socket_queue_s: Option<f64>,
    /// Seconds its jobs waited for pool threads, if known.
    pub pool_queue_s: Option<f64>,
    /// CPU seconds.
    pub cpu_s: f64,
    /// Status code.
    pub status: Option<u16>,
    /// Grade of attribution.
    pub grade: String,
    /// Evidence for the grade.
    pub evidence: String,
    /// Method.
    pub method: String,
    /// Path.
    pub path: String,
    /// Port of the other end; 0 for UNIX sockets.
    pub peer_port: u16,
    /// The application protocols offered by a TLS client; empty if none.
    pub offered: String,
    /// The requested name, as far as it is shown.
    pub domain: String,
    /// Bytes of the reply's body; `u64::MAX` if the agent reports it as unknown.
    pub body: u64,
    /// `error.type`; empty if it did not fail.
    pub error: String,
    /// How it ended.
    pub outcome: String,
    /// Port of the server; 0 for UNIX sockets.
    pub port: u16,
    /// The transactions it is linked to.
    pub links: Vec<String>,
    /// For a call: duration at the remote end on another host, seconds, if reported.
    pub far_duration_s: Option<f64>,
}

/// Parses one line; panics if a field of the contract is missing.
pub fn span(line: &str) -> Span {
    let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let text = |key: &str| {
        value.get(key).and_then(Value::as_str).unwrap_or_else(|| panic!("no text {key}: {line}")).to_owned()
    };
    let number =
        |key: &str| value.get(key).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number {key}: {line}"));
    let attribute = |key: &str| value.get("attributes").and_then(|attributes| attributes.get(key));
    let attribute_text = |key: &str| attribute(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    for key in ["queue_s", "runqueue_s", "blocked_s"] {
        assert!(number(key) >= 0.0, "{key}: {line}");
    }
    for key in ["host", "protocol"] {
        text(key);
    }
    assert!(value.get("error").is_some_and(Value::is_boolean), "no error: {line}");
    Span {
        id: text("span_id"),
        parent: value.get("parent_span_id").and_then(Value::as_str).map(str::to_owned),
        trace: text("trace_id"),
        service: text("service_name"),
        class: text("request_class"),
        protocol: text("protocol"),
        server: match text("side").as_str() {
            "server" => true,
            "client" => false,
            other => panic!("side {other}: {line}"),
        },
        pid: number("pid") as u32,
        start_ns: value.get("start_ns").and_then(Value::as_i64).unwrap_or_else(|| panic!("no start_ns: {line}")),
        duration_s: number("duration_s"),
        queue_s: number("queue_s"),
        accept_queue_s: value.get("accept_queue_s").and_then(Value::as_f64),
        socket_queue_s: value.get("socket_queue_s").and_then(Value::as_f64),
        pool_queue_s: value.get("pool_queue_s").and_then(Value::as_f64),
        cpu_s: number("cpu_s"),
        status: value.get("status").and_then(Value::as_u64).map(|status| status as u16),
        grade: text("grade"),
        evidence: text("evidence"),
        // A method that the conventions do not name has its word beside `_OTHER`.
        method: match attribute_text("http.request.method_original") {
            original if original.is_empty() => attribute_text("http.request.method"),
            original => original,
        },
        path: match attribute_text("rpc.method") {
            method if method.is_empty() => attribute_text("url.path"),
            method => format!("/{method}"),
        },
        peer_port: attribute("network.peer.port").and_then(Value::as_u64).unwrap_or_default() as u16,
        offered: attribute_text("tracer.tls.offered_protocols"),
        domain: attribute_text("dns.question.name"),
        body: attribute("http.response.body.size").and_then(Value::as_u64).unwrap_or(u64::MAX),
        error: attribute_text("error.type"),
        outcome: attribute_text("tracer.outcome"),
        port: attribute("server.port").and_then(Value::as_u64).unwrap_or_default() as u16,
        links: value
            .get("links")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|link| link.get("trace_id").and_then(Value::as_str).map(str::to_owned))
            .collect(),
        far_duration_s: attribute("tracer.remote.time").and_then(Value::as_f64),
    }
}

/// Every span of a finished file.
pub fn read(path: &Path) -> Vec<Span> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(text.is_empty() || text.ends_with('\n'), "{}: the last line is cut", path.display());
    text.lines().map(span).collect()
}

/// A file of spans that is still growing.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    taken: usize,
    /// Spans so far.
    pub spans: Vec<Span>,
}

impl Tail {
    /// Follows a file that may not exist yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.into(), taken: 0, spans: Vec::new() }
    }

    /// Reads new spans; only whole lines.
    pub fn read(&mut self) -> &[Span] {
        let bytes = std::fs::read(&self.path).unwrap_or_default();
        let fresh = bytes.get(self.taken..).unwrap_or_default();
        let whole = fresh.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let text = String::from_utf8_lossy(fresh.get(..whole).unwrap_or_default());
        self.spans.extend(text.lines().map(span));
        self.taken += whole;
        &self.spans
    }

    /// Reads until `count` spans match `wanted` or `limit` has passed; returns how many match. The test itself detects
    /// missing spans and reports them better.
    pub fn until(&mut self, count: usize, limit: Duration, wanted: impl Fn(&Span) -> bool) -> usize {
        let end = Instant::now() + limit;
        loop {
            let have = self.read().iter().filter(|span| wanted(span)).count();
            if have >= count || Instant::now() > end {
                return have;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Spans by path.
pub fn by_path<'a>(spans: impl Iterator<Item = &'a Span>) -> HashMap<&'a str, Vec<&'a Span>> {
    let mut map: HashMap<&str, Vec<&Span>> = HashMap::new();
    for span in spans {
        map.entry(span.path.as_str()).or_default().push(span);
    }
    map
}

/// Calls with right and wrong parents, judged by an id in the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The parent has the same path.
    pub right: u64,
    /// The parent has another path.
    pub wrong: u64,
    /// There is no parent.
    pub none: u64,
}

/// For each grade, how many of `calls` have the right parent; looks up parents in `all`.
pub fn parents<'a>(all: &[Span], calls: impl Iterator<Item = &'a Span>) -> Vec<(String, Tally)> {
    let ids: HashMap<&str, &Span> = all.iter().map(|span| (span.id.as_str(), span)).collect();
    let mut tallies: Vec<(String, Tally)> =
        ["certain", "confirmed", "ambiguous", "orphan"].map(|grade| (grade.to_owned(), Tally::default())).into();
    for call in calls {
        let (_, tally) = tallies
            .iter_mut()
            .find(|(grade, _)| *grade == call.grade)
            .unwrap_or_else(|| panic!("grade {} of {call:?}", call.grade));
        match call.parent.as_deref().map(|parent| ids.get(parent)) {
            None => tally.none += 1,
            Some(Some(parent)) if parent.path == call.path => tally.right += 1,
            Some(_) => tally.wrong += 1,
        }
    }
    tallies
}

/// Prints the table of grades and returns the totals: all, right, wrong, and wrong among certain or confirmed.
pub fn report_parents(title: &str, tallies: &[(String, Tally)]) -> (u64, u64, u64, u64) {
    crate::say(&format!("{title}\n  {:<10} {:>8} {:>8} {:>8}", "grade", "right", "wrong", "none"));
    let mut sums = (0, 0, 0, 0);
    for (grade, tally) in tallies {
        crate::say(&format!("  {grade:<10} {:>8} {:>8} {:>8}", tally.right, tally.wrong, tally.none));
        sums.0 += tally.right + tally.wrong + tally.none;
        sums.1 += tally.right;
        sums.2 += tally.wrong;
        if grade == "certain" || grade == "confirmed" {
            sums.3 += tally.wrong;
        }
    }
    sums
}

/// Removes the place that made a call (`code.*`) from a span of the API or of a file: it is named a while after the call, if its
/// process still runs then.
pub fn remove_place(span: &mut serde_json::Value) {
    if let Some(attributes) = span["attributes"].as_object_mut() {
        attributes.retain(|name, _| !name.starts_with("code."));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(id: &str, parent: &str, path: &str, grade: &str) -> String {
        format!(
            r#"{{"trace_id":"t","span_id":"{id}","parent_span_id":{parent},"service_name":"s","request_class":"c","protocol":"http","side":"client","host":"h","pid":7,"start_ns":1700000000000000001,"duration_s":0.5,"queue_s":0.0,"cpu_s":0.1,"runqueue_s":0.0,"blocked_s":0.0,"status":200,"error":false,"grade":"{grade}","evidence":"e","attributes":{{"http.request.method":"GET","url.path":"{path}","http.response.body.size":12,"tracer.outcome":"complete","server.port":80}}}}"#
        )
    }

    #[test]
    fn a_line_and_its_fields() {
        let span = span(&line("a", "null", "/x", "orphan"));
        assert_eq!((span.start_ns, span.status, span.body, span.port), (1700000000000000001, Some(200), 12, 80));
        assert_eq!((span.parent.is_none(), span.server, span.outcome.as_str()), (true, false, "complete"));
    }

    #[test]
    fn a_growing_file_is_read_by_whole_lines() {
        let dir = crate::scratch();
        let path = dir.path().join("spans");
        let whole = line("a", "null", "/x", "orphan");
        let mut tail = Tail::new(&path);
        assert!(tail.read().is_empty());
        std::fs::write(&path, format!("{whole}\n{{\"trace")).unwrap();
        assert_eq!(tail.read().len(), 1);
        std::fs::write(&path, format!("{whole}\n{whole}\n")).unwrap();
        assert_eq!(tail.until(2, Duration::from_secs(5), |_| true), 2);
    }

    #[test]
    fn parents_are_judged_by_the_path() {
        let lines = [
            line("a", "null", "/1", "orphan"),
            line("b", "\"a\"", "/1", "certain"),
            line("c", "\"a\"", "/2", "certain"),
            line("d", "\"gone\"", "/1", "ambiguous"),
        ];
        let spans: Vec<Span> = lines.iter().map(|line| span(line)).collect();
        let tallies = parents(&spans, spans.iter().filter(|span| span.id != "a"));
        assert_eq!(tallies[0].1, Tally { right: 1, wrong: 1, none: 0 });
        assert_eq!(tallies[2].1, Tally { right: 0, wrong: 1, none: 0 });
        assert_eq!(report_parents("t", &tallies), (3, 1, 2, 1));
    }
}
