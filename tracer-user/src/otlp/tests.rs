//! The exporter against collectors in this process, which answer as the test configures them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use prost::Message;
use tracer_model::{Owner, ServiceId, Sink, StackSample};

use super::spans::tests::finished;
use super::*;
use crate::pipeline::Pipeline;

/// The requests a collector got, and its next answers.
#[derive(Default)]
struct Collector {
    answers: Mutex<VecDeque<u16>>,
    got: Mutex<Vec<(HeaderMap, Bytes)>>,
}

impl Collector {
    /// Listens; answers with each of `answers` in turn, then with 200.
    async fn start(answers: &[u16]) -> (Arc<Self>, SocketAddr) {
        let collector = Arc::new(Self { answers: Mutex::new(answers.iter().copied().collect()), ..Self::default() });
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let app = collector.app();
        tokio::spawn(async move { axum::serve(listener, app).await });
        (collector, address)
    }

    fn app(self: &Arc<Self>) -> axum::Router {
        let shared = Arc::clone(self);
        let take = move |headers: HeaderMap, body: Bytes| {
            let shared = Arc::clone(&shared);
            async move {
                shared.got.lock().expect("unpoisoned").push((headers, body));
                let code = shared.answers.lock().expect("unpoisoned").pop_front().unwrap_or(200);
                StatusCode::from_u16(code).expect("a code")
            }
        };
        axum::Router::new()
            .route("/v1/traces", axum::routing::post(take.clone()))
            .route("/v1development/profiles", axum::routing::post(take))
    }

    /// The same behind TLS, for clients whose certificate has the same issuer as `own`.
    async fn start_tls(
        own: &Certificate,
        authority: &rcgen::CertifiedIssuer<'_, rcgen::KeyPair>,
    ) -> (Arc<Self>, SocketAddr) {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(authority.der().clone()).expect("a certificate");
        let asks = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let chain = vec![own.0.der().clone()];
        let key = rustls::pki_types::PrivateKeyDer::try_from(own.1.serialize_der()).expect("a key");
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_client_cert_verifier(asks.build().expect("a verifier"))
            .with_single_cert(chain, key)
            .expect("a pair");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let collector = Arc::new(Self::default());
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let app = collector.app();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(stream).await else { continue };
                let service = hyper_util::service::TowerToHyperService::new(app.clone());
                let io = hyper_util::rt::TokioIo::new(stream);
                tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service));
            }
        });
        (collector, address)
    }

    fn requests(&self) -> Vec<(HeaderMap, Bytes)> {
        self.got.lock().expect("unpoisoned").clone()
    }
}

/// A certificate and its key.
type Certificate = (rcgen::Certificate, rcgen::KeyPair);

fn issue(authority: &rcgen::CertifiedIssuer<'_, rcgen::KeyPair>, name: &str) -> Certificate {
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new([name.to_owned()]).expect("a name");
    (params.signed_by(&key, authority).expect("signed"), key)
}

fn settings(address: SocketAddr, set: &[(&str, &str)]) -> Settings {
    let env = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    read(Signal::Traces, Some(&format!("http://{address}")), &[], env).expect("good").expect("wanted")
}

fn give(exporter: &mut Exporter, ids: std::ops::Range<u64>) {
    ids.for_each(|id| exporter.span(&Names::default(), &finished("s", id).span));
}

fn spans_of(body: &[u8]) -> Vec<u64> {
    let request = proto::Request::decode(body).expect("a request");
    let scopes = request.resource_spans.iter().flat_map(|of| &of.scope_spans);
    scopes
        .flat_map(|of| &of.spans)
        .map(|s| u64::from_be_bytes(s.span_id.clone().try_into().expect("8 bytes")))
        .collect()
}

#[tokio::test]
async fn spans_arrive_in_batches_and_once() {
    let (collector, address) = Collector::start(&[]).await;
    let set = [("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "100"), ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=k")];
    let (mut exporter, export) = start(settings(address, &set), "h", 0).expect("nothing to read");
    give(&mut exporter, 1..251);
    drop(exporter);
    let counts = Arc::clone(&export.counts);
    export.finish(Instant::now() + Duration::from_secs(3)).await;
    let requests = collector.requests();
    let mut spans: Vec<u64> = requests.iter().flat_map(|(_, body)| spans_of(body)).collect();
    spans.sort_unstable();
    assert_eq!(spans, (1..251).collect::<Vec<_>>());
    assert!(requests.iter().all(|(headers, body)| {
        headers["content-type"] == "application/x-protobuf" && headers["x-key"] == "k" && spans_of(body).len() <= 100
    }));
    assert_eq!(counts.by_outcome(), [("sent", 250), ("queue_full", 0), ("rejected", 0), ("failed", 0)]);
}

#[tokio::test]
async fn what_was_busy_is_asked_again_and_what_refused_is_not() {
    let (collector, address) = Collector::start(&[503, 200, 400]).await;
    let set = [("OTEL_BSP_SCHEDULE_DELAY", "1"), ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")];
    let (mut exporter, export) = start(settings(address, &set), "h", 0).expect("nothing to read");
    give(&mut exporter, 1..2);
    let end = Instant::now() + Duration::from_secs(20);
    while export.counts.by_outcome()[0].1 < 1 {
        assert!(Instant::now() < end, "{:?}", export.counts);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((collector.requests().len(), export.counts.retries()), (2, 1));
    assert_eq!(collector.requests()[0].0["content-encoding"], "gzip");
    assert_eq!(collector.requests()[0].1, collector.requests()[1].1, "the same again");
    give(&mut exporter, 2..4);
    drop(exporter);
    let counts = Arc::clone(&export.counts);
    export.finish(Instant::now() + Duration::from_secs(3)).await;
    let [sent, .., rejected, failed] = counts.by_outcome().map(|(_, count)| count);
    assert_eq!((sent + rejected, failed), (3, 0), "every span has one outcome");
    assert!(rejected >= 1);
}

#[tokio::test]
async fn a_collector_that_is_away_costs_spans_and_nothing_else() {
    // Nothing listens there any more.
    let address = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port");
    let (mut exporter, export) =
        start(settings(address, &[("OTEL_BSP_MAX_QUEUE_SIZE", "64")]), "h", 0).expect("nothing to read");
    let begun = Instant::now();
    give(&mut exporter, 1..100_001);
    assert!(begun.elapsed() < Duration::from_secs(5), "the pipeline does not wait");
    assert!(export.table_use().entries <= 64);
    drop(exporter);
    let counts = Arc::clone(&export.counts);
    export.finish(Instant::now() + Duration::from_secs(3)).await;
    let [sent, no_room, rejected, failed] = counts.by_outcome().map(|(_, count)| count);
    assert_eq!((sent, rejected, no_room + failed), (0, 0, 100_000));
}

#[tokio::test]
async fn a_share_is_sent_when_a_share_is_wanted() {
    let (collector, address) = Collector::start(&[]).await;
    let set = [("OTEL_TRACES_SAMPLER", "always_off")];
    let (mut exporter, export) = start(settings(address, &set), "h", 0).expect("nothing to read");
    give(&mut exporter, 1..100);
    drop(exporter);
    export.finish(Instant::now() + Duration::from_secs(3)).await;
    assert!(collector.requests().is_empty());
}

#[tokio::test]
async fn https_trusts_and_is_trusted() {
    let mut params = rcgen::CertificateParams::new([]).expect("no names");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority =
        rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().expect("a key")).expect("signed");
    let (collector, address) = Collector::start_tls(&issue(&authority, "localhost"), &authority).await;
    let dir = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let client = issue(&authority, "agent");
    let (ca, own) = (write("ca.pem", authority.pem()), write("own.pem", client.0.pem()));
    let key = write("key.pem", client.1.serialize_pem());
    let url = format!("https://localhost:{}", address.port());
    let with = |set: &[(&str, &str)]| {
        let env = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        start(read(Signal::Traces, Some(&url), &[], env).expect("good").expect("wanted"), "h", 0)
    };
    let trusted = ("OTEL_EXPORTER_OTLP_CERTIFICATE", ca.as_str());
    let (certificate, secret) = ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_KEY");
    for (set, taken) in [
        (&[trusted, (certificate, own.as_str()), (secret, key.as_str())][..], true),
        // A collector that requires client certificates, and one whose issuer is not trusted.
        (&[trusted], false),
        (&[("OTEL_EXPORTER_OTLP_CERTIFICATE", own.as_str()), (certificate, &own), (secret, &key)], false),
    ] {
        let before = collector.requests().len();
        let (mut exporter, export) = with(set).expect("readable");
        give(&mut exporter, 1..3);
        drop(exporter);
        let counts = Arc::clone(&export.counts);
        export.finish(Instant::now() + Duration::from_secs(3)).await;
        let outcome = if taken { "sent" } else { "failed" };
        assert!(counts.by_outcome().contains(&(outcome, 2)), "{set:?}: {:?}", counts.by_outcome());
        assert_eq!(collector.requests().len() - before, usize::from(taken));
    }
    let error = with(&[("OTEL_EXPORTER_OTLP_CERTIFICATE", &key)]).expect_err("a key is no certificate");
    assert!(error.to_string().contains("no certificates in PEM"), "{error}");
}

/// Samples of stacks that no program has, in the pipeline.
fn take_samples(pipeline: &mut Pipeline, stacks: std::ops::Range<u64>) {
    let mut names = Names::default();
    names.services.push(Arc::from("shop"));
    for address in stacks {
        let sample = StackSample {
            nanos: 1,
            pid: 7,
            tid: 7,
            weight: 10,
            user: vec![address],
            kernel: Vec::new(),
            outcome: tracer_common::unwind::Outcome::Complete,
            interpreted: tracer_model::Interpreted::default(),
            off_cpu: None,
            waker: None,
            owner: Owner::Overhead(ServiceId(0)),
            span: None,
            dimensions: tracer_model::DimensionValues::default(),
            ad_hoc: false,
        };
        pipeline.profiles.sample(&names, &sample);
    }
}

fn profile_export(pipeline: &mut Pipeline, address: SocketAddr) -> ProfileExport {
    let set = read(Signal::Profiles, Some(&format!("http://{address}")), &[Signal::Profiles], |_| None);
    ProfileExport::start(set.expect("good").expect("wanted"), "h", &mut pipeline.profiles, 0).expect("nothing to read")
}

/// Sums of the values in each request.
fn nanos(collector: &Collector) -> Vec<i64> {
    let sum = |(_, body): &(HeaderMap, Bytes)| {
        let request = profile_proto::Request::decode(&**body).expect("a request");
        let profiles = request.resource_profiles.iter().flat_map(|of| &of.scope_profiles).flat_map(|of| &of.profiles);
        profiles.flat_map(|of| &of.samples).flat_map(|of| &of.values).sum()
    };
    collector.requests().iter().map(sum).collect()
}

#[tokio::test]
async fn profiles_are_differences_and_sent_again_until_they_are_taken() {
    const SECOND: u64 = 1_000_000_000;
    let (collector, address) = Collector::start(&[503]).await;
    let mut pipeline = Pipeline::new(&crate::config::Config::default(), 1, 0, "h");
    let mut export = profile_export(&mut pipeline, address);
    take_samples(&mut pipeline, 0..10);
    export.offer(&mut pipeline, SECOND, 0);
    assert_eq!(pipeline.profiles.unsent().entries, 10, "it is not time yet");
    export.offer(&mut pipeline, 10 * SECOND, 0);
    assert_eq!(pipeline.profiles.unsent().entries, 0);
    // The same stacks again: what they had before was handed over.
    take_samples(&mut pipeline, 0..5);
    let counts = Arc::clone(&export.counts);
    let sent = async {
        while counts.by_outcome()[0].1 < 10 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), sent).await.expect("sent again");
    export.last(&mut pipeline, 11 * SECOND, 0);
    export.finish(Instant::now() + Duration::from_secs(5)).await;
    assert_eq!((nanos(&collector), counts.retries()), (vec![100, 100, 50], 1));
    assert_eq!(counts.by_outcome(), [("sent", 15), ("queue_full", 0), ("rejected", 0), ("failed", 0)]);
}

#[tokio::test]
async fn profiles_that_are_refused_are_counted() {
    let (collector, address) = Collector::start(&[404]).await;
    let mut pipeline = Pipeline::new(&crate::config::Config::default(), 1, 0, "h");
    let mut export = profile_export(&mut pipeline, address);
    take_samples(&mut pipeline, 0..10);
    export.last(&mut pipeline, 1, 0);
    let counts = Arc::clone(&export.counts);
    export.finish(Instant::now() + Duration::from_secs(5)).await;
    assert_eq!((nanos(&collector), counts.by_outcome()[2]), (vec![100], ("rejected", 10)));
}
