//! Where the time of requests goes: a family for each component, `tracer_request_…_seconds_total`.

use tracer_model::{Cost, Span};

use super::families::{Families, vec};
use super::foldable::{Series, SeriesVec, Visibility};

const LABELS: [&str; 3] = ["service_name", "request_class", "protocol"];

/// A value for each component.
#[derive(Debug)]
pub(super) struct RequestTime<T> {
    cpu: T,
    runqueue: T,
    blocked: T,
    queue: T,
    downstream: T,
    accept_queue: T,
    socket_queue: T,
    pool_queue: T,
}

impl RequestTime<SeriesVec> {
    /// Registers the families.
    pub(super) fn new(families: &Families) -> Self {
        let family = |component: &str, help: &str| {
            let name = format!("tracer_request_{component}_seconds_total");
            vec(families, SeriesVec::counters(&name, help, &LABELS))
        };
        Self {
            cpu: family("cpu", "CPU seconds charged to requests of the class, including work after the reply."),
            runqueue: family("runqueue", "Seconds that requests of the class were ready to run and waited for a CPU."),
            blocked: family("blocked", "Seconds that threads were blocked while they held a request of the class."),
            queue: family("queue", "Seconds from the arrival of a request's first byte until it was read."),
            downstream: family(
                "downstream",
                "Seconds during which requests of the class had at least one downstream call open.",
            ),
            accept_queue: family(
                "accept_queue",
                "Seconds of the queue time before the request's connection was accepted. Requests whose accept time the \
                 kernel does not expose count in neither the accept queue nor the socket queue.",
            ),
            socket_queue: family(
                "socket_queue",
                "Seconds of the queue time that requests waited in accepted connections.",
            ),
            pool_queue: family(
                "pool_queue",
                "Seconds of the duration that the request's jobs provably waited for a free worker thread.",
            ),
        }
    }

    /// The series of a class: service, class, protocol.
    pub(super) fn series(&self, labels: [&str; 3], visibility: Option<&Visibility>) -> RequestTime<Series> {
        let of = |family: &SeriesVec| family.series(&labels, visibility);
        RequestTime {
            cpu: of(&self.cpu),
            runqueue: of(&self.runqueue),
            blocked: of(&self.blocked),
            queue: of(&self.queue),
            downstream: of(&self.downstream),
            accept_queue: of(&self.accept_queue),
            socket_queue: of(&self.socket_queue),
            pool_queue: of(&self.pool_queue),
        }
    }
}

/// Nanoseconds as seconds.
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

impl RequestTime<Series> {
    /// Counts the waits of a finished request.
    pub(super) fn waits(&self, span: &Span, times: u64) {
        let all = |nanos: u64| seconds(nanos) * times as f64;
        self.queue.inc_by(all(span.queue()));
        self.downstream.inc_by(all(span.downstream));
        let queues = span.queues().unwrap_or_default();
        self.accept_queue.inc_by(all(queues.accept));
        self.socket_queue.inc_by(all(queues.socket));
        self.pool_queue.inc_by(all(span.pool_queue.unwrap_or_default()));
    }

    /// Counts what was charged to the class.
    pub(super) fn cost(&self, cost: Cost) {
        self.cpu.inc_by(seconds(cost.cpu));
        self.runqueue.inc_by(seconds(cost.runq));
        self.blocked.inc_by(seconds(cost.blocked));
    }
}
