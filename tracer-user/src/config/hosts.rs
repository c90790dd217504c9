//! `[relay]`: exchange of contexts with the agents of other hosts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;
use tracer_kernel::header::Destination;
use tracer_relay::bounds::{Policy, Prefix};
use tracer_relay::channel::Secret;
use tracer_relay::event::NETWORKS;
use tracer_relay::settings::{Settings, Trust};
use tracer_relay::tls::{Files, Identity};

use super::{ConfigError, Source};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RelayFile {
    listen: Option<Spanned<String>>,
    peers: Vec<Spanned<String>>,
    discover: Option<bool>,
    port: Option<Spanned<i64>>,
    nats: Option<Spanned<String>>,
    key_file: Option<Spanned<String>>,
    cert_file: Option<Spanned<String>>,
    cert_key_file: Option<Spanned<String>>,
    ca_file: Option<Spanned<String>>,
    insecure: bool,
    strict: bool,
    translated: Vec<Spanned<String>>,
    addresses: BTreeMap<Spanned<String>, Vec<Spanned<String>>>,
    tcp_option: bool,
    headers: Vec<Spanned<String>>,
}

/// Exchange of contexts with the agents of other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relay {
    /// Address to listen on.
    pub listen: Option<SocketAddr>,
    /// Agents that get the context of every call, `HOST:PORT`.
    pub peers: Vec<String>,
    /// Look for agents at the private addresses that programs call.
    pub discover: bool,
    /// Port of discovered agents.
    pub port: u16,
    /// NATS server through which agents reach each other instead of connecting directly.
    pub nats: Option<String>,
    /// File with the key that all agents share.
    pub key_file: Option<PathBuf>,
    /// This agent's certificate, instead of a key.
    pub cert_file: Option<PathBuf>,
    /// Private key of the certificate.
    pub cert_key_file: Option<PathBuf>,
    /// Authorities of the other agents' certificates.
    pub ca_file: Option<PathBuf>,
    /// Allow sessions beyond loopback without a key or certificates.
    pub insecure: bool,
    /// About which connections other agents are believed.
    pub policy: Policy,
    /// Send each request's context in a TCP option.
    pub tcp_option: bool,
    /// Destinations whose requests get a `traceparent` header.
    pub headers: Vec<Destination>,
}

/// Maximum number of named agents.
const PEERS: usize = 64;
/// Maximum number of destinations that get headers.
const HEADERS: usize = 256;

impl Default for Relay {
    fn default() -> Self {
        let (listen, peers, nats) = (None, Vec::new(), None);
        let (key_file, cert_file, cert_key_file, ca_file) = (None, None, None, None);
        let port = tracer_relay::settings::PORT;
        let (discover, insecure, tcp_option) = (true, false, false);
        Self {
            listen,
            peers,
            discover,
            port,
            nats,
            key_file,
            cert_file,
            cert_key_file,
            ca_file,
            insecure,
            policy: Policy::default(),
            tcp_option,
            headers: Vec::new(),
        }
    }
}

impl Relay {
    pub(super) fn check(source: &Source<'_>, file: RelayFile) -> Result<Self, ConfigError> {
        let mut found = Self { insecure: file.insecure, tcp_option: file.tcp_option, ..Self::default() };
        found.discover = file.discover.unwrap_or(found.discover);
        if let Some(listen) = file.listen.filter(|listen| !listen.get_ref().is_empty()) {
            found.listen = Some(listen.get_ref().parse().map_err(|_| {
                source.wrong(&listen.span(), "expected an address and a port, such as \"10.0.0.5:9465\"")
            })?);
        }
        if let Some(port) = &file.port {
            found.port = source.number(port, 1..65_536)?;
        }
        if let Some(last) = file.peers.get(PEERS) {
            return Err(source.wrong(&last.span(), format!("at most {PEERS} agents can be named")));
        }
        for peer in file.peers {
            if !is_place(peer.get_ref()) {
                return Err(source.wrong(&peer.span(), "expected a host and a port, such as \"db1.internal:9465\""));
            }
            found.peers.push(peer.into_inner());
        }
        if let Some(nats) = file.nats.filter(|nats| !nats.get_ref().is_empty()) {
            if !is_server(nats.get_ref()) {
                return Err(source.wrong(&nats.span(), "expected a NATS server, such as \"nats://bus.internal:4222\""));
            }
            found.nats = Some(nats.into_inner());
        }
        if let Some(last) = file.headers.get(HEADERS) {
            return Err(source.wrong(&last.span(), format!("at most {HEADERS} destinations can be named")));
        }
        for place in file.headers {
            let destination = Destination::parse(place.get_ref()).ok_or_else(|| {
                let expected =
                    "expected a destination, such as \"10.0.0.7:8080\", \"10.1.0.0/16\" or \"api.internal:80\"";
                source.wrong(&place.span(), expected)
            })?;
            found.headers.push(destination);
        }
        found.policy = policy(source, file.strict, &file.translated, &file.addresses)?;
        found.key_file = source.absolute(file.key_file)?;
        found.cert_file = source.absolute(file.cert_file)?;
        found.cert_key_file = source.absolute(file.cert_key_file)?;
        found.ca_file = source.absolute(file.ca_file)?;
        Ok(found)
    }

    /// Whether the agent exchanges contexts with other hosts at all.
    pub fn is_on(&self) -> bool {
        self.listen.is_some() || !self.peers.is_empty() || self.nats.is_some()
    }

    /// Reads the key or the certificates and checks the settings; the error says what is wrong.
    pub fn settings(&self) -> Result<Settings, String> {
        if let Some(peer) = self.peers.iter().find(|peer| !is_place(peer)) {
            return Err(format!(
                "'{peer}' is no agent's address: expected a host and a port, such as db1.internal:9465"
            ));
        }
        if let Some(nats) = self.nats.as_deref().filter(|nats| !is_server(nats)) {
            return Err(format!("'{nats}' is no NATS server: expected nats://HOST:4222 or tls://HOST:4222"));
        }
        let settings = Settings {
            listen: self.listen,
            peers: self.peers.clone(),
            discover: self.discover,
            port: self.port,
            nats: self.nats.clone(),
            trust: self.trust()?,
            insecure: self.insecure,
            policy: self.policy.clone(),
            forwards: tracer_relay::settings::forwards(),
        };
        settings.check()?;
        Ok(settings)
    }

    fn trust(&self) -> Result<Trust, String> {
        let wrong = |error: std::io::Error| error.to_string();
        match (&self.key_file, &self.cert_file, &self.cert_key_file, &self.ca_file) {
            (None, None, None, None) => Ok(Trust::Anybody),
            (Some(key), None, None, None) => Ok(Trust::Key(Secret::read(key).map_err(wrong)?)),
            (None, Some(cert), Some(key), Some(ca)) => {
                let (cert, key, ca) = (cert.clone(), key.clone(), ca.clone());
                Ok(Trust::Certificates(Arc::new(Identity::read(Files { cert, key, ca }).map_err(wrong)?)))
            }
            (Some(_), ..) => Err("agents know each other by a key (relay.key_file, --relay-key) or by certificates \
                                  (relay.cert_file, --relay-cert), not by both: remove one"
                .into()),
            (None, ..) => Err("certificates need three files: this agent's certificate (relay.cert_file, --relay-cert), its \
                               key (relay.cert_key_file, --relay-cert-key) and those of the authorities whose agents are \
                               spoken to (relay.ca_file, --relay-ca)"
                .into()),
        }
    }
}

/// The policy about which connections other agents are believed.
fn policy(
    source: &Source<'_>,
    strict: bool,
    translated: &[Spanned<String>],
    addresses: &BTreeMap<Spanned<String>, Vec<Spanned<String>>>,
) -> Result<Policy, ConfigError> {
    let network = |text: &Spanned<String>| {
        let expected = "expected an address or a network, such as \"10.0.0.7\" or \"10.1.0.0/16\"";
        Prefix::parse(text.get_ref()).ok_or_else(|| source.wrong(&text.span(), expected))
    };
    let networks = |texts: &[Spanned<String>]| {
        if let Some(last) = texts.get(NETWORKS) {
            return Err(source.wrong(&last.span(), format!("at most {NETWORKS} networks can be named")));
        }
        texts.iter().map(network).collect::<Result<Vec<_>, _>>()
    };
    if let Some((last, _)) = addresses.iter().nth(PEERS) {
        return Err(source.wrong(&last.span(), format!("at most {PEERS} agents can have addresses")));
    }
    let declared = addresses.iter().map(|(peer, texts)| Ok((network(peer)?, networks(texts)?)));
    let declared = declared.collect::<Result<Vec<_>, ConfigError>>()?;
    Ok(Policy { strict, translated: networks(translated)?, declared })
}

/// Whether the text is `HOST:PORT`.
fn is_place(text: &str) -> bool {
    text.rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0))
}

/// Whether the text is the URL of a NATS server.
fn is_server(text: &str) -> bool {
    ["nats://", "tls://"].iter().any(|scheme| text.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty()))
}
