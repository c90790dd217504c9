//! Names of services and request classes: a scan of a web server, secrets in paths and in code, and two programs of one
//! name, with real programs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::nginx::Nginx;
use tracer_tests::process::Process;
use tracer_tests::spans::Tail;
use tracer_tests::workload::wait_for_listener;
use tracer_tests::{begin, figure, free_port, http, say, scratch, secrets, wait};

/// Requests per class of the servers, by service and class, once their sum is `sum`.
fn classes(agent: &Agent, services: &str, sum: u64) -> BTreeMap<(String, String), u64> {
    wait("all requests in the classes", Duration::from_secs(20), || {
        let all = agent.json("/api/v1/classes");
        let served = all["classes"].as_array().into_iter().flatten().filter(|class| class["side"] == "server");
        let found: BTreeMap<(String, String), u64> = served
            .filter_map(|class| {
                let text = |key: &str| class[key].as_str().map(str::to_owned);
                Some(((text("service_name")?, text("request_class")?), class["count"].as_u64()?))
            })
            .filter(|((service, _), _)| service.starts_with(services))
            .collect();
        (found.values().sum::<u64>() >= sum).then_some(found)
    })
}

fn get(address: SocketAddr, target: &str, status: u16) {
    let reply = http::get(address, target).unwrap_or_else(|error| panic!("{target}: {error}"));
    assert_eq!(reply.status, status, "{target}");
}

/// Eight letters, a different word for each number.
fn random(n: u64) -> String {
    let mut state = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D_4C95_7F2D;
    let letter = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from(b'a' + ((state >> 33) % 26) as u8)
    };
    (0..8).map(letter).collect()
}

#[test]
fn a_scan_destroys_no_class_and_secrets_in_paths_name_none() {
    let Some(_turn) = begin("names_scan", &["nginx"]) else { return };
    let dir = scratch();
    let server = "location = /sum { return 200 'six'; }\n location /reset/ { return 200 'sent'; }\n \
                  location /k/ { return 200 'key'; }\n location /pw/ { return 302 /; }\n location / { return 404; }";
    let nginx = Nginx::start(dir.path(), "", server);
    let port = nginx.address.port().to_string();
    let agent = Agent::start(dir.path(), &["--hertz", "0", "--port", &port]);
    let mut sent = 0;
    let mut ask = |target: &str, status: u16| {
        get(nginx.address, target, status);
        sent += 1;
    };
    ask("/sum", 200);
    for n in 0..40 {
        ask(&format!("/{}", random(n)), 404);
        ask(&format!("/wp-{}/{}.php", random(n), random(n + 40)), 404);
    }
    for _ in 0..9 {
        ask("/sum", 200);
    }
    let secrets = ["xwcxpchuujua", "AKIAIOSFODNN7EXAMPLE", "Tr0ub4dor&6", "eyJhbGciOiJub25lIn0.e30."];
    for (prefix, status) in [("reset", 200), ("k", 200), ("pw", 302)] {
        for secret in secrets {
            ask(&format!("/{prefix}/{secret}"), status);
        }
    }
    let found = classes(&agent, "nginx", sent);
    say(&format!("{found:?}"));
    let count = |class: &str| found.get(&("nginx".to_owned(), class.to_owned())).copied().unwrap_or(0);
    assert_eq!((count("GET /sum"), count("GET {unmatched}"), count("GET /{param}")), (10, 80, 0), "{found:?}");
    assert!(found.len() <= 8, "{found:?}");
    for place in ["/metrics", "/api/v1/classes", "/api/v1/services", "/"] {
        let text = agent.text(place);
        for secret in secrets {
            // A shorter piece can occur in other numbers by chance.
            for piece in secret.split(['&', '.']).filter(|piece| piece.len() > 5) {
                assert!(!text.contains(piece), "{piece} shows in {place}");
            }
        }
    }
    figure("classes after a scan of 80 paths", &format!("{}, and /sum still {}", found.len(), count("GET /sum")));
    agent.stop();
}

/// How often each path of an API comes.
const EACH: usize = 12;
/// Requests of a path that another class may have: a word with rare letters (`webhooks`) is shown at its tenth.
const FIRST: u64 = 9;

/// A word that can be pronounced, a different one for each number below 1728.
fn word(n: usize) -> String {
    const SYLLABLES: [&str; 12] = ["ka", "lo", "mi", "ren", "tor", "vel", "sun", "dra", "pi", "ost", "lan", "zen"];
    [n % 12, n / 12 % 12, n / 144 % 12].map(|at| SYLLABLES[at]).concat()
}

/// `paths`, each [`EACH`] times, in an order that mixes them.
fn mixed(paths: &[String]) -> Vec<&String> {
    let mut all: Vec<&String> = std::iter::repeat_n(paths, EACH).flatten().collect();
    let mut state = 7_u64;
    for at in (1..all.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        all.swap(at, (state >> 33) as usize % (at + 1));
    }
    all
}

/// Paths that come back are classes of their own, however many there are below one place; those that come once each are not.
#[test]
fn paths_that_come_back_are_classes() {
    const METHODS: [&str; 6] = ["list", "create", "update", "archive", "search", "export"];
    const OBJECTS: [&str; 8] = ["user", "order", "invoice", "cart", "channel", "message", "team", "file"];
    const RESOURCES: &str = "users orders invoices carts channels messages teams files products prices stocks reviews ratings \
                             coupons refunds payments shipments addresses countries currencies languages settings themes pages \
                             menus widgets reports exports imports webhooks tokens sessions roles permissions audits events jobs \
                             queues tasks notes";
    const ONCE: usize = 200;
    let Some(_turn) = begin("names_paths", &["nginx"]) else { return };
    let dir = scratch();
    let nginx = Nginx::start(dir.path(), "", "location / { return 200 'ok'; }");
    let agent = Agent::start(dir.path(), &["--hertz", "0", "--port", &nginx.address.port().to_string()]);
    let rpc: Vec<String> =
        OBJECTS.iter().flat_map(|object| METHODS.map(|method| format!("/api/{object}.{method}"))).collect();
    let rest: Vec<String> = RESOURCES.split_whitespace().map(|resource| format!("/v1/{resource}")).collect();
    // Half of them at the top, where words are shown at once.
    let place = |n: usize| if n.is_multiple_of(2) { "" } else { "/pages" };
    let once: Vec<String> = (0..ONCE).map(|n| format!("{}/{}", place(n), word(n))).collect();
    assert_eq!((rpc.len(), rest.len()), (48, 40));
    for path in mixed(&rpc).into_iter().chain(mixed(&rest)).chain(&once) {
        get(nginx.address, path, 200);
    }
    let sent = (EACH * (rpc.len() + rest.len()) + ONCE) as u64;
    let found = classes(&agent, "nginx", sent);
    assert_eq!(found.values().sum::<u64>(), sent, "{found:?}");
    let of = |class: &str| found.get(&("nginx".to_owned(), class.to_owned())).copied().unwrap_or(0);
    let own = |paths: &[String]| {
        let all = EACH as u64 - FIRST..=EACH as u64;
        paths.iter().filter(|path| all.contains(&of(&format!("GET {path}")))).count()
    };
    let is_page = |class: &str| !class.starts_with("GET /api/") && !class.starts_with("GET /v1/");
    let pages = found.keys().filter(|(_, class)| is_page(class)).count();
    let what = format!("{} of 48 methods, {} of 40 resources; {ONCE} pages in {pages}", own(&rpc), own(&rest));
    say(&what);
    figure("classes of their own", &what);
    assert_eq!((own(&rpc), own(&rest)), (48, 40), "{found:?}");
    assert!(pages <= 20, "{found:?}");
    agent.stop();
}

/// A server in one line of Python: its text is `code` and a little more.
const SERVE: &str = "
import http.server, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header('Content-Length', '2'); self.end_headers(); self.wfile.write(b'ok')
    def log_message(self, *a): pass
http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()
";

fn python(name: &str, dir: &Path, arguments: &[&str]) -> (Process, SocketAddr) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = Command::new("python3");
    command.args(arguments).arg(address.port().to_string()).current_dir(dir).env_remove("OTEL_SERVICE_NAME");
    let mut process = Process::start(name, &mut command, &dir.join(format!("{name}.log")));
    wait_for_listener(&mut process, address);
    (process, address)
}

#[test]
fn code_names_no_service() {
    let Some(_turn) = begin("names_code", &["python3"]) else { return };
    let dir = scratch();
    let code = format!("password = 'planted-in-code'\n{SERVE}");
    let (_process, address) = python("code", dir.path(), &["-c", &code]);
    let agent = Agent::start(dir.path(), &["--port", &address.port().to_string()]);
    for _ in 0..5 {
        get(address, "/health", 200);
    }
    let found = classes(&agent, "python3", 5);
    assert!(found.keys().all(|(service, class)| !service.contains('\n') && class == "GET /health"), "{found:?}");
    secrets::none_shows(agent, dir.path(), &["planted-in-code", "BaseHTTPRequestHandler"], "GET /health");
}

#[test]
fn two_programs_of_one_name_are_two_services() {
    let Some(_turn) = begin("names_places", &["python3"]) else { return };
    let dir = scratch();
    let mut servers = Vec::new();
    for sub in ["one", "two"] {
        let home = dir.path().join(sub);
        std::fs::create_dir(&home).expect("a directory");
        std::fs::write(home.join("shopfront.py"), SERVE).expect("a script");
        servers.push(python("server", &home, &["shopfront.py"]));
    }
    let agent = Agent::start(dir.path(), &["--hertz", "0"]);
    for (count, (_, address)) in (3..).zip(&servers) {
        for _ in 0..count {
            get(*address, "/health", 200);
        }
    }
    let found = classes(&agent, "shopfront", 7);
    say(&format!("{found:?}"));
    let mut counts: Vec<u64> = found.values().copied().collect();
    counts.sort_unstable();
    assert_eq!(counts, [3, 4], "{found:?}");
    let mut names = found.keys().map(|(service, _)| service.as_str());
    assert!(names.any(|name| name == "shopfront"), "{found:?}");
    let place = |sub: &str| dir.path().join(sub).join("shopfront.py").display().to_string();
    let other = found.keys().find(|(service, _)| service != "shopfront").expect("the second");
    assert!(["one", "two"].iter().any(|sub| other.0 == format!("shopfront@{}", place(sub))), "{found:?}");
    agent.stop();
}

/// What names a service stands behind many arguments, in a long command line, and behind a long environment.
#[test]
fn long_command_lines_and_environments_hide_no_name() {
    let Some(_turn) = begin("names_long", &["node", "python3"]) else { return };
    let dir = scratch();
    let file = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("a script");
    let listen = "require('http').createServer((q, r) => r.end('ok')).listen(+process.argv.at(-1), '127.0.0.1')";
    file("shopfront.js", listen);
    file("stockroom.js", listen);
    file("empty.js", "");
    file("plain.py", SERVE);
    // Forty arguments; 24 kB of them; 20 kB of variables, in the order given.
    let many = ["--require", "./empty.js"].repeat(20);
    let path = format!("{}empty.js", "./".repeat(1_500));
    let long = ["--require", &path].repeat(8);
    let mut variables: Vec<String> = vec!["-u".into(), "OTEL_SERVICE_NAME".into()];
    variables.extend((0..200).map(|n| format!("A_BACKEND_NUMBER_{n:03}={}", "v".repeat(80))));
    variables.push("OTEL_SERVICE_NAME=checkout".into());
    let serve = |name: &str, program: &str, arguments: &[&str]| {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut command = Command::new(program);
        command.args(arguments).arg(address.port().to_string()).current_dir(dir.path()).env_remove("OTEL_SERVICE_NAME");
        let mut process = Process::start(name, &mut command, &dir.path().join(format!("{name}.log")));
        wait_for_listener(&mut process, address);
        (process, address)
    };
    let node = |name: &str, arguments: &[&str], script: &str| serve(name, "node", &[arguments, &[script]].concat());
    let variables: Vec<&str> = variables.iter().map(String::as_str).chain(["python3", "plain.py"]).collect();
    let servers = [
        ("shopfront", node("shopfront", &many, "shopfront.js")),
        ("stockroom", node("stockroom", &long, "stockroom.js")),
        ("checkout", serve("checkout", "env", &variables)),
    ];
    let mut arguments = vec!["--hertz".to_owned(), "0".into()];
    arguments.extend(servers.iter().flat_map(|(_, (_, address))| ["--port".to_owned(), address.port().to_string()]));
    let agent = Agent::start(dir.path(), &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    for (_, (_, address)) in &servers {
        (0..5).for_each(|_| get(*address, "/health", 200));
    }
    let found = classes(&agent, "", 15);
    let expected: BTreeMap<_, _> =
        servers.iter().map(|(name, _)| (((*name).to_owned(), "GET /health".to_owned()), 5)).collect();
    assert_eq!(found, expected);
    agent.stop();
}

/// A server that runs a program for each connection, as inetd does.
const SUPERSERVER: &str = "
import os, signal, socket, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])), backlog=128)
while True:
    connection, _ = listener.accept()
    if os.fork() == 0:
        os.dup2(connection.fileno(), 0)
        os.dup2(connection.fileno(), 1)
        os.execv('./briefly', ['./briefly'])
    connection.close()
";

/// The program: one request, one answer.
const BRIEFLY: &str = "#!/bin/sh
while IFS= read -r line; do [ ${#line} -gt 1 ] || break; done
printf 'HTTP/1.0 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok'
";

#[test]
fn programs_that_live_for_milliseconds_have_their_names() {
    use std::os::unix::fs::PermissionsExt;

    let Some(_turn) = begin("names_brief", &["python3", "curl"]) else { return };
    let dir = scratch();
    let program = dir.path().join("briefly");
    std::fs::write(&program, BRIEFLY).expect("a script");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("a program");
    let (_process, address) = python("superserver", dir.path(), &["-c", SUPERSERVER]);
    let agent = Agent::start(dir.path(), &["--hertz", "0", "--port", &address.port().to_string()]);
    let mut tail = Tail::new(&agent.transactions);
    let run = format!("for i in $(seq 30); do curl -s -o /dev/null http://{address}/a || exit 1; done");
    let start = |_| Command::new("sh").args(["-c", &run]).env_remove("OTEL_SERVICE_NAME").spawn().expect("sh");
    for mut shell in (0..4).map(start).collect::<Vec<_>>() {
        assert!(shell.wait().expect("curl").success());
    }
    assert_eq!(tail.until(240, Duration::from_secs(20), |span| span.port == address.port()), 240);
    let mut services: BTreeMap<(&str, bool), usize> = BTreeMap::new();
    for span in tail.spans.iter().filter(|span| span.port == address.port()) {
        *services.entry((&span.service, span.server)).or_default() += 1;
    }
    say(&format!("{services:?}"));
    assert_eq!(services, BTreeMap::from([(("briefly", true), 120), (("curl", false), 120)]));
    agent.stop();
}
