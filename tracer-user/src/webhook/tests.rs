//! What is posted when, and what happens while no receiver listens.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

fn finding(id: u64, kind: FindingKind, until_ns: Option<u64>) -> Finding {
    Finding::example(id, kind, until_ns)
}

fn settings(port: u16) -> Settings {
    let uri = format!("http://127.0.0.1:{port}/hook/secret").parse().expect("an address");
    Settings { uri, token_file: None, kinds: vec![FindingKind::ApplicationChange] }
}

/// The body of one request, which is answered with `status`.
async fn serve(listener: &TcpListener, status: u16) -> Value {
    let (mut stream, _) = listener.accept().await.expect("a connection");
    let body = read(&mut stream).await;
    let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(answer.as_bytes()).await.expect("an answer");
    body
}

async fn read(stream: &mut TcpStream) -> Value {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && let Ok(body) = serde_json::from_str(body)
        {
            assert!(head.starts_with("POST /hook/secret HTTP/1.1"), "{head}");
            return body;
        }
        let read = stream.read(&mut buffer).await.expect("a request");
        assert!(read > 0, "{text}");
        bytes.extend_from_slice(&buffer[..read]);
    }
}

#[tokio::test]
async fn each_opens_once_and_ends_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let mut webhook = Webhook::start(settings(port), "host").expect("a webhook");
    let open = [finding(1, FindingKind::ApplicationChange, None), finding(2, FindingKind::WorkloadChange, None)];
    webhook.notify(open.iter());
    webhook.notify(open.iter());
    // The receiver is busy at first.
    let first = serve(&listener, 503).await;
    let again = serve(&listener, 200).await;
    assert_eq!(first, again);
    assert_eq!(
        (&first["event"], &first["host"], &first["finding"]["id"]),
        (&json!("opened"), &json!("host"), &json!(1))
    );
    let ended =
        [finding(1, FindingKind::ApplicationChange, Some(9)), finding(3, FindingKind::ApplicationChange, Some(9))];
    webhook.notify(ended.iter());
    webhook.notify(ended.iter());
    let mut events = Vec::new();
    for _ in 0..3 {
        let body = serve(&listener, 204).await;
        events.push((body["event"].as_str().expect("an event").to_owned(), body["finding"]["id"].as_u64()));
    }
    let wanted = [("ended", 1), ("opened", 3), ("ended", 3)].map(|(event, id)| (event.to_owned(), Some(id)));
    assert_eq!(events, wanted);
    let counts = Arc::clone(&webhook.counts);
    webhook.finish(Instant::now() + Duration::from_secs(5)).await;
    assert_eq!(counts.by_outcome().map(|(_, count)| count), [4, 0, 0, 0]);
}

#[tokio::test]
async fn what_finds_no_room_is_counted_and_offered_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let mut webhook = Webhook::start(settings(port), "host").expect("a webhook");
    let many: Vec<Finding> =
        (1..=QUEUE as u64 + 10).map(|id| finding(id, FindingKind::ApplicationChange, None)).collect();
    webhook.notify(many.iter());
    let [_, (_, full), ..] = webhook.counts.by_outcome();
    assert_eq!(full, 10);
    assert_eq!(webhook.announced.count(), QUEUE);
    assert_eq!(serve(&listener, 400).await["finding"]["id"], json!(1));
    assert_eq!(serve(&listener, 200).await["finding"]["id"], json!(2));
    webhook.notify(many.iter());
    assert!(webhook.announced.count() > QUEUE);
    let [_, _, (_, rejected), _] = webhook.counts.by_outcome();
    assert_eq!(rejected, 1);
}
