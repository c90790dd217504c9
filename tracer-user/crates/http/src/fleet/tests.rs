//! Tests of the fleet's pages over a real loopback socket.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tracer_results::analysis::detector::Settings;
use tracer_results::analysis::window::Window;
use tracer_results::history::rows::{ClassRow, EdgeRow, HostRow};
use tracer_results::history::windows::ReadWindow;

use super::*;

async fn ask(listen: SocketAddr, head: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(listen).await.unwrap();
    stream.write_all(format!("{head}\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

async fn start() -> SocketAddr {
    let mut state = FleetState::default();
    let start_ns = 1_000_000_000_000;
    let window = Window { start_ns, length_s: 10.0, cores: 4.0, ..Window::default() };
    let row = ClassRow {
        start_ns,
        service_name: "shop".into(),
        request_class: "GET /<script>".into(),
        side: "server".into(),
        protocol: "http".into(),
        count: 3,
        ..ClassRow::default()
    };
    let host = HostRow {
        start_ns,
        length_s: 10.0,
        cores: 4.0,
        busy_s: 20.0,
        requests_s: 10.0,
        overhead_s: 4.0,
        foreign_s: 1.0,
        kernel_s: 2.6,
        capture_ratio: 0.93,
        events_lost: 17,
        ..HostRow::default()
    };
    let edge = EdgeRow {
        start_ns,
        service_name: "shop".into(),
        side: "server".into(),
        caller_service: "front".into(),
        count: 3,
        ..EdgeRow::default()
    };
    let new = NewWindows {
        windows: vec![ReadWindow { window, whole: true, host }],
        classes: vec![row],
        edges: vec![edge],
        last: Some(HostRow { cores: 4.0, ..HostRow::default() }),
    };
    state.add("web-1", new, &|_| Settings::default(), u64::MAX);
    state.read_ns = 1;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, Arc::new(Mutex::new(state)), "s3://bucket".to_owned(), std::future::pending()));
    listen
}

#[tokio::test]
async fn every_page_answers() {
    let listen = start().await;
    for (path, status, needle) in [
        ("/", 200, "data-page=\"home\""),
        ("/", 200, "<td>web-1"),
        ("/service?name=web-1/shop", 200, "data-page=\"service\""),
        ("/class?name=web-1/shop&class=GET%20/%3Cscript%3E", 200, "GET /&lt;script&gt;"),
        ("/finding?id=1", 200, "data-page=\"finding\""),
        ("/assets/console.js", 200, "import"),
        ("/healthz", 200, "ok"),
        ("/readyz", 200, "ready"),
        ("/api/v1/hosts", 200, "\"host\":\"web-1\""),
        ("/api/v1/services", 200, "\"service_name\":\"web-1/shop\""),
        ("/api/v1/classes?service=web-1/shop", 200, "\"count\":3"),
        ("/api/v1/edges", 200, "\"caller_service\":\"web-1/front\""),
        ("/api/v1/edges?service=web-2/shop", 200, "\"edges\":[]"),
        ("/api/v1/series?service=web-1/shop&since=1h", 200, "\"window_s\":120"),
        ("/api/v1/findings?since=1h", 200, "\"findings\":[]"),
        ("/api/v1/findings/7", 404, "no such finding"),
        ("/api/v1/findings/x", 400, "expected the number"),
        ("/api/v1/classes?servce=x", 400, "no such parameter"),
        ("/api/v1/health", 200, "1 hosts in s3://bucket"),
        ("/api/v1/transactions?service=a", 200, "[]"),
        ("/profile.folded", 404, "no such page"),
        ("/metrics", 404, "no such page"),
    ] {
        let answer = ask(listen, &format!("GET {path} HTTP/1.1\r\nHost: {listen}")).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.contains(needle), "{path}: {answer}");
        assert!(answer.to_ascii_lowercase().contains("content-security-policy"), "{path}");
    }
}

/// The history has a host's capture ratio and its losses; what it has not is "not known", not zero.
#[tokio::test]
async fn figures_are_those_of_the_history_or_not_known() {
    let listen = start().await;
    let page = ask(listen, &format!("GET / HTTP/1.1\r\nHost: {listen}")).await;
    for needle in ["capture ratio <b>0.930</b>", "lost <b>17</b>", "<td class=n>0.930<td class=n>17<td"] {
        assert!(page.contains(needle), "{needle}: {page}");
    }
    let json = async |path: &str| -> Value {
        let answer = ask(listen, &format!("GET {path} HTTP/1.1\r\nHost: {listen}")).await;
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
    };
    let hosts = json("/api/v1/hosts").await;
    let ratio = |value: &Value| (value["capture_ratio"].as_f64().unwrap() * 1e6).round();
    assert_eq!((ratio(&hosts["hosts"][0]), &hosts["hosts"][0]["events_lost"]), (930_000.0, &json!(17)));
    let health = json("/api/v1/health").await;
    assert_eq!((ratio(&health), &health["events_lost"]), (930_000.0, &json!(17)));
    assert!((health["cpu_s"]["unreported"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{health}");
    for name in ["events_lost_by_reason", "otlp_spans_dropped", "sampling_hertz", "shed"] {
        assert_eq!(health.get(name), Some(&Value::Null), "{name}");
    }
    let classes = json("/api/v1/classes").await;
    for name in ["unfinished", "accept_queue_s", "socket_queue_s"] {
        assert_eq!(classes["classes"][0].get(name), Some(&Value::Null), "{name}");
    }
    assert_eq!(json("/api/v1/services").await["services"][0].get("unfinished"), Some(&Value::Null));
}

#[tokio::test]
async fn it_only_reads_and_answers_to_its_own_names() {
    let listen = start().await;
    for method in ["POST", "PUT", "DELETE"] {
        let answer = ask(listen, &format!("{method} /api/v1/hosts HTTP/1.1\r\nHost: {listen}")).await;
        assert!(answer.starts_with("HTTP/1.1 403") || answer.starts_with("HTTP/1.1 405"), "{answer}");
    }
    let answer = ask(listen, "GET / HTTP/1.1\r\nHost: evil.example").await;
    assert!(answer.starts_with("HTTP/1.1 421"), "{answer}");
}
