//! The Prometheus rules and Grafana dashboards: by `promtool`, and with a real Prometheus that scrapes a real agent.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::process::Process;
use tracer_tests::workload::Server;
use tracer_tests::{begin, free_port, http, load, say, scratch, wait};

fn monitoring() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    root.join("monitoring")
}

fn promtool(arguments: &[&str], file: &Path) -> String {
    let out = Command::new("promtool").args(arguments).arg(file).output().expect("promtool");
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "promtool {arguments:?}: {text}");
    text
}

#[test]
fn rules_are_right_by_promtool() {
    let Some(_turn) = begin("monitoring_rules", &["promtool"]) else { return };
    for file in ["tracer.rules.yml", "tracer.alerts.yml"] {
        let text = promtool(&["check", "rules"], &monitoring().join("prometheus").join(file));
        assert!(text.contains("rules found"), "{text}");
    }
    promtool(&["test", "rules"], &monitoring().join("prometheus/tests.yml"));
}

/// Every query of every dashboard, with the dashboard's name, for one service and class.
fn queries(service: &str, class: &str) -> Vec<(String, String)> {
    let dir = std::fs::read_dir(monitoring().join("grafana")).expect("dashboards");
    let mut found = Vec::new();
    for entry in dir {
        let path = entry.expect("a dashboard").path();
        let text = std::fs::read_to_string(&path).expect("a dashboard");
        let dashboard: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for panel in dashboard["panels"].as_array().expect("panels") {
            for target in panel["targets"].as_array().expect("targets") {
                let query = target["expr"].as_str().expect("a query");
                let query = query.replace("$__rate_interval", "15s").replace("$service", service);
                let query = query.replace("$class", class).replace("$instance", ".*");
                assert!(!query.contains('$'), "an unknown variable: {query}");
                let name = format!("{}: {}", dashboard["title"], panel["title"]);
                found.push((name, query));
            }
        }
    }
    found
}

/// Percent-encodes everything but letters and digits.
fn encoded(text: &str) -> String {
    let byte =
        |byte: u8| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(byte).collect()
}

/// A Prometheus that scrapes one agent every second.
struct Prometheus {
    _process: Process,
    address: std::net::SocketAddr,
}

impl Prometheus {
    fn start(dir: &Path, agent: &Agent, features: &[&str]) -> Self {
        let config = dir.join("prometheus.yml");
        let rules = monitoring().join("prometheus");
        let text = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}/tracer.*.yml']\nscrape_configs:\n  \
             - job_name: tracer\n    static_configs: [{{targets: ['{}']}}]\n",
            rules.display(),
            agent.listen
        );
        std::fs::write(&config, text).expect("a configuration");
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", dir.join("data").display()));
        command.arg(format!("--web.listen-address={address}"));
        command.arg(format!("--enable-feature={}", features.join(",")));
        Self { _process: Process::start("prometheus", &mut command, &dir.join("prometheus.log")), address }
    }

    /// The numbers a query returns.
    fn ask(&self, query: &str) -> Vec<f64> {
        let Ok(reply) = http::get(self.address, &format!("/api/v1/query?query={}", encoded(query))) else {
            return Vec::new();
        };
        let answer: Value = serde_json::from_str(&reply.text()).unwrap_or_default();
        assert_ne!(reply.status, 400, "{query}: {answer}");
        let result = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        result.iter().filter_map(|sample| sample["value"][1].as_str()?.parse().ok()).collect()
    }
}

#[test]
fn prometheus_takes_native_histograms() {
    let Some(_turn) = begin("monitoring_native", &["cc", "prometheus"]) else { return };
    let dir = scratch();
    let server = Server::c("burn", dir.path());
    let agent = Agent::start(dir.path(), &[]);
    let prometheus = Prometheus::start(dir.path(), &agent, &["native-histograms", "exemplar-storage"]);
    let of = "http_server_request_duration_seconds{service_name=\"burn\"}";
    let one = |query: String| prometheus.ask(&query).first().copied().filter(|number| number.is_finite());
    // Prometheus counts in buckets what the agent counted.
    load::until(server.address, 2, &["/alpha"], Instant::now() + Duration::from_secs(2));
    let (count, by_agent) = wait("the same count", Duration::from_secs(30), || {
        let classes = agent.json("/api/v1/classes");
        let of_burn = |class: &&Value| class["service_name"] == "burn" && class["side"] == "server";
        let class = classes["classes"].as_array()?.iter().find(of_burn)?.clone();
        let count = one(format!("sum(histogram_count({of}))"))?;
        (count > 0.0 && (class["count"].as_f64()? - count).abs() < 0.5).then_some((count, class))
    });
    // Any quantile, between buckets 9 % apart: as the agent's own, which are exact to a few percent.
    for (quantile, key) in [("0.5", "p50_s"), ("0.95", "p95_s")] {
        let native = one(format!("histogram_quantile({quantile}, sum({of}))")).expect("a quantile");
        let own = by_agent[key].as_f64().unwrap_or_default();
        assert!((native / own - 1.0).abs() < 0.2, "{quantile}: {native} s by Prometheus, {own} s by the agent");
    }
    let mean = one(format!("sum(histogram_sum({of})) / sum(histogram_count({of}))")).expect("a mean");
    assert!(mean > 0.0, "{mean}");
    // It took no classic buckets beside them, and everything else came too.
    assert!(prometheus.ask("http_server_request_duration_seconds_bucket").is_empty());
    assert!(one("sum(tracer_requests_total{service_name=\"burn\"})".into()).is_some_and(|requests| requests > 0.0));
    assert!(one("tracer_capture_ratio".into()).is_some());
    say(&format!("monitoring: native histograms of {count} requests, mean {mean:.6} s"));
    agent.stop();
}

#[test]
fn every_query_of_every_dashboard_returns_numbers() {
    let Some(_turn) = begin("monitoring_dashboards", &["cc", "prometheus"]) else { return };
    let dir = scratch();
    let server = Server::c("burn", dir.path());
    let agent = Agent::start(dir.path(), &[]);
    let prometheus = Prometheus::start(dir.path(), &agent, &["exemplar-storage"]);
    let (address, ask) = (prometheus.address, |query: &str| prometheus.ask(query));
    // Requests that succeed throughout: every query is asked again until it returns a number.
    let mut open = queries("burn", "GET /alpha");
    let all = open.len();
    assert!(all >= 40, "{all} queries");
    let limit = Instant::now() + Duration::from_secs(60);
    while !open.is_empty() && Instant::now() < limit {
        load::until(server.address, 2, &["/alpha"], Instant::now() + Duration::from_secs(2));
        open.retain(|(_, query)| {
            let numbers = ask(query);
            numbers.is_empty() || !numbers.iter().any(|number| number.is_finite())
        });
    }
    assert!(open.is_empty(), "{} of {all} queries return no numbers: {open:#?}", open.len());
    // And the figures are the agent's: the service's requests by Prometheus and by the API.
    let counted = wait("the same count", Duration::from_secs(20), || {
        let by_prometheus: f64 = ask("sum(tracer_requests_total{service_name=\"burn\"})").iter().sum();
        let services = agent.json("/api/v1/services");
        let services = services["services"].as_array().cloned().unwrap_or_default();
        let by_agent = services.iter().find(|service| service["service_name"] == "burn")?["count"].as_f64()?;
        (by_agent > 0.0 && (by_prometheus - by_agent).abs() < 0.5).then_some(by_agent)
    });
    wait("recording rules to run", Duration::from_secs(90), || {
        (!ask("service:tracer_requests:rate5m{service_name=\"burn\"}").is_empty()).then_some(())
    });
    // It took OpenMetrics, and its exemplars are transactions of the agent.
    let trace = wait("an exemplar", Duration::from_secs(20), || {
        load::until(server.address, 1, &["/alpha"], Instant::now() + Duration::from_millis(300));
        let query = encoded("http_server_request_duration_seconds_bucket{service_name=\"burn\"}");
        let path = format!("/api/v1/query_exemplars?query={query}&start=0&end=4102444800");
        let answer: Value = serde_json::from_str(&http::get(address, &path).ok()?.text()).ok()?;
        let exemplars = answer["data"].as_array()?.iter().filter_map(|series| series["exemplars"].as_array()).flatten();
        // The last one: the agent keeps the newest transactions.
        let last = exemplars
            .max_by(|a, b| a["timestamp"].as_f64().unwrap_or(0.0).total_cmp(&b["timestamp"].as_f64().unwrap_or(0.0)))?;
        last["labels"]["trace_id"].as_str().map(str::to_owned)
    });
    let transaction = agent.json(&format!("/api/v1/transactions/{trace}"));
    assert!(transaction.to_string().contains("/alpha"), "{transaction}");
    let series = ask("scrape_samples_scraped{job=\"tracer\"}");
    say(&format!("monitoring: {all} queries return numbers; {counted} requests; {series:?} samples a scrape"));
    agent.stop();
}
