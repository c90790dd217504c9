//! DNS over UDP and TCP, by dig, the C library and sockets without a peer: compares questions and their outcomes at
//! both ends, and the links between the ends, with dnsmasq's own log.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::process::Process;
use tracer_tests::spans::{Span, Tail};
use tracer_tests::workload::source;
use tracer_tests::{begin, figure, find, say, scratch, secrets, wait};

const SECRETS: [&str; 2] = ["planted-none", "planted-label"];

/// A name server on port 53 of its own network namespace, which its clients share.
struct Server {
    process: Process,
    log: PathBuf,
}

impl Server {
    fn start(dir: &Path, settings: &str) -> Self {
        let log = dir.join("dnsmasq.queries");
        let resolv = dir.join("resolv.conf");
        std::fs::write(&resolv, "nameserver 127.0.0.1\noptions timeout:20 attempts:1\n").expect("resolv.conf");
        let script = format!(
            "ip link set lo up && mount --bind {} /etc/resolv.conf && exec dnsmasq --keep-in-foreground --no-resolv \
             --no-hosts --user=root --port=53 --pid-file= --log-queries=extra --log-facility={} {settings}",
            resolv.display(),
            log.display()
        );
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "sh", "-c", &script]);
        let process = Process::start("dnsmasq", &mut command, &dir.join("dnsmasq.log"));
        wait("dnsmasq", Duration::from_secs(20), || {
            std::fs::read_to_string(&log).ok().filter(|text| text.contains("started"))
        });
        Self { process, log }
    }

    /// A program in the same namespace.
    fn beside(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--mount", "--target", &self.process.pid().to_string(), program]).args(arguments);
        command
    }

    /// Questions it logged, by type.
    fn asked(&self) -> BTreeMap<String, usize> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let mut counts = BTreeMap::new();
        for line in text.lines() {
            let kind = line.split_once("query[").and_then(|(_, rest)| rest.split_once(']'));
            if let Some((kind, _)) = kind {
                *counts.entry(kind.to_owned()).or_default() += 1;
            }
        }
        counts
    }
}

fn counts<'a>(spans: impl Iterator<Item = &'a Span>, of: impl Fn(&Span) -> String) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for span in spans {
        *counts.entry(of(span)).or_default() += 1;
    }
    counts
}

/// Excludes questions of other programs on the host.
fn ours(span: &Span) -> bool {
    span.protocol == "dns" && [" example.org", " example.com"].iter().any(|name| span.class.ends_with(name))
}

#[test]
fn questions_and_answers_are_what_the_server_logged() {
    let Some(_turn) = begin("dns", &["dnsmasq", "dig", "python3", "unshare", "nsenter", "ip"]) else { return };
    let dir = scratch();
    let server = Server::start(
        dir.path(),
        "--listen-address=127.0.0.1,::1 --bind-interfaces --host-record=www.example.org,192.0.2.1,2001:db8::1 \
         --mx-host=www.example.org,mail.example.org --txt-record=t.example.org,text --local=/example.org/",
    );
    // Not narrowed by port: a socket without a peer has no remote port to match.
    let agent = Agent::start(dir.path(), &["--nice=-10"]);

    let lookups = source("lookups.py").display().to_string();
    let python = find("python3").expect("python3").display().to_string();
    let done = outcome(&mut server.beside(&python, &[&lookups, "53"]), "lookups");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    say(done.out.trim());
    // By dig: types and outcomes, several on one connection, and a name with one label too many to be answered.
    let mut outcomes = BTreeMap::new();
    let mut dig = |arguments: &[&str], outcome_is: &'static str, times: usize| {
        let done = outcome(&mut server.beside("dig", arguments), "dig");
        assert_eq!(done.out.matches(&format!("status: {outcome_is}")).count(), times, "{arguments:?}: {}", done.out);
        *outcomes.entry(outcome_is).or_insert(0) += times;
    };
    for _ in 0..10 {
        dig(&["@127.0.0.1", "www.example.org", "A"], "NOERROR", 1);
        dig(&["@::1", "t.example.org", "TXT"], "NOERROR", 1);
        dig(&["@127.0.0.1", "planted-label.example.org", "SRV"], "NXDOMAIN", 1);
        dig(&["@127.0.0.1", "elsewhere.example.com", "A"], "REFUSED", 1);
        dig(&["@127.0.0.1", "+tcp", "www.example.org", "AAAA"], "NOERROR", 1);
        let several = ["@127.0.0.1", "+tcp", "+keepopen", "www.example.org", "A", "t.example.org", "TXT"];
        dig(&several, "NOERROR", 2);
    }
    // By the resolver: half of the names do not exist, and are asked for twice.
    let asked = server.asked();
    let wanted: usize = asked.values().sum();
    let mut tail = Tail::new(&agent.transactions);
    tail.until(2 * wanted, Duration::from_secs(30), ours);
    let spans: Vec<Span> = tail.spans.iter().filter(|span| ours(span)).cloned().collect();
    let lost = agent.metrics().lost();
    say(&format!("logged: {asked:?}; lost: {lost:?}"));
    let side = |server: bool| spans.iter().filter(move |span| span.server == server);
    for (what, server) in [("served", true), ("asked", false)] {
        let kind = |span: &Span| span.class.split(' ').next().unwrap_or_default().to_owned();
        let found = counts(side(server), kind);
        figure(&format!("dns questions {what}"), &format!("{} of {wanted}", found.values().sum::<usize>()));
        assert_eq!(found, asked, "{what}; lost: {lost:?}");
        let found = counts(side(server), |span| span.error.clone());
        say(&format!("  {what}: {found:?}"));
        let none = found.get("NXDOMAIN").copied().unwrap_or_default();
        assert_eq!((none, found.get("REFUSED")), (outcomes["NXDOMAIN"] + 40, Some(&outcomes["REFUSED"])), "{what}");
        assert_eq!(found.get(""), Some(&(wanted - none - outcomes["REFUSED"])), "{what}");
    }
    let classes = counts(spans.iter(), |span| span.class.clone());
    assert_eq!(classes.get("TXT example.org"), Some(&40), "{classes:?}");
    assert_eq!(classes.get("A example.com"), Some(&20), "{classes:?}");
    let metrics = agent.metrics();
    let labels = [("dns_question_name", "example.com"), ("dns_question_type", "A"), ("error_type", "REFUSED")];
    for family in ["dns_lookup_duration_seconds_count", "dns_server_lookup_duration_seconds_count"] {
        assert!((metrics.sum(family, &labels) - 10.0).abs() < 0.5, "{family}");
    }

    // Without a reply the question counts as given up.
    server.process.signal(libc::SIGSTOP);
    let done =
        outcome(&mut server.beside("dig", &["+time=1", "+tries=2", "@127.0.0.1", "www.example.org", "NS"]), "dig");
    server.process.signal(libc::SIGCONT);
    assert_ne!(done.code, Some(0), "{}", done.out);
    let labels = [("dns_question_type", "NS"), ("error_type", "timeout")];
    wait("questions that are given up", Duration::from_secs(60), || {
        let given_up = agent.metrics().sum("dns_lookup_duration_seconds_count", &labels);
        if given_up > 0.5 {
            return Some(());
        }
        std::thread::sleep(Duration::from_secs(1));
        None
    });
    secrets::none_shows(agent, dir.path(), &SECRETS, "TXT example.org");
}

/// Questions in the order of the server's log: name and the asking port.
fn askers(log: &Path) -> Vec<(String, u16)> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let asker = |line: &str| {
        // NUMBER ADDRESS/PORT query[TYPE] NAME from ADDRESS
        let (before, after) = line.split_once(" query[")?;
        let (_, port) = before.rsplit_once('/')?;
        Some((after.split(' ').nth(1)?.to_owned(), port.parse().ok()?))
    };
    text.lines().filter_map(asker).collect()
}

#[test]
fn both_ends_of_a_question_belong_together() {
    let Some(_turn) = begin("dns_ends", &["dnsmasq", "python3", "unshare", "nsenter", "ip"]) else { return };
    let dir = scratch();
    // On any address: the socket does not show which local address a datagram came to.
    let server = Server::start(dir.path(), "--address=/org/192.0.2.7 --cache-size=0");
    // Narrowed by port: sockets without a peer match by destination.
    let agent = Agent::start(dir.path(), &["--nice=-10", "--port=53"]);

    let python = find("python3").expect("python3").display().to_string();
    let script = source("lookups_edges.py").display().to_string();
    let done = outcome(&mut server.beside(&python, &[&script, "53", &server.process.pid().to_string()]), "lookups");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    let line = done.out.lines().find_map(|line| line.strip_prefix("ASKED ")).expect("what was asked");
    let asked_of: serde_json::Value = serde_json::from_str(line).expect("JSON");
    let asked: BTreeMap<String, usize> = serde_json::from_value(asked_of["asked"].clone()).expect("numbers");
    let ports: BTreeMap<u32, u16> = serde_json::from_value(asked_of["ports"].clone()).expect("ports");
    let total: usize = asked.values().sum();
    let askers = askers(&server.log);
    assert_eq!(askers.len(), total, "what the server logged");

    let mut tail = Tail::new(&agent.transactions);
    let wanted = |span: &Span| span.protocol == "dns" && span.domain.contains(".org");
    // A repeated question belongs to the same lookup.
    tail.until(2 * total - asked["again"] / 2, Duration::from_secs(30), wanted);
    let lost = agent.metrics().lost();
    say(&format!("{asked:?}; lost: {lost:?}"));
    let spans: Vec<&Span> = tail.spans.iter().filter(|span| wanted(span)).collect();
    let calls: HashMap<&str, &Span> =
        spans.iter().filter(|span| !span.server).map(|span| (span.id.as_str(), *span)).collect();
    let mut served: Vec<&Span> = spans.iter().filter(|span| span.server).copied().collect();
    served.sort_by_key(|span| span.start_ns);
    assert_eq!((served.len(), calls.len()), (total, total - asked["again"] / 2), "lost: {lost:?}");

    let (mut right, mut missing, mut wrong) =
        (BTreeMap::<&str, usize>::new(), BTreeMap::<&str, usize>::new(), Vec::new());
    for (span, (name, port)) in served.iter().zip(&askers) {
        assert_eq!((&span.domain, span.peer_port), (name, *port), "in the order of the log");
        let kind = asked.keys().find(|kind| name.starts_with(kind.as_str())).expect("a kind").as_str();
        let Some(parent) = &span.parent else {
            *missing.entry(kind).or_default() += 1;
            continue;
        };
        let Some(call) = calls.get(parent.as_str()) else {
            wrong.push(format!("{name}: {parent} is no call"));
            continue;
        };
        // By name, and if two processes ask for the same one, by the port the server saw.
        let by = ports.get(&call.pid).is_none_or(|own| own == port);
        if call.domain != *name || call.class != span.class || call.trace != span.trace || !by {
            wrong.push(format!("{name} of port {port}: {} by {}", call.domain, call.pid));
        } else {
            *right.entry(kind).or_default() += 1;
        }
    }
    for (kind, count) in &asked {
        let right = right.get(kind.as_str()).copied().unwrap_or_default();
        figure(&format!("dns ends joined: {kind}"), &format!("{right} of {count}"));
    }
    say(&format!("missing: {missing:?}; wrong: {wrong:?}"));
    assert_eq!(wrong, Vec::<String>::new(), "edges that are not so");
    // A question read after its lookup was over may be another's, so it is an orphan.
    missing.remove("again");
    assert_eq!(missing, BTreeMap::new(), "lost: {lost:?}");
    let again = right.get("again").copied().unwrap_or_default();
    assert!(again >= asked["again"] / 2, "{again} of {} that were asked again", asked["again"]);
}
