//! The agent as a service of type notify: it says READY when it traces and serves, that it lives, and that it stops.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::{begin, http, scratch};

/// The next report; panics if none comes within a minute (five in an emulated guest).
fn report(socket: &UnixDatagram) -> String {
    let limit = Duration::from_secs(if tracer_tests::scale() < 1.0 { 300 } else { 60 });
    socket.set_read_timeout(Some(limit)).expect("a limit");
    let mut bytes = [0; 512];
    let length = socket.recv(&mut bytes).unwrap_or_else(|error| panic!("no report: {error}"));
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[test]
fn it_is_ready_when_it_traces_and_serves() {
    let Some(_turn) = begin("service_manager", &[]) else { return };
    let dir = scratch();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    let agent = Agent::launch_with("agent", dir.path(), &[], |command| {
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "60000000").env_remove("WATCHDOG_PID");
    });
    let first = report(&socket);
    assert!(first.starts_with("READY=1\nSTATUS=tracing"), "{first}");
    // Asked once, without another try: whoever waits for READY may count on it.
    let ready = http::get(agent.listen, "/readyz").expect("HTTP is served once READY was sent");
    assert_eq!(ready.status, 200, "{}", ready.text());
    for _ in 0..2 {
        assert_eq!(report(&socket), "WATCHDOG=1");
    }
    agent.stop();
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match report(&socket).as_str() {
            "STOPPING=1" => break,
            other => assert_eq!(other, "WATCHDOG=1"),
        }
        assert!(Instant::now() < end, "the agent did not say that it stops");
    }
}
