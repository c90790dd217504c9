//! What a whole request costs, by tier: two pages of nginx share a page and a store behind them, and the CPU of each tier is
//! known for each. Redis and the second tier see the same requests whichever page began the transaction.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tracer_results::history::parquet_file;
use tracer_results::history::rows::EdgeRow;
use tracer_tests::agent::Agent;
use tracer_tests::load::{self, Request};
use tracer_tests::nginx::Nginx;
use tracer_tests::redis::Redis;
use tracer_tests::workload::{Server, source};
use tracer_tests::{begin, figure, find, http, say, scratch, wait};

/// Clients and requests of each; every third is of the second page.
const CLIENTS: u64 = 3;
const EACH: u64 = 60;
const SERVICES: [&str; 4] = ["nginx", "shop", "stock", "redis-server"];
/// How often Redis is asked for each page.
const PAGES: [(&str, u64); 2] = [("a", 1), ("b", 3)];

fn python(name: &str, dir: &std::path::Path, upstreams: &[(&str, u16)]) -> Server {
    let mut command = Command::new(find("python3").expect("python3"));
    command.arg("-u").arg(source("roots.py"));
    command.envs(upstreams.iter().map(|(name, port)| (*name, port.to_string())));
    Server::start(name, dir, &mut command)
}

/// Rows of `/api/v1/roots`.
fn rows(agent: &Agent, query: &str) -> Vec<Value> {
    agent.json(&format!("/api/v1/roots{query}"))["roots"].as_array().expect("rows").clone()
}

/// Requests of rows.
fn counted(rows: &[Value]) -> u64 {
    rows.iter().map(|row| row["count"].as_u64().expect("a count")).sum()
}

fn sum(rows: &[Value], field: &str) -> f64 {
    rows.iter().map(|row| row[field].as_f64().expect("a number")).sum()
}

#[test]
fn each_tier_costs_what_its_books_say_by_the_first_request() {
    let Some(_turn) = begin("roots", &["nginx", "python3", "redis-server"]) else { return };
    let dir = scratch();
    let redis = Redis::start(dir.path());
    let stock = python("stock", dir.path(), &[]);
    let ports = [("STOCK_PORT", stock.address.port()), ("REDIS_PORT", redis.address.port())];
    let shop = python("shop", dir.path(), &ports);
    let upstream = format!("upstream shop {{ server {}; keepalive 16; keepalive_requests 1000000; }}", shop.address);
    let forward = "location / { proxy_pass http://shop; proxy_http_version 1.1; proxy_set_header Connection \"\"; }";
    let nginx = Nginx::start(dir.path(), &upstream, forward);
    let history = dir.path().join("history");
    let config = dir.path().join("tracer.toml");
    std::fs::write(&config, "[history]\nwindow = \"1s\"\n").expect("a file");
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let (config, place) = (text(&config), text(&history));
    let more = ["--nice=-10", "--config", &config, "--history", &place];
    // The client is as one on another host: of a program that calls from this one, the agent has to see that it serves nothing.
    let services = SERVICES.iter().flat_map(|name| ["--service", name]);
    let agent = Agent::start(dir.path(), &services.chain(more).collect::<Vec<_>>());
    let windows = || agent.metrics().sum("tracer_history_windows_total", &[("outcome", "written")]);
    wait("the first window", Duration::from_secs(30), || (windows() > 0.0).then_some(()));

    let page = |number: u64| if number % 3 == 2 { "/b" } else { "/a" };
    let plan = |_| (0..EACH).map(|number| Request::get(page(number).into())).collect();
    let loaded = load::run(nginx.address, (0..CLIENTS).map(plan).collect());
    assert!(loaded.broken().is_empty(), "{:?}", loaded.broken().first());
    let requests = (CLIENTS * EACH) as f64;

    // A request counts for its root once it and all above it are reported, its cost with the next second.
    let all = wait("every request to have its root", Duration::from_secs(30), || {
        let all = rows(&agent, "");
        let served: Vec<&Value> = all.iter().filter(|row| row["side"] == "server").collect();
        let known = served.iter().filter(|row| row["service_name"] == "stock" && row["root"] == "class");
        let known: u64 = known.filter_map(|row| row["count"].as_u64()).sum();
        (known >= CLIENTS * EACH && served.iter().all(|row| row["root"] != "open")).then_some(all)
    });
    let own = |row: &&Value| row["side"] == "server" && row["service_name"] == "nginx";
    let own: Vec<&Value> = all.iter().filter(own).collect();
    assert!(!own.is_empty() && own.iter().all(|row| row["root_class"] == row["request_class"]), "{own:?}");

    let mut worst = 0.0_f64;
    let mut known = Vec::new();
    for (name, server) in [("shop", &shop), ("stock", &stock)] {
        let truth = wait("the server's own books", Duration::from_secs(10), || {
            let reply = http::get(server.address, "/truth").expect("an answer");
            let truth: Value = serde_json::from_slice(&reply.body).expect("JSON");
            let counted: f64 = PAGES.iter().filter_map(|(page, _)| truth[*page][0].as_f64()).sum();
            (counted >= requests).then_some(truth)
        });
        for (page, _) in PAGES {
            let query = format!("?service={name}&root_service=nginx&root_class=GET%20/{page}");
            let own: Vec<Value> = rows(&agent, &query).into_iter().filter(|row| row["side"] == "server").collect();
            let (count, used) = (truth[page][0].as_u64().expect("a count"), truth[page][1].as_f64().expect("a time"));
            let (traced, used) = (sum(&own, "cpu_total_s"), used / 1e9);
            let off = (traced / used - 1.0).abs();
            say(&format!("  {name}, from GET /{page}: {} of {count}, {traced:.4} s of {used:.4} s", counted(&own)));
            worst = worst.max(off);
            assert_eq!(counted(&own), count, "{name}, {page}: {own:?}");
            known.push((name, page, count, used));
        }
    }
    for (page, asked) in PAGES {
        let count = loaded.answers.iter().filter(|answer| answer.target == format!("/{page}")).count() as u64;
        let query = format!("?root_service=nginx&root_class=GET%20/{page}");
        let stored: Vec<Value> = rows(&agent, &query).into_iter().filter(|row| row["protocol"] == "redis").collect();
        let served: Vec<Value> = stored.into_iter().filter(|row| row["side"] == "server").collect();
        assert_eq!(counted(&served), count * asked, "{page}: {served:?}");
        let tiers = agent.json(&format!("/api/v1/tiers?service=nginx&class=GET%20/{page}"));
        assert_eq!(tiers["count"], count, "{tiers}");
        let names = tiers["tiers"].as_array().expect("tiers").len();
        assert_eq!(names, SERVICES.len(), "nginx, shop, stock and Redis: {tiers}");
    }
    figure("CPU by first request and tier", &format!("off by at most {:.2} %", worst * 100.0));
    assert!(worst < 0.03, "off by {:.2} %", worst * 100.0);

    // Rows of a class add up to the class.
    let (classes, all) = (agent.json("/api/v1/classes"), rows(&agent, ""));
    for class in classes["classes"].as_array().expect("classes") {
        let same = |row: &&Value| {
            ["service_name", "request_class", "protocol", "side"].iter().all(|field| row[*field] == class[*field])
        };
        let own: Vec<Value> = all.iter().filter(same).cloned().collect();
        assert_eq!(counted(&own), class["count"].as_u64().expect("a count"), "{class}");
        let cpu = class["cpu_total_s"].as_f64().expect("a time");
        assert!((sum(&own, "cpu_total_s") - cpu).abs() < 1e-6, "{} of {class}", sum(&own, "cpu_total_s"));
    }
    agent.stop();
    history_says_the_same(&history, &known);
}

/// All rows of edges.
fn edges(dir: &Path) -> Vec<EdgeRow> {
    let mut found = Vec::new();
    for path in std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            found.extend(edges(&path));
        } else {
            let file = File::open(path).expect("a file");
            found.extend(parquet_file::read::<EdgeRow, _>(file).expect("a whole file"));
        }
    }
    found
}

/// The history's edges have each tier's requests and CPU by first request, and who called Redis.
fn history_says_the_same(history: &Path, known: &[(&str, &str, u64, f64)]) {
    let all = edges(&history.join("kind=edges"));
    let served = |service: &str, page: &str| {
        let root = format!("GET /{page}");
        let of = all.iter().filter(move |row| *row.service_name == *service && *row.root_class == *root);
        of.filter(|row| &*row.side == "server" && &*row.root_service == "nginx").collect::<Vec<_>>()
    };
    let mut worst = 0.0_f64;
    for (service, page, count, used) in known {
        let own = served(service, page);
        assert_eq!(own.iter().map(|row| row.count).sum::<i64>(), *count as i64, "{service}, {page}");
        let cpu: f64 = own.iter().map(|row| row.cpu_s.0).sum();
        worst = worst.max((cpu / used - 1.0).abs());
    }
    for (page, asked) in PAGES {
        let first: u64 = served("nginx", page).iter().map(|row| row.root_count).sum();
        let mut callers: BTreeMap<(&str, &str), i64> = BTreeMap::new();
        for row in served("redis-server", page) {
            *callers.entry((&row.caller_service, &row.caller_class)).or_default() += row.count;
        }
        say(&format!("  Redis, from GET /{page}: {callers:?}"));
        assert_eq!(callers.values().sum::<i64>(), (first * asked) as i64);
        assert!(callers.keys().all(|(service, class)| *service == "shop" && class.starts_with("GET ")), "{callers:?}");
    }
    figure("CPU by first request and tier in the history", &format!("off by at most {:.2} %", worst * 100.0));
    assert!(worst < 0.03, "off by {:.2} %", worst * 100.0);
}
