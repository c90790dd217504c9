//! Network priority of service classes: two classes compete for one link, a queueing discipline counts the bytes of each
//! priority, and clients measure their response times; while the agent works, after its end and after it was killed.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::http::Connection;
use tracer_tests::process::Process;
use tracer_tests::star::{Nat, Star};
use tracer_tests::{begin, figure, find, say, scale, scratch, wait};

const LIMIT: Duration = Duration::from_secs(30);
/// Hosts: the server behind the narrow link, and the clients.
const SERVER: u8 = 1;
const CLIENTS: u8 = 2;
/// The link, bits a second.
const LINK: u64 = 50_000_000;
/// Bodies of the two classes, bytes.
const GOLD: usize = 200_000;
const BRONZE: usize = 1_000_000;
/// What bronze may have of the link where it is paced, bits a second.
const PACE: u64 = 10_000_000;
/// How long downloads are watched there.
const SECONDS: u64 = 3;
/// Connections of the class that saturates the link.
const DOWNLOADS: usize = 8;

/// nginx on a host whose replies leave by a narrow link. It serves several requests on one thread, whose CPU priority is
/// never changed.
struct Server {
    star: Star,
    address: SocketAddr,
    _nginx: Process,
}

fn run(program: &str, arguments: &[&str]) -> String {
    let path = find(program).unwrap_or_else(|| panic!("no {program}"));
    let out = Command::new(path).args(arguments).output().expect("a program");
    assert!(out.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

impl Server {
    fn start(dir: &Path) -> Self {
        let star = Star::new("trq", 2, Nat { destination: false, source: false }, 1).expect("network namespaces");
        let host = star.name(SERVER);
        let tc = |arguments: &str| {
            let all: Vec<&str> = ["-n", &host].into_iter().chain(arguments.split(' ')).collect();
            run("tc", &all)
        };
        tc("qdisc add dev eth0 root handle 1: htb default 20");
        tc(&format!("class add dev eth0 parent 1: classid 1:1 htb rate {LINK}bit burst 4k cburst 4k"));
        // What each gets at least, of the link's 100 %; what is left goes to the first first.
        for (index, (class, least)) in [(10, 90), (20, 5), (30, 5)].into_iter().enumerate() {
            let rate = LINK / 100 * least;
            let limits = format!("rate {rate}bit ceil {LINK}bit burst 4k cburst 4k prio {index} quantum 6000");
            tc(&format!("class add dev eth0 parent 1:1 classid 1:{class} htb {limits}"));
        }
        let address = SocketAddr::from((star.own(SERVER), 8080));
        let base = dir.display();
        let www = dir.join("www");
        std::fs::create_dir_all(&www).expect("a directory");
        for (name, bytes) in [("gold", GOLD), ("bronze", BRONZE)] {
            std::fs::write(www.join(name), vec![b'x'; bytes]).expect("a file");
        }
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary = temporary.map(|name| format!("{name}_temp_path {base}/{name};\n")).concat();
        let configuration = format!(
            "user root;\nworker_processes 2;\npid {base}/nginx.pid;\nerror_log {base}/error.log warn;\n\
             events {{ worker_connections 1024; }}\nhttp {{\naccess_log off;\n{temporary}sendfile on;\n\
             keepalive_requests 1000000;\nserver {{ listen {address}; root {base}/www; }}\n}}\n"
        );
        let file = dir.join("nginx.conf");
        std::fs::write(&file, configuration).expect("a file");
        let [nsenter, net, end] = star.enter(SERVER).expect("nsenter");
        let mut command = Command::new(nsenter);
        command.args([net, end]).arg(find("nginx").expect("nginx"));
        command.arg("-p").arg(dir).arg("-c").arg(&file).arg("-e").arg(dir.join("error.log"));
        command.args(["-g", "daemon off;"]);
        let nginx = Process::start("nginx", &mut command, &dir.join("nginx.log"));
        let server = Self { star, address, _nginx: nginx };
        wait("nginx", LIMIT, || server.near(|| Connection::open(address).is_ok()).then_some(()));
        server
    }

    /// Runs `act` on the clients' host.
    fn near<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        self.star.inside(CLIENTS, act).expect("the clients' host")
    }

    /// Bytes sent with each priority: high, normal, low.
    fn sent_by_class(&self) -> [u64; 3] {
        let text = run("tc", &["-s", "-n", &self.star.name(SERVER), "class", "show", "dev", "eth0"]);
        [10, 20, 30].map(|class| {
            let mut lines = text.lines().skip_while(|line| !line.starts_with(&format!("class htb 1:{class} ")));
            let sent = lines.nth(1).and_then(|line| line.trim().strip_prefix("Sent ")?.split(' ').next()?.parse().ok());
            sent.unwrap_or_else(|| panic!("no class {class}: {text}"))
        })
    }
}

fn config(dir: &Path) -> PathBuf {
    let file = dir.join("tracer.toml");
    let text = format!(
        r#"
        [enforcement]
        state_dir = "{}"
        packets = {{ high = "1:10", low = "1:30" }}
        [[service_class]]
        name = "gold"
        importance = 1
        goal = {{ p99 = "50ms" }}
        network = "high"
        rules = [{{ host = "gold.test" }}]
        [[service_class]]
        name = "bronze"
        importance = 3
        network = "low"
        rules = [{{ host = "bronze.test" }}]
        "#,
        dir.join("state").display()
    );
    std::fs::write(&file, text).expect("a file");
    file
}

fn agent(dir: &Path, mode: &str) -> Agent {
    let file = config(dir).display().to_string();
    Agent::start(dir, &["--config", &file, "--enforce", mode])
}

fn class(agent: &Agent, name: &str) -> Value {
    let all = agent.json("/api/v1/service-classes");
    let classes = all["service_classes"].as_array().cloned().unwrap_or_default();
    classes.into_iter().find(|class| class["service_class"] == name).unwrap_or_else(|| panic!("no {name} in {all}"))
}

/// A request of a class and its whole reply; how long that took, milliseconds.
fn once(connection: &mut Connection, class: &str) -> f64 {
    let begin = Instant::now();
    let request = format!("GET /{class} HTTP/1.1\r\nHost: {class}.test\r\n\r\n");
    let reply = connection.send(request.as_bytes()).and_then(|()| connection.reply("GET")).expect("a reply");
    assert_eq!(reply.status, 200);
    begin.elapsed().as_secs_f64() * 1e3
}

fn open(address: SocketAddr) -> Connection {
    Connection::open(address).expect("a connection").keeping(0)
}

/// Requests of gold with pauses on one connection; response times, milliseconds, sorted.
fn gold(address: SocketAddr, requests: usize) -> Vec<f64> {
    let mut connection = open(address);
    // A new connection has to find out what the link can take.
    for _ in 0..3 {
        once(&mut connection, "gold");
    }
    let mut times: Vec<f64> = (0..requests)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            once(&mut connection, "gold")
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times
}

/// Runs `act` while downloads saturate the link; also how many bytes they got meanwhile, a second.
fn beside<T: Send>(address: SocketAddr, act: impl FnOnce() -> T + Send) -> (T, f64) {
    let (stop, bytes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..DOWNLOADS {
            scope.spawn(|| {
                let mut connection = open(address);
                let request = b"GET /bronze HTTP/1.1\r\nHost: bronze.test\r\n\r\n";
                while !stop.load(Ordering::Relaxed) {
                    connection.send(request).and_then(|()| connection.head()).expect("a reply");
                    // By parts, so that it is known how much of it came.
                    for _ in 0..BRONZE / 40_000 {
                        connection.take(40_000, &mut Vec::new()).expect("a body");
                        bytes.fetch_add(40_000, Ordering::Relaxed);
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                }
            });
        }
        wait("downloads", LIMIT, || (bytes.load(Ordering::Relaxed) > 4 * BRONZE as u64).then_some(()));
        let (begin, before) = (Instant::now(), bytes.load(Ordering::Relaxed));
        let done = act();
        let rate = (bytes.load(Ordering::Relaxed) - before) as f64 / begin.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        (done, rate)
    })
}

fn p99(times: &[f64]) -> f64 {
    times[((times.len() - 1) as f64 * 0.99).round() as usize]
}

/// What is none of the requests', bytes.
const OTHER: u64 = 20_000;

#[test]
fn replies_carry_the_priority_of_their_class_and_nothing_stays() {
    let Some(_turn) = begin("network_priority", &["ip", "tc", "nft", "nsenter", "nginx"]) else { return };
    let dir = scratch();
    let server = Server::start(dir.path());
    let address = server.address;
    // One request of each class, and later ones on the same connections.
    let both = || {
        server.near(|| {
            let [mut gold, mut bronze] = [open(address), open(address)];
            for _ in 0..4 {
                once(&mut gold, "gold");
                once(&mut bronze, "bronze");
            }
        });
    };
    let sent = |act: &dyn Fn()| {
        let before = server.sent_by_class();
        act();
        let after = server.sent_by_class();
        [0, 1, 2].map(|class| after[class] - before[class])
    };

    let dry = agent(dir.path(), "dry-run");
    let [high, _, low] = sent(&both);
    assert!(high < OTHER && low < OTHER, "a dry run changes nothing: {high} {low}");
    let counted = |agent: &Agent, name: &str, action: &str| class(agent, name)["network_actions"][action].as_u64();
    for name in ["gold", "bronze"] {
        wait("what would be done", LIMIT, || (counted(&dry, name, "would_apply") > Some(0)).then_some(()));
        assert_eq!(counted(&dry, name, "applied"), Some(0));
    }
    dry.stop();

    let on = agent(dir.path(), "on");
    let [high, normal, low] = sent(&both);
    say(&format!("with priorities: {high} bytes high, {normal} normal, {low} low"));
    // The first reply of a connection may have begun before; later ones may not.
    assert!(high as usize > 3 * GOLD && (high as usize) < 5 * GOLD, "{high}");
    assert!(low as usize > 3 * BRONZE && (low as usize) < 5 * BRONZE, "{low}");
    wait("connections without requests to be left", LIMIT, || {
        (on.json("/api/v1/service-classes")["connections_changed"] == 0).then_some(())
    });
    // The figures follow once a second.
    wait("every priority of gold to be counted, and its end", LIMIT, || {
        let applied = counted(&on, "gold", "applied");
        (applied > Some(0) && applied == counted(&on, "gold", "restored")).then_some(())
    });
    let metrics = on.metrics();
    let labels = [("service_class", "bronze"), ("action", "applied")];
    assert!(metrics.sum("tracer_service_class_network_actions_total", &labels) > 0.0);

    // Killed in the middle of a reply with a priority: what follows on the connection has its own again.
    server.near(|| {
        let mut connection = open(address);
        once(&mut connection, "bronze");
        connection.send(b"GET /bronze HTTP/1.1\r\nHost: bronze.test\r\n\r\n").expect("a request");
        connection.head().expect("a head");
        connection.take(BRONZE as u64 / 4, &mut Vec::new()).expect("a quarter");
        on.end(libc::SIGKILL);
        connection.take(BRONZE as u64 / 4, &mut Vec::new()).expect("a quarter");
        let before = server.sent_by_class();
        connection.take(BRONZE as u64 / 2, &mut Vec::new()).expect("the rest");
        once(&mut connection, "bronze");
        let after = server.sent_by_class();
        assert!(after[2] - before[2] < OTHER, "{before:?} {after:?}");
        assert!(after[1] - before[1] > BRONZE as u64, "{before:?} {after:?}");
    });

    let on = agent(dir.path(), "on");
    on.stop();
    let [high, _, low] = sent(&both);
    assert!(high < OTHER && low < OTHER, "after its end: {high} {low}");
}

#[test]
fn gold_keeps_its_latency_on_a_full_link() {
    let Some(_turn) = begin("network_priority_latency", &["ip", "tc", "nft", "nsenter", "nginx"]) else { return };
    let dir = scratch();
    let server = Server::start(dir.path());
    let address = server.address;
    let mut ratios = Vec::new();
    for mode in ["dry-run", "on"] {
        let agent = agent(dir.path(), mode);
        // Each takes a second or two without priorities.
        let requests = if mode == "on" { 100 } else { 20 };
        // Work of others on this host can disturb the second slowest of 100 requests: it is measured again.
        let mut ratio = f64::INFINITY;
        for _ in 0..3 {
            let alone = server.near(|| gold(address, requests));
            let (times, bronze) = server.near(|| beside(address, || gold(address, requests)));
            let (alone, beside) = (p99(&alone), p99(&times));
            let share = bronze * 8.0 / LINK as f64;
            ratio = beside / alone;
            say(&format!(
                "{mode:8} gold p99 alone {alone:5.1} ms, beside bronze p50 {:5.1} p99 {beside:5.1} ms ({ratio:.2} ×), \
                 bronze {:.0} % of the link",
                times[times.len() / 2],
                100.0 * share
            ));
            assert!(share > 0.05, "bronze starves: {share}");
            if mode == "dry-run" || ratio < 1.2 {
                break;
            }
        }
        figure(&format!("{mode} gold p99 beside / alone"), &format!("{ratio:.2}"));
        ratios.push(ratio);
        agent.stop();
    }
    if scale() >= 1.0 {
        assert!(ratios[1] < 1.2, "{ratios:?}");
        assert!(ratios[0] > 2.0, "without it {ratios:?}");
    }
}

#[test]
fn a_ceiling_of_its_queue_paces_a_class() {
    let Some(_turn) = begin("network_priority_pace", &["ip", "tc", "nft", "nsenter", "nginx"]) else { return };
    let dir = scratch();
    let server = Server::start(dir.path());
    let limits = format!("rate {PACE}bit ceil {PACE}bit burst 4k cburst 4k");
    let change = format!("-n {} class change dev eth0 parent 1:1 classid 1:30 htb {limits}", server.star.name(SERVER));
    run("tc", &change.split(' ').collect::<Vec<_>>());
    // Bytes of each priority meanwhile.
    let downloaded = |is_paced: bool| {
        let since = |before: [u64; 3]| {
            let after = server.sent_by_class();
            [0, 1, 2].map(|class| after[class] - before[class])
        };
        let act = || {
            // The first reply of each connection began before its class was known.
            wait("first replies to be over", LIMIT, || {
                let before = server.sent_by_class();
                std::thread::sleep(Duration::from_millis(200));
                (!is_paced || since(before)[1] < OTHER).then_some(())
            });
            let before = server.sent_by_class();
            std::thread::sleep(Duration::from_secs(SECONDS));
            since(before)
        };
        server.near(|| beside(server.address, act)).0
    };
    let bits = |bytes: u64| (bytes * 8 / SECONDS) as f64;
    let dry = agent(dir.path(), "dry-run");
    let [_, normal, low] = downloaded(false);
    dry.stop();
    assert!(low < OTHER && bits(normal) > 0.7 * LINK as f64, "without it the link is the limit: {normal} {low}");
    let on = agent(dir.path(), "on");
    let [_, normal, low] = downloaded(true);
    on.stop();
    figure("bronze's rate / its ceiling", &format!("{:.2}", bits(low) / PACE as f64));
    assert!(normal < OTHER, "{normal}");
    assert!((0.8..1.1).contains(&(bits(low) / PACE as f64)), "{low}");
}
