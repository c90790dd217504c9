//! An arbitrary sequence of well-formed records: no panic, bounded memory, every span reported once.
use tracer_common::event::{FAMILY_INET, Header, Kind, OP_DATAGRAM, Op, Open, State, ThreadStats, Wake};
use tracer_model::decode::Record;
use tracer_protocols::Settings;
use tracer_transactions::engine::{Engine, Limits};
use tracer_transactions::output::Output;

const HEADS: [&[u8]; 8] = [
    b"GET /a HTTP/1.1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"POST /b HTTP/1.1\r\nContent-Length: 9\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\n",
    b"garbage",
    b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x01\0\x01",
    b"\x12\x34\x81\x80\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x01\0\x01",
    b"\x12\x34\x81\x83\0\0\0\0\0\0\0\0",
];
/// Sockets below this index are streams.
const DATAGRAMS: usize = 5;

pub(crate) fn run(data: &[u8]) {
    let limits = Limits { connections: 8, threads: 8, spans: 8, ..Limits::default() };
    let mut engine = Engine::new(Settings::default(), limits, 1);
    let (mut out, mut begun, mut finished, mut nanos) = (Vec::new(), 0u64, 0u64, 1u64);
    let mut pos = [[0u64; 2]; 16];
    for chunk in data.chunks_exact(4) {
        let [what, who, which, value] = [chunk[0], chunk[1], chunk[2], chunk[3]];
        nanos += u64::from(value) * 100_000;
        let header = Header {
            nanos,
            tgid: 1 + u32::from(who >> 6),
            tid: u32::from(who & 15),
            flags: value,
            ..Header::default()
        };
        let cookie = u64::from(which & 15);
        let counters = tracer_common::event::ThreadCounters {
            cpu: nanos / 2,
            reads: u32::from(value),
            polls: u32::from(who),
            ..Default::default()
        };
        match what % 7 {
            0..=2 => {
                let message = usize::from(what >> 3) % HEADS.len();
                let (head, datagram) = (HEADS[message], if message < DATAGRAMS { 0 } else { OP_DATAGRAM });
                let position = &mut pos[usize::from(which & 15)][usize::from(value & 1)];
                let op = Op {
                    header: Header { kind: Kind::Op as u8, flags: value | datagram, ..header },
                    cookie,
                    pos: *position,
                    // A datagram's destination.
                    sent_pos: u64::from(who & 1),
                    sent_at: if datagram == 0 { 0 } else { u64::from(FAMILY_INET) << 16 | u64::from(who >> 4 & 3) },
                    bytes: head.len() as u32,
                    seq: u32::from(value),
                    nth: u32::from(which >> 4),
                    counters,
                    ..Op::default()
                };
                *position += head.len() as u64;
                let record = match who & 7 {
                    // The same as text of a TLS library.
                    7 => Record::Text { op, head, tail: &[], fragments: &[] },
                    _ => Record::Op { op, head, tail: &[], fragments: &[] },
                };
                engine.record(&record, &mut out);
            }
            3 => engine.record(
                &Record::Open(Open {
                    header,
                    cookie,
                    family: u16::from(value & 3),
                    local_port: u16::from(who & 3),
                    remote_port: u16::from(who >> 4 & 3),
                    peer: u64::from(who),
                    sk: cookie,
                    ..Open::default()
                }),
                &mut out,
            ),
            4 => engine.record(
                &Record::State(State { header, cookie, new: value % 13, counters, ..State::default() }),
                &mut out,
            ),
            5 => engine.record(
                &Record::Wake(Wake {
                    header,
                    wakee: u32::from(which & 15),
                    nth: u32::from(which >> 4),
                    slept_at: u64::from(value),
                    given_at: nanos.saturating_sub(u64::from(who) << 16),
                    given_by: u32::from(value & 15),
                    counters,
                    ..Wake::default()
                }),
                &mut out,
            ),
            _ => engine
                .record(&Record::ThreadStats(ThreadStats { header, counters, ..ThreadStats::default() }), &mut out),
        }
        engine.report(nanos, &mut out);
        let table_use = engine.table_use();
        let [spans, connections, threads] =
            [table_use.spans, table_use.connections, table_use.threads].map(|fill| fill.entries as usize);
        assert!(engine.queued() <= 26, "{} entries in queues", engine.queued());
        assert!(spans <= 8 && connections <= 9 && threads <= 8, "{spans} {connections} {threads}");
        for output in out.drain(..) {
            match output {
                Output::Begun(_) => begun += 1,
                Output::Finished(..) => finished += 1,
                Output::Sample(_)
                | Output::Settled(_)
                | Output::Answered(_)
                | Output::Renamed { .. }
                | Output::Late { .. }
                | Output::Declared(_)
                | Output::DeclaredSample { .. } => {}
            }
        }
    }
    engine.expire(true, &mut out);
    finished += out.iter().filter(|output| matches!(output, Output::Finished(..))).count() as u64;
    assert_eq!(begun, finished, "every span is reported once");
    assert_eq!(engine.table_use().spans.entries, 0);
}
