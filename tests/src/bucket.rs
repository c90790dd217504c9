//! An object store that speaks the protocol of S3 (`moto`), as a bucket for the history. It keeps everything in memory: when
//! it is killed, its buckets are gone.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::go::{unpacked, wheels};
use crate::process::Process;
use crate::workload::wait_for_listener;

/// The bucket's name.
pub const NAME: &str = "tracer-history";
/// Credentials: any will do, and neither may show anywhere.
pub const KEY_ID: &str = "AKIDPLANTED0123";
/// See [`KEY_ID`].
pub const KEY: &str = "planted/secret+key/0123456789";

/// A running store.
#[derive(Debug)]
pub struct Store {
    process: Process,
    address: SocketAddr,
}

impl Store {
    /// Whether what it needs is installed.
    pub fn is_there() -> bool {
        crate::find("python3").is_some() && Path::new(unpacked("moto-", "moto/server.py")).is_file()
    }

    /// Starts it on a port of `address`, with an empty bucket. Its output goes to `dir`.
    pub fn start(dir: &Path, address: SocketAddr) -> Self {
        let python = crate::find("python3").unwrap_or_else(|| panic!("no python3"));
        // All its libraries: no other wheel has modules of these names, but for one that brings its own.
        let all = std::fs::read_dir(wheels()).unwrap_or_else(|error| panic!("{}: {error}", wheels().display()));
        let dirs: Vec<PathBuf> = all.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
        let has_own = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("mcp-"));
        let own = dirs.into_iter().filter(|path| !path.to_string_lossy().ends_with("-py3.13") && !has_own(path));
        let libraries = std::env::join_paths(own).unwrap_or_else(|error| panic!("wheels: {error}"));
        let mut command = Command::new(python);
        command.args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &address.port().to_string()]);
        command.env("PYTHONPATH", libraries);
        let mut process = Process::start("moto", &mut command, &dir.join("moto.log"));
        wait_for_listener(&mut process, address);
        let store = Self { process, address };
        let (status, text) = store.ask("PUT", "");
        assert_eq!(status, 200, "{text}");
        store
    }

    /// The environment of a program that uses it.
    pub fn environment(command: &mut Command, address: SocketAddr) {
        for (name, value) in [
            ("AWS_ENDPOINT_URL", format!("http://{address}")),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", KEY_ID.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", KEY.to_owned()),
        ] {
            command.env(name, value);
        }
    }

    fn ask(&self, method: &str, target: &str) -> (u16, String) {
        let mut connection =
            crate::http::Connection::open(self.address).unwrap_or_else(|error| panic!("moto: {error}"));
        let target = format!("/{NAME}{target}");
        let reply = connection.ask(method, &target).unwrap_or_else(|error| panic!("{target}: {error}"));
        (reply.status, reply.text())
    }

    /// Names of all its objects.
    pub fn names(&self) -> Vec<String> {
        let (status, text) = self.ask("GET", "?list-type=2");
        assert_eq!(status, 200, "{text}");
        let keys = text.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>"));
        keys.map(|(key, _)| key.to_owned()).collect()
    }

    /// An object.
    pub fn object(&self, name: &str) -> Vec<u8> {
        let target = format!("/{NAME}/{name}");
        // Objects are private, and signatures are not looked at.
        let head = format!("GET {target} HTTP/1.1\r\nHost: {}\r\nAuthorization: AWS a:b\r\n\r\n", self.address);
        let reply = crate::http::Connection::open(self.address)
            .map(|connection| connection.keeping(64 << 20))
            .and_then(|mut connection| {
                connection.send(head.as_bytes())?;
                connection.reply("GET")
            });
        let reply = reply.unwrap_or_else(|error| panic!("{target}: {error}"));
        assert_eq!(reply.status, 200, "{target}: {}", reply.text());
        reply.body
    }

    /// Stores an object.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let target = format!("/{NAME}/{name}");
        let length = bytes.len();
        let head = format!(
            "PUT {target} HTTP/1.1\r\nHost: {}\r\nAuthorization: AWS a:b\r\nContent-Length: {length}\r\n\r\n",
            self.address
        );
        let reply = crate::http::Connection::open(self.address).and_then(|mut connection| {
            connection.send(&[head.as_bytes(), bytes].concat())?;
            connection.reply("PUT")
        });
        let reply = reply.unwrap_or_else(|error| panic!("{target}: {error}"));
        assert_eq!(reply.status, 200, "{target}: {}", reply.text());
    }

    /// Sends its process a signal: SIGSTOP makes it slow without end.
    pub fn signal(&self, signal: i32) {
        self.process.signal(signal);
    }
}
