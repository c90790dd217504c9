//! How long replies end, whose front and end alone are captured.

use super::*;

/// The front of a long reply.
fn long_rows() -> Vec<u8> {
    [columns(), vec![row(&[b'z'; 60]); 40].concat()].concat()
}

#[test]
fn an_error_behind_long_rows_is_found_whatever_carries_it() {
    let failed = || error("ERROR", "22012");
    let short = |bytes: &[u8]| bytes.to_vec();
    // As servers send it: rows and error, then what ends the reply. Or together, or the error cut anywhere.
    let mut cases = vec![
        (vec![cap(tx(&[long_rows(), failed()]), 1024), tx(&[ready(b'I')])], "22012"),
        (vec![cap(tx(&[long_rows(), failed(), ready(b'I')]), 1024)], "22012"),
        (vec![cap(tx(&[long_rows()]), 1024), tx(&[failed()]), tx(&[ready(b'T')])], "22012"),
        (vec![cap(tx(&[long_rows()]), 1024), tx(&[failed(), ready(b'E')])], "22012"),
    ];
    for cut in 1..failed().len() {
        let (front, rest) = (short(&failed()[..cut]), short(&failed()[cut..]));
        cases.push((vec![cap(tx(&[long_rows(), front]), 1024), tx(&[rest]), tx(&[ready(b'I')])], "22012"));
    }
    // An error longer than what is captured of an operation's end.
    let long = message(b'E', format!("SERROR\0VERROR\0C22012\0M{}\0Fint.c\0L1\0Rdiv\0\0", "y".repeat(80)).as_bytes());
    cases.push((vec![cap(tx(&[long_rows(), long.clone()]), 1024), tx(&[ready(b'I')])], "_OTHER"));
    cases.push((vec![cap(tx(&[long_rows(), long.clone(), ready(b'I')]), 1024)], "_OTHER"));
    cases.push((vec![cap(tx(&[long_rows()]), 1024), tx(&[long]), tx(&[ready(b'I')])], "22012"));
    // Successes, with what may come between the answer and ReadyForQuery.
    let notice = message(b'N', b"SNOTICE\0Mplanted\0\0");
    let changed = message(b'S', b"TimeZone\0UTC\0");
    let end = || [complete("SELECT 40"), notice.clone(), changed.clone()].concat();
    cases.push((vec![cap(tx(&[long_rows(), complete("SELECT 40"), ready(b'I')]), 1024)], "ok"));
    cases.push((vec![cap(tx(&[long_rows(), end()]), 1024), tx(&[ready(b'I')])], "ok"));
    cases.push((vec![cap(tx(&[long_rows()]), 1024), tx(&[end(), ready(b'T')])], "ok"));
    for (answer, wanted) in cases {
        let mut ops = vec![rx(&[query("SELECT * FROM a")])];
        let count = answer.len();
        ops.extend(answer);
        ops.extend([rx(&[query("SELECT * FROM b")]), tx(&[ran(1), ready(b'I')])]);
        let found = event_lines(&play_with(&mut ConnectionParser::new(false), &ops, TAIL_MAX));
        let at = 2 + count;
        assert_eq!(
            found,
            [
                format!("SELECT SELECT a @1 -> {wanted} @2 complete @{}", 1 + count),
                format!("SELECT SELECT b @{at} -> ok @{} complete @{}", at + 1, at + 1)
            ]
        );
    }
}

#[test]
fn how_a_long_reply_ended_is_unknown_where_that_was_not_captured() {
    let rows = cap(tx(&[long_rows()]), 1024);
    let missed = Op { captured: 0, ..tx(&[vec![b'z'; 300]]) };
    // The operation before ReadyForQuery was captured without its end.
    let ops = [rx(&[query("SELECT * FROM a")]), rows, missed, tx(&[ready(b'I')]), rx(&[query("SELECT 1")])];
    let found = event_lines(&play_with(&mut ConnectionParser::new(false), &ops, TAIL_MAX));
    assert_eq!(found[0], "SELECT SELECT a @1 unfinished @4", "{found:?}");
    // A client that listens may get a notification without payload, which ends like an error.
    let notified = message(b'A', b"\0\0\0\x07planted_channel\0\0");
    let ops = [
        rx(&[query("LISTEN planted_channel")]),
        tx(&[complete("LISTEN"), ready(b'I')]),
        rx(&[query("SELECT * FROM a")]),
        cap(tx(&[long_rows(), complete("SELECT 40"), notified.clone(), ready(b'I')]), 1024),
        rx(&[query("SELECT * FROM b")]),
        cap(tx(&[long_rows(), complete("SELECT 40"), notified.clone(), notified, ready(b'I')]), 1024),
    ];
    let found = event_lines(&play_with(&mut ConnectionParser::new(false), &ops, TAIL_MAX));
    assert_eq!(found[1], "SELECT SELECT a @3 -> ok @4 complete @4", "{found:?}");
    assert_eq!(found[2], "SELECT SELECT b @5 unfinished @6", "{found:?}");
}

#[test]
fn a_long_description_of_columns_is_no_error() {
    let wide = message(b'T', &[&[0, 90][..], &[&b"column_name\0"[..], &[0; 18]].concat().repeat(90)].concat());
    let prepare = [parse("s", "SELECT * FROM a"), describe(b'S', "s"), sync()];
    let answer = [message(b'1', b""), message(b't', &[0, 0]), wide, ready(b'I')];
    let ops = [rx(&prepare), cap(tx(&answer), 1024)];
    let found = event_lines(&play_with(&mut ConnectionParser::new(false), &ops, TAIL_MAX));
    assert_eq!(found, ["PREPARE PREPARE SELECT a @1 -> ok @2 complete @2"]);
}
