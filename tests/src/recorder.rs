//! Origins that record every byte they receive, per connection.

use std::collections::HashMap;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Bytes of each connection, by port, in the order of acceptance.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Arc<Mutex<HashMap<u16, Connections>>>);

/// The bytes of each connection to a port.
type Connections = Vec<Arc<Mutex<Vec<u8>>>>;

impl Recorder {
    /// Accepts every connection of `listener`, which listens on `port`; `serve` appends a connection's bytes, and
    /// answers.
    pub fn accept(&self, listener: TcpListener, port: u16, serve: fn(TcpStream, &Mutex<Vec<u8>>) -> Option<()>) {
        let recorder = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let bytes = Arc::default();
                recorder.0.lock().expect("a lock").entry(port).or_default().push(Arc::clone(&bytes));
                std::thread::spawn(move || serve(stream, &bytes));
            }
        });
    }

    /// Connections to a port since the last call of [`Self::taken`].
    pub fn connections(&self, port: u16) -> usize {
        self.0.lock().expect("a lock").get(&port).map_or(0, Vec::len)
    }

    /// Takes the bytes of all connections to a port since the last call.
    pub fn taken(&self, port: u16) -> Vec<Vec<u8>> {
        let all = self.0.lock().expect("a lock").remove(&port).unwrap_or_default();
        all.iter().map(|one| one.lock().expect("a lock").clone()).collect()
    }
}
