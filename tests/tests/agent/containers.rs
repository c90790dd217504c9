//! Containers as the kernel shows them: a server in a control group named as Kubernetes and Docker name theirs, and one that
//! Podman started.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::process::Process;
use tracer_tests::workload::{Server, compile, source};
use tracer_tests::{begin, find, free_port, load, say, scratch, wait};

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

/// A container of Podman with the server `origin` in it, on the host's network; gone with its image when dropped.
struct Podman {
    name: String,
}

impl Podman {
    /// Arguments for machines without systemd, and those whose control groups only runc knows.
    fn command(arguments: &[&str]) -> Command {
        let mut command = Command::new("podman");
        command.args(["--cgroup-manager", "cgroupfs", "--runtime", "runc", "--events-backend", "none"]);
        command.args(arguments);
        command
    }

    fn ask(arguments: &[&str]) -> Result<String, String> {
        let out = Self::command(arguments).output().map_err(|error| error.to_string())?;
        let output = String::from_utf8_lossy(&out.stderr).trim().to_owned();
        if out.status.success() { Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned()) } else { Err(output) }
    }

    fn image(&self) -> String {
        format!("localhost/{}:1", self.name)
    }

    /// Makes an image of one static program and starts it; returns why not, if this machine starts no containers.
    fn start(dir: &Path) -> Result<Self, String> {
        let podman = Self { name: format!("tracer-test-{}", std::process::id()) };
        let image = dir.join("image");
        std::fs::create_dir(&image).expect("a directory");
        let mut command = Command::new("cc");
        command.args(["-O1", "-static", "-pthread", "-o"]).arg(image.join("origin")).arg(source("origin.c"));
        let built = command.output().expect("cc");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let archive = dir.join("image.tar");
        let packed = Command::new("tar").arg("-C").arg(&image).arg("-cf").arg(&archive).arg("origin").status();
        assert!(packed.is_ok_and(|status| status.success()));
        Self::ask(&["import", archive.to_str().expect("a path"), &podman.image()])?;
        // Limits that a machine without CAP_SYS_RESOURCE can set.
        let limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"];
        let place = ["create", "--name", &podman.name, "--network", "host", "--log-driver", "k8s-file"];
        Self::ask(&[&place[..], &limits, &[&podman.image(), "/origin"]].concat())?;
        Self::ask(&["start", &podman.name])?;
        Ok(podman)
    }

    /// Where its server listens.
    fn address(&self) -> SocketAddr {
        let port = wait("the container's server", Duration::from_secs(30), || {
            let output = Self::ask(&["logs", &self.name]).ok()?;
            output.lines().find_map(|line| line.strip_prefix("PORT ")?.trim().parse().ok())
        });
        SocketAddr::from(([127, 0, 0, 1], port))
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = Self::ask(&["rm", "--force", "--time", "0", &self.name]);
        let _ = Self::ask(&["rmi", "--force", &self.image()]);
    }
}

#[test]
fn podmans_containers_have_their_names() {
    let Some(_turn) = begin("containers_podman", &["cc", "tar", "podman", "runc", "rotel-agent"]) else { return };
    let dir = scratch();
    let podman = match Podman::start(dir.path()) {
        Ok(podman) => podman,
        Err(why) => return say(&format!("containers: Podman starts none here: {why}")),
    };
    let ports = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    let mut command = Command::new(find("rotel-agent").expect("found"));
    command.args(["start", "--exporter", "blackhole", "--debug-log", "traces", "--debug-log-verbosity", "detailed"]);
    command.args(["--otlp-grpc-endpoint", &ports[0], "--otlp-http-endpoint", &ports[1]]);
    let collector = Process::start("rotel", &mut command, &dir.path().join("rotel.log"));
    wait("the collector", Duration::from_secs(20), || std::net::TcpStream::connect(&ports[1]).ok());
    let to = format!("http://{}", ports[1]);
    let agent = Agent::launch_with("podman", dir.path(), &["--otlp", &to], |command| {
        command.env("OTEL_BSP_SCHEDULE_DELAY", "200");
    })
    .ready();
    let address = podman.address();
    let id = Podman::ask(&["inspect", "--format", "{{.Id}}", &podman.name]).expect("its id");
    let expected = [
        ("container.id", id.as_str()),
        ("container.runtime.name", "podman"),
        ("container.name", &podman.name),
        ("container.image.name", &format!("localhost/{}", podman.name)),
    ];
    wait("names of the container on its spans", Duration::from_secs(30), || {
        load::until(address, 1, &["/"], Instant::now() + Duration::from_millis(100));
        let text = collector.output();
        expected.iter().all(|(key, value)| text.contains(&format!("{key}: Str({value}"))).then_some(())
    });
    let services = agent.json("/api/v1/services");
    let all = services["services"].as_array().expect("services").iter().filter_map(|one| one["containers"].as_array());
    let own = all.flatten().find(|one| one["id"] == *id).unwrap_or_else(|| panic!("{services}"));
    assert_eq!((own["name"].as_str(), own["runtime"].as_str()), (Some(&*podman.name), Some("podman")), "{own}");
    assert_eq!(own["image"].as_str(), Some(&*podman.image()), "{own}");
    say(&format!("containers: {} by Podman, with its names", podman.name));
    agent.stop();
}
