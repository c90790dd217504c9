//! A server of tokio and hyper: `GET /MODE/ID` calls `/b/ID/kN/dT` of the upstream. It first computes for as many microseconds of
//! CPU as `BURN_US` says; `blocking` does so in a thread of `spawn_blocking`, and calls nothing; `blocking-…` call there.

mod blocking;

use std::collections::hash_map::RandomState;
use std::convert::Infallible;
use std::hash::BuildHasher;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

/// Jobs of tasks that were there before any request.
type Job = (String, oneshot::Sender<()>);

/// What all requests share.
struct Shared {
    upstream: String,
    /// Idle connections: the task that takes one writes to it itself, as clients of databases do.
    free: Mutex<Vec<BufStream<TcpStream>>>,
    /// Writes to each connection in a task of the connection's own.
    client: Client<HttpConnector, Empty<Bytes>>,
    jobs: Vec<mpsc::UnboundedSender<Job>>,
    burn: Duration,
    blocking: blocking::Blocking,
}

/// A number below `end`, another every time.
fn random(end: u64) -> u64 {
    RandomState::new().hash_one(()) % end
}

async fn nap(most_us: u64) {
    tokio::time::sleep(Duration::from_micros(random(most_us))).await;
}

impl Shared {
    fn path(ident: &str, number: u32) -> String {
        format!("/b/{ident}/k{number}/d{}", 500 + random(6000))
    }

    /// One call, written by the task that wants it.
    async fn ask(&self, ident: &str, number: u32) -> io::Result<()> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut stream = match free {
            Some(stream) => stream,
            None => BufStream::new(TcpStream::connect(&self.upstream).await?),
        };
        let head = format!("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", Self::path(ident, number));
        stream.write_all(head.as_bytes()).await?;
        stream.flush().await?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        Ok(())
    }

    /// One call by hyper's client.
    async fn fetch(&self, ident: &str, number: u32) -> io::Result<()> {
        let uri = format!("http://{}{}", self.upstream, Self::path(ident, number));
        let reply = self.client.get(uri.parse().map_err(io::Error::other)?).await.map_err(io::Error::other)?;
        reply.into_body().collect().await.map_err(io::Error::other)?;
        Ok(())
    }

    async fn later(&self, ident: &str, number: u32) -> io::Result<()> {
        nap(3000).await;
        self.ask(ident, number).await
    }
}

/// Two tasks, one of them two levels deep.
async fn children(shared: &Arc<Shared>, ident: &str) -> io::Result<()> {
    let (one, other) = ((Arc::clone(shared), ident.to_owned()), (Arc::clone(shared), ident.to_owned()));
    let first = tokio::spawn(async move { one.0.later(&one.1, 0).await });
    let second = tokio::spawn(async move {
        nap(1000).await;
        tokio::spawn(async move { other.0.later(&other.1, 1).await }).await?
    });
    first.await??;
    second.await?
}

async fn fetch_children(shared: &Arc<Shared>, ident: &str) -> io::Result<()> {
    let start = |number| {
        let (shared, ident) = (Arc::clone(shared), ident.to_owned());
        tokio::spawn(async move {
            nap(3000).await;
            shared.fetch(&ident, number).await
        })
    };
    let (first, second) = (start(0), start(1));
    first.await??;
    second.await?
}

/// Computes for so long.
fn burn(time: Duration) {
    let (begin, mut sum) = (Instant::now(), 0_u64);
    while begin.elapsed() < time {
        for n in 0..1000 {
            sum = std::hint::black_box(sum.wrapping_add(n));
        }
    }
}

async fn serve(shared: &Arc<Shared>, path: &str) -> io::Result<()> {
    let mut words = path.split('/').skip(1);
    let (mode, ident) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let time = shared.burn;
    if mode == "blocking" {
        tokio::task::spawn_blocking(move || burn(time)).await?;
        return Ok(());
    }
    match mode {
        "blocking-calls" => return blocking::calls(shared, ident, false).await,
        "blocking-anew" => return blocking::calls(shared, ident, true).await,
        "blocking-child" => return blocking::child(shared, ident).await,
        "blocking-all" => return blocking::serves_all(shared, ident).await,
        "blocking-forgotten" => {
            blocking::forgotten(shared, ident);
            return Ok(());
        }
        _ => {}
    }
    burn(time);
    match mode {
        "direct" => shared.ask(ident, 0).await?,
        "naps" => {
            nap(8000).await;
            shared.ask(ident, 0).await?;
            nap(4000).await;
            shared.ask(ident, 1).await?;
        }
        "children" => children(shared, ident).await?,
        // Detached: the call is mostly made when the request is answered.
        "forgotten" => {
            let (shared, ident) = (Arc::clone(shared), ident.to_owned());
            tokio::spawn(async move { shared.later(&ident, 0).await });
        }
        "worker" => {
            nap(2000).await;
            let (done, wait) = oneshot::channel();
            let worker = shared.jobs.get(random(shared.jobs.len() as u64) as usize).ok_or(io::ErrorKind::NotFound)?;
            worker.send((ident.to_owned(), done)).map_err(io::Error::other)?;
            wait.await.map_err(io::Error::other)?;
        }
        "fetch" => shared.fetch(ident, 0).await?,
        "fetch-naps" => {
            nap(8000).await;
            shared.fetch(ident, 0).await?;
            nap(4000).await;
            shared.fetch(ident, 1).await?;
        }
        "fetch-children" => fetch_children(shared, ident).await?,
        _ => return Err(io::ErrorKind::NotFound.into()),
    }
    Ok(())
}

async fn run() -> io::Result<()> {
    let port = std::env::var("UPSTREAM_PORT").map_err(io::Error::other)?;
    let (jobs, todo): (Vec<_>, Vec<_>) = (0..32).map(|_| mpsc::unbounded_channel::<Job>()).unzip();
    let shared = Arc::new(Shared {
        upstream: format!("127.0.0.1:{port}"),
        free: Mutex::default(),
        client: Client::builder(TokioExecutor::new()).build_http(),
        jobs,
        burn: Duration::from_micros(std::env::var("BURN_US").ok().and_then(|text| text.parse().ok()).unwrap_or(0)),
        blocking: blocking::Blocking::default(),
    });
    for mut todo in todo {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Some((ident, done)) = todo.recv().await {
                if let Err(error) = shared.later(&ident, 0).await {
                    eprintln!("{error}");
                }
                // No task waits where the client has gone.
                let _ = done.send(());
            }
        });
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("PORT {}", listener.local_addr()?.port());
    loop {
        let (stream, _) = listener.accept().await?;
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(|request: Request<hyper::body::Incoming>| {
                let shared = Arc::clone(&shared);
                async move {
                    let status = match serve(&shared, request.uri().path()).await {
                        Ok(()) => StatusCode::OK,
                        Err(error) => {
                            eprintln!("{}: {error}", request.uri());
                            StatusCode::INTERNAL_SERVER_ERROR
                        }
                    };
                    let mut reply = Response::new(Full::new(Bytes::from_static(b"ok\n")));
                    *reply.status_mut() = status;
                    Ok::<_, Infallible>(reply)
                }
            });
            if let Err(error) = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await {
                eprintln!("{error}");
            }
        });
    }
}

fn main() -> io::Result<()> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_io().enable_time().build()?;
    runtime.block_on(run())
}
