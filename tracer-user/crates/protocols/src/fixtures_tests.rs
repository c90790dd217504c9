//! Bytes captured between real programs (`tests/workloads/relay.py`), and the expected events. A fixture
//! `NAME/CASE.bytes` contains operations, and `NAME/CASE.expect` one line per exchange; every split gives the same.

use std::path::{Path, PathBuf};

use tracer_model::{Direction, Side};

use super::connection_parser::tests::{Op, play};
use super::jobs::JobEvent;
use super::{Closed, ConnectionParser, ExchangeEvent, PROTOCOLS, Settings, Stamp, grpc};

/// The connections in a file, each as its operations.
fn read(path: &Path) -> Vec<Vec<Op>> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut connections: Vec<Vec<Op>> = Vec::new();
    for line in text.lines() {
        let Some((word, hex)) = line.split_once(' ') else {
            assert_eq!(line, "new", "{}", path.display());
            connections.push(Vec::new());
            continue;
        };
        let dir = if word == "rx" { Direction::Rx } else { Direction::Tx };
        let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        connections.last_mut().unwrap().push(Op { dir, bytes, captured: usize::MAX });
    }
    connections
}

/// Events without times, and without the ends of heads, which depend on the operations.
fn lines(ops: &[Op]) -> Vec<String> {
    let mut conversation = ConnectionParser::new(false);
    conversation.opened(Some(Side::Server), false);
    let mut events = play(&mut conversation, ops);
    let at = Stamp { nanos: 1 << 40, ..Stamp::default() };
    // The server closes.
    conversation.closed(Closed::Local, at, None, &Settings::default(), &mut events);
    conversation.closed(Closed::Both, at, None, &Settings::default(), &mut events);
    let (mut lines, mut certificates, mut jobs): (Vec<String>, Vec<String>, Vec<String>) = Default::default();
    for event in events {
        match event {
            ExchangeEvent::Begun { request, protocol, .. } => {
                lines.push(format!("{protocol} {} {}", request.method, request.path));
            }
            ExchangeEvent::Replied { exchange, status, failure, .. } => {
                lines[exchange as usize] += &format!(" -> {status} {}", failure.unwrap_or("ok"));
            }
            ExchangeEvent::Done { exchange, outcome, request_bytes, reply_bytes, .. } => {
                lines[exchange as usize] += &format!(" {} {request_bytes}/{reply_bytes}", outcome.name());
            }
            ExchangeEvent::Judged { exchange, status, failure, protocol } => {
                lines[exchange as usize] += &format!(" = {status} {}", failure.unwrap_or("ok"));
                if let Some(protocol) = protocol {
                    lines[exchange as usize] += &format!(" of {}", protocol.name());
                }
            }
            ExchangeEvent::Linked { .. } => {}
            ExchangeEvent::Job { exchange, job } => jobs.push(format!("{exchange} {}", job_line(&job))),
            ExchangeEvent::Certificate { name, expires } => {
                certificates.push(format!("certificate {name} expires {expires}"));
            }
            other => lines.push(format!("{other:?}")),
        }
    }
    lines.append(&mut certificates);
    lines.append(&mut jobs);
    lines
}

fn job_line(job: &JobEvent) -> String {
    match job {
        JobEvent::Asks(queues) => format!("asks {} queues for a job", queues.len()),
        JobEvent::TakesOther => "may take something else".to_owned(),
        JobEvent::Pushed { elements, .. } => format!("puts {} jobs into a queue", elements.len()),
        JobEvent::Taken(job) => {
            format!("takes the job {}{}", job.name, if job.handed_over { ", handed over" } else { "" })
        }
        JobEvent::Named { name, .. } => format!("describes the job {name}"),
    }
}

fn files() -> Vec<PathBuf> {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let directories = std::fs::read_dir(&base).unwrap().map(|entry| entry.unwrap().path());
    let files = directories.flat_map(|dir| std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()));
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|kind| kind == "bytes")).collect();
    files.sort();
    files
}

/// Every captured connection, with its file's name.
pub(crate) fn connections() -> Vec<(String, Vec<Op>)> {
    let named = |file: PathBuf| read(&file).into_iter().map(move |ops| (file.display().to_string(), ops));
    files().into_iter().flat_map(named).collect()
}

#[test]
fn captured_connections_say_what_is_expected() {
    for file in files() {
        let found: Vec<String> = read(&file).iter().flat_map(|ops| lines(ops)).collect();
        let expected = std::fs::read_to_string(file.with_extension("expect")).unwrap_or_default();
        assert_eq!(found, expected.lines().collect::<Vec<_>>(), "{}:\n{}", file.display(), found.join("\n"));
        let name = file.parent().and_then(Path::file_name).unwrap().to_string_lossy().into_owned();
        // Both versions of HTTP have this name.
        let name = if name == "http2" { "http" } else { &name };
        let known = PROTOCOLS.iter().any(|protocol| protocol.name() == name) || name == grpc::NAME;
        assert!(known, "{name} is a protocol");
        assert!(found.iter().any(|line| line.starts_with(name)), "{}: {found:?}", file.display());
    }
}

#[test]
fn every_cut_of_captured_connections_says_the_same() {
    for file in files() {
        for ops in read(&file) {
            let expected = lines(&ops);
            let split = |op: &Op, cut: usize| {
                let (front, back) = op.bytes.split_at(cut);
                [front, back].map(|bytes| Op { bytes: bytes.to_vec(), ..op.clone() }).to_vec()
            };
            // Long bodies are split near their beginnings and ends, and at a few places in between.
            let wanted = |len: usize, cut: usize| cut < len && (cut < 300 || len - cut < 300 || cut.is_multiple_of(97));
            // Every cut, of all operations at the same place at once: playing the connection for each alone takes minutes.
            let longest = ops.iter().map(|op| op.bytes.len()).max().unwrap_or_default();
            for cut in 1..longest {
                if !ops.iter().any(|op| wanted(op.bytes.len(), cut)) {
                    continue;
                }
                let each = ops
                    .iter()
                    .flat_map(|op| if wanted(op.bytes.len(), cut) { split(op, cut) } else { vec![op.clone()] });
                let cuts: Vec<Op> = each.collect();
                assert_eq!(lines(&cuts), expected, "{} each operation at {cut}", file.display());
            }
            // And alone at some places, so that a cut elsewhere hides nothing.
            for (which, op) in ops.iter().enumerate() {
                for cut in
                    (1..op.bytes.len()).filter(|cut| wanted(op.bytes.len(), *cut) && (cut + which).is_multiple_of(11))
                {
                    let mut cuts = ops.clone();
                    cuts.splice(which..=which, split(op, cut));
                    assert_eq!(lines(&cuts), expected, "{} operation {which} at {cut}", file.display());
                }
            }
            let single =
                |op: &Op| op.bytes.iter().map(|byte| Op { bytes: vec![*byte], ..op.clone() }).collect::<Vec<_>>();
            let cuts: Vec<Op> = ops.iter().flat_map(single).collect();
            assert_eq!(lines(&cuts), expected, "{} byte by byte", file.display());
        }
    }
}

/// Every fixture's first bytes are detected as its own protocol and no other.
#[test]
fn no_protocol_takes_anothers_connection() {
    use super::Detected;
    for file in files() {
        let name = file.parent().and_then(Path::file_name).unwrap().to_string_lossy().into_owned();
        for ops in read(&file) {
            let Some(op) = ops.first() else { continue };
            for end in 1..=op.bytes.len().min(4096) {
                let takers = PROTOCOLS.iter().filter(|protocol| {
                    matches!(
                        protocol.detect(&op.bytes[..end]),
                        Detected::Request | Detected::Reply | Detected::Either | Detected::Never
                    )
                });
                let takers: Vec<&str> = takers.map(|protocol| protocol.name()).collect();
                // A session begins as an HTTP request; gRPC calls use HTTP/2, which has the same name.
                let expected = match &*name {
                    "websocket" | "http2" | grpc::NAME => "http",
                    name => name,
                };
                assert!(
                    takers.iter().all(|taker| *taker == expected),
                    "{takers:?} took {end} bytes of {}",
                    file.display()
                );
            }
        }
    }
}
