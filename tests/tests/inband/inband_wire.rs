//! TCP options from an outside view: compares what tshark reads of IPv4 and IPv6 segments with the layout of
//! OpenTelemetry's eBPF instrumentation; and sends segments in that layout, which our end must read and propagate.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use tracer_tests::agent::{Agent, binary};
use tracer_tests::hosts::{Hosts, Nat};
use tracer_tests::load::{self, Request};
use tracer_tests::process::Process;
use tracer_tests::spans::{self, Span, Tail};
use tracer_tests::workload::source;
use tracer_tests::{begin, figure, find, say, scratch, truth, wait};

const PLAIN: Nat = Nat { destination: false, source: false };
const PROGRAMS: [&str; 6] = ["ip", "nft", "nsenter", "nginx", "tshark", "python3"];
const PORT: u16 = 18_580;
/// Closed ports: a segment to the first shows that tshark is capturing, one to the second that it has seen everything
/// before.
const MARKS: [u16; 2] = [18_581, 18_582];
/// First port of connections with hand-made segments.
const MADE: u16 = 41_000;
/// Trace flags of transactions whose ids the agent draws: sampled, and random (W3C Trace Context Level 2).
const DRAWN: u8 = 3;

fn alone(hosts: &Hosts, host: u8, name: &str, dir: &Path) -> Agent {
    let file = dir.join(format!("{name}.ndjson"));
    let arguments = ["--own-netns", "--hertz", "0", "--inband-tcp-option"];
    let agent = Agent::launch_by(hosts.command(host, &binary()), name, dir, &file, &arguments);
    hosts.inside(host, || agent.ready())
}

/// nginx on a host, over IPv4 and IPv6.
fn nginx(hosts: &Hosts, host: u8, dir: &Path, locations: &str) -> Process {
    let name = format!("nginx-{host}");
    let base = dir.join(&name);
    std::fs::create_dir(&base).unwrap_or_else(|error| panic!("{}: {error}", base.display()));
    let at = base.display();
    let configuration = format!(
        "user root; worker_processes 1; pid {at}/pid; error_log {at}/error.log warn; daemon off;
events {{ worker_connections 1024; }}
http {{ access_log off; keepalive_requests 1000000;
  client_body_temp_path {at}/a; proxy_temp_path {at}/b; fastcgi_temp_path {at}/c;
  uwsgi_temp_path {at}/d; scgi_temp_path {at}/e;
  upstream four {{ server {}:{PORT}; keepalive 8; }}
  upstream six {{ server [{}]:{PORT}; keepalive 8; }}
  server {{ listen {PORT}; listen [::]:{PORT}; {locations} }} }}\n",
        hosts.own(3),
        hosts.own_six(3),
    );
    let file = base.join("nginx.conf");
    std::fs::write(&file, configuration).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut command = hosts.command(host, &find("nginx").unwrap_or_else(|| panic!("no nginx")));
    command.arg("-p").arg(&base).arg("-c").arg(&file).arg("-e").arg(base.join("error.log"));
    let process = Process::start(&name, &mut command, &dir.join(format!("{name}.log")));
    for to in [IpAddr::from(hosts.own(host)), IpAddr::from(hosts.own_six(host))] {
        hosts.inside(1, || {
            wait("nginx to listen", Duration::from_secs(30), || TcpStream::connect((to, PORT)).ok().map(drop));
        });
    }
    process
}

/// A segment as printed by tshark.
#[derive(Debug)]
struct Segment {
    /// Whether it is IPv6.
    six: bool,
    /// Kinds of its options, in order.
    kinds: Vec<u8>,
    /// The bytes of the option of kind 25, from its kind on.
    option: Option<Vec<u8>>,
    /// Its data.
    payload: Vec<u8>,
    /// Bytes of its TCP header.
    header: usize,
}

/// tshark at a host's interface.
struct Shark {
    process: Process,
    address: SocketAddr,
}

impl Shark {
    fn start(hosts: &Hosts, host: u8, dir: &Path) -> Self {
        let mut command = hosts.command(host, &find("tshark").unwrap_or_else(|| panic!("no tshark")));
        command.args(["-i", "eth0", "-n", "-l", "-Q", "-f", "tcp", "--disable-protocol", "http", "-T", "fields"]);
        command.args(["-E", "separator=|", "-E", "occurrence=a", "-E", "aggregator=,"]);
        for field in ["ip.version", "ipv6.version", "tcp.dstport", "tcp.hdr_len", "tcp.option_kind", "tcp.options"] {
            command.args(["-e", field]);
        }
        command.args(["-e", "tcp.payload"]);
        // Its capture file is removed with the test.
        command.env("TMPDIR", dir);
        let process = Process::start("tshark", &mut command, &dir.join(format!("tshark-{host}.log")));
        let shark = Self { process, address: SocketAddr::from((hosts.own(host), 0)) };
        shark.mark(hosts, MARKS[0]);
        shark
    }

    /// Sends a segment to a port until tshark has seen it.
    fn mark(&self, hosts: &Hosts, port: u16) {
        let to = SocketAddr::new(self.address.ip(), port);
        let seen = format!("|{port}|");
        wait("tshark to see a segment", Duration::from_secs(60), || {
            // The port refuses, as expected.
            hosts.inside(1, || TcpStream::connect(to).is_ok());
            self.process.output().contains(&seen).then_some(())
        });
    }

    /// All segments to or from `PORT` with data; handshakes have none.
    fn stop(self, hosts: &Hosts) -> Vec<Segment> {
        self.mark(hosts, MARKS[1]);
        self.process.output().lines().filter_map(segment).collect()
    }
}

/// Parses a line of tshark's output; `None` for a segment without data or options of kind 25.
fn segment(line: &str) -> Option<Segment> {
    let fields: Vec<&str> = line.split('|').collect();
    let [_, six, _, header, kinds, options, payload] = fields.as_slice() else { return None };
    let kinds: Vec<u8> = kinds.split(',').filter_map(|kind| kind.parse().ok()).collect();
    let bytes = |text: &str| -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pair = |two: &[u8]| u8::from_str_radix(&String::from_utf8_lossy(two), 16).unwrap_or_else(|e| panic!("{e}"));
        digits.chunks_exact(2).map(pair).collect()
    };
    let payload = bytes(payload);
    (!payload.is_empty() || kinds.contains(&25)).then(|| Segment {
        six: !six.is_empty(),
        option: of_kind_25(&bytes(options)),
        kinds,
        payload,
        header: header.parse().unwrap_or_else(|error| panic!("{error}: {line}")),
    })
}

/// Finds the option of kind 25 among options.
fn of_kind_25(mut options: &[u8]) -> Option<Vec<u8>> {
    loop {
        let len = match *options.first()? {
            0 => return None,
            1 => 1,
            kind => {
                let len = usize::from(*options.get(1)?).max(2);
                if kind == 25 {
                    return options.get(..len).map(<[u8]>::to_vec);
                }
                len
            }
        };
        options = options.get(len..)?;
    }
}

/// What OpenTelemetry's eBPF instrumentation writes for a context (`bpf/tpinjector/tp_options.h`): kind, length, trace
/// id, span id; and trace flags unless they are "sampled" alone. It reads these two lengths and no other.
fn theirs(trace: &str, span: &str, flags: u8) -> Vec<u8> {
    let number = |digits: &str| u128::from_str_radix(digits, 16).unwrap_or_else(|error| panic!("{digits}: {error}"));
    let mut option = vec![25, 26];
    option.extend(number(trace).to_be_bytes());
    option.extend(&number(span).to_be_bytes()[8..]);
    if flags != 1 {
        option.push(flags);
        option[1] = 27;
    }
    option
}

/// Path of the request at the payload's start.
fn path(payload: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(payload.strip_prefix(b"GET ")?).into_owned();
    Some(text.split(' ').next()?.to_owned())
}

#[test]
fn tshark_reads_what_was_meant() {
    let Some(_turn) = begin("tshark_reads_what_was_meant", &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(3, PLAIN);
    hosts.six();
    let agents = [alone(&hosts, 1, "client", dir.path()), alone(&hosts, 2, "server", dir.path())];
    let _nginx = nginx(&hosts, 2, dir.path(), "location / { return 200 \"here\"; }");
    let shark = Shark::start(&hosts, 2, dir.path());
    let (connections, each) = if truth::full() { (16u64, 500u64) } else { (4, 100) };
    let count = connections * each;
    let own: [(&str, IpAddr); 2] = [("four", hosts.own(2).into()), ("six", hosts.own_six(2).into())];
    for (name, to) in own {
        let plan = |c| (0..each).map(move |r| Request::get(format!("/{name}-{c}-{r}"))).collect();
        let loaded = hosts.inside(1, || load::run(SocketAddr::new(to, PORT), (0..connections).map(plan).collect()));
        assert!(loaded.broken().is_empty(), "{:?}", loaded.broken().first());
    }
    let segments = shark.stop(&hosts);
    let of = |agent: &Agent, prefix: &str| {
        let mut tail = Tail::new(&agent.transactions);
        tail.until(count as usize, Duration::from_secs(60), |span| span.path.starts_with(prefix));
        tail.spans.into_iter().filter(|span| span.path.starts_with(prefix)).collect::<Vec<Span>>()
    };
    for (name, _) in own {
        let prefix = format!("/{name}-");
        let (calls, served) = (of(&agents[0], &prefix), of(&agents[1], &prefix));
        let by_path = spans::by_path(calls.iter());
        let ours = segments.iter().filter(|segment| segment.six == (name == "six"));
        let (mut right, mut longest) = (0u64, 0);
        for segment in ours {
            let Some(option) = &segment.option else { continue };
            let path = path(&segment.payload).unwrap_or_else(|| panic!("no request begins there: {segment:?}"));
            let [call] = by_path.get(path.as_str()).map_or(&[][..], Vec::as_slice) else {
                panic!("{path}: calls {:?}", by_path.get(path.as_str()))
            };
            assert_eq!(option, &theirs(&call.trace, &call.id, DRAWN), "{path}: not what it would read");
            let at = segment.kinds.iter().position(|kind| *kind == 25);
            assert!(at.is_some() && at == segment.kinds.iter().rposition(|kind| *kind == 25), "twice: {segment:?}");
            assert!(segment.header <= 60, "{segment:?}");
            longest = longest.max(segment.header);
            right += 1;
        }
        let ids: HashMap<&str, &Span> = calls.iter().map(|call| (call.id.as_str(), call)).collect();
        let (mut matched, mut wrong) = (0u64, 0);
        for span in &served {
            match span.parent.as_deref().map(|parent| ids.get(parent)) {
                Some(Some(call)) if call.path == span.path && call.trace == span.trace => matched += 1,
                Some(_) => wrong += 1,
                None => {}
            }
        }
        let version = if name == "six" { 6 } else { 4 };
        figure(
            &format!("inband_tshark_{name}"),
            &format!(
                "IPv{version}: {right} of {count} requests on {connections} kept connections as it would read them, \
                 {matched} matched, {wrong} wrong, headers of {longest} bytes at most"
            ),
        );
        assert_eq!(wrong, 0);
        assert!(right as f64 >= 0.999 * count as f64 && matched as f64 >= 0.999 * count as f64);
    }
    for agent in agents {
        agent.stop();
    }
}

/// Requests with hand-made options, by path.
struct Made {
    /// Expected trace id, span id and flags; `None`: not accepted.
    meant: HashMap<String, Option<(String, String, u8)>>,
    /// Arguments of the program that makes them.
    script: String,
}

/// `net`: the path names the upstream's IP version.
fn made(net: &str) -> Made {
    let mut all = Made { meant: HashMap::new(), script: String::new() };
    let mut serial = 0u32;
    let digits = |bytes: &[u8]| {
        bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    };
    let mut line = |kind: &str, options: &[(&str, u8)]| {
        let mut line = kind.to_owned();
        for (how, flags) in options {
            serial += 1;
            let number = u128::from(serial) + if net == "six" { 0x600 } else { 0x400 };
            let trace = format!("{:032x}", 0xa1b2_c3d4_e5f6_0718_293a_4b5c_6d7e_0000 + number);
            let span = format!("{:016x}", 0x0123_4567_89ab_0000 + number);
            let mut option = theirs(&trace, &span, *flags);
            let mut meant = Some((trace, span, *flags));
            match *how {
                "as it writes" => {}
                // It writes this form only with other flags, but reads it.
                "flags and sampled" => {
                    option.push(*flags);
                    option[1] = 27;
                }
                "none" => option.clear(),
                "short" => {
                    option.truncate(24);
                    option[1] = 24;
                }
                "long" => {
                    option.extend([0, 0]);
                    option[1] = 28;
                }
                "no trace" => option[2..18].fill(0),
                "no span" => option[18..26].fill(0),
                other => panic!("{other}"),
            }
            if !matches!(*how, "as it writes" | "flags and sampled") {
                meant = None;
            }
            let path = format!("/{net}/{serial}");
            let _ = write!(line, " {path}={}", digits(&option));
            all.meant.insert(path, meant);
        }
        all.script += &line;
        all.script.push('\n');
    };
    let sampled = ("as it writes", 1);
    for kind in ["ack", "early"] {
        line(kind, &[sampled, ("none", 1), sampled, ("as it writes", 0), sampled, sampled]);
        line(kind, &[("flags and sampled", 1), ("as it writes", 0)]);
        line(kind, &[("short", 1), sampled, ("long", 1), ("no trace", 1), ("no span", 1), sampled]);
    }
    all
}

#[test]
fn what_others_write_is_read_and_passed_on() {
    let Some(_turn) = begin("what_others_write_is_read_and_passed_on", &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(3, PLAIN);
    hosts.six();
    let agents = [alone(&hosts, 2, "middle", dir.path()), alone(&hosts, 3, "origin", dir.path())];
    let proxy = |name: &str| {
        format!(
            "location /{name}/ {{ proxy_pass http://{name}; proxy_http_version 1.1; proxy_set_header Connection \"\"; }}"
        )
    };
    let _nginxes = [
        nginx(&hosts, 3, dir.path(), "location / { return 200 \"here\"; }"),
        nginx(&hosts, 2, dir.path(), &format!("{} {}", proxy("four"), proxy("six"))),
    ];
    // The kernel knows nothing about connections that no local process opened.
    let rules = dir.path().join("rules");
    let text = format!(
        "table inet made {{\nchain o {{\ntype filter hook output priority 0;\ntcp sport {MADE}-{} tcp flags & rst == rst drop\n}}\n}}\n",
        MADE + 99
    );
    std::fs::write(&rules, text).unwrap_or_else(|error| panic!("{error}"));
    let mut nft = hosts.command(1, &find("nft").unwrap_or_else(|| panic!("no nft")));
    assert!(nft.arg("-f").arg(&rules).status().is_ok_and(|status| status.success()), "nft");
    let shark = Shark::start(&hosts, 3, dir.path());
    let mut meant = HashMap::new();
    let own: [(&str, [IpAddr; 2]); 2] = [
        ("four", [hosts.own(1).into(), hosts.own(2).into()]),
        ("six", [hosts.own_six(1).into(), hosts.own_six(2).into()]),
    ];
    for (name, [from, to]) in own {
        let made = made(name);
        let file = dir.path().join(format!("{name}.requests"));
        std::fs::write(&file, &made.script).unwrap_or_else(|error| panic!("{error}"));
        let mut command = hosts.command(1, &find("python3").unwrap_or_else(|| panic!("no python3")));
        command.arg(source("segments.py")).args([from.to_string(), to.to_string()]);
        command.args([PORT.to_string(), MADE.to_string()]).arg(&file);
        let mut process = Process::start("segments", &mut command, &dir.path().join(format!("{name}.log")));
        let status = process.wait(Duration::from_secs(60));
        assert!(status.success(), "{name}: {status}: {}", process.output());
        meant.extend(made.meant);
    }
    let segments = shark.stop(&hosts);
    let ours = |span: &Span| meant.contains_key(&span.path);
    let of = |agent: &Agent, each: usize| {
        let mut tail = Tail::new(&agent.transactions);
        tail.until(each * meant.len(), Duration::from_secs(60), ours);
        tail.spans.retain(ours);
        tail.spans
    };
    let (middle, origin) = (of(&agents[0], 2), of(&agents[1], 1));
    let lines = std::fs::read_to_string(&agents[0].transactions).unwrap_or_else(|error| panic!("{error}"));
    let mut read = 0;
    for (path, meant) in &meant {
        let one = |spans: &[Span], server: bool| {
            let found: Vec<Span> =
                spans.iter().filter(|span| span.path == *path && span.server == server).cloned().collect();
            let [span] = <[Span; 1]>::try_from(found).unwrap_or_else(|found| panic!("{path}: {found:?}"));
            span
        };
        let (served, call, last) = (one(&middle, true), one(&middle, false), one(&origin, true));
        let flags = if let Some((trace, span, flags)) = meant {
            assert_eq!((&served.trace, served.parent.as_ref()), (trace, Some(span)), "{path}: {served:?}");
            let line = lines.lines().find(|line| line.contains(&format!("\"span_id\":\"{}\"", served.id)));
            let line = line.unwrap_or_else(|| panic!("{path}: no line"));
            assert!(line.contains("\"parent_from\":\"tcp_option\""), "{line}");
            read += 1;
            *flags
        } else {
            assert_eq!(served.parent, None, "{path}: {served:?}");
            DRAWN
        };
        // The resulting call continues with its trace id and flags.
        assert_eq!((&call.trace, call.parent.as_ref()), (&served.trace, Some(&served.id)), "{path}: {call:?}");
        assert_eq!((&last.trace, last.parent.as_ref()), (&served.trace, Some(&call.id)), "{path}: {last:?}");
        let sent = segments.iter().find(|segment| self::path(&segment.payload).as_deref() == Some(path));
        let sent = sent.unwrap_or_else(|| panic!("{path}: tshark saw no such request"));
        assert_eq!(sent.option.as_ref(), Some(&theirs(&served.trace, &call.id, flags)), "{path}: {sent:?}");
    }
    let refused = hosts.inside(2, || agents[0].metrics().sum("tracer_inband_total", &[("outcome", "refused")]));
    say(&format!("{} requests with options made by hand, {refused} without ids", meant.len()));
    figure(
        "inband_theirs",
        &format!("{read} contexts as it writes them read and passed on, {} others left", meant.len() - read),
    );
    // On each network and for each kind of handshake one without a trace id, and one without a span id.
    assert_eq!(refused as u64, 8);
    for agent in agents {
        agent.stop();
    }
}
