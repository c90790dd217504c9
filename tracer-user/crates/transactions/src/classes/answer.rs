//! Derives from a response's status whether the request's path is a route of the application.

use tracer_protocols::Conventions;

/// What a response proves about the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathEvidence {
    /// A route answered: the path is one of the application's.
    Routed,
    /// The responder need not have looked at the path: nothing is learned.
    Unproven,
    /// There is no such route.
    NoRoute,
}

impl PathEvidence {
    /// Classifies a status.
    pub(super) fn of(conventions: Conventions, status: Option<u16>) -> Self {
        if conventions != Conventions::Http {
            return Self::Routed;
        }
        match status {
            // Bad request, not found, method not allowed, gone, URI too long, fields too large, not implemented, bad
            // version.
            Some(400 | 404 | 405 | 410 | 414 | 431 | 501 | 505) => Self::NoRoute,
            // No answer; moved permanently (to another scheme or host); refused before routing; a gateway's own
            // response.
            None | Some(301 | 308 | 401 | 403 | 407 | 421 | 429 | 502..=504) => Self::Unproven,
            Some(_) => Self::Routed,
        }
    }
}
