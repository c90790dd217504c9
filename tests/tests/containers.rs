//! Containers as the kernel shows them: a server in a control group named as Kubernetes and Docker name theirs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::workload::{Server, compile};
use tracer_tests::{begin, load, say, scratch, wait};

const ID: &str = "3f1c5d0a9be84c27a1d2e3f405162738495a6b7c8d9e0f1a2b3c4d5e6f708192";
const POD: &str = "2b801b7a-5266-4386-864e-45ed71136371";

/// Directories of the unified hierarchy, or systemd's; removed when dropped.
struct Groups(Vec<PathBuf>);

impl Groups {
    /// Makes `path` below the root of the hierarchy, directory by directory; returns why not, if this machine refuses.
    fn new(path: &str) -> Result<Self, String> {
        let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup", "/sys/fs/cgroup/systemd"];
        let root = roots.iter().map(Path::new).find(|root| root.join("cgroup.procs").exists());
        let mut dir = root.ok_or("no hierarchy of control groups")?.to_owned();
        let mut groups = Self(Vec::new());
        for part in path.split('/') {
            dir.push(part);
            std::fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
            groups.0.push(dir.clone());
        }
        Ok(groups)
    }

    fn enter(&self, pid: u32) {
        let procs = self.0.last().expect("a directory").join("cgroup.procs");
        std::fs::write(procs, pid.to_string()).expect("a process in its group");
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for dir in self.0.iter().rev() {
            let _ = std::fs::remove_dir(dir);
        }
    }
}

#[test]
fn a_services_containers_are_those_of_its_processes() {
    let Some(_turn) = begin("containers", &["cc"]) else { return };
    let own = std::process::id();
    let groups = [format!("tracer-tests-{own}/kubepods/burstable/pod{POD}/{ID}"), format!("docker-{ID}.scope")];
    let groups = match groups.iter().map(|path| Groups::new(path)).collect::<Result<Vec<_>, _>>() {
        Ok(groups) => groups,
        Err(why) => return say(&format!("containers: not tested: {why}")),
    };
    let dir = scratch();
    let program = compile(dir.path(), "origin");
    let start = |index| Server::start(&format!("server-{index}"), dir.path(), &mut Command::new(&program));
    let servers: Vec<Server> = (0..3).map(start).collect();
    groups[0].enter(servers[0].process.pid());
    groups[1].enter(servers[1].process.pid());
    let agent = Agent::start(dir.path(), &[]);
    let expected = [Some(("", Some(POD))), Some(("docker", None)), None];
    for (index, (server, expected)) in servers.iter().zip(expected).enumerate() {
        let name = format!("server-{index}");
        let service = wait("the service", Duration::from_secs(20), || {
            load::until(server.address, 1, &["/"], Instant::now() + Duration::from_millis(50));
            let services = agent.json("/api/v1/services");
            let found = services["services"].as_array()?.iter().find(|one| one["service_name"] == *name)?.clone();
            (found["count"].as_u64()? > 0).then_some(found)
        });
        let containers = service["containers"].as_array().expect("containers");
        let Some((runtime, pod)) = expected else {
            // The tests may run in a container themselves.
            assert!(containers.iter().all(|one| one["id"] != ID), "{service}");
            continue;
        };
        assert_eq!(containers.len(), 1, "{service}");
        let one = &containers[0];
        assert_eq!((one["id"].as_str(), one["processes"].as_u64()), (Some(ID), Some(1)), "{service}");
        assert_eq!((one["runtime"].as_str().unwrap_or_default(), one["pod_uid"].as_str()), (runtime, pod), "{service}");
    }
    say("containers: a pod's container by its path, Docker's by its scope, none on the host");
    agent.stop();
    drop(servers);
}
