//! What the messaging protocols share. They are not request and reply everywhere, so a span is
//!
//! - `publish`: a message goes to the broker. Its outcome is the broker's acknowledgement or refusal where the client
//!   asked for one; otherwise the span is complete once the message is sent;
//! - `deliver`: a message goes from the broker to a consumer, which is the serving side: the span covers the consumer's
//!   work on the message. Its outcome is the acknowledgement, the refusal or the answer, if there is one;
//! - `request`: a publication that asks for an answer by another message;
//! - the few other operations with replies, under names of their own. Kafka's operations are all requests with replies.
//!
//! Names and types of operations are those of OpenTelemetry's semantic conventions for messaging (1.40). Only the
//! `traceparent` in a message links a consumer to the producer; a batch of messages links to as many producers
//! ([`Linked`](tracer_model::Linked)).

use std::sync::Arc;

use tracer_model::{ProtocolId, Side, Span};

use super::{ExpectedReply, Request, Settings};

/// A message goes to the broker.
pub const PUBLISH: &str = "publish";
/// The same, answered by another message.
pub const REQUEST: &str = "request";
/// A message goes to a consumer.
pub const DELIVER: &str = "deliver";
/// A worker works on a job that it took from a queue ([`super::jobs`]).
pub const PROCESS: &str = "process";
/// A client logs in.
pub const CONNECT: &str = "connect";
/// A client subscribes to messages.
pub const SUBSCRIBE: &str = "subscribe";
/// A client unsubscribes.
pub const UNSUBSCRIBE: &str = "unsubscribe";
/// A client asks for one message.
pub const GET: &str = "get";
/// Usual names of operations.
pub(super) const OPERATIONS: &[&str] = &[PUBLISH, DELIVER, PROCESS, REQUEST, CONNECT, SUBSCRIBE, UNSUBSCRIBE, GET];

/// Placeholder for the names of inboxes.
pub const INBOX: &str = "{inbox}";

/// Longest destination kept, bytes.
const DESTINATION: usize = 256;

/// A request about a destination, with everything else empty.
pub(super) fn request(
    operation: &str,
    destination: &[u8],
    expected: ExpectedReply,
    settings: &Settings,
) -> Box<Request> {
    Box::new(Request {
        method: settings.method(operation),
        path: text(destination),
        target: 0,
        host: None,
        version: "",
        traceparent: None,
        carried: None,
        request_id: None,
        headers: Vec::new(),
        session: None,
        namespace: None,
        expected,
        cut: destination.len() > DESTINATION,
    })
}

/// A destination as text: bounded, control characters replaced.
pub(super) fn text(bytes: &[u8]) -> Arc<str> {
    let bytes = bytes.get(..bytes.len().min(DESTINATION)).unwrap_or_default();
    let text = String::from_utf8_lossy(bytes);
    if text.chars().any(char::is_control) {
        return text.replace(char::is_control, "\u{fffd}").into();
    }
    text.into()
}

/// Whether the span is a consumer's processing of a message.
pub fn is_processing(span: &Span) -> bool {
    span.side == Side::Server && operation_type(&span.method) == "process"
}

/// Whether the span is a client's work, not a broker's.
pub fn is_of_client(span: &Span) -> bool {
    (span.side == Side::Client) != (operation_type(&span.method) == "process")
}

/// `messaging.operation.type` of an operation; empty where it has none.
pub fn operation_type(operation: &str) -> &'static str {
    match operation {
        PUBLISH | REQUEST | "Produce" => "send",
        DELIVER | PROCESS => "process",
        GET | "Fetch" | "ShareFetch" => "receive",
        "OffsetCommit" | "TxnOffsetCommit" | "ShareAcknowledge" => "settle",
        _ => "",
    }
}

/// `messaging.system` of a protocol.
pub fn system(protocol: ProtocolId) -> &'static str {
    match protocol {
        ProtocolId::Amqp => "rabbitmq",
        // Only Redis' queues are read.
        ProtocolId::Job => ProtocolId::Redis.name(),
        _ => protocol.name(),
    }
}

/// Whether a destination consists of words, some of which are variable. Kafka's topics are plain names.
pub fn has_words(protocol: ProtocolId) -> bool {
    protocol != ProtocolId::Kafka
}

/// A destination without the name of the job in it, which is that of a class or a function: none of its words vary.
pub fn without_job(protocol: ProtocolId, destination: &str) -> (&str, Option<&str>) {
    match destination.split_once(' ') {
        Some((queue, job)) if protocol == ProtocolId::Job => (queue, Some(job)),
        _ => (destination, None),
    }
}

/// Words of a destination, without separators: levels of a topic, tokens of a subject. An exchange is one word. Reply
/// addresses made up by clients count as one variable.
pub fn words(protocol: ProtocolId, destination: &str) -> Vec<&str> {
    for inbox in ["_INBOX.", "amq.gen-", "amq.rabbitmq.reply-to.", "/reply-queue/", "/temp-queue/"] {
        if protocol != ProtocolId::Mqtt && destination.starts_with(inbox) {
            return vec![destination.get(..inbox.len() - 1).unwrap_or_default(), INBOX];
        }
    }
    let separators = separators(protocol);
    match destination.split_once(':') {
        Some((exchange, key)) if protocol == ProtocolId::Amqp => {
            [exchange].into_iter().chain(key.split(separators)).collect()
        }
        _ => destination.split(separators).collect(),
    }
}

/// Joins the words of `destination`, or their placeholders, again.
pub fn template(protocol: ProtocolId, destination: &str, words: &[impl AsRef<str>]) -> String {
    let mut out = String::new();
    let separators = separators(protocol);
    let mut between = destination.matches(separators).filter_map(|text| text.chars().next());
    for (at, word) in words.iter().enumerate() {
        match at {
            0 => {}
            1 if protocol == ProtocolId::Amqp && destination.contains(':') => out.push(':'),
            _ => out.extend(between.next().or(separators.first().copied())),
        }
        out.push_str(word.as_ref());
    }
    out
}

/// What stands between the words of a destination.
fn separators(protocol: ProtocolId) -> &'static [char] {
    match protocol {
        ProtocolId::Mqtt => &['/'],
        // Those of RabbitMQ's destinations, and of the routing keys at their ends.
        ProtocolId::Stomp => &['/', '.'],
        // Libraries and their users choose the names of lists.
        ProtocolId::Job => &[':', '.', '/'],
        _ => &['.'],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_come_apart_and_together() {
        for (protocol, destination, expected) in [
            (ProtocolId::Nats, "orders.17.created", "orders|17|created"),
            (ProtocolId::Nats, "_INBOX.5KpQzWnTVmCcXqYj0aLb3d.7", "_INBOX|{inbox}"),
            (ProtocolId::Mqtt, "/a//b.c", "|a||b.c"),
            (ProtocolId::Amqp, "events:user.17.made", "events|user|17|made"),
            (ProtocolId::Amqp, "queue", "queue"),
            (ProtocolId::Stomp, "/exchange/events/user.17.made", "|exchange|events|user|17|made"),
            (ProtocolId::Stomp, "/reply-queue/amq.gen-JzTY20BRgKO", "/reply-queue|{inbox}"),
            (ProtocolId::Job, "mail:eu.4711", "mail|eu|4711"),
            (ProtocolId::Amqp, "amq.gen-JzTY20BRgKO-HjmUJj0wLg", "amq.gen|{inbox}"),
        ] {
            let words = words(protocol, destination);
            assert_eq!(words.join("|"), expected);
            let whole = template(protocol, destination, &words);
            assert!(whole == destination || whole.ends_with("{inbox}"), "{whole}");
        }
    }

    #[test]
    fn destinations_are_bounded_and_show_no_controls() {
        assert_eq!(text(&[b'x'; 9999]).len(), DESTINATION);
        assert_eq!(&*text(b"a\x1b[31mb\xff"), "a\u{fffd}[31mb\u{fffd}");
    }
}
