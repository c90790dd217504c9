//! What the history keeps of one window: a row per request class, per service, per edge, per goal and per finding, and one of the host. The
//! fields are the columns of the files, by the same names. Sums are over the requests that finished in the window; times are
//! seconds.

use std::fmt;
use std::sync::Arc;

/// Number of bounds between the buckets of [`DurationHistogram`]; the last bucket has no upper one.
pub const DURATION_BOUNDS: usize = 47;

/// Upper bounds of the buckets in nanoseconds, inclusive: 2^(13 + i/2), from 8.2 µs to 68.7 s. Those of OpenTelemetry's
/// exponential histograms of scale 1.
pub const DURATION_BOUNDS_NS: [u64; DURATION_BOUNDS] = {
    let mut bounds = [0; DURATION_BOUNDS];
    let mut i = 0;
    while i < DURATION_BOUNDS {
        let power = 1u128 << (13 + i / 2);
        // √2 as a fraction; rounded down, as durations are whole nanoseconds.
        bounds[i] = (if i % 2 == 0 { power } else { power * 1_414_213_562 / 1_000_000_000 }) as u64;
        i += 1;
    }
    bounds
};

/// How many requests lasted how long, by [`DURATION_BOUNDS_NS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationHistogram(pub [u32; DURATION_BOUNDS + 1]);

impl Default for DurationHistogram {
    fn default() -> Self {
        Self([0; DURATION_BOUNDS + 1])
    }
}

impl DurationHistogram {
    /// Counts `requests` of that many nanoseconds each.
    pub fn add(&mut self, duration_ns: u64, requests: u32) {
        let bucket = &mut self.0[DURATION_BOUNDS_NS.partition_point(|bound| *bound < duration_ns)];
        *bucket = bucket.saturating_add(requests);
    }
}

/// Changes with a service's program, its command line or its main script. Displays as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity(pub u64);

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A time of which files keep seven digits, in half the room.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Seconds(pub f64);

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// `INT64`.
    Integer,
    /// `DOUBLE`.
    Float,
    /// `FLOAT`.
    Single,
    /// `BYTE_ARRAY (STRING)`.
    Text,
    /// A list of `INT64`.
    Integers,
    /// A list of `DOUBLE`.
    Floats,
}

/// A value of a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// See [`ColumnType::Integer`].
    Integer(u64),
    /// See [`ColumnType::Float`].
    Float(f64),
    /// See [`ColumnType::Single`].
    Single(f32),
    /// See [`ColumnType::Text`].
    Text(Arc<str>),
    /// See [`ColumnType::Integers`].
    Integers(Vec<u64>),
    /// See [`ColumnType::Floats`].
    Floats(Vec<f64>),
}

/// A field of a row.
trait Field: Sized {
    const TYPE: ColumnType;
    fn value(&self) -> Value;
    /// None for a value of another type or out of range.
    fn from_value(value: Value) -> Option<Self>;
}

impl Field for u64 {
    const TYPE: ColumnType = ColumnType::Integer;
    fn value(&self) -> Value {
        // What readers take for signed.
        Value::Integer((*self).min(i64::MAX as u64))
    }
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Integer(value) = value { Some(value) } else { None }
    }
}

impl Field for i64 {
    const TYPE: ColumnType = ColumnType::Integer;
    fn value(&self) -> Value {
        // As two's complement, which columns and journals keep as it is.
        Value::Integer(*self as u64)
    }
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Integer(value) = value { Some(value as Self) } else { None }
    }
}

impl Field for f64 {
    const TYPE: ColumnType = ColumnType::Float;
    fn value(&self) -> Value {
        Value::Float(*self)
    }
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Float(value) = value { Some(value) } else { None }
    }
}

impl Field for Seconds {
    const TYPE: ColumnType = ColumnType::Single;
    fn value(&self) -> Value {
        Value::Single(self.0 as f32)
    }
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Single(value) = value { Some(Self(f64::from(value))) } else { None }
    }
}

impl Field for Arc<str> {
    const TYPE: ColumnType = ColumnType::Text;
    fn value(&self) -> Value {
        Value::Text(Self::clone(self))
    }
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Text(value) = value { Some(value) } else { None }
    }
}

impl Field for Identity {
    const TYPE: ColumnType = ColumnType::Text;
    fn value(&self) -> Value {
        Value::Text(self.to_string().into())
    }
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Text(text) = value { u64::from_str_radix(&text, 16).ok().map(Self) } else { None }
    }
}

impl<const N: usize> Field for [u64; N] {
    const TYPE: ColumnType = ColumnType::Integers;
    fn value(&self) -> Value {
        Value::Integers(self.to_vec())
    }
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Integers(values) = value { values.try_into().ok() } else { None }
    }
}

impl<const N: usize> Field for [f64; N] {
    const TYPE: ColumnType = ColumnType::Floats;
    fn value(&self) -> Value {
        Value::Floats(self.to_vec())
    }
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Floats(values) = value { values.try_into().ok() } else { None }
    }
}

impl Field for DurationHistogram {
    const TYPE: ColumnType = ColumnType::Integers;
    fn value(&self) -> Value {
        Value::Integers(self.0.iter().map(|count| u64::from(*count)).collect())
    }
    fn from_value(value: Value) -> Option<Self> {
        let Value::Integers(values) = value else { return None };
        let mut counts = Self::default();
        if values.len() != counts.0.len() {
            return None;
        }
        for (count, value) in counts.0.iter_mut().zip(values) {
            *count = u32::try_from(value).ok()?;
        }
        Some(counts)
    }
}

/// A row of one of the tables.
pub trait HistoryRow: Sized + Default {
    /// The table's name: the value of the partition `kind`.
    const KIND: &'static str;
    /// Names and types of the columns, in order.
    const COLUMNS: &'static [(&'static str, ColumnType)];
    /// So many of them were there from the beginning. Files of earlier agents lack the others, which then have their
    /// default values.
    const FIRST: usize;
    /// So many of them the second version of the journal has.
    const SECOND: usize;
    /// Values of the columns, in order.
    fn values(&self) -> Vec<Value>;
    /// The row of such values; none if one of them is missing, has another type or is out of range.
    fn from_values(values: &mut dyn Iterator<Item = Value>) -> Option<Self>;
}

macro_rules! row {
    (
        $(#[$about:meta])* $name:ident, $kind:literal,
        { $($(#[$doc:meta])* $field:ident: $type:ty,)* }
        added { $($(#[$added_doc:meta])* $added:ident: $added_type:ty,)* }
        newest { $($(#[$newest_doc:meta])* $newest:ident: $newest_type:ty,)* }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
            $($(#[$added_doc])* pub $added: $added_type,)*
            $($(#[$newest_doc])* pub $newest: $newest_type,)*
        }

        impl HistoryRow for $name {
            const KIND: &'static str = $kind;
            const COLUMNS: &'static [(&'static str, ColumnType)] = &[
                $((stringify!($field), <$type as Field>::TYPE),)*
                $((stringify!($added), <$added_type as Field>::TYPE),)*
                $((stringify!($newest), <$newest_type as Field>::TYPE),)*
            ];
            const FIRST: usize = [$(stringify!($field)),*].len();
            const SECOND: usize = [$(stringify!($field),)* $(stringify!($added)),*].len();

            fn values(&self) -> Vec<Value> {
                vec![$(self.$field.value(),)* $(self.$added.value(),)* $(self.$newest.value(),)*]
            }

            fn from_values(values: &mut dyn Iterator<Item = Value>) -> Option<Self> {
                $(let $field = Field::from_value(values.next()?)?;)*
                $(let $added = Field::from_value(values.next()?)?;)*
                $(let $newest = Field::from_value(values.next()?)?;)*
                Some(Self { $($field,)* $($added,)* $($newest,)* })
            }
        }
    };
}

row! {
    /// A request class of a service in one window.
    ClassRow, "classes", {
        /// Start of the window, nanoseconds since the epoch.
        start_ns: u64,
        /// Its length.
        length_s: f64,
        /// Name of the host.
        host: Arc<str>,
        /// The service.
        service_name: Arc<str>,
        /// The request class.
        request_class: Arc<str>,
        /// `server` or `client`.
        side: Arc<str>,
        /// Name of the protocol, lower case.
        protocol: Arc<str>,
        /// Which of several instances of the service on this host; empty where they are not distinguished.
        instance: Arc<str>,
        /// Identity of the service's program.
        identity: Identity,
        /// Requests.
        count: u64,
        /// Failed ones among them.
        errors: u64,
        /// Sum of their durations.
        duration_s: f64,
        /// How long they lasted.
        duration_histogram: DurationHistogram,
        /// CPU.
        cpu_s: f64,
        /// Sum of the squares of their CPU, for its variance.
        cpu_s_squared: f64,
        /// Runnable, waiting for a CPU.
        runqueue_s: f64,
        /// Blocked other than for calls.
        blocked_s: f64,
        /// In queues before the request was read (accept queue and socket).
        queue_s: f64,
        /// Waiting for calls to other services.
        downstream_s: f64,
        /// Calls made.
        calls: u64,
        /// Requests by payload size: small, medium, large. Zeros where sizes are not distinguished.
        count_by_size: [u64; 3],
    } added {
        /// CPU by payload size.
        cpu_s_by_size: [f64; 3],
    } newest {}
}

row! {
    /// A service in one window: what the verdicts need besides its classes.
    ServiceRow, "services", {
        /// Start of the window, nanoseconds since the epoch.
        start_ns: u64,
        /// Its length.
        length_s: f64,
        /// Name of the host.
        host: Arc<str>,
        /// The service.
        service_name: Arc<str>,
        /// Identity of its program.
        identity: Identity,
        /// Starts of its program.
        starts: u64,
        /// 1: requests enter the host here; 0: services of this host call it.
        entry: u64,
        /// Services of this host that it calls, one name a line.
        callees: Arc<str>,
        /// CPU outside any request.
        overhead_s: f64,
        /// Share of its requests whose CPU may be another's, 0 to 1.
        ambiguous: f64,
    } added {} newest {}
}

row! {
    /// The host in one window. CPU in seconds, over all CPUs.
    HostRow, "hosts", {
        /// Start of the window, nanoseconds since the epoch.
        start_ns: u64,
        /// Its length.
        length_s: f64,
        /// Name of the host.
        host: Arc<str>,
        /// CPUs.
        cores: f64,
        /// CPU used by everything.
        busy_s: f64,
        /// CPU charged to requests.
        requests_s: f64,
        /// CPU of services outside any request.
        overhead_s: f64,
        /// CPU of kernel threads.
        kernel_s: f64,
        /// CPU of processes that serve no traced requests.
        foreign_s: f64,
        /// CPU that the hypervisor took.
        steal_s: f64,
        /// Unused CPU.
        idle_s: f64,
        /// CPU that the agent attributed ÷ CPU that the system reports as used.
        capture_ratio: f64,
        /// Events that were lost.
        events_lost: u64,
    } added {
        /// Share of the operations whose events were lost, 0 to 1.
        loss: f64,
        /// 1: the last window of a run, which is shorter; it is no measure for others.
        last: u64,
        /// Rows of this window in the other tables, so that a reader sees when these lag.
        class_rows: u64,
        /// See `class_rows`.
        service_rows: u64,
        /// Start of the first window of the agent's run, nanoseconds since the epoch: windows of one run have one reference.
        run_ns: u64,
    } newest {
        /// See `class_rows`.
        edge_rows: u64,
        /// See `class_rows`.
        goal_rows: u64,
    }
}

row! {
    /// Requests of a class in one window that one caller made for one first request. All rows of a class add up to what the
    /// class had in the window.
    EdgeRow, "edges", {
        /// Start of the window, nanoseconds since the epoch.
        start_ns: u64,
        /// Its length.
        length_s: f64,
        /// Name of the host.
        host: Arc<str>,
        /// The service whose requests, or calls, these are.
        service_name: Arc<str>,
        /// Their class.
        request_class: Arc<str>,
        /// `server` or `client`.
        side: Arc<str>,
        /// Name of the protocol, lower case.
        protocol: Arc<str>,
        /// The service that made them; empty where it is not known, `_other` where there was no room.
        caller_service: Arc<str>,
        /// The class of its request that made them; empty where that is not certain, or for none.
        caller_class: Arc<str>,
        /// Of calls: the service that answers, if it is on this host.
        callee_service: Arc<str>,
        /// The host of the other end, if that has an agent and is another.
        peer_host: Arc<str>,
        /// Of calls: address and port of the other end, where neither its service nor its host is known.
        peer: Arc<str>,
        /// `class`, `unknown`, `other` or `open`: what is known of the transaction's first request.
        root: Arc<str>,
        /// Its service.
        root_service: Arc<str>,
        /// Its class.
        root_class: Arc<str>,
        /// Requests. Less than none in rows of root `open`: of more than came in this window the first request became known.
        count: i64,
        /// Those of them that are themselves the first request.
        root_count: u64,
        /// Failed ones.
        errors: i64,
        /// Sum of their durations.
        duration_s: Seconds,
        /// In queues before they were read.
        queue_s: Seconds,
        /// CPU charged.
        cpu_s: Seconds,
        /// Runnable, waiting for a CPU.
        runqueue_s: Seconds,
        /// Blocked, calls included.
        blocked_s: Seconds,
        /// While at least one call to another service was open.
        downstream_s: Seconds,
    } added {} newest {}
}

row! {
    /// What a service class reached in one service in one window.
    GoalRow, "goals", {
        /// Start of the window, nanoseconds since the epoch.
        start_ns: u64,
        /// Its length.
        length_s: f64,
        /// Name of the host.
        host: Arc<str>,
        /// The service class.
        service_class: Arc<str>,
        /// The service.
        service_name: Arc<str>,
        /// 1 is the most important.
        importance: u64,
        /// `p99`, `p95`, `mean` or `discretionary`.
        goal: Arc<str>,
        /// The response time to reach; 0 without one.
        goal_s: f64,
        /// Requests.
        count: u64,
        /// Failed ones.
        errors: u64,
        /// Those whose end was not seen: neither attained nor missed.
        unfinished: u64,
        /// Those that took no longer than the goal.
        attained: u64,
        /// Those that took longer.
        missed: u64,
        /// Sum of the response times of both.
        response_s: f64,
        /// CPU charged to all when they were reported.
        cpu_s: f64,
        /// 1: the window as a whole reached its goal.
        windows_attained: u64,
        /// 1: it did not. Neither without requests, or without a goal.
        windows_missed: u64,
    } added {} newest {}
}

row! {
    /// A finding that was published, or ended, at the end of one window: a row for each class that it names.
    FindingRow, "findings", {
        /// Start of the window, nanoseconds since the epoch.
        start_ns: u64,
        /// Its length.
        length_s: f64,
        /// Name of the host.
        host: Arc<str>,
        /// Its number in the agent's run.
        id: u64,
        /// `opened` or `ended`.
        event: Arc<str>,
        /// `anomaly`, `application_change`, `workload_change` or `environment`.
        finding: Arc<str>,
        /// Where; empty: the whole host.
        service_name: Arc<str>,
        /// A class that changed; empty: all.
        request_class: Arc<str>,
        /// `cpu`, `blocked`, `downstream`, `queue`, `load`, `attribution` or `environment`.
        resource: Arc<str>,
        /// The more precise cause, in words; may be empty.
        cause: Arc<str>,
        /// Start of the first changed window.
        since_ns: u64,
        /// End of the last; 0 while it lasts.
        until_ns: u64,
        /// End of the window in which it was found.
        found_ns: u64,
        /// Cost after ÷ cost before.
        change_ratio: f64,
        /// 0 to 1.
        confidence: f64,
    } added {} newest {}
}

/// Everything of one closed window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WindowRows {
    /// Its host.
    pub host: HostRow,
    /// Its request classes that had requests.
    pub classes: Vec<ClassRow>,
    /// Its services.
    pub services: Vec<ServiceRow>,
    /// Callers and callees.
    pub edges: Vec<EdgeRow>,
    /// What service classes reached.
    pub goals: Vec<GoalRow>,
    /// Findings that were published or ended.
    pub findings: Vec<FindingRow>,
}

/// Names of the tables.
pub const KINDS: [&str; 6] =
    [ClassRow::KIND, HostRow::KIND, ServiceRow::KIND, EdgeRow::KIND, GoalRow::KIND, FindingRow::KIND];
/// Those that verdicts are made from.
pub const VERDICT_KINDS: [&str; 3] = [ClassRow::KIND, HostRow::KIND, ServiceRow::KIND];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_buckets() {
        let mut histogram = DurationHistogram::default();
        for duration in [0, 8_192, 8_193, 11_585, 11_586, 16_384, 68_719_476_736, 68_719_476_737, u64::MAX] {
            histogram.add(duration, 1);
        }
        assert_eq!(histogram.0[..3], [2, 2, 2]);
        assert_eq!(histogram.0[DURATION_BOUNDS - 1..], [1, 2]);
        assert!(DURATION_BOUNDS_NS.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(DURATION_BOUNDS_NS[DURATION_BOUNDS - 1], 68_719_476_736);
        histogram.add(1, u32::MAX);
        assert_eq!(histogram.0[0], u32::MAX);
    }

    #[test]
    fn values_of_other_types_make_no_row() {
        let row = HostRow { start_ns: 5, host: "a".into(), capture_ratio: 0.5, ..HostRow::default() };
        assert_eq!(HostRow::from_values(&mut row.values().into_iter()), Some(row.clone()));
        assert_eq!(row.values().len(), HostRow::COLUMNS.len());
        assert_eq!((HostRow::FIRST, ClassRow::FIRST), (13, 21), "what files of version 0.1 have");
        assert_eq!(
            (HostRow::SECOND, ClassRow::SECOND, ServiceRow::SECOND),
            (18, 22, 10),
            "what the second journal has"
        );
        assert_eq!(HostRow::from_values(&mut row.values().into_iter().skip(1)), None);
        assert_eq!(ClassRow::from_values(&mut row.values().into_iter()), None);
    }
}
