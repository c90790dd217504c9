//! Accepts HTTP connections with bounds on their number, lifetime and slowness; `axum::serve` bounds none of these.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Sleep;

use super::Console;
use super::slots::{Progress, Slot, Slots};

/// Bounds on connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Most at the same time; for more, those go that wait for their clients.
    pub(super) connections: usize,
    /// Time to send the head of a request, and so the longest pause between two requests.
    pub(super) head: Duration,
    /// Longest time without being able to write a byte.
    pub(super) write: Duration,
    /// Maximum lifetime of a connection: the last resort against a client that reads one byte at a time.
    pub(super) life: Duration,
    /// Time for open requests to finish after shutdown has begun.
    pub(super) end: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            head: Duration::from_secs(10),
            write: Duration::from_secs(10),
            life: Duration::from_secs(300),
            end: Duration::from_millis(200),
        }
    }
}

/// Maximum header fields of a request, and bytes of its head.
const HEADERS: usize = 64;
const HEAD_BYTES: usize = 32 * 1024;

/// Accepts connections until `shutdown`, then lets those that are busy end.
///
/// When all places are taken, who waits longest for its client makes room ([`Slots`]): a client that does not read holds up
/// nobody else.
pub(super) async fn serve(
    listener: TcpListener,
    app: Router,
    limits: Limits,
    console: Arc<Console>,
    shutdown: impl Future<Output = ()>,
) {
    let places = Arc::new(Semaphore::new(limits.connections));
    let slots = Arc::new(Slots::default());
    let (stop, stopped) = watch::channel(());
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = async {
            let accepted = listener.accept().await;
            (place(&places, &slots, &console).await, accepted)
        };
        let (place, accepted) = tokio::select! {
            accepted = accepted => accepted,
            () = &mut shutdown => break,
        };
        match (place, accepted) {
            (Some(place), Ok((stream, _))) => {
                let (app, stopped) = (app.clone(), stopped.clone());
                let (open, slot) = (Open::new(&console), slots.enter());
                tokio::spawn(async move {
                    let _place = (place, open);
                    connection(stream, app, limits, slot, stopped).await;
                });
            }
            (Some(_), Err(error)) => {
                // Out of descriptors, most likely: that passes, and must not spin meanwhile.
                log::warn!("accepting a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            // The semaphore is never closed.
            (None, _) => break,
        }
    }
    drop((listener, stopped));
    // An error means that no connection is left.
    let _ = stop.send(());
    let _ = tokio::time::timeout(limits.end, stop.closed()).await;
}

/// A place for a connection; where there is none, somebody else's as soon as that one has waited for its client for long enough.
async fn place(places: &Arc<Semaphore>, slots: &Slots, console: &Console) -> Option<OwnedSemaphorePermit> {
    if let Ok(place) = Arc::clone(places).try_acquire_owned() {
        return Some(place);
    }
    console.waited.fetch_add(1, Ordering::Relaxed);
    let mut free = pin!(Arc::clone(places).acquire_owned());
    loop {
        let wait = slots.make_room(Instant::now());
        tokio::select! {
            place = &mut free => return place.ok(),
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Counts a connection while it is open.
struct Open(Arc<Console>);

impl Open {
    fn new(console: &Arc<Console>) -> Self {
        console.open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(console))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn connection(stream: TcpStream, app: Router, limits: Limits, slot: Slot, mut stopped: watch::Receiver<()>) {
    if let Err(error) = stream.set_nodelay(true) {
        log::debug!("TCP_NODELAY: {error}");
    }
    let progress = slot.progress();
    let stream = TokioIo::new(TimeoutIo { stream, limit: limits.write, stuck: None, progress: Arc::clone(&progress) });
    let app = TowerToHyperService::new(app);
    let answer = service_fn(|request| {
        let (answer, busy) = (app.call(request), Progress::begin(&progress));
        async move {
            let answer = answer.await;
            drop(busy);
            answer
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_headers(HEADERS)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(stream, answer);
    let mut served = pin!(served);
    let whole = async {
        let ended = tokio::select! {
            ended = served.as_mut() => Some(ended),
            _ = stopped.changed() => None,
        };
        if let Some(ended) = ended {
            ended
        } else {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    tokio::select! {
        ended = tokio::time::timeout(limits.life, whole) => match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => log::debug!("a connection ended: {error}"),
            Err(_) => log::debug!("a connection lived too long"),
        },
        () = slot.evicted() => log::debug!("a connection whose client is slow made room for another"),
    }
}

/// A stream that fails when it cannot write for too long.
struct TimeoutIo {
    stream: TcpStream,
    limit: Duration,
    /// Runs while a write waits.
    stuck: Option<Pin<Box<Sleep>>>,
    progress: Arc<Progress>,
}

impl TimeoutIo {
    fn wrote(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.progress.wrote(*bytes);
        }
        self.judge(cx, written)
    }

    fn judge<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let limit = self.limit;
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(stuck.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for TimeoutIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for TimeoutIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;

    const QUICK: Limits = Limits {
        connections: 2,
        head: Duration::from_millis(150),
        write: Duration::from_millis(150),
        life: Duration::from_secs(20),
        end: Duration::from_millis(200),
    };

    async fn start(limits: Limits) -> (SocketAddr, oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app =
            Router::new().route("/", get(|| async { "hello" })).route("/big", get(|| async { vec![7u8; 32 << 20] }));
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(async move {
            serve(listener, app, limits, Arc::default(), async { ended.await.unwrap_or(()) }).await;
        });
        (address, end, task)
    }

    /// Bytes until the server closes.
    async fn rest(stream: &mut TcpStream) -> Vec<u8> {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        bytes
    }

    #[tokio::test]
    async fn those_that_say_nothing_make_room() {
        let (address, _end, _task) = start(QUICK).await;
        let mut silent = Vec::new();
        for _ in 0..4 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        silent[0].write_all(b"GET / HTTP/1.1\r\nHost: x\r\n").await.unwrap();
        // Two connections are open and two wait; the server closes all in turn, then accepts another.
        for stream in &mut silent {
            rest(stream).await;
        }
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        assert!(rest(&mut stream).await.ends_with(b"hello"));
    }

    #[tokio::test]
    async fn a_reader_that_never_reads_loses_its_connection() {
        let (address, _end, _task) = start(Limits { connections: 1, ..QUICK }).await;
        let mut greedy = TcpStream::connect(address).await.unwrap();
        greedy.write_all(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut other = TcpStream::connect(address).await.unwrap();
        other.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        // The greedy client holds the only permit until its write times out.
        assert!(rest(&mut other).await.ends_with(b"hello"));
        assert!(rest(&mut greedy).await.len() < 32 << 20);
    }

    #[tokio::test]
    async fn slow_readers_do_not_hold_up_others() {
        // Remote longer than this test takes: none of them loses its place for its slowness alone.
        let patient = Duration::from_secs(60);
        let (address, _end, _task) =
            start(Limits { connections: 8, head: patient, write: patient, life: patient, ..QUICK }).await;
        let mut slow = Vec::new();
        for n in 0..30 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // Some never read, some never ask.
            let request: &[u8] = if n % 3 == 0 { b"GET / HT" } else { b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n" };
            stream.write_all(request).await.unwrap();
            slow.push(stream);
        }
        // Some take a byte now and then.
        let trickle = tokio::spawn(async move {
            let mut byte = [0];
            loop {
                for stream in &mut slow {
                    let _ = tokio::time::timeout(Duration::from_millis(1), stream.read_exact(&mut byte)).await;
                }
            }
        });
        for _ in 0..10 {
            let begin = Instant::now();
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
            assert!(rest(&mut stream).await.ends_with(b"hello"));
            assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        }
        trickle.abort();
    }

    #[tokio::test]
    async fn too_many_headers_are_refused() {
        let (address, _end, _task) = start(QUICK).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let headers = "x-many: y\r\n".repeat(200);
        stream.write_all(format!("GET / HTTP/1.1\r\n{headers}\r\n").as_bytes()).await.unwrap();
        assert!(rest(&mut stream).await.starts_with(b"HTTP/1.1 431"));
    }

    #[tokio::test]
    async fn an_idle_connection_does_not_keep_the_agent() {
        let (address, end, task) = start(Limits { head: Duration::from_secs(20), ..QUICK }).await;
        let mut idle = TcpStream::connect(address).await.unwrap();
        idle.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut some = [0; 12];
        idle.read_exact(&mut some).await.unwrap();
        end.send(()).unwrap();
        task.await.unwrap();
        assert!(rest(&mut idle).await.ends_with(b"hello"));
    }
}
