//! The relay's line of `tracer doctor`: what a running agent says of its peers and their clocks, or what an agent would find.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::Value;
use tracer_kernel::features::{Feature, FeatureState};

use crate::config::{Config, Relay};

const NAME: &str = "other hosts (relay)";
/// How long the agent may take to say something.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most bytes of what it says.
const MOST: u64 = 4 << 20;
/// Clocks that are further apart than this, beyond the error, are worth a word; seconds.
const APART: f64 = 0.1;

/// The line; `None` where no other hosts are spoken to.
pub(super) fn relay(config: &Config) -> Option<Feature> {
    let relay = &config.relay;
    if !relay.is_on() {
        return None;
    }
    if let Err(why) = relay.settings() {
        return Some(less(why, "no agent starts with this configuration", "what the line says"));
    }
    if let Some(answer) = running(config.agent.listen) {
        return Some(judge(relay, &answer));
    }
    let Some(listen) = relay.listen else { return Some(Feature::full(NAME, "settings are good; no agent runs")) };
    Some(match TcpListener::bind(listen) {
        Ok(_) => Feature::full(NAME, format!("settings are good, {listen} can be listened on; no agent runs")),
        Err(error) => {
            let what = format!("{listen} cannot be listened on: {error}");
            less(
                what,
                "no agent starts with this configuration",
                "another address or port (relay.listen), of this host",
            )
        }
    })
}

fn less(detail: String, follows: &str, remedy: &str) -> Feature {
    Feature::less(NAME, FeatureState::Degraded, detail, follows, remedy)
}

/// What the agent with its console at `listen` says, where one is that speaks to others.
fn running(listen: SocketAddr) -> Option<Value> {
    let mut stream = TcpStream::connect_timeout(&listen, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let request = format!("GET /api/v1/peers HTTP/1.1\r\nHost: {listen}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut reply = Vec::new();
    stream.take(MOST).read_to_end(&mut reply).ok()?;
    let head = reply.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let answer: Value = serde_json::from_slice(reply.get(head + 4..)?).ok()?;
    (answer.get("enabled")? == true).then_some(answer)
}

fn judge(relay: &Relay, answer: &Value) -> Feature {
    let text = |peer: &Value, name: &str| peer.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let peers: Vec<&Value> = answer.get("peers").and_then(Value::as_array).into_iter().flatten().collect();
    let up = peers.iter().filter(|peer| text(peer, "state") == "up").count();
    let listens = answer.get("listen").and_then(Value::as_str);
    let mut detail = listens.map_or_else(|| "does not listen".to_owned(), |listen| format!("listens on {listen}"));
    detail.push_str(&format!("; {up} of {} sessions up", peers.len()));
    // Those that were looked for and are no agents are as they should be.
    let named = |peer: &&&Value| relay.peers.contains(&text(peer, "address")) && text(peer, "state") != "up";
    let lost: Vec<String> =
        peers.iter().filter(named).map(|peer| format!("{} ({})", text(peer, "address"), text(peer, "error"))).collect();
    if !lost.is_empty() {
        let what = format!("{detail}; not reached: {}", lost.join(", "));
        return less(
            what,
            "calls to those hosts are not joined to what they caused there",
            "an agent there, the same \
             key or authority, and a way through the firewall",
        );
    }
    let known = peers.iter().filter_map(|peer| {
        let of = |name: &str| peer.get(name).and_then(Value::as_f64);
        Some((text(peer, "host"), of("clock_offset_s")?, of("clock_error_s")?))
    });
    let Some((host, offset, error)) = known.max_by(|one, two| one.1.abs().total_cmp(&two.1.abs())) else {
        return Feature::full(NAME, detail);
    };
    detail.push_str(&format!("; clock of {host} {offset:+.6} s ± {error:.6} s"));
    if offset.abs() <= error + APART {
        return Feature::full(NAME, detail);
    }
    less(
        detail,
        "spans of one transaction stand apart in a viewer, by as much",
        "time synchronization (NTP, PTP) on both hosts",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Agent;
    use serde_json::json;

    #[test]
    fn what_an_agent_says_is_judged() {
        let relay = Relay { peers: vec!["db1:9465".into()], ..Relay::default() };
        let peer = |address: &str, state: &str, offset: Option<f64>| {
            json!({"address": address, "direction": "out", "state": state, "host": "db", "error": "refused",
                   "clock_offset_s": offset, "clock_error_s": offset.map(|_| 0.001)})
        };
        let judged =
            |peers: &[Value]| judge(&relay, &json!({"enabled": true, "listen": "10.0.0.1:9465", "peers": peers}));
        let good = judged(&[peer("db1:9465", "up", Some(0.05)), peer("10.0.0.9:9465", "down", None)]);
        assert_eq!(good.state, FeatureState::Full, "{}", good.line());
        assert!(good.line().contains("1 of 2 sessions up; clock of db +0.050000 s"), "{}", good.line());
        let lost = judged(&[peer("db1:9465", "down", None)]);
        assert!(lost.state == FeatureState::Degraded && lost.line().contains("db1:9465 (refused)"), "{}", lost.line());
        let apart = judged(&[peer("db1:9465", "up", Some(-3.0))]);
        assert!(apart.state == FeatureState::Degraded && apart.line().contains("NTP"), "{}", apart.line());
    }

    #[test]
    fn settings_that_no_agent_accepts_are_reported() {
        let of = |relay: Relay| {
            let agent = Agent { listen: ([127, 0, 0, 1], 1).into(), ..Agent::default() };
            super::relay(&Config { agent, relay, ..Config::default() })
        };
        assert!(of(Relay::default()).is_none(), "nothing to say");
        let listen = Some(([0, 0, 0, 0], 0).into());
        let blind = of(Relay { listen, ..Relay::default() }).unwrap();
        assert!(blind.state == FeatureState::Degraded && blind.detail.contains("without a key"));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "5a".repeat(32)).unwrap();
        let mode =
            |mode| std::fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        let with = || of(Relay { listen, key_file: Some(file.path().into()), ..Relay::default() }).unwrap();
        mode(0o644);
        assert!(with().detail.contains("chmod 600"));
        mode(0o600);
        assert_eq!(with().state, FeatureState::Full);
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = taken.local_addr().ok();
        assert!(of(Relay { listen, ..Relay::default() }).unwrap().detail.contains("cannot be listened on"));
    }
}
