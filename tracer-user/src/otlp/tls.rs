//! TLS to a collector: trusted certificates and the client certificate.

use std::path::Path;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tracer_host::files;

use super::settings::{Protocol, Settings, SettingsError, Tls, error};

/// Longest file of certificates or with a key, bytes.
const FILE: u64 = 1 << 20;

const TRUSTED: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";
const KEY: &str = "OTEL_EXPORTER_OTLP_CLIENT_KEY";

/// A connector for `settings`; `plain` makes the underlying connections. Reads certificates only for `https`, so that
/// an agent without `https` does not fail for lack of them.
pub(super) fn connector(
    settings: &Settings,
    mut plain: HttpConnector,
) -> Result<HttpsConnector<HttpConnector>, SettingsError> {
    plain.enforce_http(false);
    let config = if settings.uri.scheme_str() == Some("https") {
        configure(&settings.tls)?
    } else {
        builder()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth()
    };
    let connector = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
    Ok(match settings.protocol {
        Protocol::Grpc => connector.enable_http2().wrap_connector(plain),
        Protocol::Http => connector.enable_http1().wrap_connector(plain),
    })
}

/// A connector for HTTP/1.1 that trusts the system's certificates, which are read only for `https`.
pub(crate) fn by_system_roots(
    https: bool,
    mut plain: HttpConnector,
) -> Result<HttpsConnector<HttpConnector>, SettingsError> {
    plain.enforce_http(false);
    let roots = if https { system_roots()? } else { RootCertStore::empty() };
    let config = builder()?.with_root_certificates(roots).with_no_client_auth();
    Ok(HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1().wrap_connector(plain))
}

fn system_roots() -> Result<RootCertStore, SettingsError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (taken, _) = roots.add_parsable_certificates(found.certs);
    if taken == 0 {
        let why = "this host has no certificates to trust; install ca-certificates, or name a file of them";
        return Err(error(TRUSTED, why));
    }
    Ok(roots)
}

fn builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, SettingsError> {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    builder.map_err(|why| error("https", why.to_string()))
}

fn configure(tls: &Tls) -> Result<ClientConfig, SettingsError> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = &tls.trusted {
        for certificate in certificates(TRUSTED, path)? {
            roots.add(certificate).map_err(|why| error(TRUSTED, format!("{}: {why}", path.display())))?;
        }
    } else {
        roots = system_roots()?;
    }
    let config = builder()?.with_root_certificates(roots);
    let Some((certificate, key)) = &tls.client else { return Ok(config.with_no_client_auth()) };
    let chain = certificates("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", certificate)?;
    let refused = |why: String| error(KEY, format!("{}: no key in PEM: {why}", key.display()));
    let text = files::read(key, FILE).map_err(|why| refused(why.to_string()))?;
    let secret = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|why| refused(why.to_string()))?;
    config.with_client_auth_cert(chain, secret).map_err(|why| error(KEY, format!("{}: {why}", key.display())))
}

/// All certificates in a file; at least one.
fn certificates(name: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, SettingsError> {
    let refused = |why: String| error(name, format!("{}: no certificates in PEM: {why}", path.display()));
    let text = files::read(path, FILE).map_err(|why| refused(why.to_string()))?;
    let found = CertificateDer::pem_slice_iter(text.as_bytes());
    let all = found.collect::<Result<Vec<_>, _>>().map_err(|why| refused(why.to_string()))?;
    if all.is_empty() { Err(refused("none was found".into())) } else { Ok(all) }
}
