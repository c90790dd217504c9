//! Certificates instead of a shared key: mutual TLS 1.3 (RFC 8446). Each agent has a certificate from an authority that
//! all of them trust, and presents it at either end; the dialling end also checks that the certificate is for the host
//! it dialled.
//!
//! Changed files are read again, so certificates can be renewed while the agent runs.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{AlertDescription, CertificateError, ClientConfig, Error, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tracer_host::files;

use super::channel::Link;
use super::san;

/// Longest file of certificates, bytes.
const FILE: u64 = 1 << 20;
/// What both ends must mean by their bytes.
const ALPN: &[u8] = b"tracer-relay/1";
/// Bytes TLS adds to a frame: header, inner type and tag of a record (RFC 8446 §5.2).
pub(super) const RECORD: u64 = 5 + 1 + 16;

/// Paths of the certificate files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// This agent's certificate with the intermediate ones; PEM.
    pub cert: PathBuf,
    /// Its private key, PEM; only its owner may read it.
    pub key: PathBuf,
    /// The trusted authorities; PEM.
    pub ca: PathBuf,
}

/// Each file's modification time and size.
type Stamp = [Option<(SystemTime, u64)>; 3];

#[derive(Clone)]
struct Ends {
    connector: TlsConnector,
    acceptor: TlsAcceptor,
}

/// This agent's certificate and the authorities it trusts.
pub struct Identity {
    files: Files,
    ends: Mutex<(Stamp, Ends)>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Identity {
    /// Reads the files. The error says which file is wrong and what was expected of it: otherwise only the other agents
    /// would refuse it later, and log that on their hosts.
    pub fn read(files: Files) -> io::Result<Self> {
        let stamp = stamp(&files);
        let ends = Mutex::new((stamp, configure(&files)?));
        Ok(Self { files, ends })
    }

    /// The configuration from the current files; the previous one if they cannot be read.
    fn ends(&self) -> Ends {
        let mut known = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamp(&self.files);
        if now != known.0 {
            // Try each change once, good or bad.
            known.0 = now;
            match configure(&self.files) {
                Ok(ends) => known.1 = ends,
                Err(error) => log::warn!("relay: {error}; the certificates read before are used on"),
            }
        }
        known.1.clone()
    }

    /// Handshake with the agent dialled at `place` (`HOST:PORT`), whose certificate must be for that host.
    pub(super) async fn dialled<S: Link>(&self, stream: S, place: &str) -> io::Result<TlsStream<S>> {
        let host = place.rsplit_once(':').map_or(place, |(host, _)| host);
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            io::Error::other(format!("{host} is no name a certificate can be for: use the host's DNS name or address"))
        })?;
        Ok(TlsStream::Client(self.ends().connector.connect(name, stream).await?))
    }

    /// Handshake with an agent that dialled.
    pub(super) async fn accepted<S: Link>(&self, stream: S) -> io::Result<TlsStream<S>> {
        Ok(TlsStream::Server(self.ends().acceptor.accept(stream).await?))
    }
}

/// The addresses in the other end's certificate.
pub(super) fn addresses<S>(stream: &TlsStream<S>) -> Vec<IpAddr> {
    let (_, connection) = stream.get_ref();
    let own = connection.peer_certificates().and_then(<[CertificateDer<'_>]>::first);
    own.map(|certificate| san::addresses(certificate)).unwrap_or_default()
}

fn stamp(files: &Files) -> Stamp {
    [&files.cert, &files.key, &files.ca].map(|file| {
        let known = std::fs::metadata(file).ok()?;
        Some((known.modified().ok()?, known.len()))
    })
}

fn wrong(path: &Path, what: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {what}", path.display()))
}

/// All certificates in a file; at least one.
fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let refused = |why: String| wrong(path, format!("expected certificates in PEM: {why}"));
    let text = files::read(path, FILE).map_err(|why| refused(why.to_string()))?;
    let found = CertificateDer::pem_slice_iter(text.as_bytes());
    let all = found.collect::<Result<Vec<_>, _>>().map_err(|why| refused(why.to_string()))?;
    if all.is_empty() { Err(refused("none was found".into())) } else { Ok(all) }
}

fn configure(files: &Files) -> io::Result<Ends> {
    let chain = certificates(&files.cert)?;
    let text = files::read_secret(&files.key, FILE).map_err(|error| wrong(&files.key, error))?;
    let key = PrivateKeyDer::from_pem_slice(text.as_bytes())
        .map_err(|why| wrong(&files.key, format!("expected a private key in PEM: {why}")))?;
    let mut roots = RootCertStore::empty();
    for authority in certificates(&files.ca)? {
        roots.add(authority).map_err(|why| wrong(&files.ca, format!("not an authority's certificate: {why}")))?;
    }
    let (roots, provider) = (Arc::new(roots), Arc::new(rustls::crypto::ring::default_provider()));
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
    let verifier = verifier.build().map_err(|why| wrong(&files.ca, why))?;
    own(&chain, &roots, &provider, verifier.as_ref()).map_err(|why| {
        let ca = files.ca.display();
        wrong(&files.cert, format!("{why}; expected one for TLS servers and clients, issued by an authority of {ca}"))
    })?;
    let unfit = |why: Error| wrong(&files.key, format!("not the key of {}: {why}", files.cert.display()));
    let versions = |why: Error| io::Error::other(why.to_string());
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(versions)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())
        .map_err(unfit)?;
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(versions)?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(unfit)?;
    // Every session does a full handshake: a resumed one would outlive its certificates.
    server.send_tls13_tickets = 0;
    client.resumption = Resumption::disabled();
    server.alpn_protocols = vec![ALPN.to_vec()];
    client.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Ends { connector: TlsConnector::from(Arc::new(client)), acceptor: TlsAcceptor::from(Arc::new(server)) })
}

/// Whether agents that trust the same authorities will accept this agent's certificate, at either end.
fn own(
    chain: &[CertificateDer<'static>],
    roots: &RootCertStore,
    provider: &CryptoProvider,
    verifier: &dyn rustls::server::danger::ClientCertVerifier,
) -> Result<(), Error> {
    let Some((first, between)) = chain.split_first() else { return Err(Error::NoCertificatesPresented) };
    let now = UnixTime::now();
    verifier.verify_client_cert(first, between, now)?;
    let parsed = ParsedCertificate::try_from(first)?;
    let algorithms = provider.signature_verification_algorithms.all;
    verify_server_cert_signed_by_trust_anchor(&parsed, roots, between, now, algorithms)
}

/// What went wrong if TLS failed, and what to do about it.
pub(super) fn advice(error: &io::Error) -> Option<String> {
    let why = error.get_ref()?.downcast_ref::<Error>()?;
    let advice = match why {
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => {
            "name the agent as its certificate does (--relay-peer), or issue it one for this name or address; that it is \
             called by an address needs that address in the certificate"
        }
        // `BadSignature`: an authority of the same name has another key.
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "it is not of an authority in --relay-ca, which must be the same for all agents"
        }
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "renew it on its host, or set the clocks"
        }
        Error::NoCertificatesPresented => "it must have --relay-cert, --relay-cert-key and --relay-ca, too",
        Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRequired
            | AlertDescription::DecryptError,
        ) => "the other end does not take this agent's certificate; its log says why",
        _ => "the other end must have certificates (--relay-cert) and no key (--relay-key), too; or it is no agent",
    };
    Some(format!("{why}: {advice}"))
}

#[cfg(test)]
mod tests;
