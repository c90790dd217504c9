//! gRPC calls whose heads do not show that they are.

use super::*;

/// A call whose head has a token of `bytes` bytes before its content type, which is added to the table.
fn call_with_token(path: &str, bytes: usize) -> Vec<u8> {
    let mut token = vec![0x00, 0x0d];
    token.extend(b"authorization");
    token.push(0x7f);
    let mut left = bytes - 0x7f;
    while left >= 0x80 {
        token.push(left as u8 | 0x80);
        left >>= 7;
    }
    token.push(left as u8);
    token.extend(vec![b't'; bytes]);
    [&[0x83, 0x86][..], &field(":path", path), &token, &field("content-type", "application/grpc+proto")].concat()
}

/// A call that names path and content type by their indexes, the newest two entries of the table.
fn call_by_index() -> Vec<u8> {
    vec![0x83, 0x86, 0xbf, 0xbe]
}

fn reply(key: u32, code: &str) -> Op {
    let head = [OK, &field("content-type", "application/grpc+proto")].concat();
    tx(&[headers(0, key, &head), data(false, key, 7), headers(END_STREAM, key, &field("grpc-status", code))])
}

/// The lines of each request, after its protocol.
fn play_named(midstream: bool, ops: &[Op]) -> Vec<String> {
    let mut conversation = ConnectionParser::new(midstream);
    let events = play(&mut conversation, ops);
    let protocols = events.iter().filter_map(|event| match event {
        ExchangeEvent::Begun { protocol, .. } => Some(protocol.name()),
        _ => None,
    });
    let protocols: Vec<&str> = protocols.collect();
    let lines = summary(&events);
    let (requests, others): (Vec<String>, Vec<String>) = lines.into_iter().partition(|line| line.contains(" @"));
    let requests = protocols.iter().zip(requests).map(|(name, line)| format!("{name} {line}"));
    requests.chain(others).collect()
}

#[test]
fn a_connection_stays_grpc_after_a_head_that_was_cut() {
    let first = rx(&[preface(), headers(0, 1, &call("/shop.Cart/Add")), data(true, 1, 10)]);
    let cut =
        Op { captured: 2000, ..rx(&[headers(0, 3, &call_with_token("/shop.Cart/Add", 6000)), data(true, 3, 10)]) };
    let ops = [
        first,
        reply(1, "0"),
        cut,
        reply(3, "5"),
        rx(&[headers(0, 5, &call_by_index()), data(true, 5, 10)]),
        reply(5, "10"),
        rx(&[headers(0, 7, &call_by_index()), data(true, 7, 10)]),
        // Its end is lost.
        tx(&[headers(0, 7, OK)]),
    ];
    let lines = play_named(false, &ops);
    let found: Vec<&str> = lines.iter().map(|line| line.split(" complete").next().unwrap()).collect();
    assert_eq!(
        found,
        [
            "grpc POST /shop.Cart/Add @1 -> 65535 @2 = 0 ok",
            "grpc POST /shop.Cart/Add @3 -> 65535 @4 = 5 NOT_FOUND",
            "grpc _UNNAMED  @5 -> 65535 @6 = 10 ABORTED",
            "grpc _UNNAMED  @7 -> 65535 @8",
            "cut 1",
            "lost Rx 19",
            "unnamed",
            "unnamed",
        ]
    );
}

#[test]
fn a_first_head_that_was_cut_is_judged_by_its_reply() {
    let cut = Op {
        captured: 2000,
        ..rx(&[preface(), headers(0, 1, &call_with_token("/shop.Cart/Add", 6000)), data(true, 1, 10)])
    };
    let ops = [cut, reply(1, "5"), rx(&[headers(0, 3, &call_by_index()), data(true, 3, 10)]), reply(3, "0")];
    let lines = play_named(false, &ops);
    assert!(
        lines[0].starts_with("http POST /shop.Cart/Add @1 -> 65535 @2 = 5 NOT_FOUND of grpc complete"),
        "{lines:?}"
    );
    assert!(lines[1].starts_with("grpc _UNNAMED  @3 -> 65535 @4 = 0 ok complete"), "{lines:?}");
}

#[test]
fn a_call_of_a_connection_joined_in_its_middle_is_no_success_when_its_trailers_are_unreadable() {
    let head = [&[0x83, 0x86][..], &field(":path", "/shop.Cart/Add"), &[0xc5]].concat();
    let ops = [
        rx(&[headers(0, 301, &head), data(true, 301, 10)]),
        tx(&[headers(0, 301, &[OK, &[0xc5]].concat()), data(false, 301, 7), headers(END_STREAM, 301, &[0xc4])]),
        // What else the connection does is known by then.
        rx(&[headers(0, 303, &head), data(true, 303, 10)]),
        tx(&[headers(0, 303, &[OK, &[0xc5]].concat()), data(false, 303, 7), headers(END_STREAM, 303, &[0xc4])]),
    ];
    let lines = play_named(true, &ops);
    assert!(lines[0].starts_with("http POST /shop.Cart/Add @1 -> 200 @2 = 65535 ok of grpc complete"), "{lines:?}");
    assert!(lines[1].starts_with("grpc POST /shop.Cart/Add @3 -> 65535 @4 complete"), "{lines:?}");
}

#[test]
fn other_requests_on_a_connection_with_calls_stay_what_they_are() {
    let json = [&[0x83, 0x86][..], &field(":path", "/json"), &field("content-type", "application/json")].concat();
    let unknown = [&[0x83, 0x86][..], &field(":path", "/unknown"), &[0xf0]].concat();
    let ok_json = [OK, &field("content-type", "application/json")].concat();
    let ops = [
        rx(&[preface(), headers(0, 1, &call("/shop.Cart/Add")), data(true, 1, 10)]),
        reply(1, "0"),
        rx(&[headers(0, 3, &json), data(true, 3, 10)]),
        tx(&[headers(0, 3, &ok_json), data(true, 3, 10)]),
        rx(&[headers(END_STREAM, 5, &get("/page"))]),
        tx(&[headers(0, 5, OK), data(true, 5, 10)]),
        // Its content type is unknown; its reply's is not.
        rx(&[headers(0, 7, &unknown), data(true, 7, 10)]),
        tx(&[headers(0, 7, &ok_json), data(true, 7, 10)]),
        rx(&[headers(0, 9, &unknown), data(true, 9, 10)]),
        reply(9, "5"),
    ];
    let lines = play_named(false, &ops);
    let found: Vec<&str> = lines.iter().map(|line| line.split(" complete").next().unwrap()).collect();
    assert_eq!(
        found,
        [
            "grpc POST /shop.Cart/Add @1 -> 65535 @2 = 0 ok",
            "http POST /json @3 -> 200 @4",
            "http GET /page @5 -> 200 @6",
            "http POST /unknown @7 -> 200 @8",
            "http POST /unknown @9 -> 65535 @10 = 5 NOT_FOUND of grpc",
        ]
    );
}

#[test]
fn a_target_that_was_not_captured_whole_has_its_beginning() {
    let target = format!("/api/users?{}", "q".repeat(9000));
    let mut block = vec![0x82, 0x86, 0x04, 0x7f];
    let mut left = target.len() - 0x7f;
    while left >= 0x80 {
        block.push(left as u8 | 0x80);
        left >>= 7;
    }
    block.push(left as u8);
    block.extend(target.bytes());
    let cut = Op { captured: 4096, ..rx(&[preface(), headers(END_STREAM, 1, &block)]) };
    let mut conversation = ConnectionParser::new(false);
    let events = play(&mut conversation, &[cut, tx(&[headers(END_STREAM, 1, OK)])]);
    let lines = summary(&events);
    assert!(lines[1].starts_with("GET /api/users @1 -> 200 @2 complete"), "{lines:?}");
    let target = events.iter().find_map(|event| match event {
        ExchangeEvent::Begun { request, .. } => Some(request.target),
        _ => None,
    });
    assert_eq!(target, Some(0), "whether another target is the same one is unknown");
}
