//! PostgreSQL's named portals, executed in parts as drivers with a fetch size do: each execution is a span of the
//! statement's class, compared with the server's own log.

use std::process::Command;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::postgresql::{Postgres, programs};
use tracer_tests::spans::{self, Span};
use tracer_tests::{begin, figure, find, peers, say, scale, scratch, secrets};

/// psycopg connects; the script then writes messages itself, as libpq has no portals.
const PYTHON: &str = r#"
import os, struct, sys, psycopg
rounds = int(20 * float(sys.argv[1])) + 3
c = psycopg.connect(autocommit=True)
fd = c.fileno()
os.set_blocking(fd, True)
def message(kind, fields):
    return kind + struct.pack(">i", len(fields) + 4) + fields
def text(*names):
    return b"".join(name.encode() + b"\0" for name in names)
def exactly(size):
    data = b""
    while len(data) < size:
        piece = os.read(fd, size - len(data))
        if not piece:
            sys.exit("the server has gone")
        data += piece
    return data
def ask(*messages):
    """Sends at once; kinds of what is answered up to ReadyForQuery."""
    os.write(fd, b"".join(messages))
    kinds = ""
    while not kinds.endswith("Z"):
        kind, size = struct.unpack(">ci", exactly(5))
        exactly(size - 4)
        kinds += kind.decode()
    return kinds
def execute(portal, rows):
    return message(b"E", text(portal) + struct.pack(">i", rows))
sync = message(b"S", b"")
ask(message(b"P", text("shared", "/*=SELECT pieces=*/ SELECT a, 'planted-literal' FROM pieces WHERE a <= $1") + struct.pack(">h", 0)), sync)
for n in range(rounds):
    ask(message(b"Q", text("BEGIN")))
    for portal in ("first", "second"):
        value = b"25"
        bind = message(b"B", text(portal, "shared") + struct.pack(">hhi", 0, 1, len(value)) + value + struct.pack(">h", 0))
        kinds = ask(bind, execute(portal, 10), sync)
        assert kinds == "2" + "D" * 10 + "sZ", kinds
    # In turns, the last piece is short and ends the portal.
    for rows, end in ((10, "s"), (10, "C")):
        for portal in ("first", "second"):
            kinds = ask(execute(portal, rows), sync)
            assert kinds == "D" * (10 if end == "s" else 5) + end + "Z", kinds
    # Two pieces and the end of a third portal in one send, without a Sync between them.
    bind = message(b"B", text("third", "shared") + struct.pack(">hhi", 0, 1, 2) + b"15" + struct.pack(">h", 0))
    kinds = ask(bind, execute("third", 10), execute("third", 10), message(b"C", b"P" + text("third")), sync)
    assert kinds == "2" + "D" * 10 + "s" + "D" * 5 + "C3Z", kinds
    ask(message(b"Q", text("COMMIT")))
print(rounds)
os._exit(0)
"#;

#[test]
fn pieces_of_portals_are_what_the_server_logs() {
    let Some(_turn) = begin("postgresql_portals", &["python3", "setpriv"]) else { return };
    if programs().is_none() {
        return say("SKIPPED postgresql_portals: needs PostgreSQL");
    }
    let dir = scratch();
    let server = Postgres::start(dir.path());
    let done = server.psql().args(["-c", "CREATE TABLE pieces AS SELECT generate_series(1, 25) AS a"]).status();
    assert!(done.expect("psql").success());
    let before = server.log().len();
    let port = server.address.port().to_string();
    let agent = Agent::start(dir.path(), &["--port", &port, "--nice=-10", "--max-cpu", "400%"]);
    let mut run = Command::new(find("python3").expect("python3"));
    server.tell(&mut run);
    run.args(["-c", PYTHON, &scale().to_string()]).env("OTEL_SERVICE_NAME", "python-client");
    let done = outcome(&mut run, "python3");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    let rounds: u64 = done.out.trim().parse().expect("rounds");
    let lost = peers::settled(&agent).lost();
    let file = agent.transactions.clone();
    secrets::none_shows(agent, dir.path(), &["planted-literal", "planted_user", "planted-password"], "SELECT pieces");
    let log = server.log().split_off(before);
    let logged = log.iter().filter(|one| one.step == "execute" && one.sql.contains("=SELECT pieces=")).count() as u64;
    assert_eq!(logged, 8 * rounds, "what the server logged of {rounds} rounds");
    let all = spans::read(&file);
    for side in [true, false] {
        let of = |class: &str| all.iter().filter(|u| u.server == side && u.class == class).collect::<Vec<&Span>>();
        let pieces = of("SELECT pieces");
        say(&format!("server {side}: {logged} pieces logged, {} found; lost {lost:?}", pieces.len()));
        assert_eq!(pieces.len() as u64, logged, "server {side}; lost {lost:?}");
        let wrong = pieces.iter().find(|span| span.outcome != "complete" || !span.error.is_empty());
        assert!(wrong.is_none(), "{wrong:?}");
        assert!(of("_UNNAMED").is_empty(), "{:?}", of("_UNNAMED").first());
    }
    figure("postgresql portals", &format!("{logged} pieces of {logged} at both ends"));
}
