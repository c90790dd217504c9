//! Attributes of a span by OpenTelemetry's conventions, else `tracer.…`. Never a query string or a body.

use std::borrow::Cow;

use serde::ser::{Serialize, SerializeMap, Serializer};
use tracer_model::text::printable;
use tracer_model::{CallSite, ClassInfo, CodePlace, DeclaredValue, Outcome, ProcessEnd, ProtocolId, Side, Span};
use tracer_protocols::{Conventions, grpc, http1, messaging};

use super::view::seconds;

/// Value of an attribute, safe to display.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub enum AttributeValue<'a> {
    /// A text.
    Text(&'a str),
    /// A count or a size.
    Count(u64),
    /// Any whole number.
    Int(i64),
    /// Seconds.
    Seconds(f64),
    /// Yes or no.
    Bool(bool),
}

impl<'a> From<&'a str> for AttributeValue<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl From<ProtocolId> for AttributeValue<'_> {
    fn from(protocol: ProtocolId) -> Self {
        Self::Text(protocol.name())
    }
}

impl From<u16> for AttributeValue<'_> {
    fn from(count: u16) -> Self {
        Self::Count(count.into())
    }
}

impl From<u32> for AttributeValue<'_> {
    fn from(count: u32) -> Self {
        Self::Count(count.into())
    }
}

impl From<u64> for AttributeValue<'_> {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<i64> for AttributeValue<'_> {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<f64> for AttributeValue<'_> {
    fn from(seconds: f64) -> Self {
        Self::Seconds(seconds)
    }
}

impl From<bool> for AttributeValue<'_> {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

/// The attributes of a span. Serializes as a map, without one in memory: every span of a busy host is written and
/// exported.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// Its class, if known.
    pub class: Option<&'a ClassInfo>,
    /// The span.
    pub span: &'a Span,
}

impl Attributes<'_> {
    /// Hands every attribute to `give`; no name comes twice.
    pub fn each(&self, give: &mut dyn FnMut(&str, AttributeValue<'_>)) {
        each(self.class, self.span, &mut Setter { give });
    }

    /// The text of one; empty if there is none of that name, or it is no text.
    pub fn text(&self, name: &str) -> String {
        let mut found = String::new();
        self.each(&mut |given, value| {
            if let (true, AttributeValue::Text(text)) = (given == name, value) {
                text.clone_into(&mut found);
            }
        });
        found
    }
}

impl Serialize for Attributes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let mut refused = Ok(());
        self.each(&mut |name, value| {
            if refused.is_ok() {
                refused = map.serialize_entry(name, &value);
            }
        });
        refused?;
        map.end()
    }
}

/// Where attributes go.
struct Setter<'a> {
    give: &'a mut dyn FnMut(&str, AttributeValue<'_>),
}

impl Setter<'_> {
    /// Makes both safe to display.
    fn set<'v>(&mut self, name: &str, value: impl Into<AttributeValue<'v>>) {
        match value.into() {
            AttributeValue::Text(text) => (self.give)(&printable(name), AttributeValue::Text(&printable(text))),
            value => (self.give)(&printable(name), value),
        }
    }
}

fn scheme(span: &Span) -> &'static str {
    if span.encrypted { "https" } else { "http" }
}

/// The address a client asked for, without query: what it named the server is not kept, so its numeric address stands for
/// it. `None` for servers, and where there is no address.
fn full_url(span: &Span) -> Option<String> {
    if span.side == Side::Server || span.peer_port == 0 || !span.path.starts_with('/') {
        return None;
    }
    let address: std::net::IpAddr = span.peer.parse().ok()?;
    let address = std::net::SocketAddr::new(address, span.peer_port);
    Some(format!("{}://{address}{}", scheme(span), span.path))
}

/// `error.type` of a span that failed.
pub(super) fn error_type(span: &Span) -> Option<Cow<'static, str>> {
    let known = match (span.outcome, span.status) {
        _ if !span.error => return None,
        _ if span.protocol == ProtocolId::Grpc => grpc::error_type(span),
        _ if span.protocol.conventions() == Conventions::Names => span.failure.unwrap_or(span.end_type()),
        (Outcome::Aborted, _) => span.end_type(),
        (_, Some(status)) => return Some(status.to_string().into()),
        (_, None) => span.failure.unwrap_or(span.outcome.name()),
    };
    Some(known.into())
}

/// Where an exception was thrown: the function of the application, and the whole stack.
fn thrown_at(site: &CallSite, all: &mut Setter<'_>) {
    if let Some(place) = site.place() {
        all.set("tracer.exception.function.name", &*place.function);
        if let Some(file) = &place.file {
            all.set("tracer.exception.file.path", &**file);
        }
        if place.line != 0 {
            all.set("tracer.exception.line.number", place.line);
        }
    }
    if !site.stack().is_empty() {
        // Its lines are the only control characters that text of spans has.
        let stack: Vec<String> = site.stack().iter().map(|place| printable(&stack_line(place)).into_owned()).collect();
        (all.give)("exception.stacktrace", AttributeValue::Text(&stack.join("\n")));
    }
}

/// A frame of a stack, as Java and JavaScript write it.
fn stack_line(CodePlace { function, file, line }: &CodePlace) -> String {
    match (file, line) {
        (None, _) => format!("at {function}"),
        (Some(file), 0) => format!("at {function} ({file})"),
        (Some(file), line) => format!("at {function} ({file}:{line})"),
    }
}

fn each(class: Option<&ClassInfo>, span: &Span, all: &mut Setter<'_>) {
    let conventions = span.protocol.conventions();
    if conventions == Conventions::Database {
        all.set("db.system.name", span.protocol);
        all.set("db.operation.name", &*span.method);
        if !span.path.is_empty() {
            all.set("db.query.summary", &*span.path);
        }
        if let Some(namespace) = &span.namespace {
            all.set("db.namespace", &**namespace);
        }
        if let Some(collection) = span.collection() {
            all.set("db.collection.name", collection);
        }
        all.set("tracer.request.size", span.request_bytes);
        all.set("tracer.response.size", span.reply_bytes);
        if let Some(failure) = span.failure {
            all.set("db.response.status_code", failure);
        }
    } else if conventions == Conventions::Messaging {
        all.set("messaging.system", messaging::system(span.protocol));
        all.set("messaging.operation.name", &*span.method);
        let kind = messaging::operation_type(&span.method);
        if !kind.is_empty() {
            all.set("messaging.operation.type", kind);
        }
        if !span.path.is_empty() {
            all.set("messaging.destination.name", &*span.path);
        }
        if let Some(class) = class.filter(|class| !class.route.is_empty()) {
            all.set("messaging.destination.template", &*class.route);
        }
        all.set("tracer.request.size", span.request_bytes);
        all.set("tracer.response.size", span.reply_bytes);
    } else if matches!(conventions, Conventions::Names | Conventions::RoundTrips) {
        if conventions == Conventions::Names {
            all.set("tracer.dns.question.type", &*span.method);
            if let Some(name) = span.collection() {
                all.set("dns.question.name", name);
            }
        } else if span.protocol == ProtocolId::Tls {
            if let Some(name) = span.collection() {
                all.set("server.address", name);
            }
            if !span.version.is_empty() {
                all.set("tracer.tls.offered_protocols", span.version);
            }
        }
        all.set("tracer.request.size", span.request_bytes);
        all.set("tracer.response.size", span.reply_bytes);
    } else if conventions == Conventions::Function {
        all.set("code.function.name", &*span.method);
    } else if conventions == Conventions::Rpc {
        all.set("rpc.system.name", grpc::NAME);
        all.set("rpc.method", grpc::method(&span.path));
        if let Some(word) = span.status.and_then(grpc::word) {
            all.set("rpc.response.status_code", word);
        }
        all.set("tracer.request.size", span.request_bytes);
        all.set("tracer.response.size", span.reply_bytes);
    } else {
        let method = http1::conventional_method(&span.method);
        all.set("http.request.method", method);
        if *method != *span.method {
            all.set("http.request.method_original", &*span.method);
        }
        all.set("url.path", &*span.path);
        all.set("url.scheme", scheme(span));
        if let Some(url) = full_url(span) {
            all.set("url.full", &*url);
        }
        all.set("network.protocol.version", span.version);
        all.set("http.request.size", span.request_bytes);
        all.set("http.response.size", span.reply_bytes);
        if let Some(bytes) = span.reply_body_bytes {
            all.set("http.response.body.size", bytes);
        }
    }
    // Calls have none in the conventions: `rpc.system.name` says it.
    if conventions != Conventions::Rpc {
        all.set("network.protocol.name", span.protocol);
    }
    all.set("thread.id", span.tid);
    all.set("tracer.outcome", span.outcome.name());
    let is_http = matches!(conventions, Conventions::Http | Conventions::Session);
    if let Some(class) = class.filter(|class| is_http && !class.route.is_empty()) {
        // A route is the server's; what a client knows is a template of the address it asked for.
        all.set(if span.side == Side::Server { "http.route" } else { "url.template" }, &*class.route);
    }
    if let Some(status) = span.status.filter(|_| span.protocol != ProtocolId::Grpc) {
        all.set("http.response.status_code", status);
    }
    if let Some(kind) = error_type(span) {
        all.set("error.type", &*kind);
    }
    match span.process_end {
        Some(ProcessEnd::ExitCode(code)) => all.set("process.exit.code", i64::from(code)),
        Some(end @ ProcessEnd::Signal(_)) => all.set("tracer.process.signal", end.error_type()),
        None => {}
    }
    if let Some(kind) = &span.exception {
        all.set("exception.type", &**kind);
    }
    if let Some(site) = &span.thrown_at {
        thrown_at(site, all);
    }
    if span.first_reply != 0 {
        all.set("tracer.first_reply.time", seconds(span.first_reply.saturating_sub(span.start)));
    }
    let port = if span.side == Side::Server { span.local_port } else { span.peer_port };
    if port != 0 {
        all.set("server.port", port);
    }
    if !span.peer.is_empty() {
        all.set("network.peer.address", &*span.peer);
        all.set("network.peer.port", span.peer_port);
        let is_named = span.protocol == ProtocolId::Tls && span.collection().is_some();
        if is_named {
            // By the name that the client asked for.
        } else if span.side == Side::Client {
            all.set("server.address", &*span.peer);
        } else if matches!(conventions, Conventions::Http | Conventions::Rpc) {
            all.set("client.address", &*span.peer);
        }
    }
    if let Some(network) = span.network {
        all.set("tracer.rtt.time", f64::from(network.rtt_us) / 1e6);
        all.set("tracer.rtt.min.time", f64::from(network.rtt_min_us) / 1e6);
        if let Some(retransmits) = network.retransmits {
            all.set("tracer.retransmits", retransmits);
        }
    }
    if let Some(opening) = &span.opening {
        if let Some(nanos) = opening.connect_time() {
            all.set("tracer.connect.time", seconds(nanos));
        }
        if let Some(nanos) = opening.handshake_time() {
            all.set("tracer.tls.handshake.time", seconds(nanos));
        }
    }
    if let Some(place) = span.called_from.as_ref().and_then(|site| site.place()) {
        all.set("code.function.name", &*place.function);
        if let Some(file) = &place.file {
            all.set("code.file.path", &**file);
        }
        if place.line != 0 {
            all.set("code.line.number", place.line);
        }
    }
    if let Some(reason) = span.kept.and_then(|kept| kept.because) {
        all.set("tracer.kept_because", reason.name());
    }
    if let Some(flags) = span.trace_flags {
        all.set("tracer.parent.sampled", flags.is_sampled());
    }
    if let Some(carried) = span.carried.as_ref().filter(|carried| !carried.service_class.is_empty()) {
        all.set("tracer.service_class", &*carried.service_class);
    }
    for (name, value) in span.carried.iter().flat_map(|carried| &carried.baggage) {
        all.set(&format!("baggage.{name}"), &**value);
    }
    if let Some(remote) = &span.remote {
        all.set("tracer.remote.host", &*remote.host);
        if !remote.service.is_empty() {
            all.set("tracer.caller.service", &*remote.service);
            all.set("tracer.caller.class", &*remote.class);
        }
        if let Some(end) = &remote.end {
            all.set("tracer.remote.span_id", &*end.span.to_string());
            all.set("tracer.remote.time", seconds(end.duration));
            all.set("tracer.remote.queue.time", seconds(end.queue));
            all.set("tracer.remote.cpu.time", seconds(end.cpu));
            all.set("tracer.network.time", seconds(end.network));
        }
    }
    if let Some(id) = &span.request_id {
        all.set("http.request.header.x-request-id", &**id);
    }
    if let Some(facts) = &span.declared {
        if let Some(user) = &facts.user {
            all.set("enduser.id", &**user);
        }
        for (name, value) in &facts.metrics {
            let name = format!("tracer.metric.{name}");
            match value {
                // What 64 bits do not hold cannot come from a register.
                DeclaredValue::Number(number) => match i64::try_from(*number) {
                    Ok(number) => all.set(&name, number),
                    Err(_) => all.set(&name, &*number.to_string()),
                },
                DeclaredValue::Text(text) => all.set(&name, &**text),
            }
        }
    }
}
