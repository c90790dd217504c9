//! A server that gives prepared answers, and a directory that stays bounded.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;

use super::*;

/// Answers each connection with the next of these, and hands on what was asked.
fn server(answers: Vec<Vec<u8>>) -> (hyper::Uri, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let (asked, questions) = mpsc::channel();
    std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = [0; 4096];
            let got = stream.read(&mut bytes).unwrap();
            let text = String::from_utf8_lossy(&bytes[..got]).into_owned();
            asked.send(text.lines().next().unwrap_or_default().to_owned()).unwrap();
            stream.write_all(&answer).unwrap();
        }
    });
    (uri, questions)
}

fn reply(status: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// A program with debug information, and its build id.
fn program(dir: &Path) -> (Vec<u8>, Vec<u8>) {
    let (source, out) = (dir.join("a.c"), dir.join("a"));
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let done = Command::new("cc").args(["-g", "-Wl,--build-id", "-o"]).arg(&out).arg(&source).status().unwrap();
    assert!(done.success());
    (std::fs::read(&out).unwrap(), tracer_results::profiles::debug_file_id(&out).unwrap())
}

fn worker(dir: &Path, servers: Vec<hyper::Uri>, max_size: u64) -> Worker {
    let settings = Settings { servers, cache: dir.join("cache"), max_size, max_age: Duration::from_secs(1000) };
    Worker {
        requests: DebugRequests::into_directory(settings.cache.clone()),
        counts: Arc::default(),
        cache: Cache::open(&settings).unwrap(),
        client: Client::new(&settings.servers).unwrap(),
        known: HashMap::new(),
    }
}

fn counts(worker: &Worker) -> [u64; 5] {
    let [fetched, cached, missing, failed, refused, _] = worker.counts.by_outcome(0).map(|(_, count)| count);
    [fetched, cached, missing, failed, refused]
}

#[test]
fn files_are_fetched_once_and_missing_ones_asked_for_once() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, id) = program(dir.path());
    let other = vec![7; 20];
    let (first, asked_first) = server(vec![reply("404 Not Found", b""), reply("404 Not Found", b"")]);
    let (second, _asked) = server(vec![reply("200 OK", &bytes), reply("404 Not Found", b"")]);
    let mut worker = worker(dir.path(), vec![first, second], 1 << 30);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for id in [&id, &id, &other, &other] {
        runtime.block_on(worker.get(id));
    }
    assert_eq!(counts(&worker), [1, 1, 2, 0, 0]);
    let hex = id.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    assert_eq!(asked_first.recv().unwrap(), format!("GET /buildid/{hex}/debuginfo HTTP/1.1"));
    let place = dir.path().join("cache").join(tracer_results::profiles::by_build_id(&id).unwrap());
    assert_eq!(std::fs::read(&place).unwrap(), bytes);
    assert!(!dir.path().join("cache/part").exists());
    // Another run finds it; one with less room lets it go.
    let again = self::worker(dir.path(), Vec::new(), 1 << 30);
    assert!(again.cache.has(&id) && again.cache.bytes() == bytes.len() as u64);
    assert!(!self::worker(dir.path(), Vec::new(), 10).cache.has(&id) && !place.exists());
}

#[test]
fn what_is_not_that_file_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, id) = program(dir.path());
    let other = vec![7; 20];
    let cut = reply("200 OK", &bytes)[..bytes.len() / 2].to_vec();
    let answers = vec![reply("200 OK", &bytes), reply("200 OK", b"<html>"), reply("500 No", b""), cut];
    let (uri, _asked) = server(answers);
    let mut worker = worker(dir.path(), vec![uri], 1 << 30);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Another program's file, no program, an error, half of it.
    for id in [&other, &id, &vec![8; 20], &vec![9; 20]] {
        runtime.block_on(worker.get(id));
    }
    assert_eq!(counts(&worker), [0, 0, 0, 2, 2]);
    assert!(worker.cache.bytes() == 0 && !dir.path().join("cache/part").exists());
    // Nothing listens there.
    let mut away = self::worker(dir.path(), vec!["http://127.0.0.1:1".parse().unwrap()], 1 << 30);
    runtime.block_on(away.get(&id));
    assert_eq!(counts(&away), [0, 0, 0, 1, 0]);
}
