//! `tracer mcp`: what AI agents are answered is what the servers did and what the API says, by messages written here and by the
//! protocol's own client, over standard input and HTTP.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use tracer_tests::agent::{Agent, binary, outcome};
use tracer_tests::go::unpacked;
use tracer_tests::mcp::Asked;
use tracer_tests::workload::{Server, source};
use tracer_tests::{begin, figure, find, free_port, http, load, say, scratch, wait};

const PATIENCE: Duration = Duration::from_secs(30);
/// Requests by path, on each of two connections, and the CPU of one, seconds.
const LOAD: [(&str, usize, f64); 2] = [("/alpha", 60, 0.007), ("/beta", 50, 0.003)];

/// Servers whose requests are known, and one request that hangs.
struct Traced {
    agent: Agent,
    hung: SocketAddr,
    hanging: JoinHandle<()>,
    _servers: [Server; 2],
}

impl Traced {
    fn start(dir: &Path, arguments: &[&str]) -> Self {
        let (burn, hung) = (Server::c("burn", dir), Server::python("hung", dir));
        let agent = Agent::start(dir, arguments);
        let plan =
            || LOAD.iter().flat_map(|(path, count, _)| vec![load::Request::get((*path).to_owned()); *count]).collect();
        let loaded = load::run(burn.address, vec![plan(), plan()]);
        assert!(loaded.broken().is_empty(), "{:?}", loaded.broken());
        let address = hung.address;
        assert_eq!(http::get(address, "/quick").expect("an answer").status, 200);
        let hanging = std::thread::spawn(move || {
            assert_eq!(http::get(address, "/lock").expect("an answer").status, 200);
        });
        let counted = || {
            let answer = agent.json("/api/v1/classes?service=burn");
            let rows = answer["classes"].as_array()?;
            let of = |path: &str| rows.iter().find(|row| row["request_class"] == format!("GET {path}"));
            let is_whole = |(path, count, cpu): &(&str, usize, f64)| {
                of(path).is_some_and(|row| {
                    row["count"] == 2 * count && row["cpu_total_s"].as_f64() >= Some(2.0 * *count as f64 * cpu)
                })
            };
            LOAD.iter().all(is_whole).then_some(())
        };
        // 404 until the first request is reported.
        let known = || http::get(agent.listen, "/api/v1/classes?service=burn").ok().filter(|reply| reply.status == 200);
        wait("the service to be known", PATIENCE, known);
        wait("all requests and their CPU to be counted", PATIENCE, counted);
        wait("the request that hangs", PATIENCE, || {
            (agent.json("/api/v1/running?service=hung")["running_total"] == 1).then_some(())
        });
        Self { agent, hung: address, hanging, _servers: [burn, hung] }
    }

    /// An answer of the API.
    fn api(&self, target: &str) -> Value {
        self.agent.json(target)
    }

    fn stop(self) {
        assert_eq!(http::get(self.hung, "/release").expect("an answer").status, 200);
        self.hanging.join().expect("the request that hung");
        self.agent.stop();
    }
}

/// Whether two values are the same, as far as numbers are given.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap_or(f64::NAN), b.as_f64().unwrap_or(f64::NAN));
            (a - b).abs() <= 1e-5 * a.abs().max(b.abs())
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

/// A class's row without what changes while nothing happens: rates, and costs of which the last part is charged later.
fn still(row: &Value) -> Value {
    let changes = |field: &str| {
        field.ends_with("rate_per_s") || ["cpu_s", "cpu_total_s", "runqueue_s", "blocked_s"].contains(&field)
    };
    let mut row = row.clone();
    row.as_object_mut().expect("a row").retain(|field, _| !changes(field));
    row
}

/// The rows of a list.
fn rows<'a>(answer: &'a Value, list: &str) -> &'a [Value] {
    answer[list].as_array().unwrap_or_else(|| panic!("no {list}: {answer}"))
}

/// Questions to which the answers are known.
fn questions(trace: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("list_services", json!({ "contains": "BURN" })),
        ("list_classes", json!({ "service": "burn", "sort": "cpu" })),
        ("list_classes", json!({ "service": "burn", "limit": 1, "side": "any" })),
        ("what_changed", json!({ "service": "burn", "since": "1h" })),
        ("running_now", json!({ "service": "hung" })),
        ("hotspots", json!({ "service": "burn", "class": "GET /alpha", "limit": 3 })),
        ("find_transactions", json!({ "service": "burn", "class": "GET /beta", "sort": "slowest", "limit": 2 })),
        ("get_transaction", json!({ "trace_id": trace })),
        ("who_calls_whom", json!({})),
        ("agent_health", json!({})),
    ]
}

/// Checks the answers to [`questions`] against what was done and what the API says.
fn check(traced: &Traced, trace: &str, answers: &[Value]) {
    let [services, classes, one_class, changed, running, hotspots, found, transaction, edges, health] = answers else {
        panic!("{} answers", answers.len());
    };
    let total: usize = LOAD.iter().map(|(_, count, _)| 2 * count).sum();
    let [service] = rows(services, "services") else { panic!("{services}") };
    assert_eq!(
        (&service["service_name"], &service["count"], &service["errors"]),
        (&json!("burn"), &json!(total), &json!(0))
    );

    let api = traced.api("/api/v1/classes?service=burn");
    let by_class: BTreeMap<&str, &Value> =
        rows(&api, "classes").iter().map(|row| (row["request_class"].as_str().expect("a name"), row)).collect();
    let listed = rows(classes, "classes");
    assert_eq!(listed.len(), LOAD.len(), "{classes}");
    for (row, (path, count, _)) in listed.iter().zip(LOAD) {
        // By CPU, /alpha is first.
        assert_eq!(
            (&row["request_class"], &row["count"]),
            (&json!(format!("GET {path}")), &json!(2 * count)),
            "{classes}"
        );
        let api = by_class[row["request_class"].as_str().expect("a name")];
        assert!(same(&still(row), &still(api)), "{row}\n{api}");
        let cpu = |row: &Value| row["cpu_total_s"].as_f64().expect("a number");
        assert!((cpu(row) / cpu(api) - 1.0).abs() < 0.03, "{row}\n{api}");
    }
    assert_eq!(
        (rows(one_class, "classes").len(), &one_class["left_out"][0]["rows"]),
        (1, &json!(by_class.len() - 1)),
        "{one_class}"
    );
    assert!(one_class["left_out"][0]["to_see_them"].as_str().expect("a hint").contains("limit"));

    assert!(rows(changed, "findings").is_empty(), "{changed}");
    let [hangs] = rows(running, "running") else { panic!("{running}") };
    assert_eq!((&hangs["request_class"], &hangs["thread"]["state"]), (&json!("GET /lock"), &json!("lock")));

    let api = traced.api("/api/v1/hotspots?service=burn&class=GET%20%2Falpha");
    let functions = rows(hotspots, "functions");
    assert_eq!(functions[0]["function"], "burn_alpha", "{hotspots}");
    assert!(same(&functions[0]["self_s"], &rows(&api, "functions")[0]["self_s"]), "{hotspots}\n{api}");
    assert!(functions.len() <= 3 && !functions.iter().any(|row| row["function"] == "burn_beta"), "{hotspots}");

    let api = traced.api("/api/v1/transactions?service=burn&class=GET%20%2Fbeta&sort=slowest&limit=2");
    let ids =
        |answer: &Value| rows(answer, "transactions").iter().map(|row| row["trace_id"].clone()).collect::<Vec<_>>();
    assert_eq!((ids(found), &found["matched"]), (ids(&api), &api["matched"]));
    let left = api["matched"].as_u64().expect("a count") - 2;
    assert_eq!(found["left_out"][0]["rows"], left);

    let api = traced.api(&format!("/api/v1/transactions/{trace}"));
    assert!(same(&transaction["spans"], &api["spans"]), "{transaction}\n{api}");
    assert_eq!(transaction["spans"][0]["request_class"], "GET /alpha");
    assert_eq!(transaction["critical_path"][0]["service_name"], "burn");
    assert!(edges["edges"].is_array() && health["ready"] == true, "{edges}\n{health}");
}

/// The id of a transaction of /alpha.
fn a_trace(traced: &Traced) -> String {
    let all = traced.api("/api/v1/transactions?service=burn&class=GET%20%2Falpha&limit=1");
    rows(&all, "transactions")[0]["trace_id"].as_str().expect("an id").to_owned()
}

#[test]
fn questions_on_standard_input_get_the_agents_answers() {
    let Some(_turn) = begin("mcp", &["cc", "python3"]) else { return };
    let dir = scratch();
    // Where no agent listens, the words say so.
    let mut asked = Asked::start(SocketAddr::from(([127, 0, 0, 1], free_port())));
    assert!(asked.refusal("list_services", json!({})).contains("is `tracer run` running there?"));
    asked.end();

    let traced = Traced::start(dir.path(), &[]);
    let trace = a_trace(&traced);
    let mut asked = Asked::start(traced.agent.listen);
    let hello = asked.request("initialize", json!({ "protocolVersion": "2025-06-18", "capabilities": {} }));
    assert_eq!(
        (&hello["result"]["protocolVersion"], &hello["result"]["serverInfo"]["name"]),
        (&json!("2025-06-18"), &json!("tracer"))
    );
    asked.send(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    let tools = asked.request("tools/list", json!({}))["result"]["tools"].as_array().expect("tools").len();
    let answers: Vec<Value> =
        questions(&trace).into_iter().map(|(tool, arguments)| asked.call(tool, arguments)).collect();
    check(&traced, &trace, &answers);
    figure("tools", &tools.to_string());

    // An error is answered, and so is the next question.
    for (line, code) in [
        (b"nonsense".to_vec(), -32700),
        (vec![b'x'; 1 << 20], -32600),
        (b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]".to_vec(), -32600),
        (vec![0xff, 0x00, 0xfe], -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"resources/list\"}".to_vec(), -32601),
    ] {
        asked.send(&line);
        assert_eq!(asked.receive()["error"]["code"], code);
        assert_eq!(asked.request("ping", json!({}))["result"], json!({}));
    }
    let refused = asked.refusal("list_classes", json!({ "service": "bunr" }));
    assert!(refused.contains("did you mean 'burn'") && refused.contains("list_services"), "{refused}");
    let refused = asked.refusal("hotspots", json!({ "service": "burn", "class": "GET /alhpa" }));
    assert!(refused.contains("did you mean 'GET /alpha'") && refused.contains("list_classes"), "{refused}");
    assert!(asked.refusal("what_changed", json!({ "service": "bunr" })).contains("did you mean 'burn'"));
    assert!(asked.refusal("explain_finding", json!({ "id": 77 })).contains("what_changed"));
    assert!(asked.refusal("get_transaction", json!({ "trace_id": "0".repeat(32) })).contains("not kept"));
    assert!(asked.refusal("list_classes", json!({ "limit": 5000 })).contains("from 1 to 500"));
    asked.end();
    traced.stop();
}

/// What the protocol's own client hears: what it is connected to, its tools, and the answers.
fn heard(place: &Value, mode: &str, questions: &[(&str, Value)]) -> Vec<Value> {
    let package = unpacked("mcp-", "mcp/__init__.py");
    let libraries = Path::new(package).ancestors().nth(2).expect("its directory");
    let mut command = Command::new(find("python3").expect("Python"));
    command.arg(source("mcp_client.py")).args([&place.to_string(), mode, &json!(questions).to_string()]);
    let done = outcome(command.env("PYTHONPATH", libraries), "mcp_client.py");
    assert_eq!(done.code, Some(0), "{place} {mode}: {}{}", done.out, done.err);
    done.out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

#[test]
fn the_protocols_own_client_hears_what_the_api_says() {
    let Some(_turn) = begin("mcp", &["cc", "python3"]) else { return };
    if !Path::new(unpacked("mcp-", "mcp/__init__.py")).is_file() {
        return say("SKIPPED mcp: needs the wheel mcp (cargo xtask test --full, or --program mcp)");
    }
    let dir = scratch();
    let token = dir.path().join("token");
    let traced = Traced::start(dir.path(), &["--token-file", token.to_str().expect("a path")]);
    let token = std::fs::read_to_string(token).expect("the token");
    let trace = a_trace(&traced);
    let agent = traced.agent.listen;
    let program = json!({ "command": binary(), "args": ["mcp", "--url", format!("http://{agent}")] });
    let page = json!({ "url": format!("http://{agent}/mcp"), "token": token.trim() });
    let mut asked = questions(&trace);
    let right = asked.len();
    asked.push(("list_classes", json!({ "service": "bunr" })));
    asked.push(("hotspots", json!({})));
    for (place, mode, version) in [
        (&program, "auto", "2026-07-28"),
        (&program, "legacy", "2025-11-25"),
        (&page, "auto", "2026-07-28"),
        (&page, "legacy", "2025-11-25"),
    ] {
        let lines = heard(place, mode, &asked);
        let [hello, tools, answers @ ..] = lines.as_slice() else { panic!("{lines:?}") };
        assert_eq!((&hello["version"], &hello["server"]), (&json!(version), &json!("tracer")), "{hello}");
        assert!(hello["instructions"].as_str().is_some_and(|text| text.contains("list_services")), "{hello}");
        assert!(tools["read_only"] == true && rows(tools, "tools").len() >= 8, "{tools}");
        let (answers, refusals) = answers.split_at(right);
        let good = |answer: &Value| answer["is_error"] == false && answer["valid"] == true;
        assert!(answers.iter().all(good), "{answers:?}");
        check(&traced, &trace, &answers.iter().map(|answer| answer["structured"].clone()).collect::<Vec<_>>());
        assert!(refusals.iter().all(|answer| answer["is_error"] == true), "{refusals:?}");
        assert!(refusals[0]["text"].as_str().expect("words").contains("did you mean 'burn'"), "{refusals:?}");
        assert_eq!(refusals[1]["valid"], false);
        figure(
            &format!("answers checked, {version}, {}", if place == &page { "HTTP" } else { "standard input" }),
            &answers.len().to_string(),
        );
    }
    traced.stop();
}
