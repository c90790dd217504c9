//! Questions by UDP between hosts: which call each came of, against the server's own log; with no translation, through
//! destination translation, and through source translation, where nothing may be matched.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::chain::{connected, outcomes};
use tracer_tests::hosts::{Hosts, KEY, Nat, secret};
use tracer_tests::process::Process;
use tracer_tests::units::{Tail, Unit};
use tracer_tests::workload::source;
use tracer_tests::{begin, figure, find, say, scratch, wait};

const PROGRAMS: [&str; 6] = ["dnsmasq", "dig", "python3", "ip", "nft", "nsenter"];
/// The host whose name server is asked by the others, by both at once.
const SERVER: u8 = 2;
const CLIENTS: [u8; 2] = [1, 3];
/// Port of the server agents meet at.
const NATS: u16 = 18492;
/// Questions by way of a forwarder.
const FORWARDED: usize = 60;

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
    let last = SERVER + 2;
    let silent = if address.contains(':') { hosts.own_six(last).to_string() } else { hosts.own(last).to_string() };
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
        let own = [IpAddr::from(hosts.own(*host)), hosts.own_six(*host).into()];
        let of_host = own.contains(address) || kind(name) != "twin";
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

/// The server agents meet at, on the router.
fn meeting(hosts: &Hosts, dir: &Path) -> Process {
    let mut command = hosts.command(0, &find("nats-server").expect("nats-server"));
    command.args(["--addr", "0.0.0.0", "--port", &NATS.to_string(), "--user", "agents", "--pass", "met"]);
    let process = Process::start("nats-server", &mut command, &dir.join("nats-server.log"));
    hosts.inside(0, || {
        let listens = || TcpStream::connect(("127.0.0.1", NATS)).ok().map(drop);
        wait("nats-server to listen", Duration::from_secs(30), listens);
    });
    process
}

/// Hosts, a name server and agents that know each other and have watched for a while; the last host reads nothing.
fn begun(nat: Nat, dir: &Path, nats: bool) -> (Hosts, Vec<Process>, Vec<Agent>, UdpSocket) {
    let hosts = Hosts::new(4, nat);
    hosts.six();
    let mut servers = vec![server(&hosts, dir)];
    if nats {
        // Where they listen to each other nobody gets through.
        hosts.cut(true);
        servers.push(meeting(&hosts, dir));
    }
    // On any address, of either version.
    let silent = hosts.inside(4, || UdpSocket::bind("[::]:53").expect("a port"));
    let arguments = ["--hertz", "0", "--port", "53"];
    let start = |host: u8| {
        let name = format!("host{host}");
        if !nats {
            return hosts.agent(host, &name, dir, true, &arguments);
        }
        let key = secret(&dir.join("key"), &format!("{KEY:02x}").repeat(32)).display().to_string();
        let url = format!("nats://agents:met@{}:{NATS}", Ipv4Addr::new(10, 211, host, 1));
        let others: Vec<SocketAddr> = (1..=3).filter(|other| *other != host).map(|other| hosts.relay(other)).collect();
        hosts.speaking(host, &name, dir, (&["--relay-key", &key, "--relay-nats", &url], &others), &arguments)
    };
    let agents: Vec<Agent> = (1..=3).map(start).collect();
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
    (hosts, servers, agents, silent)
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
    let (hosts, servers, agents, _silent) = begun(Nat { destination: true, source: false }, dir.path(), false);
    for (what, address, but, names) in [
        ("no translation", hosts.own(SERVER).to_string(), &[][..], ("direct", 40_053)),
        // By which of its addresses a socket without one of its own asks there is not known. Another port, because the router
        // remembers the first.
        ("destination translation", hosts.address(SERVER).to_string(), &["open"], ("moved", 40_054)),
        // Agents speak by version 4: of a socket without an address of its own it is not known by which of version 6 it asks.
        ("IP version 6", hosts.own_six(SERVER).to_string(), &["open"], ("six", 40_055)),
    ] {
        let untold = count(&hosts, &agents, "untold");
        let mut asked = ask(&hosts, &address, names, servers[0].pid());
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
        let untold = count(&hosts, &agents, "untold") - untold;
        say(&format!("{what}: {untold} untold"));
        let missed: usize = but.iter().flat_map(|kind| asked.values().map(|all| all[*kind])).sum();
        let lacking = missed - but.iter().filter_map(|kind| found.right.get(kind)).sum::<usize>();
        assert!(untold as usize >= lacking, "{what}: {lacking} without an edge, {untold} counted");
        assert!(found.told * 2 > right, "calls are told how long their other end took: {found:?}");
    }
    for agent in agents {
        agent.stop();
    }
}

/// Host 1 asks a forwarder on host 3, which asks the name server.
#[test]
fn lookups_through_a_forwarder() {
    let Some(_turn) = begin("lookups_through_a_forwarder", &PROGRAMS) else { return };
    let dir = scratch();
    let (hosts, _servers, agents, _silent) = begun(Nat { destination: false, source: false }, dir.path(), false);
    let [client, forwarder] = CLIENTS;
    let log = dir.path().join("forwarded");
    let mut command = hosts.command(forwarder, &find("dnsmasq").expect("dnsmasq"));
    command.args(["--keep-in-foreground", "--no-resolv", "--no-hosts", "--user=root", "--port=53", "--pid-file="]);
    command.args(["--log-queries=extra", "--cache-size=0"]);
    command.arg(format!("--server={}", hosts.own(SERVER))).arg(format!("--log-facility={}", log.display()));
    let _forwarder = Process::start("forwarder", &mut command, &dir.path().join("forwarder.log"));
    let begun = || std::fs::read_to_string(&log).ok().filter(|text| text.contains("started"));
    wait("the forwarder", Duration::from_secs(20), begun);
    let address = hosts.own(forwarder).to_string();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (hosts, address) = (&hosts, &address);
            scope.spawn(move || {
                (0..FORWARDED / 3).for_each(|n| dig(hosts, client, address, &format!("hop{thread}of{n}.org")));
            });
        }
    });
    let ours = |unit: &Unit| unit.protocol == "dns" && unit.domain.starts_with("hop");
    let units = |host: u8, count: usize| {
        let mut tail = Tail::new(&agents[usize::from(host) - 1].transactions);
        assert!(tail.until(count, Duration::from_secs(30), ours) >= count, "lookups of host {host}");
        tail.units.retain(ours);
        tail.units
    };
    let (asked, passed, answered) =
        (units(client, FORWARDED), units(forwarder, 2 * FORWARDED), units(SERVER, FORWARDED));
    // Right, without a parent, wrong, and right ones of one transaction: what was read on a host against the calls of another by name, of which each has its own.
    let between = |calls: &[Unit], served: &[Unit]| {
        let calls: HashMap<&str, &Unit> =
            calls.iter().filter(|unit| !unit.server).map(|unit| (unit.id.as_str(), unit)).collect();
        let mut sums = (0, 0, 0, 0);
        for unit in served.iter().filter(|unit| unit.server) {
            match unit.parent.as_deref().map(|parent| calls.get(parent)) {
                None => sums.1 += 1,
                Some(Some(call)) if call.domain == unit.domain => {
                    sums.0 += 1;
                    sums.3 += usize::from(call.trace == unit.trace);
                }
                Some(_) => sums.2 += 1,
            }
        }
        sums
    };
    let (first, second) = (between(&asked, &passed), between(&passed, &answered));
    // Within the forwarder: a call that has a parent has the question that was passed on.
    let read: HashMap<&str, &str> =
        passed.iter().filter(|unit| unit.server).map(|unit| (unit.id.as_str(), unit.domain.as_str())).collect();
    let made: Vec<&Unit> = passed.iter().filter(|unit| !unit.server).collect();
    let joined = made.iter().filter(|unit| unit.parent.is_some()).count();
    let same = |unit: &&&Unit| unit.parent.as_deref().and_then(|id| read.get(id)) == Some(&unit.domain.as_str());
    let right = made.iter().filter(same).count();
    let certain = made.iter().filter(|unit| !same(unit) && unit.parent.is_some() && unit.grade == "certain").count();
    say(&format!("{first:?}, {second:?}, {:?}", outcomes(&hosts, &agents)));
    figure(
        "lookups through a forwarder",
        &format!(
            "{} and {} of {FORWARDED} between hosts, {} wrong, {} and {} of one transaction; {right} of {} within it, {} \
             ambiguous and another's, {certain} certain and another's",
            first.0,
            second.0,
            first.2 + second.2,
            first.3,
            second.3,
            made.len(),
            joined - right - certain,
        ),
    );
    // dnsmasq is one thread that has several questions at once: within it what is not sure is said to be ambiguous.
    assert_eq!((first.2, second.2, certain), (0, 0, 0), "wrong");
    assert_eq!((first.0, second.0), (FORWARDED, FORWARDED), "{:?}", outcomes(&hosts, &agents));
    assert!(right * 2 > FORWARDED, "{right} within");
    assert_eq!(first.3, FORWARDED, "transactions");
    // The call is told of before its own request's caller is known; where much else runs that may be known too late.
    assert!(second.3 * 10 >= FORWARDED * 9, "{} of {FORWARDED} are of one transaction", second.3);
    for agent in agents {
        agent.stop();
    }
}

#[test]
fn lookups_by_nats() {
    let mut programs = PROGRAMS.to_vec();
    programs.push("nats-server");
    let Some(_turn) = begin("lookups_by_nats", &programs) else { return };
    let dir = scratch();
    let (hosts, servers, agents, _silent) = begun(Nat { destination: false, source: false }, dir.path(), true);
    let names = ("met", 40_056);
    let asked = ask(&hosts, &hosts.own(SERVER).to_string(), names, servers[0].pid());
    let total = sum(&asked, None, true);
    let found = edges(&hosts, &agents, dir.path(), &asked, names);
    let right: usize = found.right.values().sum();
    say(&format!("{asked:?}, {found:?}, {:?}", outcomes(&hosts, &agents)));
    figure("lookups between hosts, by way of NATS", &format!("{right} of {total}, {} wrong", found.wrong.len()));
    assert_eq!(found.wrong, Vec::<String>::new());
    // A session by way of a server has no address to take for a socket's that has none.
    whole(&found, &asked, &["open"]);
    let open: usize = asked.values().map(|kinds| kinds["open"]).sum();
    let lacking = open - found.right.get("open").copied().unwrap_or_default();
    let untold = count(&hosts, &agents, "untold");
    assert!(untold as usize >= lacking, "{lacking} without an edge, {untold} counted");
    for agent in agents {
        agent.stop();
    }
}

#[test]
fn lookups_through_source_translation() {
    let Some(_turn) = begin("lookups_through_source_translation", &PROGRAMS) else { return };
    let dir = scratch();
    let (hosts, _server, agents, _silent) = begun(Nat { destination: false, source: true }, dir.path(), false);
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
