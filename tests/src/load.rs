//! A load generator: connections that each follow a plan, one request after another.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::http::Connection;

/// How a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The client reads its reply to the end.
    Whole,
    /// The client closes after it has read this many bytes of the body.
    AfterBytes(u64),
    /// The client closes as soon as it has sent the request.
    Unread,
    /// The client closes after sending this many bytes of the request.
    Cut(usize),
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Method.
    pub method: &'static str,
    /// Target.
    pub target: String,
    /// Body; sent with its length when not empty or a POST.
    pub body: Vec<u8>,
    /// Whether the connection is used again.
    pub keep_alive: bool,
    /// Its end.
    pub ending: Ending,
    /// Client think time before the request.
    pub pause: Duration,
}

impl Request {
    /// A GET on a kept connection.
    pub fn get(target: String) -> Self {
        Self { method: "GET", target, body: Vec::new(), keep_alive: true, ending: Ending::Whole, pause: Duration::ZERO }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\nHost: tests\r\nUser-Agent: load\r\n", self.method, self.target);
        if self.method == "POST" || !self.body.is_empty() {
            bytes += &format!("Content-Length: {}\r\n", self.body.len());
        }
        if !self.keep_alive {
            bytes += "Connection: close\r\n";
        }
        bytes += "\r\n";
        let mut bytes = bytes.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// The result of a request whose reply was wanted.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its target.
    pub target: String,
    /// Status, or the reason for having none.
    pub status: Result<u16, String>,
    /// Bytes of the reply's body.
    pub body: u64,
}

/// The result of a load.
#[derive(Debug, Default)]
pub struct Loaded {
    /// One for each request that was to be read to its end.
    pub answers: Vec<Answer>,
    /// Duration of the whole load.
    pub took: Duration,
}

impl Loaded {
    /// Requests without a reply.
    pub fn broken(&self) -> Vec<&Answer> {
        self.answers.iter().filter(|answer| answer.status.is_err()).collect()
    }
}

/// Runs each plan on its own connection (and thread).
pub fn run(address: SocketAddr, plans: Vec<Vec<Request>>) -> Loaded {
    let begin = Instant::now();
    let threads: Vec<_> = plans
        .into_iter()
        .map(|plan| {
            let builder = std::thread::Builder::new().name("load".into()).stack_size(512 * 1024);
            builder.spawn(move || follow(address, &plan)).unwrap_or_else(|error| panic!("thread: {error}"))
        })
        .collect();
    let mut answers = Vec::new();
    for thread in threads {
        answers.extend(thread.join().unwrap_or_else(|_| panic!("a load thread panicked")));
    }
    Loaded { answers, took: begin.elapsed() }
}

/// Requests `targets` in turn on each of `connections` until `stop`; returns how many replies came and how many did
/// not.
pub fn until(address: SocketAddr, connections: usize, targets: &[&str], stop: Instant) -> (u64, u64) {
    let threads: Vec<_> = (0..connections)
        .map(|first| {
            let targets: Vec<String> = targets.iter().map(|&target| target.to_owned()).collect();
            std::thread::spawn(move || {
                let (mut good, mut bad) = (0, 0);
                let mut connection = None;
                for target in targets.iter().cycle().skip(first) {
                    if Instant::now() >= stop {
                        break;
                    }
                    let answer = one(address, &mut connection, &Request::get(target.clone()));
                    if answer.is_some_and(|answer| answer.status == Ok(200)) { good += 1 } else { bad += 1 }
                }
                (good, bad)
            })
        })
        .collect();
    threads.into_iter().fold((0, 0), |(good, bad), thread| {
        let (more_good, more_bad) = thread.join().unwrap_or_else(|_| panic!("a load thread panicked"));
        (good + more_good, bad + more_bad)
    })
}

fn follow(address: SocketAddr, plan: &[Request]) -> Vec<Answer> {
    let mut connection = None;
    plan.iter().filter_map(|request| one(address, &mut connection, request)).collect()
}

fn one(address: SocketAddr, kept: &mut Option<Connection>, request: &Request) -> Option<Answer> {
    let exchange = |kept: &mut Option<Connection>| -> std::io::Result<Option<(u16, u64)>> {
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => Connection::open(address)?.keeping(0),
        };
        let bytes = request.bytes();
        std::thread::sleep(request.pause);
        match request.ending {
            Ending::Whole => {
                connection.send(&bytes)?;
                let reply = connection.reply(request.method)?;
                if request.keep_alive && !reply.closes {
                    *kept = Some(connection);
                }
                Ok(Some((reply.status, reply.wire_body)))
            }
            Ending::AfterBytes(n) => {
                connection.send(&bytes)?;
                connection.head()?;
                connection.take(n, &mut Vec::new())?;
                Ok(None)
            }
            Ending::Unread => {
                connection.send(&bytes)?;
                Ok(None)
            }
            Ending::Cut(n) => {
                connection.send(bytes.get(..n.min(bytes.len())).unwrap_or_default())?;
                Ok(None)
            }
        }
    };
    let result = exchange(kept);
    if request.ending != Ending::Whole {
        return None;
    }
    let (status, body) = match result {
        Ok(Some((status, body))) => (Ok(status), body),
        Ok(None) => return None,
        Err(error) => (Err(error.to_string()), 0),
    };
    Some(Answer { target: request.target.clone(), status, body })
}
