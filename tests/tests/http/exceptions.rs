//! Exceptions that end requests: each has the type that its program threw and the function that did, and no other request has one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::http::{self, Connection};
use tracer_tests::process::Process;
use tracer_tests::workload::{Server, compile_cpp, source, wait_for_listener};
use tracer_tests::{begin, figure, find, free_port, go, operations_lost, say, scratch, wait};

/// Until probes are attached, and until all spans are written.
const LIMIT: Duration = Duration::from_secs(30);
/// Connections at once, and rounds of all routes on each.
const CONNECTIONS: usize = 4;
const ROUNDS: usize = 25;

/// A route, the type of the exception that ends its requests, and their `error.type`; empty: none.
type Route = (&'static str, &'static str, &'static str);

const CPP: [Route; 12] = [
    ("timeout", "shop::Timeout", "500"),
    ("plain", "", ""),
    ("runtime", "std::runtime_error", "500"),
    // Not that of the request before, nor the one that was handled.
    ("status", "", "500"),
    ("local", "(anonymous namespace)::Local", "500"),
    ("handled", "", ""),
    ("int", "int", "500"),
    ("template", "shop::Failed<std::vector<int, std::allocator<int> >, unsigned long>", "500"),
    ("text", "char const*", "500"),
    ("long", "shop::AnExceptionWithANameThatIsLongerThanTheSixtyThreeBytesOfOnePart", "500"),
    (
        "longer",
        "shop::AnExceptionWithANameThatIsLongerThanBothPartsThatTheKernelSideReadsWhichIsAHundredAndTwentySixBytesAndSoHasToBeReadOfThePr…",
        "500",
    ),
    ("two", "std::out_of_range", "500"),
];
const GO: [Route; 10] = [
    ("text", "string", "500"),
    ("plain", "", ""),
    ("error", "*errors.errorString", "500"),
    ("status", "", "500"),
    ("value", "main.Boom", "500"),
    ("handled", "", ""),
    ("pointer", "*main.Boom", "500"),
    ("generic", "main.Failed[string]", "500"),
    ("index", "runtime.boundsError", "500"),
    ("nil", "runtime.errorString", "500"),
];
const PHP: [Route; 9] = [
    ("stock", "Shop\\NoStock", "500"),
    ("plain", "", ""),
    ("runtime", "RuntimeException", "500"),
    ("status", "", "500"),
    ("long", "Shop\\AnExceptionWithANameThatIsLongerThanTheSixtyThreeBytesThatAreReadAtOnce", "500"),
    ("handled", "", ""),
    ("division", "DivisionByZeroError", "500"),
    ("finally", "Shop\\NoStock", "500"),
    ("two", "LogicException", "500"),
];

/// Functions of Python that throw, by route.
const PYTHON: [Route; 13] = [
    ("stock", "__main__.NoStock", "500"),
    ("plain", "", ""),
    ("value", "ValueError", "500"),
    ("status", "", "500"),
    ("key", "KeyError", "500"),
    ("handled", "", ""),
    ("division", "ZeroDivisionError", "500"),
    ("chained", "__main__.NoStock", "500"),
    ("long", "__main__.AnExceptionWithANameThatIsLongerThanTheSixtyThreeBytesThatAreReadAtOnceByTheKernelSide", "500"),
    // Code that expects it catches it, and answers so.
    ("expected", "", "500"),
    ("deep", "__main__.NoStock", "500"),
    ("generator", "RuntimeError", "500"),
    ("stock", "__main__.NoStock", "500"),
];

/// Which function of the Python server throws on a route.
fn python_function(route: &str) -> &'static str {
    match route {
        "stock" => "reserve",
        "value" => "parse",
        "key" => "look_up",
        "division" => "divide",
        "chained" => "chain",
        "long" => "long",
        "deep" => "deepest",
        "generator" => "broken",
        "drop" => "drop",
        other => panic!("{other} throws nothing"),
    }
}

/// The share of exceptions that have their stack at least: some thousands are thrown a second here, more than stacks are taken.
const STACKS: f64 = 0.1;

fn agent(dir: &Path, max_rate: u32) -> Agent {
    let file = dir.join("tracer.toml");
    std::fs::write(&file, format!("[exceptions]\nenabled = true\nmax_rate = {max_rate}\n")).expect("a file");
    Agent::start(dir, &["--nice=-10", "--config", &file.display().to_string()])
}

/// What is found of a request: type of the exception, `error.type`, and the function that threw.
type Seen = (String, String, String);

/// Server spans of a service by path.
fn found(agent: &Agent, service: &str) -> BTreeMap<String, Seen> {
    let text = std::fs::read_to_string(&agent.transactions).unwrap_or_default();
    let spans = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ours = spans.filter(|span| span["service_name"] == service && span["side"] == "server");
    let of = |span: &Value, key: &str| span["attributes"][key].as_str().unwrap_or_default().to_owned();
    let function = |span: &Value| of(span, "tracer.exception.function.name");
    ours.map(|span| (of(&span, "url.path"), (of(&span, "exception.type"), of(&span, "error.type"), function(&span))))
        .collect()
}

/// The last part of a function's name: without module, class, namespace and arguments.
fn bare(function: &str) -> &str {
    let name = function.split('(').next().unwrap_or_default();
    name.rsplit(['.', ':', '\\']).next().unwrap_or_default()
}

/// What requests are to have, by path.
type Wanted = BTreeMap<String, (&'static str, &'static str)>;

/// Sends requests of all routes, on several connections at once; those of `dropped` on connections of their own.
fn send(address: SocketAddr, routes: &[Route], dropped: Option<Route>, keeps: bool) -> Wanted {
    let of_connection = |connection: usize| {
        let mut wanted = Wanted::new();
        let mut kept = None;
        for round in 0..ROUNDS {
            for (at, (route, kind, error)) in routes.iter().enumerate() {
                let path = format!("/{route}/{connection}-{round}-{at}");
                let status = if keeps {
                    let open = kept.get_or_insert_with(|| Connection::open(address).expect("a connection"));
                    open.ask("GET", &path).expect("an answer").status
                } else {
                    http::get(address, &path).expect("an answer").status
                };
                assert_eq!(status, if error.is_empty() { 200 } else { 500 }, "{path}");
                wanted.insert(path, (*kind, *error));
            }
            if let Some((route, kind, error)) = dropped {
                let path = format!("/{route}/{connection}-{round}");
                assert!(http::get(address, &path).is_err(), "{path} was answered");
                wanted.insert(path, (kind, error));
            }
        }
        wanted
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CONNECTIONS).map(|n| scope.spawn(move || of_connection(n))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect()
    })
}

/// Sends requests that throw until one of each route is seen to, with the name of its function: the probe is attached once the process
/// serves, and names are read of the first stacks.
fn warm_up(agent: &Agent, service: &str, address: SocketAddr, routes: &[Route]) {
    let mut sent = 0;
    wait("the functions of exceptions", LIMIT, || {
        let seen = found(agent, service);
        let is_known = |route: &str| {
            let route = format!("/{route}/");
            seen.iter().any(|(path, (.., function))| path.starts_with(&route) && !function.is_empty())
        };
        let mut missing: Vec<&str> =
            routes.iter().filter(|(_, kind, _)| !kind.is_empty()).map(|(name, ..)| *name).collect();
        missing.retain(|route| !is_known(route));
        for route in &missing {
            let _ = http::get(address, &format!("/{route}/first-{sent}"));
        }
        sent += 1;
        missing.is_empty().then_some(())
    });
}

/// Compares every request with what its program did. `function`: the one that throws, by route.
fn judge(agent: Agent, service: &str, wanted: &Wanted, function: impl Fn(&str) -> &'static str) {
    let seen = wait("all spans", LIMIT, || {
        let seen = found(&agent, service);
        wanted.keys().all(|path| seen.contains_key(path)).then_some(seen)
    });
    let mut wrong = Vec::new();
    let (mut right, mut unknown, mut of_type) = (0, 0, BTreeMap::new());
    let (mut with_function, mut wrong_functions) = (0, Vec::new());
    for (path, (kind, error)) in wanted {
        let (have, type_of_error, thrown_in) = &seen[path];
        if !kind.is_empty() {
            *of_type.entry(*kind).or_insert(0.0) += 1.0;
        }
        if !thrown_in.is_empty() {
            with_function += 1;
            let route = path.split('/').nth(1).unwrap_or_default();
            if kind.is_empty() || bare(thrown_in) != function(route) {
                wrong_functions.push(format!("{path}: {thrown_in}"));
            }
        }
        match have.as_str() {
            _ if type_of_error != error => wrong.push(format!("{path}: {type_of_error}, not {error}")),
            have if have == *kind => right += usize::from(!kind.is_empty()),
            "_unknown" if !kind.is_empty() => unknown += 1,
            have => wrong.push(format!("{path}: '{have}', not '{kind}'")),
        }
    }
    let thrown: f64 = of_type.values().sum();
    let missed = thrown as usize - right - unknown;
    figure(
        &format!("exceptions of {service}"),
        &format!(
            "{} requests, {thrown} ended by one: {right} right, {unknown} unknown, {} wrong; {with_function} with the function, {} of \
             these wrong",
            wanted.len(),
            wrong.len(),
            wrong_functions.len()
        ),
    );
    for line in wrong.iter().chain(&wrong_functions).take(20) {
        say(&format!("  {line}"));
    }
    let metrics = agent.metrics();
    for (kind, count) in &of_type {
        let labels = [("service_name", service), ("exception_type", kind)];
        let have = metrics.sum("tracer_request_exceptions_total", &labels);
        // Those before.
        assert!(have >= count - unknown as f64 - missed as f64, "{kind}: {have} of {count} in the metrics");
    }
    let lost = metrics.lost();
    agent.stop();
    assert!(wrong.len() as f64 <= operations_lost(&lost), "{} wrong, lost {lost:?}", wrong.len());
    assert!(right as f64 >= 0.99 * thrown, "{right} of {thrown} are right");
    assert!(with_function as f64 >= STACKS * thrown, "{with_function} of {thrown} have the function");
    assert!(wrong_functions.len() as f64 <= 0.01 * with_function as f64, "{} wrong functions", wrong_functions.len());
}

#[test]
fn exceptions_of_cpp_that_end_requests_have_their_type() {
    let Some(_turn) = begin("exceptions cpp", &["c++"]) else { return };
    let dir = scratch();
    let program = compile_cpp(dir.path(), "throws");
    let agent = agent(dir.path(), 100_000);
    let server = Server::start("throws", dir.path(), &mut Command::new(&program));
    warm_up(&agent, "throws", server.address, &CPP);
    let mut wanted = send(server.address, &CPP, Some(("drop", "shop::Dropped", "aborted")), true);
    for n in 0..5 {
        // The library has its probe: the first request of a process will do.
        let path = format!("/abort/{n}");
        let other = Server::start("throws", dir.path(), &mut Command::new(&program));
        assert!(http::get(other.address, &path).is_err());
        wanted.insert(path, ("std::runtime_error", "SIGABRT"));
    }
    let trace = wait("a trace", LIMIT, || {
        let list = agent.json("/api/v1/transactions?service=throws&limit=1000");
        let rows = list["transactions"].as_array()?;
        let row = rows.iter().find(|row| row["exception_type"] == "shop::Timeout" && row["status"] == 500)?;
        row["trace_id"].as_str().map(str::to_owned)
    });
    let one = agent.json(&format!("/api/v1/transactions/{trace}"));
    assert_eq!(one["failed_at"]["exception_type"], "shop::Timeout", "{one}");
    judge(agent, "throws", &wanted, |_| "handle");
}

#[test]
fn panics_of_go_that_end_requests_have_their_type() {
    let toolchain = go::toolchain("1.27.");
    let Some(_turn) = begin("exceptions go", &[toolchain]) else { return };
    let dir = scratch();
    let program = go::build(Path::new(toolchain), dir.path(), "throws.go", &[]);
    let agent = agent(dir.path(), 100_000);
    let server = Server::start("panics", dir.path(), &mut Command::new(program));
    warm_up(&agent, "panics", server.address, &GO);
    let wanted = send(server.address, &GO, Some(("drop", "*main.Boom", "aborted")), true);
    judge(agent, "panics", &wanted, |_| "fails");
}

#[test]
fn exceptions_of_php_that_end_requests_have_their_class() {
    let Some(_turn) = begin("exceptions php", &["php"]) else { return };
    let dir = scratch();
    let agent = agent(dir.path(), 100_000);
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = Command::new(find("php").expect("php"));
    // Without the cache functions go with their request, before anybody has read their names.
    command.args(["-n", "-d", "zend_extension=opcache", "-d", "opcache.enable_cli=1", "-d", "display_errors=0"]);
    command.args(["-S", &address.to_string()]).arg(source("throws.php"));
    command.env("OTEL_SERVICE_NAME", "scripts");
    let mut server = Process::start("php", &mut command, &dir.path().join("php.log"));
    wait_for_listener(&mut server, address);
    warm_up(&agent, "scripts", address, &PHP);
    let wanted = send(address, &PHP, None, false);
    judge(agent, "scripts", &wanted, |_| "fails");
}

/// The Python server, by threads or a loop.
fn judge_python(way: &'static str, service: &'static str) {
    let dir = scratch();
    let agent = agent(dir.path(), 100_000);
    let mut command = Command::new(find("python3").expect("python3"));
    command.arg(source("throws.py")).arg(way);
    let server = Server::start(service, dir.path(), &mut command);
    warm_up(&agent, service, server.address, &PYTHON);
    // Without an answer nothing says which request a task of asyncio threw for.
    let dropped = (way == "threads").then_some(("drop", "__main__.Dropped", "aborted"));
    let wanted = send(server.address, &PYTHON, dropped, true);
    let trace = wait("a stack", LIMIT, || {
        let list = agent.json(&format!("/api/v1/transactions?service={service}&limit=1000"));
        let rows = list["transactions"].as_array()?;
        let rows = rows.iter().filter(|row| row["exception_type"] == "ZeroDivisionError").take(40);
        let one = |row: &Value| agent.json(&format!("/api/v1/transactions/{}", row["trace_id"].as_str()?)).into();
        rows.filter_map(one).find(|one: &Value| one["failed_at"]["exception_function"].is_string())
    });
    let at = &trace["failed_at"];
    let spans = trace["spans"].as_array().expect("spans");
    let span = spans.iter().find(|span| span["span_id"] == at["span_id"]).expect("the span that failed");
    assert!(at["exception_file"].as_str().is_some_and(|file| file.ends_with("throws.py")), "{trace}");
    let text = std::fs::read_to_string(source("throws.py")).expect("the source");
    let line = text.lines().position(|line| line.contains("1 / 0")).map(|line| line + 1);
    assert_eq!(at["exception_line"].as_u64(), line.map(|line| line as u64), "{trace}");
    let stack = span["attributes"]["exception.stacktrace"].as_str().unwrap_or_default();
    let functions: Vec<&str> = stack.lines().map(|line| line.split(' ').nth(1).unwrap_or_default()).collect();
    assert_eq!(functions[..3], ["divide", "handle", "status_of"], "{stack}");
    judge(agent, service, &wanted, python_function);
}

#[test]
fn exceptions_of_python_that_end_requests_have_their_class() {
    let Some(_turn) = begin("exceptions python", &["python3"]) else { return };
    judge_python("threads", "snakes");
}

#[test]
fn exceptions_of_pythons_loop_that_end_requests_have_their_class() {
    let Some(_turn) = begin("exceptions asyncio", &["python3"]) else { return };
    judge_python("loop", "loops");
}

#[test]
fn a_program_that_throws_too_often_loses_its_probe() {
    let Some(_turn) = begin("exceptions limit", &["c++"]) else { return };
    let dir = scratch();
    let program = compile_cpp(dir.path(), "throws");
    let agent = agent(dir.path(), 200);
    let server = Server::start("throws", dir.path(), &mut Command::new(&program));
    warm_up(&agent, "throws", server.address, &CPP[..1]);
    let mut connection = Connection::open(server.address).expect("a connection");
    let withdrawn = |agent: &Agent| agent.metrics().sum("tracer_exception_probes_withdrawn_total", &[]);
    let mut sent = 0;
    wait("the probe to be withdrawn", LIMIT, || {
        for _ in 0..200 {
            connection.ask("GET", &format!("/timeout/often-{sent}")).expect("an answer");
            sent += 1;
        }
        (withdrawn(&agent) > 0.5).then_some(())
    });
    let thrown = |agent: &Agent| agent.metrics().sum("tracer_exceptions_total", &[("runtime", "cpp")]);
    let before = wait("what was thrown before", LIMIT, || {
        let count = thrown(&agent);
        connection.ask("GET", "/timeout/after").expect("an answer");
        found(&agent, "throws").contains_key("/timeout/after").then_some(count)
    });
    for n in 0..200 {
        connection.ask("GET", &format!("/timeout/rest-{n}")).expect("an answer");
    }
    let seen = wait("all spans", LIMIT, || {
        let seen = found(&agent, "throws");
        seen.contains_key("/timeout/rest-199").then_some(seen)
    });
    let rest = seen.iter().filter(|(path, _)| path.starts_with("/timeout/rest-"));
    assert_eq!(rest.filter(|(_, (kind, ..))| !kind.is_empty()).count(), 0, "the probe is gone");
    figure("exceptions before the limit", &format!("{before} of {sent}"));
    assert!(agent.output().contains("exceptions a second, more than 200"), "{}", agent.output());
    agent.stop();
}
