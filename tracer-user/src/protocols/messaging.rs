//! What messaging protocols share. Theirs is not request and reply everywhere, so a unit of work is
//!
//! - `publish`: a message goes to the broker. Its outcome is the broker's word where one is asked for (an acknowledgement, a
//!   refusal); where none is, it is complete when it was sent;
//! - `deliver`: a message goes from the broker to a consumer, which is the serving side of it: what it does with the message is
//!   the work. The outcome is its acknowledgement, its refusal or its answer, where there is one;
//! - `request`: a publication that asks for an answer by another message;
//! - the few others that have replies, under names of their own. Kafka's are requests and replies throughout: theirs.
//!
//! Names and types of operations are those of OpenTelemetry's semantic conventions for messaging (1.40). A consumer is linked to
//! the producer by the `traceparent` a message carries, and by nothing else: where many messages move at once, to as many
//! producers ([`Linked`](crate::model::Linked)).

use std::sync::Arc;

use super::{Asked, Request, Settings};
use crate::model::{Side, Unit};

/// A message goes to the broker.
pub const PUBLISH: &str = "publish";
/// The same, and is answered by another message.
pub const REQUEST: &str = "request";
/// A message goes to a consumer.
pub const DELIVER: &str = "deliver";
/// A client introduces itself.
pub const CONNECT: &str = "connect";
/// A client asks for messages to come.
pub const SUBSCRIBE: &str = "subscribe";
/// And for no more.
pub const UNSUBSCRIBE: &str = "unsubscribe";
/// A client asks for one message.
pub const GET: &str = "get";
/// Usual names of operations.
pub(super) const OPERATIONS: &[&str] = &[PUBLISH, DELIVER, REQUEST, CONNECT, SUBSCRIBE, UNSUBSCRIBE, GET];

/// Longest destination kept, bytes.
const DESTINATION: usize = 256;

/// A request about a destination, of which so much is known.
pub(super) fn request(operation: &str, destination: &[u8], asked: Asked, settings: &Settings) -> Box<Request> {
    Box::new(Request {
        method: settings.method(operation),
        path: text(destination),
        host: None,
        version: "",
        traceparent: None,
        carried: None,
        request_id: None,
        headers: Vec::new(),
        asked,
        cut: destination.len() > DESTINATION,
    })
}

/// A destination as text: bounded, without what no terminal should see.
fn text(bytes: &[u8]) -> Arc<str> {
    let bytes = bytes.get(..bytes.len().min(DESTINATION)).unwrap_or_default();
    let text = String::from_utf8_lossy(bytes);
    if text.chars().any(char::is_control) {
        return text.replace(char::is_control, "\u{fffd}").into();
    }
    text.into()
}

/// Whether a unit is the work of a consumer on a message.
pub fn is_processing(unit: &Unit) -> bool {
    unit.side == Side::Server && *unit.method == *DELIVER
}

/// Whether a unit is what a client did, and no broker.
pub fn is_of_client(unit: &Unit) -> bool {
    (unit.side == Side::Client) != (*unit.method == *DELIVER)
}

/// `messaging.operation.type` of an operation; empty where it has none.
pub fn operation_type(operation: &str) -> &'static str {
    match operation {
        PUBLISH | REQUEST | "Produce" => "send",
        DELIVER => "process",
        GET | "Fetch" | "ShareFetch" => "receive",
        "OffsetCommit" | "TxnOffsetCommit" | "ShareAcknowledge" => "settle",
        _ => "",
    }
}

/// `messaging.system` of a protocol.
pub fn system(protocol: &str) -> &str {
    if protocol == "amqp" { "rabbitmq" } else { protocol }
}

/// Whether destinations are made of words of which some are values. Kafka's topics are names.
pub fn has_words(protocol: &str) -> bool {
    protocol != "kafka"
}

/// Words of a destination and what stands between them: levels of a topic, tokens of a subject. An exchange is a word of its
/// own. What clients make up for answers is a value as a whole.
pub fn words<'a>(protocol: &str, destination: &'a str) -> Vec<&'a str> {
    for inbox in ["_INBOX.", "amq.gen-", "amq.rabbitmq.reply-to.", "/reply-queue/", "/temp-queue/"] {
        if protocol != "mqtt" && destination.starts_with(inbox) {
            return vec![destination.get(..inbox.len() - 1).unwrap_or_default(), "{inbox}"];
        }
    }
    let separator = separator(protocol);
    match destination.split_once(':') {
        Some((exchange, key)) if protocol == "amqp" => [exchange].into_iter().chain(key.split(separator)).collect(),
        _ if protocol == "stomp" => destination.split(STOMP).collect(),
        _ => destination.split(separator).collect(),
    }
}

/// Puts the words of `destination`, or what stands for them, together again.
pub fn template(protocol: &str, destination: &str, words: &[impl AsRef<str>]) -> String {
    let mut out = String::new();
    let mut between = destination.matches(STOMP).filter_map(|text| text.chars().next());
    for (at, word) in words.iter().enumerate() {
        match at {
            0 => {}
            1 if protocol == "amqp" && destination.contains(':') => out.push(':'),
            _ if protocol == "stomp" => out.push(between.next().unwrap_or('/')),
            _ => out.push(separator(protocol)),
        }
        out.push_str(word.as_ref());
    }
    out
}

/// What stands between words in STOMP: what RabbitMQ's destinations are, and the routing keys at their ends.
const STOMP: [char; 2] = ['/', '.'];

fn separator(protocol: &str) -> char {
    if protocol == "mqtt" { '/' } else { '.' }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_come_apart_and_together() {
        for (protocol, destination, expected) in [
            ("nats", "orders.17.created", "orders|17|created"),
            ("nats", "_INBOX.5KpQzWnTVmCcXqYj0aLb3d.7", "_INBOX|{inbox}"),
            ("mqtt", "/a//b.c", "|a||b.c"),
            ("amqp", "events:user.17.made", "events|user|17|made"),
            ("amqp", "queue", "queue"),
            ("stomp", "/exchange/events/user.17.made", "|exchange|events|user|17|made"),
            ("stomp", "/reply-queue/amq.gen-JzTY20BRgKO", "/reply-queue|{inbox}"),
            ("amqp", "amq.gen-JzTY20BRgKO-HjmUJj0wLg", "amq.gen|{inbox}"),
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
