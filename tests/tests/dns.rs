//! DNS over UDP and TCP, by dig, the C library and sockets without a peer: questions and how they came out, at both ends,
//! and which end belongs to which, against dnsmasq's own log.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::process::Process;
use tracer_tests::units::{Tail, Unit};
use tracer_tests::workload::source;
use tracer_tests::{begin, figure, find, say, scratch, secrets, wait};

const SECRETS: [&str; 2] = ["planted-none", "planted-label"];

/// A name server on port 53 of a network of its own, where its clients are, too.
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

    /// A program beside it.
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

fn counts<'a>(units: impl Iterator<Item = &'a Unit>, of: impl Fn(&Unit) -> String) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for unit in units {
        *counts.entry(of(unit)).or_default() += 1;
    }
    counts
}

/// Other programs of the host ask, too.
fn ours(unit: &Unit) -> bool {
    unit.protocol == "dns" && [" example.org", " example.com"].iter().any(|name| unit.class.ends_with(name))
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
    // Not by port: a socket without a peer has none of its own to be chosen by.
    let agent = Agent::start(dir.path(), &["--nice=-10"]);

    let lookups = source("lookups.py").display().to_string();
    let python = find("python3").expect("python3").display().to_string();
    let done = outcome(&mut server.beside(&python, &[&lookups, "53"]), "lookups");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    say(done.out.trim());
    // By dig: types and outcomes, several on one connection, and one too many labels to be answered.
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
    // By the resolver: half of the names are not there, and asked for twice.
    let asked = server.asked();
    let wanted: usize = asked.values().sum();
    let mut tail = Tail::new(&agent.transactions);
    tail.until(2 * wanted, Duration::from_secs(30), ours);
    let units: Vec<Unit> = tail.units.iter().filter(|unit| ours(unit)).cloned().collect();
    let lost = agent.metrics().lost();
    say(&format!("logged: {asked:?}; lost: {lost:?}"));
    let side = |server: bool| units.iter().filter(move |unit| unit.server == server);
    for (what, server) in [("served", true), ("asked", false)] {
        let kind = |unit: &Unit| unit.class.split(' ').next().unwrap_or_default().to_owned();
        let found = counts(side(server), kind);
        figure(&format!("dns questions {what}"), &format!("{} of {wanted}", found.values().sum::<usize>()));
        assert_eq!(found, asked, "{what}; lost: {lost:?}");
        let found = counts(side(server), |unit| unit.error.clone());
        say(&format!("  {what}: {found:?}"));
        let none = found.get("NXDOMAIN").copied().unwrap_or_default();
        assert_eq!((none, found.get("REFUSED")), (outcomes["NXDOMAIN"] + 40, Some(&outcomes["REFUSED"])), "{what}");
        assert_eq!(found.get(""), Some(&(wanted - none - outcomes["REFUSED"])), "{what}");
    }
    let classes = counts(units.iter(), |unit| unit.class.clone());
    assert_eq!(classes.get("TXT example.org"), Some(&40), "{classes:?}");
    assert_eq!(classes.get("A example.com"), Some(&20), "{classes:?}");
    let metrics = agent.metrics();
    let labels = [("dns_question_name", "example.com"), ("dns_question_type", "A"), ("error_type", "REFUSED")];
    for family in ["dns_lookup_duration_seconds_count", "dns_server_lookup_duration_seconds_count"] {
        assert!((metrics.sum(family, &labels) - 10.0).abs() < 0.5, "{family}");
    }

    // Nobody answers: the question counts as one that was given up.
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

/// What a server's log and the names of questions say of who asked what, in the order of the log: name and port.
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
    // On any address: of what it receives its socket does not say by which.
    let server = Server::start(dir.path(), "--address=/org/192.0.2.7 --cache-size=0");
    // By port: sockets without a peer are chosen by where they send.
    let agent = Agent::start(dir.path(), &["--nice=-10", "--port=53"]);

    let python = find("python3").expect("python3").display().to_string();
    let script = source("lookups_edges.py").display().to_string();
    let done = outcome(&mut server.beside(&python, &[&script, "53", &server.process.pid().to_string()]), "lookups");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    let said = done.out.lines().find_map(|line| line.strip_prefix("ASKED ")).expect("what was asked");
    let said: serde_json::Value = serde_json::from_str(said).expect("JSON");
    let asked: BTreeMap<String, usize> = serde_json::from_value(said["asked"].clone()).expect("numbers");
    let ports: BTreeMap<u32, u16> = serde_json::from_value(said["ports"].clone()).expect("ports");
    let total: usize = asked.values().sum();
    let askers = askers(&server.log);
    assert_eq!(askers.len(), total, "what the server logged");

    let mut tail = Tail::new(&agent.transactions);
    let wanted = |unit: &Unit| unit.protocol == "dns" && unit.domain.contains(".org");
    // Those that are asked again are one lookup.
    tail.until(2 * total - asked["again"] / 2, Duration::from_secs(30), wanted);
    let lost = agent.metrics().lost();
    say(&format!("{asked:?}; lost: {lost:?}"));
    let units: Vec<&Unit> = tail.units.iter().filter(|unit| wanted(unit)).collect();
    let calls: HashMap<&str, &Unit> =
        units.iter().filter(|unit| !unit.server).map(|unit| (unit.id.as_str(), *unit)).collect();
    let mut served: Vec<&Unit> = units.iter().filter(|unit| unit.server).copied().collect();
    served.sort_by_key(|unit| unit.start_ns);
    assert_eq!((served.len(), calls.len()), (total, total - asked["again"] / 2), "lost: {lost:?}");

    let (mut right, mut missing, mut wrong) =
        (BTreeMap::<&str, usize>::new(), BTreeMap::<&str, usize>::new(), Vec::new());
    for (unit, (name, port)) in served.iter().zip(&askers) {
        assert_eq!((&unit.domain, unit.peer_port), (name, *port), "in the order of the log");
        let kind = asked.keys().find(|kind| name.starts_with(kind.as_str())).expect("a kind").as_str();
        let Some(parent) = &unit.parent else {
            *missing.entry(kind).or_default() += 1;
            continue;
        };
        let Some(call) = calls.get(parent.as_str()) else {
            wrong.push(format!("{name}: {parent} is no call"));
            continue;
        };
        // Of the same name, and where two processes ask for it, by the one whose port the server saw.
        let by = ports.get(&call.pid).is_none_or(|own| own == port);
        if call.domain != *name || call.class != unit.class || call.trace != unit.trace || !by {
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
    // A question that is read after its lookup was over may be another's, and is nobody's.
    missing.remove("again");
    assert_eq!(missing, BTreeMap::new(), "lost: {lost:?}");
    let again = right.get("again").copied().unwrap_or_default();
    assert!(again >= asked["again"] / 2, "{again} of {} that were asked again", asked["again"]);
}
