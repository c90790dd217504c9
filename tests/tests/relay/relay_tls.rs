//! Encrypted connections between hosts, through address translation: curl and Python (host 1) call nginx (host 2), which
//! calls another nginx (host 3), all by TLS. Each request's parent is the call with the same path, on the other host.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::outcome;
use tracer_tests::chain::connected;
use tracer_tests::hosts::{Hosts, Nat};
use tracer_tests::process::Process;
use tracer_tests::spans::{Span, Tail, parents, report_parents};
use tracer_tests::tls::certificate;
use tracer_tests::workload::source;
use tracer_tests::{begin, figure, find, scratch, wait};

/// Where both servers listen.
const PORT: u16 = 18443;

/// nginx with TLS on a host.
fn nginx(hosts: &Hosts, host: u8, dir: &Path, (certificate, key): &(String, String), location: &str) -> Process {
    let base = dir.join(format!("nginx{host}"));
    std::fs::create_dir_all(&base).expect("a directory");
    let at = base.display();
    let configuration = format!(
        "user root; worker_processes 2; pid {at}/pid; error_log {at}/error.log warn; daemon off;
events {{ worker_connections 1024; }}
http {{ access_log off; keepalive_requests 1000000;
  client_body_temp_path {at}/a; proxy_temp_path {at}/b; fastcgi_temp_path {at}/c;
  uwsgi_temp_path {at}/d; scgi_temp_path {at}/e;
  upstream next {{ server {next}; keepalive 16; }}
  server {{ listen {PORT} ssl; ssl_certificate {certificate}; ssl_certificate_key {key};
    ssl_protocols TLSv1.2 TLSv1.3; location / {{ {location} }} }} }}\n",
        next = SocketAddr::from((hosts.address(3), PORT)),
    );
    let file = base.join("nginx.conf");
    std::fs::write(&file, configuration).expect("a configuration");
    let mut command = hosts.command(host, &find("nginx").expect("nginx"));
    command.arg("-p").arg(&base).arg("-c").arg(&file).arg("-e").arg(base.join("error.log"));
    let server = Process::start(&format!("nginx{host}"), &mut command, &base.join("log"));
    hosts.inside(host, || {
        let own = SocketAddr::from((hosts.own(host), PORT));
        wait("nginx to listen", Duration::from_secs(30), || TcpStream::connect(own).ok().map(drop));
    });
    server
}

#[test]
fn edges_inside_tls_through_both_translations() {
    let Some(_turn) = begin("relay_tls", &["ip", "nft", "nsenter", "nginx", "curl", "python3", "openssl"]) else {
        return;
    };
    let dir = scratch();
    let hosts = Hosts::new(3, Nat { destination: true, source: true });
    let files = certificate(dir.path());
    let _back = nginx(&hosts, 3, dir.path(), &files, "return 200 yes;");
    let passes = "proxy_pass https://next; proxy_http_version 1.1; proxy_set_header Connection \"\";";
    let _front = nginx(&hosts, 2, dir.path(), &files, passes);
    let agents: Vec<_> = (1..)
        .zip(["client", "front", "back"])
        .map(|(host, name)| hosts.agent(host, name, dir.path(), true, &["--hertz", "0", "--nice=-10"]))
        .collect();
    connected(&hosts, &agents);
    let front = SocketAddr::from((hosts.address(2), PORT));
    let mut sent = 0;
    for version in ["1.2", "1.3"] {
        for connection in 0..10 {
            let mut command = hosts.command(1, &find("curl").expect("curl"));
            command.args(["-sk", "--http1.1", "--tls-max", version]);
            for n in 0..5 {
                command.args(["-o", "/dev/null"]).arg(format!("https://{front}/curl/{version}-{connection}-{n}"));
                sent += 1;
            }
            assert_eq!(outcome(&mut command, "curl").code, Some(0));
        }
        let mut command: Command = hosts.command(1, &find("python3").expect("python3"));
        command.arg(source("tls_pair.py")).args(["ask", &front.to_string(), "10", "20", version, "/python"]);
        let asked = outcome(&mut command, "ask");
        assert_eq!(asked.code, Some(0), "{}", asked.err);
        sent += 200;
    }
    let is_ours =
        |span: &Span| span.protocol == "http" && (span.path.starts_with("/curl/") || span.path.starts_with("/python/"));
    // nginx in the middle has both ends of what it passes on.
    let mut spans: Vec<Vec<Span>> = Vec::new();
    for (agent, sides) in agents.iter().zip([1, 2, 1]) {
        let mut tail = Tail::new(&agent.transactions);
        let have = tail.until(sent * sides, Duration::from_secs(30), is_ours);
        assert_eq!(have, sent * sides, "spans of one agent");
        spans.push(tail.spans);
    }
    for agent in agents {
        agent.stop();
    }
    for (place, pair) in ["curl and Python to nginx", "nginx to nginx"].into_iter().zip(spans.windows(2)) {
        let [calling, called] = pair else { panic!("two agents") };
        let calls: Vec<Span> = calling.iter().filter(|span| is_ours(span) && !span.server).cloned().collect();
        let served = called.iter().filter(|span| is_ours(span) && span.server);
        // A parent that is not one of these calls counts as wrong.
        let (count, right, wrong, _) = report_parents(place, &parents(&calls, served));
        figure(&format!("inside TLS, {place}"), &format!("{right} of {count} with their call, {wrong} wrong"));
        assert_eq!((wrong, count), (0, sent as u64));
        assert_eq!(right, count, "{place}");
    }
}
