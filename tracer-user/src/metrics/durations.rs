//! Durations of HTTP requests, with the labels of OpenTelemetry's semantic conventions and a bound on their number.

use prometheus::{Histogram, HistogramVec};

use crate::model::{ClassInfo, Outcome, Side, Unit};

/// Value of a label that stands for all that came after the bound.
pub(super) const OTHER: &str = "_other";
/// Most different combinations of method, status, error, version and port one class gets series for.
const SERIES: usize = 32;
/// Methods that are label values; the conventions call every other one `_OTHER`.
const METHODS: [&str; 10] = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "CONNECT", "TRACE", "QUERY"];

/// Labels of both families, in the order of [`values`]. A server's own port is not one: the conventions leave it out
/// by default.
pub(super) const SERVER_LABELS: [&str; 9] = [
    "service_name",
    "request_class",
    "http_request_method",
    "http_route",
    "http_response_status_code",
    "error_type",
    "network_protocol_name",
    "network_protocol_version",
    "url_scheme",
];
/// The same, and the port that was called.
pub(super) const CLIENT_LABELS: [&str; 10] = [
    "service_name",
    "request_class",
    "http_request_method",
    "http_route",
    "http_response_status_code",
    "error_type",
    "network_protocol_name",
    "network_protocol_version",
    "url_scheme",
    "server_port",
];

/// `error.type`: the status where that is the failure, else what happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    None,
    Status,
    Aborted,
    Unfinished,
    /// What the reply calls it.
    Word(&'static str),
}

/// What tells the series of one class apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    method: &'static str,
    status: Option<u16>,
    failure: Failure,
    /// Empty for HTTP itself.
    protocol: &'static str,
    version: &'static str,
    /// Client side only.
    port: u16,
}

impl Key {
    fn of(unit: &Unit) -> Self {
        let failure = match (unit.outcome, unit.error) {
            (Outcome::Aborted, _) => Failure::Aborted,
            (_, false) => Failure::None,
            (_, true) if unit.status.is_some() => Failure::Status,
            (_, true) => unit.failure.map_or(Failure::Unfinished, Failure::Word),
        };
        Self {
            method: METHODS.into_iter().find(|known| **known == *unit.method).unwrap_or("_OTHER"),
            status: unit.status,
            failure,
            protocol: if unit.protocol == "http" { "" } else { unit.protocol },
            version: unit.version,
            port: if unit.side == Side::Client { unit.peer_port } else { 0 },
        }
    }
}

/// Which series a request was counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Went {
    /// One that was there.
    Own,
    /// One that was made for it.
    New,
    /// The one the class's others share, because there are too many.
    Common,
}

/// The series of one class that are in use.
#[derive(Debug, Default)]
pub(super) struct Durations {
    series: Vec<(Key, Histogram)>,
    overflow: Option<Histogram>,
}

impl Durations {
    /// Counts a request; `class` gives the labels `service_name` and `request_class`, `room` whether there may be
    /// another series.
    pub(super) fn observe(
        &mut self,
        family: &HistogramVec,
        class: [&str; 2],
        info: &ClassInfo,
        unit: &Unit,
        room: bool,
    ) -> Went {
        let seconds = unit.duration() as f64 / 1e9;
        let key = Key::of(unit);
        if let Some((_, histogram)) = self.series.iter().find(|(known, _)| *known == key) {
            histogram.observe(seconds);
            return Went::Own;
        }
        if self.series.len() >= SERIES || !room {
            let common = || family.with_label_values(&values(unit.side, class, info, None));
            self.overflow.get_or_insert_with(common).observe(seconds);
            return Went::Common;
        }
        let histogram = family.with_label_values(&values(unit.side, class, info, Some(key)));
        histogram.observe(seconds);
        self.series.push((key, histogram));
        Went::New
    }
}

/// Label values in the order of the family's labels; without a key, those of the common series.
fn values(side: Side, class: [&str; 2], info: &ClassInfo, key: Option<Key>) -> Vec<String> {
    let [service, name] = class;
    // A class that is folded away takes its route along.
    let route = if name == OTHER { "" } else { &*info.route };
    let mut values = vec![service.to_owned(), name.to_owned()];
    if let Some(key) = key {
        let status = key.status.map_or_else(String::new, |status| status.to_string());
        let failure = match key.failure {
            Failure::None => String::new(),
            Failure::Status => status.clone(),
            Failure::Aborted => "aborted".into(),
            Failure::Unfinished => "unfinished".into(),
            Failure::Word(word) => word.into(),
        };
        values.extend([key.method, route].map(str::to_owned));
        values.extend([status, failure]);
        values.extend([key.protocol, key.version, "http"].map(str::to_owned));
    } else {
        let protocol = if info.protocol == "http" { "" } else { info.protocol };
        values.extend(["_OTHER", route, OTHER, OTHER, protocol, "", "http"].map(str::to_owned));
    }
    if side == Side::Client {
        values.push(match key {
            Some(Key { port: 0, .. }) => String::new(),
            Some(key) => key.port.to_string(),
            None => OTHER.into(),
        });
    }
    values
}
