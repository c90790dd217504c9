//! When certificates expire that TLS handshakes showed.

use std::collections::BTreeMap;

use prometheus::{IntGaugeVec, Opts};

use super::durations::OTHER;
use super::export::Metrics;
use super::families::{Families, vec};

/// Most servers with a series of their own: their names come from clients.
const SERVERS: usize = 100;

/// The family.
#[derive(Debug)]
pub(super) struct Certificates {
    expiry: IntGaugeVec,
    /// Servers with a series, and what it shows.
    shown: BTreeMap<Box<str>, i64>,
}

impl Certificates {
    pub(super) fn new(r: &Families) -> Self {
        let expiry = "When a server's certificate expires (Unix time), by the name its clients ask for (SNI; empty: \
                      none), as its latest handshake showed it: up to TLS 1.2, not of resumed sessions. Servers that \
                      find no room share _other, with the earliest.";
        let expiry = Opts::new("tracer_tls_certificate_expiry_seconds", expiry);
        Self { expiry: vec(r, IntGaugeVec::new(expiry, &["server_name"])), shown: BTreeMap::new() }
    }
}

impl Metrics {
    /// A handshake showed the certificate of `name`, which expires at `expires`, seconds since 1970.
    pub fn set_certificate(&mut self, name: &str, expires: i64) {
        let shown = &mut self.certificates.shown;
        let is_known = shown.contains_key(name);
        let name = if is_known || (shown.len() < SERVERS && self.classes.budget.take(1)) { name } else { OTHER };
        let expires = match shown.get(OTHER) {
            Some(earlier) if name == OTHER => expires.min(*earlier),
            _ => expires,
        };
        shown.insert(name.into(), expires);
        self.certificates.expiry.with_label_values(&[name]).set(expires);
    }
}
