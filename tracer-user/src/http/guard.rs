//! What stands between the network and the handlers: bounds on connections and time, and who may ask.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::serve::ListenerExt;
use tokio::net::TcpListener;

use super::{Problem, Shared, host_is_ours};

/// Requests served at the same time.
const REQUESTS: usize = 64;
/// Longest time for one answer.
const ANSWER: Duration = Duration::from_secs(30);

static PLACES: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(REQUESTS);

/// Accepts connections until `shutdown`. A reader that never reads holds a connection and a page of memory, nothing
/// else: the kernel gives it up after `TCP_USER_TIMEOUT`.
pub(super) async fn serve(listener: TcpListener, app: Router, shutdown: impl Future<Output = ()> + Send + 'static) {
    let listener = listener.tap_io(|io| {
        if let Err(error) = io.set_nodelay(true) {
            log::debug!("TCP_NODELAY: {error}");
        }
        give_up_after(io, ANSWER);
    });
    let (begun, begins) = tokio::sync::oneshot::channel::<()>();
    let server = axum::serve(listener, app).with_graceful_shutdown(async move {
        shutdown.await;
        let _ = begun.send(());
    });
    let served = async {
        if let Err(error) = server.await {
            log::error!("serving ended: {error}");
        }
    };
    // Clients that keep their connection open do not keep the agent.
    let patience = async {
        let _ = begins.await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    tokio::select! { () = served => {}, () = patience => {} }
}

#[expect(unsafe_code, reason = "the standard library has no call for this socket option")]
fn give_up_after(io: &tokio::net::TcpStream, time: Duration) {
    use std::os::fd::AsRawFd;
    let millis = time.as_millis() as libc::c_uint;
    // SAFETY: a valid descriptor and an option value of the size given.
    unsafe {
        libc::setsockopt(
            io.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_USER_TIMEOUT,
            (&raw const millis).cast(),
            size_of::<libc::c_uint>() as libc::socklen_t,
        );
    }
}

/// Before and after every handler.
pub(super) async fn check(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Result<Response, Infallible> {
    if !host_is_ours(request.headers(), shared.listen) {
        let what = "this agent is asked for by another name than its own; use its address";
        return Ok(Problem(StatusCode::MISDIRECTED_REQUEST, what.into()).into_response());
    }
    let Ok(_place) = PLACES.try_acquire() else {
        return Ok(Problem(StatusCode::SERVICE_UNAVAILABLE, "too many requests at once; try again".into()).into_response());
    };
    let mut response = match tokio::time::timeout(ANSWER, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem(StatusCode::GATEWAY_TIMEOUT, "the answer took too long".into()).into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // Flame graphs bring their own script and style; nothing else may run.
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(
        "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    ));
    Ok(response)
}
