//! Content of a header block: a request, a reply or trailers; and gRPC's view of it.

use std::sync::Arc;

use super::hpack::Name;
use crate::context::Contexts;
use crate::grpc::{self, UNKNOWN, of_http, verdict, word};
use crate::http1;
use crate::{Request, Settings};

/// Most bytes of a header value kept.
const VALUE_LIMIT: usize = 128;
/// As long as a path is kept, whatever follows.
const PATH_KEPT: usize = 1024;

/// The fields of one block that matter.
#[derive(Debug, Default)]
pub(super) struct Fields {
    method: Option<Vec<u8>>,
    path: Option<Vec<u8>>,
    /// Only the beginning of the path is there.
    path_cut: bool,
    authority: Option<Vec<u8>>,
    scheme: bool,
    /// There is a status, readable or not.
    reply: bool,
    status: Option<u16>,
    length: Option<u64>,
    /// Whether the content is gRPC's, if its type is readable.
    grpc: Option<bool>,
    grpc_status: Option<u16>,
    contexts: Contexts,
    request_id: Option<Arc<str>>,
    headers: Vec<(u16, Box<str>)>,
    /// Fields with unknown names.
    unknown: bool,
    /// The block ended in uncaptured bytes, or was unreadable.
    pub(super) broken: bool,
}

fn number<T: std::str::FromStr>(value: &[u8]) -> Option<T> {
    value.iter().all(u8::is_ascii_digit).then(|| std::str::from_utf8(value).ok()?.parse().ok())?
}

fn text(value: &[u8]) -> Arc<str> {
    Arc::from(String::from_utf8_lossy(value.get(..value.len().min(VALUE_LIMIT)).unwrap_or_default()))
}

impl Fields {
    /// Takes one field.
    pub(super) fn see(&mut self, name: Name, value: &[u8], settings: &Settings) {
        match name {
            Name::Method => self.method = Some(value.to_vec()),
            Name::Path => self.path = Some(value.to_vec()),
            // Where the path ends before the cut, or is longer than what is kept of one.
            Name::CutPath if value.len() >= PATH_KEPT || value.iter().any(|byte| matches!(byte, b'?' | b'#')) => {
                (self.path, self.path_cut) = (Some(value.to_vec()), true);
            }
            Name::Authority => self.authority = Some(value.to_vec()),
            Name::Scheme => self.scheme = true,
            Name::Status => {
                self.reply = true;
                self.status = number(value).filter(|status| (100..1000).contains(status));
            }
            Name::ContentLength => self.length = number(value),
            Name::ContentType => self.grpc = Some(grpc::is_content(value)),
            Name::GrpcStatus => {
                let known = number(value).filter(|code| word(*code).is_some());
                self.grpc_status = Some(known.unwrap_or(UNKNOWN));
            }
            Name::Context(which) => self.contexts.see(which, value, settings),
            Name::RequestId => self.request_id = Some(text(value)),
            Name::Wanted(index) => {
                if self.headers.len() < settings.headers.len() {
                    self.headers.push((index, Box::from(&*text(value))));
                }
            }
            Name::Unknown => self.unknown = true,
            Name::CutPath | Name::Other => {}
        }
    }

    /// Whether it certainly begins a request.
    pub(super) fn is_request(&self) -> bool {
        self.method.is_some() || self.path.is_some() || self.scheme || self.authority.is_some()
    }

    /// Whether it certainly begins a reply.
    pub(super) fn is_reply(&self) -> bool {
        self.reply
    }

    /// Whether it could begin a reply: its status may be among the unknown fields. Trailers have no content type.
    pub(super) fn may_be_reply(&self) -> bool {
        self.unknown && self.grpc_status.is_none() || self.broken && self.grpc_status.is_none()
    }

    pub(super) fn status(&self) -> Option<u16> {
        self.status
    }

    /// Length of the body in bytes, if the head gives it.
    pub(super) fn length(&self) -> Option<u64> {
        self.length
    }

    /// Whether it begins a gRPC call, or the reply to one; `None`: unknown, because its content type may be among the
    /// fields that cannot be read. A call is always a POST.
    pub(super) fn is_grpc(&self) -> Option<bool> {
        let is_post = self.method.as_deref().is_none_or(|method| method == b"POST");
        match self.grpc {
            _ if !is_post => Some(false),
            None if self.is_incomplete() => None,
            known => Some(known == Some(true)),
        }
    }

    /// Whether the block has fields that cannot be read.
    pub(super) fn is_incomplete(&self) -> bool {
        self.unknown || self.broken
    }

    /// Whether these are trailers that only gRPC has.
    pub(super) fn has_grpc_status(&self) -> bool {
        self.grpc_status.is_some()
    }

    /// Outcome of a call by its trailers; `end`: nothing follows them.
    pub(super) fn grpc_verdict(&self, end: bool) -> Option<(u16, Option<&'static str>)> {
        match self.grpc_status {
            Some(code) => Some(verdict(code)),
            // Without a status the call failed, as its caller sees it.
            None if end && !self.is_incomplete() => Some(verdict(UNKNOWN)),
            None => None,
        }
    }

    /// Outcome of a call by the head of its reply: usually not known yet.
    pub(super) fn grpc_reply(&self, end: bool) -> Option<(u16, Option<&'static str>)> {
        if self.grpc_status.is_some() {
            return self.grpc_verdict(end);
        }
        match self.status() {
            Some(200) if end => self.grpc_verdict(end),
            Some(200) | None => None,
            Some(status) => Some(verdict(of_http(status))),
        }
    }

    /// The request that begins; unnamed if the fields that name it are unknown.
    pub(super) fn request(self, settings: &Settings) -> Box<Request> {
        let mut request = super::unnamed();
        request.cut = self.broken;
        (request.traceparent, request.carried) = self.contexts.finish();
        request.request_id = self.request_id;
        request.headers = self.headers;
        if settings.host {
            request.host = self.authority.as_deref().map(text);
        }
        let method = self.method.as_deref().and_then(http1::method_name);
        let connect = method == Some("CONNECT") && self.path.is_none();
        let target = if connect { self.authority } else { self.path };
        if let (Some(method), Some(target)) = (method, target)
            && !target.is_empty()
        {
            request.method = settings.method(method);
            request.path = http1::path(&target, connect);
            request.target = if self.path_cut { 0 } else { http1::target_number(&target) };
            request.expected.tunnel = connect;
            request.expected.bodiless = method == "HEAD";
        }
        request
    }
}
