//! Questions by UDP between hosts: which call each came of, against the server's own log; with no translation, through
//! destination translation, and through source translation, where nothing may be matched.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::chain::{connected, outcomes};
use tracer_tests::hosts::{Hosts, Nat};
use tracer_tests::process::Process;
use tracer_tests::units::{Tail, Unit};
use tracer_tests::workload::source;
use tracer_tests::{begin, figure, find, say, scratch, wait};

const PROGRAMS: [&str; 6] = ["dnsmasq", "dig", "python3", "ip", "nft", "nsenter"];
/// The host whose name server is asked by the others, by both at once.
const SERVER: u8 = 2;
const CLIENTS: [u8; 2] = [1, 3];

/// On any address, so that its socket does not tell by which it is asked.
fn server(hosts: &Hosts, dir: &Path) -> Process {
    let log = dir.join("queries");
    let mut command = hosts.command(SERVER, &find("dnsmasq").expect("dnsmasq"));
    command.args(["--keep-in-foreground", "--no-resolv", "--no-hosts", "--user=root", "--port=53", "--pid-file="]);
    command.args(["--log-queries=extra", "--address=/org/192.0.2.7", "--cache-size=0"]);
    command.arg(format!("--log-facility={}", log.display()));
    let process = Process::start("dnsmasq", &mut command, &dir.join("dnsmasq.log"));
    wait("dnsmasq", Duration::from_secs(20), || {
        std::fs::read_to_string(&log).ok().filter(|text| text.contains("started"))
    });
    process
}

/// What the server's log says of who asked what, in its order: name, address and port.
fn askers(dir: &Path) -> Vec<(String, IpAddr, u16)> {
    let text = std::fs::read_to_string(dir.join("queries")).unwrap_or_default();
    let asker = |line: &str| {
        // NUMBER ADDRESS/PORT query[TYPE] NAME from ADDRESS
        let (before, after) = line.split_once(" query[")?;
        let (address, port) = before.rsplit(' ').next()?.split_once('/')?;
        Some((after.split(' ').nth(1)?.to_owned(), address.parse().ok()?, port.parse().ok()?))
    };
    text.lines().filter_map(asker).collect()
}

/// How many questions of each kind there were, by host.
type Asked = BTreeMap<u8, BTreeMap<String, usize>>;

/// Questions that reached the server: of all hosts or of one; without those that asked the same again, unless told.
fn sum(asked: &Asked, host: Option<u8>, again: bool) -> usize {
    let of_host = asked.iter().filter(|(known, _)| host.is_none_or(|host| host == **known));
    let kinds = of_host.flat_map(|(_, kinds)| kinds);
    kinds.map(|(kind, count)| if kind == "again" && !again { count / 2 } else { *count }).sum()
}

/// Both hosts ask by `address` at once, and each of some from `port`.
fn ask(hosts: &Hosts, address: &str, (word, port): (&str, u16), stopped: u32) -> Asked {
    let python = find("python3").expect("python3");
    let script = source("lookups_afar.py");
    let silent = hosts.own(SERVER + 2).to_string();
    std::thread::scope(|scope| {
        let asking = CLIENTS.map(|host| {
            let mut command = hosts.command(host, &python);
            // Only one of them stops the server.
            let stopped = if host == CLIENTS[0] { stopped } else { 0 };
            command.arg(&script).args([address, &format!("{word}{host}"), &stopped.to_string(), &silent]);
            command.arg(port.to_string());
            (host, scope.spawn(move || outcome(&mut command, "lookups")))
        });
        let said = asking.map(|(host, asking)| {
            let done = asking.join().expect("asked");
            assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
            let said = done.out.lines().find_map(|line| line.strip_prefix("ASKED ")).expect("what was asked");
            (host, serde_json::from_str(said).expect("JSON"))
        });
        said.into_iter().collect()
    })
}

/// The kind of a name.
fn kind(name: &str) -> &'static str {
    let kinds = ["open", "thread", "twin", "reused", "again", "silent", "dig"];
    kinds.into_iter().find(|kind| name.contains(kind)).unwrap_or_else(|| panic!("{name}"))
}

/// Right edges by kind, and wrong ones.
#[derive(Debug, Default)]
struct Edges {
    right: BTreeMap<&'static str, usize>,
    wrong: Vec<String>,
    /// Of the right ones, those whose call was told how long its other end took.
    told: usize,
}

/// Holds what the agents reported of what was `asked` against the log of the server; names begin with `word`, and what both
/// hosts ask with one port is of that `port`.
fn edges(hosts: &Hosts, agents: &[Agent], dir: &Path, asked: &Asked, (word, port): (&str, u16)) -> Edges {
    let ours = |name: &str| name.starts_with(word) && name.contains(".org") && kind(name) != "silent";
    let wanted = |unit: &Unit| unit.protocol == "dns" && ours(&unit.domain);
    let askers: Vec<_> = askers(dir).into_iter().filter(|(name, ..)| ours(name)).collect();
    let total = sum(asked, None, true);
    assert_eq!(askers.len(), total, "what the server logged");
    let units = |at: u8, server: bool, count: usize| {
        let mut tail = Tail::new(&agents[usize::from(at) - 1].transactions);
        tail.until(count, Duration::from_secs(30), |unit| wanted(unit) && unit.server == server);
        let mut units = tail.units;
        units.retain(|unit| wanted(unit) && unit.server == server);
        units.sort_by_key(|unit| unit.start_ns);
        units
    };
    let served = units(SERVER, true, total);
    assert_eq!(served.len(), total, "{:?}", hosts.inside(SERVER, || agents[1].metrics().lost()));
    // Calls by id, with their hosts; and those of a name in the order they were made.
    let mut calls: HashMap<String, (u8, Unit)> = HashMap::new();
    let mut by_name: HashMap<(u8, String), Vec<String>> = HashMap::new();
    for host in CLIENTS {
        let made = units(host, false, sum(asked, Some(host), false));
        assert_eq!(made.len(), sum(asked, Some(host), false), "calls of host {host}");
        for call in made {
            by_name.entry((host, call.domain.clone())).or_default().push(call.id.clone());
            calls.insert(call.id.clone(), (host, call));
        }
    }
    let mut edges = Edges::default();
    let mut seen: HashMap<(IpAddr, u16, String), usize> = HashMap::new();
    for (unit, (name, address, from)) in served.iter().zip(&askers) {
        assert_eq!((&unit.domain, unit.peer_port), (name, *from), "in the order of the log");
        // How often that socket had asked that before: the same number of the same name is of the same order at both ends.
        let nth = seen.entry((*address, *from, name.clone())).or_default();
        *nth += 1;
        let Some(parent) = &unit.parent else { continue };
        let Some((host, call)) = calls.get(parent) else {
            edges.wrong.push(format!("{name}: {parent} is no call"));
            continue;
        };
        let of_host = IpAddr::from(hosts.own(*host)) == *address || kind(name) != "twin";
        let order = match kind(name) {
            "reused" => by_name[&(*host, name.clone())].get(*nth - 1) == Some(parent),
            // Whose socket has the port that both hosts use began first.
            "twin" => by_name[&(*host, name.clone())].get(usize::from(*from != port)) == Some(parent),
            _ => true,
        };
        if call.domain == *name && call.trace == unit.trace && of_host && order {
            *edges.right.entry(kind(name)).or_default() += 1;
            edges.told += usize::from(call.far_duration_s.is_some());
        } else {
            edges.wrong.push(format!("{name} of {address}/{from}: {} by host {host}", call.domain));
        }
    }
    edges
}

/// Hosts, a name server and agents that know each other and have watched for a while; the last host reads nothing.
fn begun(nat: Nat, dir: &Path) -> (Hosts, Process, Vec<Agent>, UdpSocket) {
    let hosts = Hosts::new(4, nat);
    let server = server(&hosts, dir);
    let silent = hosts.inside(4, || UdpSocket::bind((hosts.own(4), 53)).expect("a port"));
    let arguments = ["--hertz", "0", "--port", "53"];
    let agents: Vec<Agent> =
        (1..=3).map(|host| hosts.agent(host, &format!("host{host}"), dir, true, &arguments)).collect();
    connected(&hosts, &agents);
    // An agent says nothing of lookups, and believes nothing, before it has watched for some seconds.
    let mut asked = 0;
    let of = |host: u8, name: &str| {
        let said = hosts.inside(host, || agents[usize::from(host) - 1].json("/api/v1/peers"));
        said["outcomes"][name].as_u64().expect("a count")
    };
    for host in CLIENTS {
        wait("lookups to be told of", Duration::from_secs(30), || {
            asked += 1;
            dig(&hosts, host, &hosts.own(SERVER).to_string(), &format!("warm{asked}.org"));
            std::thread::sleep(Duration::from_millis(200));
            let heard = if nat.source { of(SERVER, "received") } else { of(SERVER, "matched") };
            (of(host, "sent") > 0 && heard > 0).then_some(())
        });
    }
    (hosts, server, agents, silent)
}

/// What became of contexts, over all agents.
fn count(hosts: &Hosts, agents: &[Agent], name: &str) -> u64 {
    outcomes(hosts, agents).into_iter().find_map(|(known, count)| (known == name).then_some(count)).unwrap_or_default()
}

fn dig(hosts: &Hosts, host: u8, address: &str, name: &str) {
    let mut command = hosts.command(host, &find("dig").expect("dig"));
    command.args([&format!("@{address}"), name, "A"]);
    let done = outcome(&mut command, "dig");
    assert!(done.out.contains("192.0.2.7"), "{}{}", done.out, done.err);
}

/// What is matched at all: all but what may be another's.
fn whole(edges: &Edges, asked: &Asked, but: &[&str]) {
    let mut all: BTreeMap<&str, usize> = BTreeMap::new();
    for (kind, count) in asked.values().flatten() {
        *all.entry(kind).or_default() += count;
    }
    for (kind, count) in all {
        let right = edges.right.get(kind).copied().unwrap_or_default();
        let least = match kind {
            kind if but.contains(&kind) => 0,
            // The first of two is sure.
            "reused" | "again" => count / 2,
            _ => count,
        };
        assert!(right >= least, "{kind}: {right} of {count}: {edges:?}");
    }
}

#[test]
fn lookups_between_hosts() {
    let Some(_turn) = begin("lookups_between_hosts", &PROGRAMS) else { return };
    let dir = scratch();
    let (hosts, server, agents, _silent) = begun(Nat { destination: true, source: false }, dir.path());
    for (what, address, but, names) in [
        ("no translation", hosts.own(SERVER).to_string(), &[][..], ("direct", 40_053)),
        // By which of its addresses a socket without one of its own asks there is not known. Another port, because the router
        // remembers the first.
        ("destination translation", hosts.address(SERVER).to_string(), &["open"], ("moved", 40_054)),
    ] {
        let mut asked = ask(&hosts, &address, names, server.pid());
        for which in 0..5 {
            dig(&hosts, CLIENTS[0], &address, &format!("{}-dig{which}.org", names.0));
        }
        asked.entry(CLIENTS[0]).or_default().insert("dig".to_owned(), 5);
        let total = sum(&asked, None, true);
        let found = edges(&hosts, &agents, dir.path(), &asked, names);
        let right: usize = found.right.values().sum();
        say(&format!("{what}: {asked:?}, {found:?}, {:?}", outcomes(&hosts, &agents)));
        figure(&format!("lookups between hosts, {what}"), &format!("{right} of {total}, {} wrong", found.wrong.len()));
        assert_eq!(found.wrong, Vec::<String>::new(), "{what}");
        whole(&found, &asked, but);
        assert!(found.told * 2 > right, "calls are told how long their other end took: {found:?}");
    }
    for agent in agents {
        agent.stop();
    }
}

#[test]
fn lookups_through_source_translation() {
    let Some(_turn) = begin("lookups_through_source_translation", &PROGRAMS) else { return };
    let dir = scratch();
    let (hosts, _server, agents, _silent) = begun(Nat { destination: false, source: true }, dir.path());
    let names = ("hidden", 40_053);
    let asked = ask(&hosts, &hosts.own(SERVER).to_string(), names, 0);
    let total = sum(&asked, None, true);
    let found = edges(&hosts, &agents, dir.path(), &asked, names);
    let count = |name| count(&hosts, &agents, name);
    wait("words that nobody has an answer for to be counted", Duration::from_secs(20), || {
        (count("unmatched") + count("elsewhere") >= count("received")).then_some(())
    });
    say(&format!("{asked:?}, {found:?}, {:?}", outcomes(&hosts, &agents)));
    figure("lookups between hosts, source translation", &format!("0 of {total}, {} wrong", found.wrong.len()));
    assert_eq!((found.wrong, found.right), (Vec::new(), BTreeMap::new()));
    // They were told, and found nobody.
    assert!(count("received") >= total as u64 / 2, "{:?}", outcomes(&hosts, &agents));
    for agent in agents {
        agent.stop();
    }
}
