//! Agents with certificates: which are accepted, for which names, and what refused agents learn.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use tokio::net::{TcpListener, TcpStream};

use super::{Files, Identity};
use crate::Agent;
use crate::bounds::Policy;
use crate::channel::{Broken, Channel, SessionEnd};
use crate::event::Mode;
use crate::hub::Hub;
use crate::settings::{Settings, Trust};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    named("tracer test authority")
}

fn named(name: &str) -> Authority {
    let mut params = CertificateParams::new([]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Writes the files of an agent with a certificate from `by` for `name`, which trusts `trusted`.
fn write(dir: &Path, by: &Authority, name: &str, trusted: &Authority) -> Files {
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, by).unwrap();
    let place = |file: &str, text: String| {
        let path = dir.join(file);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    Files {
        cert: place("cert.pem", own.pem()),
        key: place("key.pem", key.serialize_pem()),
        ca: place("ca.pem", trusted.pem()),
    }
}

struct TestIdentity {
    dir: tempfile::TempDir,
    identity: Arc<Identity>,
}

fn identity(by: &Authority, name: &str) -> TestIdentity {
    let dir = tempfile::tempdir().unwrap();
    let identity = Arc::new(Identity::read(write(dir.path(), by, name, by)).unwrap());
    TestIdentity { dir, identity }
}

/// The result of a session at each end; both ends send something, because the dialling end only learns of a refusal
/// when it reads.
async fn meet(dials: &Trust, place: &str, accepts: &Trust) -> [Result<(), Broken>; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (other, _) = listener.accept().await.unwrap();
    let speak = async |stream, trust, end| {
        let Channel { mut writer, mut reader, .. } = Channel::agree(stream, trust, end).await?;
        writer.send(b"hello").await?;
        assert_eq!(reader.receive().await?, b"hello");
        Ok(())
    };
    let (dialled, accepted) =
        tokio::join!(speak(stream, dials, SessionEnd::Dialled(place)), speak(other, accepts, SessionEnd::Accepted));
    [dialled, accepted]
}

fn why(result: &Result<(), Broken>) -> String {
    match result {
        Err(Broken::Tls(why)) => why.clone(),
        other => format!("{other:?}"),
    }
}

#[tokio::test]
async fn accepted_agents_and_reasons_of_refusals() {
    let (ours, theirs) = (authority(), authority());
    let (one, two) = (identity(&ours, "127.0.0.1"), identity(&ours, "db1.internal"));
    let stranger = identity(&theirs, "127.0.0.1");
    let trust = |known: &TestIdentity| Trust::Certificates(Arc::clone(&known.identity));
    let met = meet(&trust(&one), "db1.internal:9465", &trust(&two)).await;
    assert!(met.iter().all(Result::is_ok), "{met:?}");
    let met = meet(&trust(&two), "127.0.0.1:9465", &trust(&one)).await;
    assert!(met.iter().all(Result::is_ok), "by address: {met:?}");

    let [dialled, accepted] = meet(&trust(&one), "db2.internal:9465", &trust(&two)).await;
    assert!(why(&dialled).contains("db1.internal") && why(&dialled).contains("--relay-peer"), "{dialled:?}");
    assert!(accepted.is_err(), "another host's certificate");
    let [dialled, accepted] = meet(&trust(&one), "127.0.0.1:9465", &trust(&stranger)).await;
    assert!(why(&dialled).contains("--relay-ca"), "{dialled:?}");
    assert!(why(&accepted).contains("its log says why"), "{accepted:?}");
    // An agent that trusts every authority is still not trusted itself.
    let both = tempfile::tempdir().unwrap();
    let gullible = Arc::new(Identity::read(write(both.path(), &theirs, "x", &theirs)).unwrap());
    std::fs::write(both.path().join("ca.pem"), theirs.pem() + &ours.pem()).unwrap();
    let [dialled, accepted] = meet(&Trust::Certificates(gullible), "127.0.0.1:9465", &trust(&one)).await;
    assert!(why(&accepted).contains("--relay-ca"), "{accepted:?}");
    assert!(why(&dialled).contains("does not take this agent's certificate"), "{dialled:?}");

    let [dialled, accepted] = meet(&Trust::Anybody, "127.0.0.1:9465", &trust(&one)).await;
    assert!(dialled.is_err() && why(&accepted).contains("--relay-cert"), "no certificate: {accepted:?}");
    let key = Trust::Key(crate::channel::Secret([5; 32]));
    for met in [meet(&key, "127.0.0.1:9465", &trust(&one)).await, meet(&trust(&one), "127.0.0.1:9465", &key).await] {
        assert!(met.iter().all(Result::is_err), "a key is no certificate: {met:?}");
    }
}

/// TLS 1.3 only: other versions are refused whatever the certificate.
#[tokio::test]
async fn older_versions_are_refused() {
    let ours = authority();
    let (one, two) = (identity(&ours, "127.0.0.1"), identity(&ours, "127.0.0.1"));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ours.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = super::certificates(&two.dir.path().join("cert.pem")).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::from_pem_file(two.dir.path().join("key.pem")).unwrap();
    let old = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (other, _) = listener.accept().await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(old));
    let (dialled, accepted) = tokio::join!(connector.connect(name, stream), one.identity.accepted(other));
    assert!(dialled.is_err() && accepted.is_err());
}

#[tokio::test]
async fn a_renewed_certificate_is_used() {
    let (old, new) = (authority(), authority());
    let (one, two) = (identity(&old, "127.0.0.1"), identity(&new, "127.0.0.1"));
    let trust = |known: &TestIdentity| Trust::Certificates(Arc::clone(&known.identity));
    assert!(meet(&trust(&one), "127.0.0.1:1", &trust(&two)).await.iter().all(Result::is_err));
    std::fs::write(one.dir.path().join("cert.pem"), "half of a").unwrap();
    let still = meet(&trust(&one), "127.0.0.1:1", &trust(&one)).await;
    assert!(still.iter().all(Result::is_ok), "what is being written is not taken: {still:?}");
    write(one.dir.path(), &new, "127.0.0.1", &new);
    let met = meet(&trust(&one), "127.0.0.1:1", &trust(&two)).await;
    assert!(met.iter().all(Result::is_ok), "{met:?}");
}

#[test]
fn certificates_that_others_would_refuse_are_reported_at_start() {
    let (ours, theirs) = (authority(), named("another"));
    let dir = tempfile::tempdir().unwrap();
    let files = write(dir.path(), &ours, "a", &ours);
    assert!(Identity::read(files.clone()).is_ok());
    let refused = |what: &str, files: Files| {
        let error = Identity::read(files).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(what), "{what}: {error}");
    };
    std::fs::set_permissions(&files.key, std::fs::Permissions::from_mode(0o640)).unwrap();
    refused("chmod 600", files.clone());
    refused("BadSignature", write(dir.path(), &ours, "a", &authority()));
    refused("UnknownIssuer", write(dir.path(), &ours, "a", &theirs));
    let files = write(dir.path(), &ours, "a", &ours);
    std::fs::write(&files.key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    refused("not the key of", files.clone());
    std::fs::write(&files.key, "none").unwrap();
    refused("expected a private key in PEM", files.clone());
    refused("expected certificates in PEM", Files { ca: files.key.clone(), ..write(dir.path(), &ours, "a", &ours) });
    refused("No such file", Files { cert: "/nowhere/at/all".into(), ..files });
    let mut params = CertificateParams::new(["a".to_owned()]).unwrap();
    (params.not_before, params.not_after) = (rcgen::date_time_ymd(2001, 1, 1), rcgen::date_time_ymd(2002, 1, 1));
    let files = write(dir.path(), &ours, "a", &ours);
    let key = KeyPair::from_pem(&std::fs::read_to_string(&files.key).unwrap()).unwrap();
    std::fs::write(&files.cert, params.signed_by(&key, &ours).unwrap().pem()).unwrap();
    refused("expired", files);
}

/// Longest wait for a condition.
const PATIENCE: Duration = Duration::from_secs(20);

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn hub(number: u64, known: &TestIdentity, peers: &[SocketAddr]) -> Hub {
    let trust = Trust::Certificates(Arc::clone(&known.identity));
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let peers = peers.iter().map(ToString::to_string).collect();
    let settings = Settings {
        listen,
        peers,
        discover: false,
        port: 1,
        nats: None,
        trust,
        insecure: false,
        policy: Policy::default(),
        forwards: false,
    };
    Hub::start(settings, Agent { number, host: format!("host{number}").into() }).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_is_refused_counted_and_learns_why() {
    let (ours, theirs) = (authority(), authority());
    let (one, two, three) =
        (identity(&ours, "127.0.0.1"), identity(&ours, "127.0.0.1"), identity(&theirs, "127.0.0.1"));
    let callee = hub(1, &one, &[]).await;
    let address = callee.listen.unwrap();
    let caller = hub(2, &two, &[address]).await;
    until("a session", || caller.mode() == Mode::Waits && callee.mode() == Mode::Waits).await;
    let stranger = hub(3, &three, &[address]).await;
    until("refused", || callee.outcomes().refused >= 1).await;
    until("the reason", || stranger.peers().iter().any(|peer| peer.error.contains("--relay-ca"))).await;
    assert_eq!((stranger.mode(), callee.mode()), (Mode::Sends, Mode::Waits), "the others go on");
}
