//! Replays every protocol with a captured connection (`tracer-user/crates/protocols/fixtures`) over loopback, and searches everything
//! the agent shows and sends for the secrets planted in them.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::{begin, figure, say, scratch, secrets, wait};

/// None of these may show: words in the plain bytes, and those that HTTP/2 compresses.
const PACKED: [&str; 2] = ["planted-token", "planted-cookie"];
/// Protocols whose connections must contain planted secrets.
const PLANTED: [&str; 18] = [
    "amqp",
    "cassandra",
    "fastcgi",
    "grpc",
    "http",
    "kafka",
    "mariadb",
    "memcached",
    "mongodb",
    "mqtt",
    "mysql",
    "nats",
    "postgresql",
    "redis",
    "scgi",
    "stomp",
    "uwsgi",
    "websocket",
];

/// One captured connection: sender (client or not) and bytes of each part.
type Captured = Vec<(bool, Vec<u8>)>;

fn fixtures() -> Vec<(String, Captured)> {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tracer-user/crates/protocols/fixtures");
    let list = |dir: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        entries.filter_map(Result::ok).map(|entry| entry.path()).collect()
    };
    let mut all = Vec::new();
    for dir in list(&base) {
        let name = dir.file_name().expect("a name").to_string_lossy().into_owned();
        for file in list(&dir).into_iter().filter(|file| file.extension().is_some_and(|kind| kind == "bytes")) {
            let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            for connection in text.split("new\n").filter(|part| !part.is_empty()) {
                let operation = |line: &str| {
                    let (word, hex) = line.split_once(' ').expect("a line");
                    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
                    (word == "rx", (0..hex.len()).step_by(2).map(byte).collect())
                };
                all.push((name.clone(), connection.lines().map(operation).collect()));
            }
        }
    }
    all
}

/// The secrets planted in these bytes.
fn planted(bytes: &[u8]) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(bytes);
    let word = |(at, _)| text[at..].chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect::<String>();
    text.match_indices("planted-").map(word).collect()
}

/// Plays a connection's bytes in order between two threads.
fn play(captured: &Captured) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let one = |mut stream: TcpStream, client: bool| {
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
        for (from_client, bytes) in captured {
            if *from_client == client {
                stream.write_all(bytes).expect("sent");
            } else {
                stream.read_exact(&mut vec![0; bytes.len()]).expect("read");
            }
        }
        // The side with nothing more to send waits for the other.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read(&mut [0; 16]);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| one(listener.accept().expect("a client").0, false));
        one(TcpStream::connect(address).expect("a connection"), true);
    });
}

/// Accepts any HTTP/1 request and answers with success.
fn collector() -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let taken = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&taken);
    std::thread::spawn(move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            let all = Arc::clone(&all);
            std::thread::spawn(move || {
                let mut stream = stream;
                let (mut request, mut piece) = (Vec::new(), vec![0; 65536]);
                while let Ok(count @ 1..) = stream.read(&mut piece) {
                    all.lock().expect("a list").extend_from_slice(&piece[..count]);
                    request.extend_from_slice(&piece[..count]);
                    let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
                    let head = String::from_utf8_lossy(&request[..end]).to_lowercase();
                    let length = head.split("content-length:").nth(1).and_then(|rest| rest.lines().next());
                    let length: usize = length.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
                    if request.len() >= end + 4 + length {
                        request.drain(..end + 4 + length);
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                    }
                }
            });
        }
    });
    (address, taken)
}

#[test]
fn nothing_that_was_planted_shows_anywhere() {
    let Some(_turn) = begin("secrets", &["gzip"]) else { return };
    let dir = scratch();
    let all = fixtures();
    let mut words: BTreeSet<String> = PACKED.iter().map(ToString::to_string).collect();
    for name in PLANTED {
        let bytes: Vec<u8> = all
            .iter()
            .filter(|(of, _)| of == name)
            .flat_map(|(_, ops)| ops.iter().flat_map(|op| op.1.clone()))
            .collect();
        assert!(!planted(&bytes).is_empty(), "nothing is planted in what is captured of {name}");
    }
    for (_, operations) in &all {
        for (_, bytes) in operations {
            words.extend(planted(bytes));
        }
    }
    let (address, taken) = collector();
    let saved = dir.path().join("agent-saved");
    let arguments =
        ["--nice=-10", "--otlp", &format!("http://{address}"), "--save-transactions", &saved.display().to_string()];
    let agent = Agent::launch_with("agent", dir.path(), &arguments, |command: &mut Command| {
        command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf").env("OTEL_EXPORTER_OTLP_COMPRESSION", "none");
        command.env("OTEL_BSP_SCHEDULE_DELAY", "200");
    })
    .ready();
    for (_, operations) in &all {
        play(operations);
    }
    let protocols: BTreeSet<&str> =
        all.iter().map(|(name, _)| if name == "http2" { "http" } else { name.as_str() }).collect();
    for protocol in &protocols {
        wait(&format!("{protocol} in the metrics"), Duration::from_secs(30), || {
            (agent.metrics().sum("tracer_requests_total", &[("protocol", protocol)]) > 0.0).then_some(())
        });
    }
    wait("its spans", Duration::from_secs(30), || {
        let text = String::from_utf8_lossy(&taken.lock().expect("a list")).into_owned();
        text.contains("pgbench_tellers").then_some(())
    });
    say(&format!("{} protocols, {} words", protocols.len(), words.len()));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let more = || vec![("OTLP".to_owned(), String::from_utf8_lossy(&taken.lock().expect("a list")).into_owned())];
    let places = secrets::none_shows_with(agent, dir.path(), &words, "pgbench_tellers", more);
    figure(
        "secrets planted",
        &format!("{} words in {} protocols, none in {places} outputs", words.len(), protocols.len()),
    );
}
