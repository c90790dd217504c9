//! What `spawn_blocking` runs: closures that compute, that call the upstream as clients without a runtime do, and one that serves all.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::{Shared, burn};

/// What closures share.
#[derive(Default)]
pub struct Blocking {
    /// Idle connections.
    free: Mutex<Vec<BufReader<TcpStream>>>,
    /// Jobs of the closure that serves all.
    jobs: OnceLock<mpsc::Sender<(String, oneshot::Sender<()>)>>,
}

/// One call by a connection.
fn call(stream: &mut BufReader<TcpStream>, path: &str) -> io::Result<()> {
    let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    stream.get_mut().write_all(head.as_bytes())?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    stream.read_exact(&mut vec![0; length])
}

fn connect(shared: &Shared) -> io::Result<BufReader<TcpStream>> {
    TcpStream::connect(&shared.upstream).map(BufReader::new)
}

/// One call by a connection that is kept.
fn ask(shared: &Shared, ident: &str, number: u32) -> io::Result<()> {
    let free = shared.blocking.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let mut stream = free.map_or_else(|| connect(shared), Ok)?;
    call(&mut stream, &Shared::path(ident, number))?;
    shared.blocking.free.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    Ok(())
}

/// One call by a connection of its own.
fn ask_anew(shared: &Shared, ident: &str, number: u32) -> io::Result<()> {
    call(&mut connect(shared)?, &Shared::path(ident, number))
}

/// A closure that computes before and behind its calls.
pub async fn calls(shared: &Arc<Shared>, ident: &str, anew: bool) -> io::Result<()> {
    let (shared, ident) = (Arc::clone(shared), ident.to_owned());
    let closure = move || {
        burn(shared.burn / 2);
        if anew {
            ask_anew(&shared, &ident, 0)?;
        } else {
            ask(&shared, &ident, 0)?;
            ask(&shared, &ident, 1)?;
        }
        burn(shared.burn / 2);
        Ok(())
    };
    tokio::task::spawn_blocking(closure).await?
}

/// The same in a task of its own, beside a call of the request's task.
pub async fn child(shared: &Arc<Shared>, ident: &str) -> io::Result<()> {
    let other = (Arc::clone(shared), ident.to_owned());
    let task = tokio::spawn(async move { calls(&other.0, &other.1, true).await });
    shared.ask(ident, 1).await?;
    task.await?
}

/// A closure whose result is not awaited: its call is mostly made when the request is answered.
pub fn forgotten(shared: &Arc<Shared>, ident: &str) {
    let (shared, ident) = (Arc::clone(shared), ident.to_owned());
    tokio::task::spawn_blocking(move || {
        std::thread::sleep(Duration::from_millis(2));
        if let Err(error) = ask(&shared, &ident, 0) {
            eprintln!("{error}");
        }
    });
}

/// Leaves a call to a closure that serves all requests, which the first one starts.
pub async fn serves_all(shared: &Arc<Shared>, ident: &str) -> io::Result<()> {
    let jobs = shared.blocking.jobs.get_or_init(|| {
        let (jobs, todo) = mpsc::channel::<(String, oneshot::Sender<()>)>();
        let shared = Arc::clone(shared);
        tokio::task::spawn_blocking(move || {
            while let Ok((ident, done)) = todo.recv() {
                if let Err(error) = ask(&shared, &ident, 0) {
                    eprintln!("{error}");
                }
                // No task waits where the client has gone.
                let _ = done.send(());
            }
        });
        jobs
    });
    let (done, wait) = oneshot::channel();
    jobs.send((ident.to_owned(), done)).map_err(io::Error::other)?;
    wait.await.map_err(io::Error::other)
}
