//! For which addresses an agent is trusted, with real agents on both ends: what `strict`, `addresses` and `translated`
//! let through, and what a certificate must name.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tracer_tests::agent::Agent;
use tracer_tests::chain::{Chain, Edges, PROGRAMS, edges, load};
use tracer_tests::hosts::{Hosts, KEY, Nat, secret};
use tracer_tests::spans::{Span, Tail};
use tracer_tests::{begin, figure, say, scratch, truth, wait};

/// Limit for a condition to come true.
const PATIENCE: Duration = Duration::from_secs(30);
/// Requests of a load.
const REQUESTS: u64 = 80;
const CALLER: u8 = 2;
const CALLEE: u8 = 3;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new([]).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed")
}

/// Options of an agent with a certificate for `names`, in the files of `name`.
fn issue(dir: &Path, name: &str, by: &Authority, names: &[&str]) -> [String; 6] {
    let key = KeyPair::generate().expect("a key");
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let own = CertificateParams::new(names).expect("names").signed_by(&key, by).expect("signed");
    let file = |end: &str, text: &str| secret(&dir.join(format!("{name}.{end}")), text).display().to_string();
    let (cert, key, ca) = (file("pem", &own.pem()), file("key.pem", &key.serialize_pem()), file("ca.pem", &by.pem()));
    ["--relay-cert".into(), cert, "--relay-cert-key".into(), key, "--relay-ca".into(), ca]
}

fn started(hosts: &Hosts, host: u8, name: &str, dir: &Path, trust: &[String], relay: &str) -> Agent {
    let trust: Vec<&str> = trust.iter().map(String::as_str).collect();
    let others: Vec<SocketAddr> = if host == CALLER { vec![hosts.relay(CALLEE)] } else { Vec::new() };
    let relay = format!("discover = false\n{relay}");
    hosts.configured(host, name, dir, (&trust, &others), &relay, &["--hertz", "0"])
}

/// The caller's only session now: its state and error.
fn session(hosts: &Hosts, caller: &Agent) -> Option<(String, String)> {
    let status = hosts.inside(CALLER, || caller.json("/api/v1/peers"));
    let peer = status["peers"].as_array()?.iter().find(|peer| peer["direction"] == "out")?;
    Some((peer["state"].as_str()?.to_owned(), peer["error"].as_str().unwrap_or_default().to_owned()))
}

fn up(hosts: &Hosts, caller: &Agent) {
    wait("a session", PATIENCE, || session(hosts, caller).filter(|(state, _)| state == "up"));
}

fn outcome(hosts: &Hosts, host: u8, agent: &Agent, name: &str) -> u64 {
    wait(&format!("the count {name}"), PATIENCE, || {
        hosts.inside(host, || agent.json("/api/v1/peers"))["outcomes"][name].as_u64()
    })
}

/// Sends load; returns the edges from the caller's host to the callee's, the only possible ones.
fn found(hosts: &Hosts, chain: &Chain, [caller, callee]: [&Agent; 2], prefix: &str) -> (u64, Edges) {
    let mut tails = [caller, callee].map(|agent| Tail::new(&agent.transactions));
    let sent = load(hosts, chain.front, prefix, 4, REQUESTS);
    let wanted = format!("/hop/{prefix}-");
    let mut spans: Vec<Span> = Vec::new();
    for tail in &mut tails {
        let have = tail.until((sent * 2) as usize, PATIENCE, |span| span.path.starts_with(&wanted));
        assert_eq!(have as u64, sent * 2, "{prefix}: spans");
        spans.append(&mut tail.spans);
    }
    // The proxy's clients are on a host without an agent.
    spans.retain(|span| !(span.server && span.service != "application"));
    (sent, edges(&spans, prefix))
}

/// With source translation a connection's remote address is the router's, which has no agent, while sessions come from
/// the agents' own addresses.
#[test]
fn bounds_of_addresses() {
    let Some(_turn) = begin("bounds_of_addresses", &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(4, Nat { destination: false, source: true });
    let chain = Chain::start(&hosts, dir.path());
    let (own, other) = (hosts.own(CALLER), hosts.own(1));
    let far: IpAddr = Ipv4Addr::new(10, 211, CALLEE, 1).into();
    let key = secret(&dir.path().join("key"), &format!("{KEY:02x}").repeat(32)).display().to_string();
    let key = ["--relay-key".to_owned(), key];
    let ours = authority();
    // Certificates that name their host's address, and one that also names the router's.
    let (at, through) = (own.to_string(), far.to_string());
    let plain = issue(dir.path(), "plain", &ours, &[&at]);
    let both = issue(dir.path(), "both", &ours, &[&at, &through]);
    let answers = issue(dir.path(), "answers", &ours, &[&hosts.own(CALLEE).to_string()]);
    let declared = |at: Ipv4Addr| format!("addresses = {{ \"{at}\" = [\"{far}\"] }}");
    for (name, believed, caller, callee, relay) in [
        ("open", true, &key[..], &key[..], String::new()),
        ("strict", false, &key, &key, "strict = true".to_owned()),
        ("translated", true, &key, &key, format!("strict = true\ntranslated = [\"{far}/32\"]")),
        ("declared", true, &key, &key, format!("strict = true\n{}", declared(own))),
        // The configuration assigns the address to another agent: no other agent is trusted for it, strict or not.
        ("declared-others", false, &key, &key, declared(other)),
        ("certificate", false, &plain, &answers, "strict = true".to_owned()),
        ("certificate-through", true, &both, &answers, "strict = true".to_owned()),
    ] {
        // Other tests and the next case cover these as well.
        if ["open", "certificate"].contains(&name) && !truth::full() {
            continue;
        }
        let callee = started(&hosts, CALLEE, &format!("callee-{name}"), dir.path(), callee, &relay);
        let caller = started(&hosts, CALLER, &format!("caller-{name}"), dir.path(), caller, "");
        up(&hosts, &caller);
        let (sent, edges) = found(&hosts, &chain, [&caller, &callee], name);
        let count = |what| outcome(&hosts, CALLEE, &callee, what);
        if !believed {
            wait("words to be refused", PATIENCE, || (count("refused") >= sent).then_some(()));
        }
        let (refused, matched) = (count("refused"), count("matched"));
        say(&format!("{name}: {edges:?} of {sent}, {refused} refused, {matched} matched"));
        figure(&format!("relay: {name}"), &format!("{} of {sent} edges, {refused} refused", edges.matched));
        assert_eq!((edges.wrong, edges.dangling), (0, 0), "{name}: {edges:?}");
        if believed {
            assert_eq!((edges.matched, refused), (sent, 0), "{name}");
        } else {
            assert_eq!((edges.matched, matched), (0, 0), "{name}");
            // The agent's context is refused, not the agent: the session stays, without results.
            up(&hosts, &caller);
        }
        caller.stop();
        callee.stop();
    }
}

/// A dialled agent needs a certificate for the name it is dialled by; a new one is read at run time.
#[test]
fn bounds_of_certificates() {
    let Some(_turn) = begin("bounds_of_certificates", &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(4, Nat { destination: false, source: false });
    let chain = Chain::start(&hosts, dir.path());
    let ours = authority();
    let (at, right) = (hosts.own(CALLER).to_string(), hosts.own(CALLEE).to_string());
    let trust = issue(dir.path(), "caller", &ours, &[&at]);
    let caller = started(&hosts, CALLER, "caller", dir.path(), &trust, "");
    for (name, names) in [("address", ["10.211.9.9", &at]), ("name", ["callee.internal", "callee"])] {
        if name == "address" && !truth::full() {
            continue;
        }
        let trust = issue(dir.path(), name, &ours, &names);
        let callee = started(&hosts, CALLEE, &format!("callee-{name}"), dir.path(), &trust, "");
        let refused = || outcome(&hosts, CALLER, &caller, "refused") + outcome(&hosts, CALLEE, &callee, "refused");
        wait("a certificate for something else to be counted", PATIENCE, || (refused() > 0).then_some(()));
        let error = wait("the caller to say why", PATIENCE, || {
            session(&hosts, &caller).filter(|(_, error)| error.contains("certificate")).map(|(_, error)| error)
        });
        assert!(error.contains("issue it one for this name or address"), "{error}");
        let (sent, edges) = found(&hosts, &chain, [&caller, &callee], &format!("other-{name}"));
        say(&format!("{name}: {edges:?} of {sent}, {} refused: {error}", refused()));
        assert_eq!((edges.matched, edges.wrong, edges.dangling), (0, 0, 0), "{name}: {edges:?}");
        assert_eq!(session(&hosts, &caller).map(|(state, _)| state).as_deref(), Some("down"));
        assert_eq!((outcome(&hosts, CALLER, &caller, "sent"), outcome(&hosts, CALLEE, &callee, "received")), (0, 0));
        if name == "name" {
            let trust_now = issue(dir.path(), "right", &ours, &[&right]);
            for (old, new) in [(1, 1), (3, 3)] {
                std::fs::rename(&trust_now[new], &trust[old]).expect("renewed");
            }
            up(&hosts, &caller);
            let (sent, edges) = found(&hosts, &chain, [&caller, &callee], "right");
            figure("relay: edges with a renewed certificate", &format!("{} of {sent}", edges.matched));
            assert_eq!((edges.matched, edges.wrong, edges.dangling), (sent, 0, 0), "{edges:?}");
        }
        callee.stop();
    }
    caller.stop();
}
