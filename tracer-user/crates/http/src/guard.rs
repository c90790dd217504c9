//! Middleware of every handler: access control, response timeout, security headers.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::markup::error_page;
use super::token::Token;
use super::{App, Explained, Problem};

/// Maximum time for one response.
const ANSWER: Duration = Duration::from_secs(30);
/// Scripts, styles and data come from the agent itself: nothing inline, nothing external.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// For a server without state to change: other methods than reading are refused, and other names than its own.
pub(super) async fn read_only(listen: SocketAddr, host_name: &str, request: Request, next: Next) -> Response {
    let response = if !host_is_ours(&request, listen, host_name) {
        wrong_host()
    } else if let Some(refused) = refusal(&request, listen, None) {
        refused
    } else {
        within_time(request, next).await
    };
    secured(response)
}

fn wrong_host() -> Response {
    let what = "the Host header names another server: use this agent's address, localhost or its host name";
    Problem(StatusCode::MISDIRECTED_REQUEST, what.into()).into_response()
}

async fn within_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(ANSWER, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem(StatusCode::GATEWAY_TIMEOUT, "the answer took too long".into()).into_response(),
    }
}

pub(super) async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, Infallible> {
    let person = is_person(&request);
    let mut response = if !host_is_ours(&request, app.shared.listen, &app.host_name) {
        wrong_host()
    } else if let Some(refused) = refusal(&request, app.shared.listen, app.shared.token.as_ref()) {
        refused
    } else {
        within_time(request, next).await
    };
    if person && let Some(Explained(what)) = response.extensions().get() {
        response = (response.status(), error_page(response.status(), what)).into_response();
    }
    Ok(secured(response))
}

/// The response with the headers that every one has.
fn secured(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    // Flame graphs contain script and style and set their own policy.
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(POLICY));
    response
}

/// Whether an error is read by a person: a browser that opens an address asks for HTML first. The API is for programs.
fn is_person(request: &Request) -> bool {
    let accept = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    request.method() == Method::GET && accept.starts_with("text/html") && !request.uri().path().starts_with("/api/")
}

/// Refuses requests that do more than read and lack the token: every user of this host can connect, but only some may
/// control root's agent. Applies to every path, so that none is forgotten. A page from another origin cannot send the
/// header without a preflight, which this server never allows.
fn refusal(request: &Request, listen: SocketAddr, token: Option<&Token>) -> Option<Response> {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return None;
    }
    let refused = |what: &str| Some(Problem(StatusCode::FORBIDDEN, what.into()).into_response());
    if !listen.ip().is_loopback() {
        // The connection is not encrypted.
        return refused("changes are taken on a loopback address only");
    }
    let Some(token) = token else {
        return refused("read-only: start the agent with --token-file FILE to allow changes");
    };
    (!has_token(request.headers(), token)).then(unauthorized)
}

/// Whether a request carries the token: exactly once, and no other.
fn has_token(headers: &HeaderMap, token: &Token) -> bool {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let bearer = given.next().and_then(|value| value.as_bytes().split_at_checked(7));
    let (Some((scheme, offered)), None) = (bearer, given.next()) else { return false };
    scheme.eq_ignore_ascii_case(b"bearer ") && token.fits(offered)
}

/// Whether a client may see what not every local user may: with the token, over a connection that stays on this host.
pub(super) fn is_trusted(headers: &HeaderMap, listen: SocketAddr, token: Option<&Token>) -> bool {
    listen.ip().is_loopback() && token.is_some_and(|token| has_token(headers, token))
}

fn unauthorized() -> Response {
    let what = "changes need the header `Authorization: Bearer` with the token in the agent's --token-file";
    let mut response = Problem(StatusCode::UNAUTHORIZED, what.into()).into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Whether the request's `Host` names this agent. By DNS rebinding, a foreign page can make its own name resolve to our
/// address and read our responses as its own; it cannot do that with an address or with our name.
fn host_is_ours(request: &Request, listen: SocketAddr, host_name: &str) -> bool {
    let Some(host) = host(request.headers()) else {
        // Browsers always send one; HTTP/1.0 need not.
        return request.version() == Version::HTTP_10 && !request.headers().contains_key(header::HOST);
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    if let Ok(ip) = bare.parse::<IpAddr>() {
        // An agent on every address, or behind address translation, is reached by addresses it does not know.
        return ip.is_loopback() || !listen.ip().is_loopback();
    }
    // `node1` and `node1.example.org`, unless the server is on loopback only.
    let first = name.split('.').next().unwrap_or_default();
    !listen.ip().is_loopback() && !first.is_empty() && {
        let own = host_name.split('.').next().unwrap_or_default();
        first.eq_ignore_ascii_case(own)
    }
}

/// The `Host` header, when there is exactly one.
fn host(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(header::HOST).iter();
    let host = all.next()?.to_str().ok()?;
    all.next().is_none().then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn asked(version: Version, hosts: &[&str], listen: &str) -> bool {
        let mut request = Request::new(Body::empty());
        *request.version_mut() = version;
        for host in hosts {
            request.headers_mut().append(header::HOST, HeaderValue::from_str(host).unwrap());
        }
        host_is_ours(&request, listen.parse().unwrap(), "node1.example.org")
    }

    #[test]
    fn only_our_own_names_are_answered() {
        let local = "127.0.0.1:9464";
        let everywhere = "0.0.0.0:9464";
        for (host, on_loopback, on_all) in [
            ("127.0.0.1:9464", true, true),
            ("127.0.0.1", true, true),
            ("127.8.8.8", true, true),
            ("localhost:1", true, true),
            ("LocalHost", true, true),
            ("[::1]:9464", true, true),
            ("[::1]", true, true),
            ("10.0.0.5:9464", false, true),
            ("[fd00::5]:9464", false, true),
            ("node1:9464", false, true),
            ("NODE1.example.org", false, true),
            ("evil.example", false, false),
            ("localhost.evil.example", false, false),
            ("127.0.0.1.evil.example", false, false),
            ("", false, false),
            (":9464", false, false),
            (".", false, false),
        ] {
            assert_eq!(asked(Version::HTTP_11, &[host], local), on_loopback, "{host} on loopback");
            assert_eq!(asked(Version::HTTP_11, &[host], everywhere), on_all, "{host} on all addresses");
        }
        assert!(!asked(Version::HTTP_11, &[], local));
        assert!(asked(Version::HTTP_10, &[], local));
        assert!(!asked(Version::HTTP_11, &["localhost", "evil.example"], local));
    }
}
