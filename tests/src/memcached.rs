//! A Memcached server, and a client that sends exactly the bytes it is given.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process::Process;
use crate::workload::wait_for_listener;
use crate::{find, free_port};

/// A server with two threads.
#[derive(Debug)]
pub struct Memcached {
    /// Its process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Memcached {
    /// Starts it; its log is in `dir`.
    pub fn start(dir: &Path) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let program = find("memcached").expect("memcached");
        let mut command = Command::new(program);
        command.args(["-u", "root", "-l", "127.0.0.1", "-U", "0", "-t", "2", "-p", &address.port().to_string()]);
        let mut process = Process::start("memcached", &mut command, &dir.join("memcached.log"));
        wait_for_listener(&mut process, address);
        Self { process, address }
    }

    /// A new connection.
    pub fn client(&self) -> MemcachedClient {
        let stream = TcpStream::connect(self.address).expect("a connection");
        stream.set_nodelay(true).expect("nodelay");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
        MemcachedClient(BufReader::new(stream))
    }
}

/// A connection that sends exactly the given bytes.
#[derive(Debug)]
pub struct MemcachedClient(BufReader<TcpStream>);

impl MemcachedClient {
    /// Sends these bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("to memcached");
    }

    /// The next line, without its end.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("from memcached");
        line.trim_end().to_owned()
    }

    /// Sends lines and expects these replies, one after the other.
    pub fn ask(&mut self, lines: &str, expected: &[&str]) {
        self.send(lines.as_bytes());
        for expected in expected {
            assert_eq!(self.line(), *expected, "to {lines:?}");
        }
    }

    /// Sends packets of the binary protocol and reads `replies` replies; returns their opcodes, opaques and statuses.
    pub fn packets(&mut self, asked: &[Vec<u8>], replies: usize) -> Vec<(u8, u32, u16)> {
        self.send(&asked.concat());
        let one = |_| {
            let mut header = [0; 24];
            self.0.read_exact(&mut header).expect("a header");
            let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
            let mut body = vec![0; number(8) as usize];
            self.0.read_exact(&mut body).expect("a body");
            (header[1], number(12), u16::from_be_bytes([header[6], header[7]]))
        };
        (0..replies).map(one).collect()
    }

    /// The server's statistics that are numbers.
    pub fn stats(&mut self) -> BTreeMap<String, u64> {
        self.send(b"stats\r\n");
        let mut stats = BTreeMap::new();
        loop {
            let line = self.line();
            if line == "END" {
                return stats;
            }
            let mut words = line.split(' ').skip(1);
            if let (Some(name), Some(Ok(value))) = (words.next(), words.next().map(str::parse)) {
                stats.insert(name.to_owned(), value);
            }
        }
    }
}
