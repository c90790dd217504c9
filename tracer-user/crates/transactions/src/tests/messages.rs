//! Messages: the side of a span on connections where either end may send requests, and the cost of a consumer's work.

use tracer_model::Side;

use super::*;

const INFO: &str = "INFO {\"server_id\":\"x\"} \r\n";
const CONNECT: &str = "CONNECT {\"verbose\":false}\r\nSUB work 1\r\n";

/// A consumer's thread 5 on connection 1, which it opened.
fn consumer() -> Host {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).reads(5, 1, INFO).sends(5, 1, CONNECT).waits(5, true);
    host
}

fn of<'a>(spans: &'a [(Box<OpenSpan>, Verdicts)], method: &str) -> &'a (Box<OpenSpan>, Verdicts) {
    spans.iter().find(|(live, _)| &*live.request.method == method).unwrap_or_else(|| panic!("no {method}: {spans:?}"))
}

#[test]
fn a_consumer_serves_what_it_answers() {
    let mut host = consumer();
    host.reads(5, 1, "MSG work 1 _INBOX.a 2\r\nhi\r\n").works(5, 100).sends(5, 1, "PUB _INBOX.a 2\r\nok\r\n");
    let spans = host.finish();
    let (delivery, _) = of(&spans, "deliver");
    assert_eq!((delivery.side, delivery.cost.cpu), (Side::Server, 100));
    assert_eq!(delivery.outcome, Some(Outcome::Complete));
    assert!(delivery.first_reply > delivery.start, "{delivery:?}");
}

#[test]
fn work_after_a_message_that_nothing_answers_is_its_class() {
    let mut host = consumer();
    host.reads(5, 1, "MSG work 1 2\r\nhi\r\n").works(5, 100);
    // It makes a call on behalf of the message.
    host.opens(2, (0, 0)).sends(5, 2, GET).waits(5, true).reads(5, 2, OK).works(5, 30).waits(5, true);
    host.reads(5, 1, "PING\r\n");
    let spans = host.finish();
    let (delivery, _) = of(&spans, "deliver");
    // The call's parent is ambiguous: work after its reply is unattributed.
    assert_eq!((delivery.side, delivery.cost.cpu), (Side::Server, 100));
    let (call, verdicts) = of(&spans, "GET");
    assert_eq!((verdicts.parent, verdicts.grade), (None, Grade::Ambiguous), "{call:?}");
}

#[test]
fn a_brokers_calls_to_consumers_have_no_parent() {
    let mut host = Host::new(Limits::default());
    // Thread 7 of the broker reads a publication and delivers it at once.
    host.opens(3, (0, 0)).sends(7, 3, INFO).reads(7, 3, CONNECT);
    host.opens(4, (0, 0)).sends(7, 4, INFO).reads(7, 4, "CONNECT {}\r\n").sends(7, 4, "+OK\r\n").waits(7, true);
    host.reads(7, 4, "PUB work 2\r\nhi\r\n").works(7, 50).sends(7, 3, "MSG work 1 2\r\nhi\r\n");
    host.works(7, 10).sends(7, 4, "+OK\r\n");
    let spans = host.finish();
    let (publication, _) = of(&spans, "publish");
    assert_eq!((publication.side, publication.cost.cpu), (Side::Server, 60));
    let (delivery, verdicts) = of(&spans, "deliver");
    assert_eq!((delivery.side, verdicts.parent, verdicts.grade), (Side::Client, None, Grade::Certain));
    assert_ne!(delivery.trace, publication.trace);
}

#[test]
fn both_ends_of_a_delivery_are_joined() {
    let mut host = Host::new(Limits::default());
    // The broker accepted what the consumer opened: both ends know the accepting end's initial sequence number.
    let (accepting, opening) = (7000, 9000);
    host.opens(1, (opening, accepting)).opens(2, (accepting, opening));
    host.moves(50, 7, 2, true, accepting + 1, INFO).moves(60, 5, 1, false, accepting + 1, INFO);
    host.moves(60, 5, 1, true, opening + 1, CONNECT).moves(50, 7, 2, false, opening + 1, CONNECT);
    let at = accepting + 1 + INFO.len() as u32;
    let message = "MSG work 1 _INBOX.a 2\r\nhi\r\n";
    host.moves(50, 7, 2, true, at, message).moves(60, 5, 1, false, at, message);
    let spans = host.finish();
    let deliveries = |side| spans.iter().find(|(live, _)| live.side == side && &*live.request.method == "deliver");
    let (Some((sent, _)), Some((read, verdicts))) = (deliveries(Side::Client), deliveries(Side::Server)) else {
        panic!("{spans:?}");
    };
    assert_eq!((verdicts.parent, read.trace), (Some(sent.id), sent.trace));
}
