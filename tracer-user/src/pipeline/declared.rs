//! Calls of declared functions as spans, and the samples taken in them.

use std::sync::Arc;

use tracer_model::{
    Accepted, ClassId, DeclaredFacts, Grade, Outcome, Owner, PropagatedContext, ProtocolId, ServiceId, Side, Sink,
    Span, StackSample,
};
use tracer_runtimes::declared::{CallPairing, Captured, Declared, FailSource};
use tracer_transactions::classes::Facts;
use tracer_transactions::finished_call::FinishedCall;

use super::Pipeline;
use super::roots::declared_root;

/// Kind of failure of a call that its condition calls failed.
fn kind_of_failure(declared: &Declared) -> &'static str {
    match declared.fail.map(|fail| fail.source()) {
        Some(FailSource::Begin(_) | FailSource::End(_)) => "argument",
        Some(FailSource::Return) | None => "return_value",
    }
}

impl Pipeline {
    fn declared_class(&mut self, declared: usize, service: ServiceId) -> Option<ClassId> {
        let name = Arc::clone(&self.declared.get(declared)?.name);
        let facts = Facts {
            service,
            protocol: ProtocolId::Declared,
            side: Side::Server,
            method: "",
            path: "",
            host: None,
            headers: &[],
            port: 0,
            status: None,
        };
        Some(self.classifier.named(&mut self.names, &facts, name))
    }

    /// A declared function returned.
    pub(super) fn declared_returned(&mut self, call: &FinishedCall) {
        let Some(class) = self.declared_class(call.declared, call.service) else { return };
        let Some(declared) = self.declared.get(call.declared) else { return };
        // A USDT probe says the sizes of its arguments; the kernel side has extended them.
        let wide = call.go || call.pairing != CallPairing::Depth;
        let captured = Captured { entry: call.entry.as_deref(), exit: call.exit.as_deref(), result: call.value, wide };
        let (user, values) = (declared.user_of(&captured), declared.values_of(&captured));
        let failed = declared.failed(&captured);
        let error = failed == Some(true);
        // Within a request it is a part of that request, which has a service class of its own.
        let service_class = match call.request {
            None => {
                let user = user.as_ref().ok().and_then(Option::as_deref);
                self.service_class_of_declared(call, &declared.name, user)
            }
            Some(_) => None,
        };
        let carried =
            service_class.map(|service_class| Arc::new(PropagatedContext { service_class, ..Default::default() }));
        self.declared_reports.call(call, &user, &values, failed);
        let named = declared.metrics.iter().zip(values);
        let facts = DeclaredFacts {
            user: user.ok().flatten(),
            metrics: named.filter_map(|(metric, value)| Some((Arc::clone(&metric.name), value?))).collect(),
        };
        let facts = (facts != DeclaredFacts::default()).then(|| Box::new(facts));
        let none: Arc<str> = Arc::from("");
        let span = Box::new(Span {
            id: call.span,
            trace: call.trace,
            parent: call.parent,
            linked: None,
            carrier: "",
            trace_flags: None,
            carried,
            side: Side::Server,
            protocol: ProtocolId::Declared,
            service: call.service,
            class,
            pid: call.pid,
            tid: call.tid,
            cookie: 0,
            method: Arc::from(declared.target.to_string()),
            path: Arc::clone(&none),
            version: "",
            local_port: 0,
            peer: none,
            peer_port: 0,
            encrypted: false,
            arrived: 0,
            accepted: Accepted::Before,
            pool_queue: None,
            after_reply: None,
            start: call.start,
            first_reply: 0,
            end: call.end,
            request_bytes: 0,
            reply_bytes: 0,
            reply_body_bytes: None,
            status: None,
            failure: error.then(|| kind_of_failure(declared)),
            error,
            outcome: Outcome::Complete,
            cost: call.cost.unwrap_or_default(),
            downstream: 0,
            calls: 0,
            grade: Grade::Certain,
            evidence: match (call.cost, call.pairing) {
                (None, _) => "its goroutine moved to another thread: its CPU is not known",
                (_, CallPairing::Depth) => "entry and return on one stack",
                (_, CallPairing::Thread) => "two USDT probes on one thread",
                (_, CallPairing::None) => "a USDT probe",
            },
            network: None,
            opening: None,
            callee: None,
            remote: None,
            process_end: None,
            exception: None,
            thrown_at: None,
            log_lines: None,
            called_from: None,
            kept: None,
            request_id: None,
            namespace: None,
            declared: facts,
        });
        if let Some(cost) = call.cost {
            // Also part of the request or the overhead around it: not added to what was charged.
            self.spend(Owner::Class(class), cost);
        }
        self.metrics.span(&self.names, &span);
        self.stats.span(&self.names, &span);
        self.attainment.span(&self.names, &span);
        self.roots.span(&self.names, &span, declared_root(call), call.cost.unwrap_or_default());
        let Some(request) = call.request else {
            self.write_declared(*span);
            return;
        };
        match self.engine.keep_declared(request, span) {
            Ok(true) => {}
            Ok(false) => self.declared_not_kept += 1,
            Err(span) => {
                // The request around it was reported: its trace id is not known any more.
                let evidence = "its request was reported before it returned";
                self.write_declared(Span { parent: None, grade: Grade::Orphan, evidence, ..*span });
            }
        }
    }

    /// Passes the span of a declared call to the writers and the store; it was counted when the function returned.
    pub(super) fn write_declared(&mut self, span: Span) {
        self.export(&span, span.parent.is_none());
        self.store.take(span);
    }

    /// A stack was sampled in a declared call.
    pub(super) fn declared_sample(&mut self, declared: usize, service: ServiceId, mut sample: StackSample) {
        if let Some(class) = self.declared_class(declared, service) {
            sample.owner = Owner::Class(class);
            // Of the request around it, the same sample counts once.
            sample.span = None;
            self.profiles.sample(&self.names, &sample);
        }
    }
}
