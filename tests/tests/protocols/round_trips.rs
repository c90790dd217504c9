//! Protocols that are recognised but not decoded: the right number of round trips, with the right durations, at both
//! ends; TLS after STARTTLS; SSH and LDAP by their own servers and logs; and nothing of an unknown protocol unless
//! configured.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tracer_tests::agent::{Agent, outcome};
use tracer_tests::process::Process;
use tracer_tests::spans::{Span, Tail};
use tracer_tests::tls::certificate;
use tracer_tests::workload::{source, wait_for_listener};
use tracer_tests::{begin, figure, find, free_port, say, scale, scratch, secrets};

const SECRETS: [&str; 5] =
    ["planted@example.org", "planted-subject", "planted-password", "planted-banner", "planted-command"];
/// Commands over SSH, each on a connection of its own, and the duration of each, seconds.
const COMMANDS: usize = 12;
const COMMAND_S: f64 = 0.3;

/// A free port whose successor is free, too.
fn two_ports() -> u16 {
    (0..100)
        .map(|_| free_port())
        .find(|port| port.checked_add(1).is_some_and(|next| std::net::TcpListener::bind(("127.0.0.1", next)).is_ok()))
        .expect("two free ports")
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

/// An SSH server and an LDAP server. Returns their ports.
fn others(dir: &Path) -> (u16, u16, [Process; 2]) {
    let (ssh, ldap) = (free_port(), free_port());
    for name in ["host", "id"] {
        let mut command = Command::new("ssh-keygen");
        command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.join(name));
        assert_eq!(outcome(&mut command, "ssh-keygen").code, Some(0), "a key");
    }
    let base = dir.display();
    let settings = format!(
        "Port {ssh}\nListenAddress 127.0.0.1\nHostKey {base}/host\nAuthorizedKeysFile {base}/id.pub\nStrictModes no\n\
         UsePAM no\nPermitRootLogin yes\nPidFile none\nLogLevel VERBOSE\nVersionAddendum planted-banner\n"
    );
    std::fs::write(dir.join("sshd.conf"), settings).expect("sshd.conf");
    // The server's privilege separation directory; normally its service creates it.
    std::fs::create_dir_all("/run/sshd").expect("/run/sshd");
    let mut command = Command::new("/usr/sbin/sshd");
    command.args(["-D", "-e", "-f"]).arg(dir.join("sshd.conf"));
    let mut first = Process::start("sshd", &mut command, &dir.join("sshd.log"));
    wait_for_listener(&mut first, ([127, 0, 0, 1], ssh).into());

    std::fs::create_dir_all(dir.join("ldap")).expect("a directory");
    let settings = format!(
        "include /etc/ldap/schema/core.schema\nmodulepath /usr/lib/ldap\nmoduleload back_mdb\npidfile {base}/slapd.pid\n\
         database mdb\nsuffix \"dc=example,dc=org\"\nrootdn \"cn=admin,dc=example,dc=org\"\nrootpw planted-password\n\
         directory {base}/ldap\n"
    );
    std::fs::write(dir.join("slapd.conf"), settings).expect("slapd.conf");
    let mut command = Command::new("/usr/sbin/slapd");
    command.args(["-d", "0", "-h", &format!("ldap://127.0.0.1:{ldap}"), "-f"]).arg(dir.join("slapd.conf"));
    let mut second = Process::start("slapd", &mut command, &dir.join("slapd.log"));
    wait_for_listener(&mut second, ([127, 0, 0, 1], ldap).into());
    (ssh, ldap, [first, second])
}

fn count(spans: &[Span], wanted: impl Fn(&Span) -> bool) -> [usize; 2] {
    [true, false].map(|server| spans.iter().filter(|span| span.server == server && wanted(span)).count())
}

/// One command on a connection of its own; returns the total duration, seconds.
fn by_ssh(dir: &Path, port: u16) -> f64 {
    let mut command = Command::new("ssh");
    command.args(["-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-i"]);
    command.arg(dir.join("id")).args(["-p", &port.to_string(), "root@127.0.0.1"]);
    command.arg(format!("sleep {COMMAND_S}; echo planted-command"));
    let begin = Instant::now();
    let done = outcome(&mut command, "ssh");
    assert_eq!(done.out.trim(), "planted-command", "{}", done.err);
    begin.elapsed().as_secs_f64()
}

/// The SSH connections are those the server logged, and on each, one round trip lasted as long as its command, and all
/// of them no longer than the client.
fn check_ssh(dir: &Path, spans: &[Span], commands: &[f64]) {
    let log = std::fs::read_to_string(dir.join("sshd.log")).unwrap_or_default();
    let from = |line: &str| {
        let (_, rest) = line.split_once("Connection from 127.0.0.1 port ")?;
        rest.split(' ').next()?.parse::<u16>().ok()
    };
    let logged: BTreeSet<u16> = log.lines().filter_map(from).collect();
    // One of them only checked whether the server listens.
    let greeted: BTreeSet<u16> = log
        .lines()
        .filter(|line| line.contains("Accepted publickey for root from 127.0.0.1 port "))
        .filter_map(|line| line.split(" port ").nth(1)?.split(' ').next()?.parse().ok())
        .collect();
    assert!(greeted.is_subset(&logged) && greeted.len() == commands.len(), "{log}");
    for server in [true, false] {
        let mut found: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for span in spans.iter().filter(|span| span.protocol == "ssh" && span.server == server) {
            assert_eq!(span.class, "SSH", "recognised and no more");
            let by = if server { u32::from(span.peer_port) } else { span.pid };
            found.entry(by).or_default().push(span.duration_s);
        }
        let whose = if server { "served" } else { "asked" };
        figure(&format!("SSH connections {whose}"), &format!("{} of {}", found.len(), commands.len()));
        assert_eq!(found.len(), commands.len(), "{whose}: a client's process makes one connection");
        assert!(
            !server || found.keys().copied().eq(greeted.iter().map(|port| u32::from(*port))),
            "{found:?} {greeted:?}"
        );
        for turns in found.values() {
            let longest = turns.iter().copied().fold(0.0, f64::max);
            let all: f64 = turns.iter().sum();
            let client = commands.iter().copied().fold(0.0, f64::max);
            say(&format!("  {whose}: {} turns, the longest {longest:.3} s, all {all:.3} s", turns.len()));
            assert!(longest >= COMMAND_S - 0.001 && all <= client, "{turns:?} of {client} s");
        }
    }
}

#[test]
fn turns_are_as_many_and_as_long_as_they_were() {
    let needed = ["python3", "openssl", "sshd", "ssh", "slapd", "ldapsearch"];
    let Some(_turn) = begin("turns", &needed) else { return };
    let dir = scratch();
    let (certificate, key) = certificate(dir.path());
    let (tls, mail, own) = (two_ports(), free_port(), free_port());
    let (ssh, ldap, _servers) = others(dir.path());
    let settings = dir.path().join("tracer.toml");
    std::fs::write(&settings, format!("[protocols]\ntimed_ports = [{own}]\n")).expect("a configuration");
    let ports: Vec<String> = [tls, tls + 1, mail, own, ssh, ldap].iter().map(u16::to_string).collect();
    // What is inside TLS is not what is tested here.
    let mut arguments = vec!["--config", settings.to_str().expect("a path"), "--nice=-10", "--tls=off"];
    arguments.extend(ports.iter().flat_map(|port| ["--port", port.as_str()]));
    let agent = Agent::start(dir.path(), &arguments);

    let mut command = Command::new(find("python3").expect("python3"));
    command.arg(source("turns.py")).args([&certificate, &key]);
    command.args([&tls, &mail, &own].map(u16::to_string)).env("OTEL_SERVICE_NAME", "turns");
    let mut workload = Process::start("turns", &mut command, &dir.path().join("turns.log"));
    let truth = workload.line("TRUTH", Duration::from_secs(120));
    let truth: Value = serde_json::from_str(&truth).unwrap_or_else(|error| panic!("{error}: {truth}"));
    let number = |key: &str| truth[key].as_u64().unwrap_or_else(|| panic!("{key} in {truth}")) as usize;

    let commands: Vec<f64> = (0..COMMANDS).map(|_| by_ssh(dir.path(), ssh)).collect();
    for _ in 0..5 {
        let mut command = Command::new("ldapsearch");
        command.args(["-x", "-LLL", "-H", &format!("ldap://127.0.0.1:{ldap}"), "-b", "dc=example,dc=org"]);
        command.args(["-D", "cn=admin,dc=example,dc=org", "-w", "planted-password"]);
        // The search finds nothing.
        assert_eq!(outcome(&mut command, "ldapsearch").code, Some(32));
    }

    // Round trips are reported when the connection ends at the latest.
    workload.wait(Duration::from_secs(30));
    let (connections, turns) = (number("connections"), number("turns"));
    let expected = [
        ("handshakes", 2 * connections + 5, "tls", "handshake"),
        ("TLS turns", 2 * connections * turns + number("mail_tls"), "tls", "TLS"),
        ("SMTP turns", number("mail"), "smtp", "SMTP"),
        // The first exchange of a connection shows that its protocol is unknown.
        ("turns of its own", connections * (turns - 1), "unknown", "round trip"),
        ("LDAP turns", 5 * 2, "ldap", "LDAP"),
    ];
    let mut tail = Tail::new(&agent.transactions);
    let all: usize = expected.iter().map(|(_, count, ..)| 2 * count).sum();
    tail.until(all, Duration::from_secs(30), |span| span.protocol != "ssh");
    let spans = tail.spans.clone();
    let lost = agent.metrics().lost();
    say(&format!("lost: {lost:?}"));
    for (what, wanted, protocol, method) in expected {
        let found = count(&spans, |span| span.protocol == protocol && span.class.starts_with(method));
        figure(what, &format!("{} served and {} asked of {wanted}", found[0], found[1]));
        assert_eq!(found, [wanted; 2], "{what}; lost: {lost:?}");
    }
    let named = count(&spans, |span| span.class == "TLS shop.example.org");
    assert_eq!(named, [2 * connections * turns; 2], "by the name the client wants");
    let offered = count(&spans, |span| span.class == "TLS shop.example.org" && span.offered == "h2,http/1.1");
    assert_eq!(offered, [2 * connections * turns; 2], "by what the client offers");
    check_ssh(dir.path(), &spans, &commands);

    for (key, port) in [("tls13_s", tls), ("tls12_s", tls + 1), ("own_s", own)] {
        let wanted = truth[key].as_f64().unwrap_or_else(|| panic!("{key} in {truth}"));
        for server in [true, false] {
            let of = |span: &&Span| span.port == port && span.server == server && !span.class.starts_with("handshake");
            let found = median(spans.iter().filter(of).map(|span| span.duration_s).collect());
            say(&format!("  {key} {server}: {:.3} ms, {:.3} ms found (medians)", wanted * 1e3, found * 1e3));
            assert!(scale() < 1.0 || (found - wanted).abs() < 0.001 + 0.02 * wanted, "{key}: {wanted} s, {found} s");
        }
    }
    // Their cost is unknown, and no parent is certain.
    assert!(spans.iter().filter(|span| span.server).all(|span| span.grade == "ambiguous" && span.cpu_s == 0.0));
    for family in ["tracer_client_round_trip_duration_seconds_count", "tracer_server_round_trip_duration_seconds_count"]
    {
        let turns = agent.metrics().sum(family, &[("network_protocol_name", "smtp")]);
        assert!((turns - number("mail") as f64).abs() < 0.5, "{family}: {turns}");
    }
    secrets::none_shows(agent, dir.path(), &SECRETS, "shop.example.org");
}
