//! The exporter against collectors of this process: one that answers as told.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Mutex;

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use prost::Message;

use super::spans::tests::finished;
use super::*;

/// What a collector got, and what it says next.
#[derive(Default)]
struct Collector {
    answers: Mutex<VecDeque<u16>>,
    got: Mutex<Vec<(HeaderMap, Bytes)>>,
}

impl Collector {
    /// Listens; answers in turn with `answers`, then with 200.
    async fn start(answers: &[u16]) -> (Arc<Self>, SocketAddr) {
        let collector = Arc::new(Self { answers: Mutex::new(answers.iter().copied().collect()), ..Self::default() });
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::clone(&collector);
        let take = move |headers: HeaderMap, body: Bytes| {
            let shared = Arc::clone(&shared);
            async move {
                shared.got.lock().expect("unpoisoned").push((headers, body));
                let code = shared.answers.lock().expect("unpoisoned").pop_front().unwrap_or(200);
                StatusCode::from_u16(code).expect("a code")
            }
        };
        let app = axum::Router::new().route("/v1/traces", axum::routing::post(take));
        tokio::spawn(async move { axum::serve(listener, app).await });
        (collector, address)
    }

    fn requests(&self) -> Vec<(HeaderMap, Bytes)> {
        self.got.lock().expect("unpoisoned").clone()
    }
}

fn settings(address: SocketAddr, set: &[(&str, &str)]) -> Settings {
    let env = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    read(Some(&format!("http://{address}")), env).expect("good").expect("wanted")
}

fn give(exporter: &mut Exporter, ids: std::ops::Range<u64>) {
    ids.for_each(|id| exporter.unit(&Names::default(), &finished("s", id).unit));
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
    let (mut exporter, export) = start(settings(address, &set), "h", 0);
    give(&mut exporter, 1..251);
    drop(exporter);
    let counts = Arc::clone(&export.counts);
    export.finish().await;
    let requests = collector.requests();
    let mut spans: Vec<u64> = requests.iter().flat_map(|(_, body)| spans_of(body)).collect();
    spans.sort_unstable();
    assert_eq!(spans, (1..251).collect::<Vec<_>>());
    assert!(requests.iter().all(|(headers, body)| {
        headers["content-type"] == "application/x-protobuf" && headers["x-key"] == "k" && spans_of(body).len() <= 100
    }));
    assert_eq!(counts.spans(), [("sent", 250), ("queue_full", 0), ("rejected", 0), ("failed", 0)]);
}

#[tokio::test]
async fn what_was_busy_is_asked_again_and_what_refused_is_not() {
    let (collector, address) = Collector::start(&[503, 200, 400]).await;
    let set = [("OTEL_BSP_SCHEDULE_DELAY", "1"), ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")];
    let (mut exporter, export) = start(settings(address, &set), "h", 0);
    give(&mut exporter, 1..2);
    let end = Instant::now() + Duration::from_secs(20);
    while export.counts.spans()[0].1 < 1 {
        assert!(Instant::now() < end, "{:?}", export.counts);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((collector.requests().len(), export.counts.retries()), (2, 1));
    assert_eq!(collector.requests()[0].0["content-encoding"], "gzip");
    assert_eq!(collector.requests()[0].1, collector.requests()[1].1, "the same again");
    give(&mut exporter, 2..4);
    drop(exporter);
    let counts = Arc::clone(&export.counts);
    export.finish().await;
    let [sent, .., rejected, failed] = counts.spans().map(|(_, count)| count);
    assert_eq!((sent + rejected, failed), (3, 0), "every span has one outcome");
    assert!(rejected >= 1);
}

#[tokio::test]
async fn a_collector_that_is_away_costs_spans_and_nothing_else() {
    // Nobody listens there any more.
    let address = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port");
    let (mut exporter, export) = start(settings(address, &[("OTEL_BSP_MAX_QUEUE_SIZE", "64")]), "h", 0);
    let begun = Instant::now();
    give(&mut exporter, 1..100_001);
    assert!(begun.elapsed() < Duration::from_secs(5), "the pipeline does not wait");
    assert!(export.fill().entries <= 64);
    drop(exporter);
    let counts = Arc::clone(&export.counts);
    export.finish().await;
    let [sent, no_room, rejected, failed] = counts.spans().map(|(_, count)| count);
    assert_eq!((sent, rejected, no_room + failed), (0, 0, 100_000));
}

#[tokio::test]
async fn a_share_is_sent_when_a_share_is_wanted() {
    let (collector, address) = Collector::start(&[]).await;
    let set = [("OTEL_TRACES_SAMPLER", "always_off")];
    let (mut exporter, export) = start(settings(address, &set), "h", 0);
    give(&mut exporter, 1..100);
    drop(exporter);
    export.finish().await;
    assert!(collector.requests().is_empty());
}
