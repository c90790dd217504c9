//! HTTP over TLS by rustls, as a server and as clients.
//!
//! `tls-pair serve CERTIFICATE KEY LOG`: hyper on tokio; logs "PATH STATUS" before each reply. Says its port. /e/... is answered
//! 500, /big/... with 300 kB, /now at once and without a line.
//! `tls-pair ask PORT LABEL VERSION CONNECTIONS REQUESTS PROTOCOL`: CONNECTIONS at once, each asks REQUESTS times for paths with
//! LABEL. By hyper on tokio: `h1`, one after the other; `h2`, four at a time. `blocking`: threads, without either.
//!
//! Replies take different times, so that connections alternate in every order.

use std::collections::hash_map::RandomState;
use std::convert::Infallible;
use std::fs::File;
use std::hash::BuildHasher;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, ServerConfig, SignatureScheme, StreamOwned, version,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Requests at a time on one connection of HTTP/2.
const AT_A_TIME: usize = 4;

/// Believes any certificate.
#[derive(Debug)]
struct Anyone(CryptoProvider);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

type Log = Arc<Mutex<File>>;

async fn reply(log: Log, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path() == "/now" {
        return Ok(Response::new(Full::new(Bytes::from_static(&[b'x'; 612]))));
    }
    let random = RandomState::new().hash_one(());
    if random % 2 == 0 {
        tokio::time::sleep(Duration::from_micros(random % 5000)).await;
    }
    let path = request.uri().path();
    let status = if path.starts_with("/e/") { 500 } else { 200 };
    let body = vec![b'x'; if path.starts_with("/big/") { 300_000 } else { 3000 }];
    writeln!(log.lock().unwrap_or_else(PoisonError::into_inner), "{path} {status}").expect("the log");
    let mut reply = Response::new(Full::new(Bytes::from(body)));
    *reply.status_mut() = status.try_into().expect("a status");
    Ok(reply)
}

async fn serve(certificate: &str, key: &str, log: &str) -> io::Result<()> {
    let certificates = CertificateDer::pem_file_iter(certificate).map_err(io::Error::other)?;
    let certificates: Vec<_> = certificates.collect::<Result<_, _>>().map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(io::Error::other)?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(certificates, key);
    let mut config = config.map_err(io::Error::other)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let log: Log = Arc::new(Mutex::new(File::create(log)?));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("PORT {}", listener.local_addr()?.port());
    loop {
        let (stream, _) = listener.accept().await?;
        let (acceptor, log) = (acceptor.clone(), Arc::clone(&log));
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let service = service_fn(move |request| reply(Arc::clone(&log), request));
            let stream = TokioIo::new(stream);
            let served = if is_h2 {
                http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await
            } else {
                http1::Builder::new().serve_connection(stream, service).await
            };
            if let Err(error) = served {
                eprintln!("{error}");
            }
        });
    }
}

/// What to ask.
struct Asked {
    port: u16,
    label: String,
    requests: usize,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Asked {
    fn path(&self, connection: usize, request: usize) -> String {
        let kind = match request % 5 {
            4 => "e",
            2 => "big",
            _ => "rs",
        };
        format!("/{kind}/{}-{connection}-{request}", self.label)
    }

    fn request(&self, connection: usize, request: usize) -> Request<Empty<Bytes>> {
        let uri = format!("https://localhost{}", self.path(connection, request));
        let built = Request::builder().uri(uri).header("host", "localhost").body(Empty::new());
        built.expect("a request")
    }

    async fn connect(&self) -> io::Result<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let connector = TlsConnector::from(Arc::clone(&self.config));
        Ok(TokioIo::new(connector.connect(self.name.clone(), stream).await?))
    }

    async fn one_by_one(&self, connection: usize) -> io::Result<()> {
        let (mut sender, moves) = conn::http1::handshake(self.connect().await?).await.map_err(io::Error::other)?;
        let moving = tokio::spawn(moves);
        for request in 0..self.requests {
            let mut asked = self.request(connection, request);
            *asked.uri_mut() = self.path(connection, request).parse().map_err(io::Error::other)?;
            // It gets ready by its other task, which may still be behind the reply's end.
            sender.ready().await.map_err(io::Error::other)?;
            let reply = sender.send_request(asked).await.map_err(io::Error::other)?;
            reply.into_body().collect().await.map_err(io::Error::other)?;
        }
        drop(sender);
        moving.await?.map_err(io::Error::other)
    }

    async fn several(&self, connection: usize) -> io::Result<()> {
        let builder = conn::http2::Builder::new(TokioExecutor::new());
        let (sender, moves) = builder.handshake(self.connect().await?).await.map_err(io::Error::other)?;
        let moving = tokio::spawn(moves);
        for first in (0..self.requests).step_by(AT_A_TIME) {
            let replies = (first..self.requests.min(first + AT_A_TIME)).map(|request| {
                let (mut sender, asked) = (sender.clone(), self.request(connection, request));
                tokio::spawn(async move { sender.send_request(asked).await?.into_body().collect().await })
            });
            for reply in replies.collect::<Vec<_>>() {
                reply.await?.map_err(io::Error::other)?;
            }
        }
        drop(sender);
        moving.await?.map_err(io::Error::other)
    }

    /// As a program does that knows neither tokio nor hyper.
    fn blocking(&self, connection: usize) -> io::Result<()> {
        let stream = std::net::TcpStream::connect(("127.0.0.1", self.port))?;
        let session = ClientConnection::new(Arc::clone(&self.config), self.name.clone()).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(session, stream);
        for request in 0..self.requests {
            write!(stream, "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", self.path(connection, request))?;
            let mut read = Vec::new();
            let head = loop {
                let mut piece = [0; 8192];
                let n = stream.read(&mut piece)?;
                read.extend_from_slice(&piece[..n]);
                if let Some(head) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                    break head + 4;
                }
            };
            let text = String::from_utf8_lossy(&read[..head]).to_ascii_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            let left = (head + length.ok_or(io::ErrorKind::InvalidData)?).saturating_sub(read.len());
            stream.read_exact(&mut vec![0; left])?;
        }
        Ok(())
    }
}

async fn ask(port: &str, label: &str, tls: &str, connections: &str, requests: &str, protocol: &str) -> io::Result<()> {
    let number = |text: &str| text.parse::<usize>().map_err(io::Error::other);
    let versions = if tls == "1.2" { [&version::TLS12] } else { [&version::TLS13] };
    let builder = ClientConfig::builder_with_protocol_versions(&versions).dangerous();
    let anyone = Arc::new(Anyone(ring::default_provider()));
    let mut config = builder.with_custom_certificate_verifier(anyone).with_no_client_auth();
    config.alpn_protocols = vec![if protocol == "h2" { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    let asked = Arc::new(Asked {
        port: port.parse().map_err(io::Error::other)?,
        label: label.to_owned(),
        requests: number(requests)?,
        config: Arc::new(config),
        name: ServerName::try_from("localhost").map_err(io::Error::other)?,
    });
    let mut running = Vec::new();
    for connection in 0..number(connections)? {
        let asked = Arc::clone(&asked);
        running.push(match protocol {
            "h2" => tokio::spawn(async move { asked.several(connection).await }),
            "blocking" => tokio::task::spawn_blocking(move || asked.blocking(connection)),
            _ => tokio::spawn(async move { asked.one_by_one(connection).await }),
        });
    }
    for one in running {
        one.await??;
    }
    Ok(())
}

async fn run(arguments: &[&str]) -> io::Result<()> {
    match arguments {
        ["serve", certificate, key, log] => serve(certificate, key, log).await,
        ["ask", port, label, tls, connections, requests] => ask(port, label, tls, connections, requests, "h1").await,
        ["ask", port, label, tls, connections, requests, protocol] => {
            ask(port, label, tls, connections, requests, protocol).await
        }
        _ => Err(io::Error::other(
            "serve CERTIFICATE KEY LOG, or ask PORT LABEL VERSION CONNECTIONS REQUESTS [PROTOCOL]",
        )),
    }
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_io().enable_time().build()?;
    runtime.block_on(run(&arguments))
}
