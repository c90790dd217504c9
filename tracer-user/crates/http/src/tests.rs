//! The server over a real loopback socket, with a pipeline that is a loop over jobs.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tracer_model::sample_span::span;
use tracer_model::{ClassInfo, ProtocolId, ServiceId, Side, Sink};
use tracer_results::metrics::{Attainment, DeclaredReports, Metrics};
use tracer_runtimes::DetectionState;
use tracer_runtimes::status_view::{DetectedRuntime, WakesSeen, statuses};

use super::*;

pub(super) async fn start() -> SocketAddr {
    start_with(None, Arc::default()).await
}

pub(super) async fn start_with(token: Option<&str>, status: Arc<Status>) -> SocketAddr {
    start_engine(token, status, |_| ()).await
}

/// The server of an agent whose engine `fill` has given records.
pub(super) async fn start_engine(
    token: Option<&str>,
    status: Arc<Status>,
    fill: impl FnOnce(&mut tracer_transactions::engine::Engine) + Send + 'static,
) -> SocketAddr {
    let token = token.and_then(|text| token::Token::parse(text.as_bytes()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = listener.local_addr().unwrap();
    let (jobs, mut queue) = mpsc::channel::<Job>(16);
    let (commands, mut asked) = mpsc::channel(4);
    let metrics = Metrics::new().exposition();
    let shared = Shared { jobs, commands, metrics, listen, token, status, console: Arc::default() };
    tokio::spawn(serve(listener, shared, 64, std::future::pending()));
    tokio::spawn(async move {
        while let Some(command) = asked.recv().await {
            match command {
                ControlCommand::Hertz(_, answer) => drop(answer.send(Ok(()))),
                ControlCommand::Hindsight(answer) => drop(answer.send(Ok("/h/1.tracer".into()))),
            }
        }
    });
    std::thread::spawn(move || {
        let class = ClassInfo {
            service: ServiceId(0),
            service_name: Arc::from("shop"),
            protocol: ProtocolId::Http,
            side: Side::Server,
            name: Arc::from("GET /<script>"),
            route: Arc::from("/<script>"),
        };
        let names = Names { services: vec![Arc::from("shop")], classes: vec![class] };
        let (mut stats, mut store, profiles) = (ClassStats::new(), Store::new(0, "h", 100), Profiles::new());
        let (history, detector) =
            (Collector::new(0, 1 << 28), Detector::new(tracer_results::analysis::detector::Settings::default()));
        let attainment = Attainment::new(&Arc::default());
        let declared = DeclaredReports::new(&tracer_runtimes::declared::DeclaredTable::default());
        let one = span(0xabc, 5, 2_000_000, false);
        stats.span(&names, &one);
        let mut roots = tracer_transactions::roots::Roots::for_memory(1 << 28);
        roots.span(&names, &one, tracer_transactions::roots::RootLink::First, one.cost);
        store.take(one);
        let known = DetectedRuntime {
            name: "tokio",
            version: "1.54".into(),
            state: DetectionState::NoSymbols,
            wakes: WakesSeen::No,
        };
        let runtimes = statuses([(ServiceId(0), &known)].into_iter());
        let health = Health { degraded: vec!["<b>".into()], runtimes, ..Health::default() };
        let mut engine = tracer_transactions::engine::Engine::new(
            tracer_protocols::Settings::default(),
            tracer_transactions::limits::Limits::default(),
            1,
        );
        fill(&mut engine);
        let classifier =
            tracer_transactions::classes::Classifier::new(&tracer_transactions::classes::ClassConfig::default());
        while let Some(job) = queue.blocking_recv() {
            job(&PipelineView {
                names: &names,
                containers: &tracer_host::containers::Containers::default(),
                stats: &stats,
                attainment: &attainment,
                declared: &declared,
                store: &store,
                profiles: &profiles,
                history: &history,
                detector: &detector,
                engine: &engine,
                classifier: &classifier,
                dimensions: &tracer_model::dimensions::Dimensions::default(),
                activity: &tracer_results::analysis::activity::Activity::for_memory(1 << 28),
                workloads: &tracer_results::workloads::Workloads::for_memory(1 << 28),
                subsystems: &tracer_results::subsystems::Subsystems::default(),
                roots: &roots,
                health: &health,
                wall_offset: 0,
            });
        }
    });
    listen
}

pub(super) async fn ask(listen: SocketAddr, request: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(listen).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

pub(super) async fn fetch(listen: SocketAddr, path: &str) -> String {
    ask(listen, &format!("GET {path} HTTP/1.1\r\nHost: {listen}\r\nConnection: close\r\n\r\n")).await
}

#[tokio::test]
async fn an_agent_that_was_detached_says_why() {
    let status = Arc::new(Status::default());
    let listen = start_with(None, Arc::clone(&status)).await;
    assert!(fetch(listen, "/healthz").await.starts_with("HTTP/1.1 200"));
    status.set_detached("watchdog: the pipeline has not moved");
    for path in ["/healthz", "/readyz", "/api/v1/health"] {
        let answer = fetch(listen, path).await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("has not moved"), "{path}: {answer}");
    }
    assert!(fetch(listen, "/metrics").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn every_page_answers() {
    let listen = start().await;
    for (path, status, needle) in [
        ("/", 200, "shop"),
        ("/service?name=shop", 200, "shop"),
        ("/service?name=shop", 200, "tokio 1.54 in 1 processes: its tasks are not distinguished"),
        ("/service?name=x", 404, "no such service"),
        ("/transaction?id=00000000000000000000000000000abc", 200, "certain"),
        ("/class?name=shop&class=GET%20/%3Cscript%3E", 200, "GET /&lt;script&gt;"),
        ("/class?name=shop&class=GET%20/%3Cscript%3E&range=1h&zoom=1a2b&mode=cpu", 200, "data-page=\"class\""),
        ("/class?name=shop&class=GET", 404, "no such class"),
        ("/class?name=shop", 400, "expected the name of a request class"),
        ("/health", 200, "&lt;b&gt;"),
        ("/", 200, "1 notice"),
        ("/assets/console.css", 200, "--accent"),
        ("/assets/../mod.rs", 404, "no such"),
        ("/api/v1/edges", 200, "\"edges\":[]"),
        ("/api/v1/edges?service=shp", 404, "did you mean 'shop'"),
        ("/api/v1/roots", 200, "\"roots\":[{"),
        ("/api/v1/roots?service=shop&root_service=shop", 200, "\"root\":\"class\""),
        ("/api/v1/roots?root_service=other", 200, "\"roots\":[]"),
        ("/api/v1/roots?service=shp", 404, "did you mean 'shop'"),
        ("/api/v1/tiers?service=shop&class=GET%20/%3Cscript%3E", 200, "\"count\":1"),
        ("/api/v1/tiers?service=shop&class=x", 200, "\"tiers\":[]"),
        ("/api/v1/tiers?service=shop", 400, "expected that of the first request"),
        ("/workloads", 200, "CPU by unit"),
        ("/api/v1/workloads", 200, "\"by\":\"command\""),
        ("/api/v1/workloads?by=unit&limit=5", 200, "\"workloads\":["),
        ("/api/v1/workloads?by=host", 400, "expected command, user, cgroup or unit"),
        ("/api/v1/workloads?limit=0", 400, "1 to 1000"),
        ("/api/v1/subsystems", 200, "\"subsystems\":[]"),
        ("/api/v1/profiles/activity", 200, "\"profiles\":[]"),
        ("/api/v1/profiles/activity?service=shp", 404, "did you mean 'shop'"),
        ("/api/v1/profiles/activity?class=x", 400, "expected with the service"),
        ("/metrics", 200, "tracer_events_lost_total"),
        ("/healthz", 200, "ok"),
        ("/readyz", 200, "ready"),
        ("/api/v1/services", 200, "\"service_name\":\"shop\""),
        ("/api/v1/services", 200, "\"state\":\"no_symbols\""),
        ("/api/v1/classes", 200, "\"count\":1"),
        ("/api/v1/classes?service=shp", 404, "did you mean 'shop'"),
        ("/api/v1/transactions?min_ms=1&limit=5", 200, "0abc"),
        ("/api/v1/transactions?limit=99999", 400, "at most 10000"),
        ("/api/v1/transactions/00000000000000000000000000000abc", 200, "\"side\":\"server\""),
        ("/api/v1/transactions/00000000000000000000000000000abd", 404, "not kept"),
        ("/api/v1/transactions/xyz", 400, "32 hexadecimal digits"),
        ("/api/v1/health", 200, "capture_ratio"),
        ("/api/v1/health", 200, "\"shed\":{\"level\":0"),
        ("/flamegraph.svg?service=shop", 200, "no samples yet"),
        // As its own script leaves it in the address.
        ("/flamegraph.svg?service=shop&x=12&y=34.5", 200, "no samples yet"),
        ("/flamegraph.svg?service=shop&s=handle%20x", 200, "no samples yet"),
        ("/profile.folded?service=shop&x=12", 400, "no such parameter"),
        ("/flamegraph.svg?service=nobody", 404, "no such service"),
        ("/flamegraph.svg?kind=wall", 200, "no samples yet"),
        ("/flamegraph.svg?kind=both", 400, "expected cpu, offcpu, wall or wakers"),
        ("/profile.folded?since=5x", 400, "since:"),
        ("/profile.pb.gz?service=shop", 200, ""),
        ("/flamegraph.svg?service=shop&from_ns=5&until_ns=9&before_from_ns=1&before_until_ns=5", 200, "no samples yet"),
        ("/profile.folded?from_ns=9&until_ns=5", 400, "expected an instant after from_ns"),
        ("/profile.folded?from_ns=9&since=5s", 400, "expected either it or"),
        ("/profile.folded?from=9&to=5", 400, "to: expected an instant after from"),
        ("/profile.folded?service=shop&before_class=GET%20/%3Cscript%3E", 200, ""),
        ("/profile.folded?service=shop&before_service=shp", 404, "did you mean 'shop'"),
        (
            "/transactions?name=shop&class=GET%20/%3Cscript%3E&from=1&to=900000000000&min_ms=1&max_ms=3&range=1h",
            200,
            "0abc",
        ),
        ("/transactions?name=shp", 404, "did you mean"),
        ("/transactions?limit=x", 400, "at most 10000"),
        ("/compare?name=shop", 200, "data-page=\"compare\""),
        ("/api/v1/transactions?from=5&to=2000006", 200, "\"matched\":1"),
        ("/api/v1/transactions?from=2000006", 200, "\"matched\":0"),
        ("/api/v1/transactions?max_ms=2", 200, "\"matched\":0"),
        ("/api/v1/transactions?cursor=x", 400, "next_cursor"),
        ("/api/v1/transactions", 200, "\"forgotten\":0"),
        ("/api/v1/transactions/00000000000000000000000000000abc", 200, "\"critical_path\":[{"),
        ("/api/v1/classes?since=5m", 200, "\"kept_from\":null"),
        ("/api/v1/classes?limit=1", 200, "\"next_cursor\":null"),
        ("/api/v1/durations?service=shop", 400, "expected the names"),
        ("/api/v1/durations?service=shop&class=GET%20/%3Cscript%3E", 200, "\"windows\":[]"),
        ("/api/v1/builds?service=shop", 200, "\"builds\":[]"),
        ("/api/v1/openapi.json", 200, "\"openapi\":\"3.1.0\""),
        ("/profile.folded?before_from_ns=9", 400, "what to compare with it"),
        ("/profile.pb.gz?from_ns=9&before_until_ns=9", 400, "pprof has no differences"),
        ("/profile.speedscope.json?service=shop", 200, "\"frames\":["),
        ("/profile.speedscope.json?span=00000000000000ff", 404, "no samples of its own"),
        ("/profile.speedscope.json?span=00000000000000ff&service=shop", 400, "service: expected without span"),
        ("/profile.speedscope.json?from_ns=9&before_until_ns=9", 400, "speedscope has no differences"),
        ("/profile.folded?span=00000000000000ff", 404, "no samples of its own"),
        ("/profile.folded?span=ff", 400, "expected 16 hexadecimal digits"),
        ("/profile.folded?span=00000000000000ff&service=shop", 400, "service: expected without span"),
        ("/api/v1/slow-requests?service=shop", 200, "\"slow_requests\":[]"),
        ("/api/v1/slow-requests?service=shp", 404, "did you mean 'shop'"),
        ("/api/v1/slow-requests?limit=1000", 400, "at most 256"),
        ("/api/v1/slow-requests/00000000000000ff", 404, "no samples of its own"),
        ("/api/v1/slow-requests/x", 400, "expected 16 hexadecimal digits"),
        ("/api/v1/hotspots?service=shop&class=GET%20/%3Cscript%3E", 200, "\"functions\":[]"),
        ("/api/v1/hotspots?service=shp", 404, "did you mean 'shop'"),
        ("/api/v1/hotspots", 400, "expected the name of a service"),
        ("/api/v1/hotspots?service=shop&limit=501", 400, "at most 500"),
        ("/api/v1/hotspots?service=shop&before_from_ns=1&from_ns=3", 400, "no such parameter"),
        ("/api/v1/hotspots?span=00000000000000ff", 404, "no samples of its own"),
        ("/api/v1/call-sites?service=shop&class=GET%20/%3Cscript%3E", 200, "\"sites\":[]"),
        ("/api/v1/call-sites?service=shop", 400, "expected the names"),
        ("/api/v1/call-sites?service=shop&class=GET%20/x", 404, "no such class"),
        ("/api/v1/findings?since=5m", 200, "\"findings\":[]"),
        ("/api/v1/findings?until=5m", 400, "no such parameter"),
        ("/api/v1/findings/7", 404, "no such finding"),
        ("/api/v1/findings/x", 400, "expected the number of a finding"),
        ("/finding?id=7", 404, "no such finding"),
        ("/nothing", 404, "no such page"),
    ] {
        let answer = fetch(listen, path).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
        assert!(answer.contains(needle), "{path}: {answer}");
        let is_page = answer.contains("text/html");
        assert!(!is_page || !answer.contains("<script>"), "{path}: a name from the wire became markup");
    }
}

/// Pages and their files come with a policy that lets nothing inline and nothing foreign run.
#[tokio::test]
async fn every_file_of_the_console_answers_with_the_policy() {
    let listen = start().await;
    let mut all = 0;
    let files = assets::ASSETS.iter().map(|(name, kind, bytes)| (format!("/assets/{name}"), *kind, bytes.len()));
    let pages = [
        "/",
        "/service?name=shop",
        "/class?name=shop&class=GET%20/%3Cscript%3E",
        "/health",
        "/compare?name=shop",
        "/transactions",
        "/transaction?id=00000000000000000000000000000abc",
    ];
    let pages = pages.map(|page| (page.to_owned(), "text/html", 0));
    for (path, kind, length) in files.chain(pages) {
        let answer = fetch(listen, &path).await;
        let (head, _) = answer.split_once("\r\n\r\n").expect("a head");
        let head = head.to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 200") && head.contains(&format!("content-type: {kind}")), "{path}: {head}");
        let policy = head.lines().find_map(|line| line.strip_prefix("content-security-policy: ")).expect("a policy");
        assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'self'"), "{path}: {policy}");
        assert!(!policy.contains("unsafe") && !policy.contains("http"), "{path}: {policy}");
        all += length;
    }
    // Before compression.
    assert!(all < 400_000, "the console's files take {all} bytes");
    let etag = |answer: &str| answer.lines().find_map(|line| line.strip_prefix("etag: ").map(str::to_owned));
    let tag = etag(&fetch(listen, "/assets/console.css").await).expect("a tag");
    let request = format!(
        "GET /assets/console.css HTTP/1.1\r\nHost: {listen}\r\nConnection: close\r\nIf-None-Match: {tag}\r\n\r\n"
    );
    assert!(ask(listen, &request).await.starts_with("HTTP/1.1 304"));
    let compressed = |path: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: {listen}\r\nConnection: close\r\nAccept-Encoding: gzip, br\r\n\r\n")
    };
    for path in ["/", "/assets/console.css", "/api/v1/health", "/metrics"] {
        let (plain, packed) = (fetch(listen, path).await, ask(listen, &compressed(path)).await);
        let head = |answer: &str| answer.split_once("\r\n\r\n").expect("a head").0.to_ascii_lowercase();
        assert!(!head(&plain).contains("content-encoding") && head(&plain).contains("vary: "), "{plain}");
        let is_long = plain.split_once("\r\n\r\n").is_some_and(|(_, body)| body.len() > 1400);
        assert_eq!(head(&packed).contains("content-encoding: gzip"), is_long, "{path}: {}", head(&packed));
    }
    // What is compressed in itself is sent as it is.
    assert!(!ask(listen, &compressed("/profile.pb.gz")).await.to_ascii_lowercase().contains("content-encoding"));
}

/// Every file that a page or script of the console names is served.
#[test]
fn the_console_loads_only_files_it_has() {
    let known: Vec<&str> = assets::ASSETS.iter().map(|(name, ..)| *name).collect();
    for (name, _, bytes) in
        assets::ASSETS.iter().filter(|(name, kind, _)| kind.starts_with("text/javascript") && !name.contains('/'))
    {
        let text = std::str::from_utf8(bytes).expect("UTF-8");
        let imports: Vec<&str> = text.split(" from \"./").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        for import in imports {
            assert!(known.contains(&import), "{name} imports {import}");
        }
        assert!(!text.contains("innerHTML"), "{name}: names from the wire must not become markup");
    }
}

/// Whoever opens an address in a browser reads a page; programs, and the API in any case, get JSON.
#[tokio::test]
async fn errors_are_pages_for_people_and_json_for_programs() {
    let listen = start().await;
    for (path, accept, html) in [
        ("/nothing", "text/html,application/xhtml+xml;q=0.9", true),
        ("/flamegraph.svg?service=%3Cb%3E", "text/html", true),
        ("/nothing", "*/*", false),
        ("/nothing", "application/json, text/html", false),
        ("/api/v1/classes?service=x", "text/html", false),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {listen}\r\nConnection: close\r\nAccept: {accept}\r\n\r\n");
        let answer = ask(listen, &request).await;
        assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
        assert_eq!(answer.contains("text/html; charset=utf-8"), html, "{path} {accept}: {answer}");
        assert_eq!(answer.contains("{\"error\":"), !html, "{path} {accept}: {answer}");
        assert!(!answer.contains("<b>") || !html, "{answer}");
        assert!(answer.to_ascii_lowercase().contains("content-security-policy: default-src 'none'"), "{answer}");
    }
}

/// A query that cannot be read is explained like any other mistake, on every page.
#[tokio::test]
async fn a_query_that_cannot_be_read_is_explained_on_a_page() {
    let listen = start().await;
    for page in ["", "service", "class", "health", "workloads", "finding", "transaction", "compare"] {
        for query in ["refresh=soon", "name=a&name=b"] {
            let request = format!(
                "GET /{page}?{query} HTTP/1.1\r\nHost: {listen}\r\nConnection: close\r\nAccept: text/html\r\n\r\n"
            );
            let answer = ask(listen, &request).await;
            assert!(answer.starts_with("HTTP/1.1 400"), "/{page}?{query}: {answer}");
            assert!(
                answer.contains("text/html; charset=utf-8") && answer.contains("query: "),
                "/{page}?{query}: {answer}"
            );
        }
    }
}

#[tokio::test]
async fn pages_elsewhere_cannot_use_the_agent() {
    let listen = start().await;
    let answer = ask(listen, "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 421"), "{answer}");
}

fn put(listen: SocketAddr, path: &str, extra: &str) -> String {
    format!(
        "PUT {path} HTTP/1.1\r\nHost: {listen}\r\nConnection: close\r\nContent-Type: application/json\r\n{extra}Content-Length: 13\r\n\r\n{{\"hertz\": 49}}"
    )
}

#[tokio::test]
async fn nothing_changes_without_the_token() {
    let listen = start_with(Some("0123456789abcdef"), Arc::default()).await;
    for (extra, status) in [
        ("", 401),
        ("X-Tracer: 1\r\n", 401),
        ("Authorization: Bearer 0123456789abcdeg\r\n", 401),
        ("Authorization: Bearer \r\n", 401),
        ("Authorization: Basic 0123456789abcdef\r\n", 401),
        ("Authorization: 0123456789abcdef\r\n", 401),
        ("Authorization: Bearer 0123456789abcdef\r\nAuthorization: Bearer x\r\n", 401),
        ("Authorization: Bearer 0123456789abcdef\r\n", 200),
        ("Authorization: bearer 0123456789abcdef\r\n", 200),
    ] {
        let answer = ask(listen, &put(listen, "/api/v1/sampling", extra)).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{extra}: {answer}");
        assert!(status != 401 || answer.to_ascii_lowercase().contains("www-authenticate: bearer"), "{answer}");
        assert!(!answer.contains("0123456789abcdef"), "{answer}");
    }
    // Every path: new ones are guarded without a change.
    assert!(ask(listen, &put(listen, "/nothing", "")).await.starts_with("HTTP/1.1 401"));
    // Reading needs none.
    assert!(fetch(listen, "/api/v1/health").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn without_a_token_file_the_server_is_read_only() {
    let listen = start().await;
    for extra in ["", "X-Tracer: 1\r\n", "Authorization: Bearer 0123456789abcdef\r\n"] {
        let answer = ask(listen, &put(listen, "/api/v1/sampling", extra)).await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("--token-file"), "{answer}");
    }
}
