//! Policies of a fleet from a bucket, signed by openssl: new ones are taken up, others change nothing, and an agent whose
//! bucket is gone starts with what it kept.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::bucket::{NAME, Store};
use tracer_tests::workload::Server;
use tracer_tests::{begin, free_port, http, say, scratch, wait};

const SOON: Duration = Duration::from_secs(30);

fn openssl(dir: &Path, arguments: &str) {
    let done = Command::new("openssl").args(arguments.split(' ')).current_dir(dir).output().expect("openssl");
    assert!(done.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A document with this version whose only rule gives `/item/…` a class; and its signature by a key.
fn policies(dir: &Path, version: u64, class: &str, key: &str) -> (Vec<u8>, Vec<u8>) {
    let text = format!("version = {version}\n[[class]]\nname = \"{class}\"\npath = \"/item/**\"\n");
    std::fs::write(dir.join("document"), &text).expect("a file");
    openssl(dir, &format!("pkeyutl -sign -rawin -inkey {key} -in document -out signature"));
    (text.into_bytes(), std::fs::read(dir.join("signature")).expect("a signature"))
}

fn upload(store: &Store, (document, signature): &(Vec<u8>, Vec<u8>)) {
    store.put("fleet/policies.toml", document);
    store.put("fleet/policies.toml.sig", signature);
}

fn looks(agent: &Agent, outcome: &str) -> u64 {
    agent.metrics().sum("tracer_fleet_policies_looks_total", &[("outcome", outcome)]) as u64
}

fn version(agent: &Agent) -> u64 {
    agent.metrics().sum("tracer_fleet_policies_version", &[]) as u64
}

/// Waits for a look from now on that ends like this.
fn wait_for_look(agent: &Agent, outcome: &str) {
    // One may be under way.
    let before = looks(agent, outcome);
    wait(outcome, SOON, || (looks(agent, outcome) >= before + 2).then_some(()));
}

/// Waits until requests are counted in this class.
fn wait_for_class(agent: &Agent, server: &Server, class: &str) {
    let count = || agent.metrics().sum("tracer_requests_total", &[("request_class", class)]);
    let before = count();
    wait(class, SOON, || {
        http::get(server.address, "/item/7").expect("a reply");
        (count() >= before + 3.0).then_some(())
    });
}

fn start(dir: &Path, config: &Path, server: &Server, store: SocketAddr) -> Agent {
    let port = server.address.port().to_string();
    let arguments = ["--config", config.to_str().expect("text"), "--port", &port];
    Agent::launch_with("agent", dir, &arguments, |command| Store::environment(command, store)).ready()
}

#[test]
fn policies_are_taken_when_they_are_newer_and_signed() {
    let Some(_turn) = begin("fleet_policies", &["cc", "openssl", "python3"]) else { return };
    if !Store::is_there() {
        return say("SKIPPED fleet_policies: needs the wheel moto");
    }
    let dir = scratch();
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let store = Store::start(dir.path(), address);
    let server = Server::c("origin", dir.path());
    for key in ["fleet.key", "other.key"] {
        openssl(dir.path(), &format!("genpkey -algorithm ed25519 -out {key}"));
    }
    openssl(dir.path(), "pkey -in fleet.key -pubout -out fleet.pem");
    let config = dir.path().join("tracer.toml");
    let at = dir.path().display();
    let fleet = format!(
        "policies = \"s3://{NAME}/fleet\"\npublic_key = \"{at}/fleet.pem\"\ncache = \"{at}/cache\"\npoll = \"1s\""
    );
    std::fs::write(&config, format!("[fleet]\n{fleet}\n")).expect("a file");

    // Nothing is there yet.
    let agent = start(dir.path(), &config, &server, address);
    wait_for_look(&agent, "failed");
    assert_eq!(version(&agent), 0);
    upload(&store, &policies(dir.path(), 1, "first", "fleet.key"));
    wait_for_class(&agent, &server, "first");
    // Published once a second.
    wait("version 1", SOON, || (version(&agent) == 1).then_some(()));
    wait_for_look(&agent, "same");

    // Another key's; a document without its own signature; an older one; another one with the same number.
    let newer = policies(dir.path(), 3, "third", "fleet.key");
    upload(&store, &newer);
    wait_for_class(&agent, &server, "third");
    wait("version 3", SOON, || (version(&agent) == 3).then_some(()));
    for wrong in [
        policies(dir.path(), 4, "forged", "other.key"),
        (policies(dir.path(), 4, "forged", "fleet.key").0, newer.1.clone()),
        policies(dir.path(), 2, "forged", "fleet.key"),
        policies(dir.path(), 3, "forged", "fleet.key"),
        (b"version = 5\n[agent]\n".to_vec(), newer.1.clone()),
    ] {
        upload(&store, &wrong);
        wait_for_look(&agent, "failed");
        assert_eq!(version(&agent), 3, "{}", String::from_utf8_lossy(&wrong.0));
    }
    wait_for_class(&agent, &server, "third");

    // Without the bucket: an agent goes on, and another starts with what was kept.
    drop(store);
    wait_for_look(&agent, "failed");
    wait_for_class(&agent, &server, "third");
    assert!(agent.metrics().sum("tracer_requests_total", &[("request_class", "forged")]) < 0.5);
    agent.stop();
    let agent = start(dir.path(), &config, &server, address);
    wait_for_class(&agent, &server, "third");
    agent.stop();
}
