//! CPU by command, user, cgroup and unit, with programs that know what they used, and the sums with `/proc/stat`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::process::Process;
use tracer_tests::stat::HostCpuSource;
use tracer_tests::workload::compile;
use tracer_tests::{begin, figure, say, scale, scratch, wait};

const GROUPINGS: [&str; 4] = ["command", "user", "cgroup", "unit"];
/// The cgroup of one of the programs.
const GROUP: &str = "tracer-toil.slice/toil.service";

/// Directories of a hierarchy; removed when dropped.
struct Groups(Vec<PathBuf>);

impl Groups {
    fn new() -> Result<Self, String> {
        let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup", "/sys/fs/cgroup/systemd"];
        let root = roots.iter().map(Path::new).find(|root| root.join("cgroup.procs").exists());
        let mut dir = root.ok_or("no hierarchy of control groups")?.to_owned();
        let mut groups = Self(Vec::new());
        for part in GROUP.split('/') {
            dir.push(part);
            std::fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
            groups.0.push(dir.clone());
        }
        Ok(groups)
    }

    /// The file that a process writes its id to in order to enter.
    fn procs(&self) -> PathBuf {
        self.0.last().expect("a directory").join("cgroup.procs")
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for dir in self.0.iter().rev() {
            // A killed process may not be reaped yet.
            let end = std::time::Instant::now() + Duration::from_secs(5);
            while std::fs::remove_dir(dir).is_err() && std::time::Instant::now() < end {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// CPU of the group `name`; 0 if there is none.
fn cpu(answer: &Value, name: &str) -> f64 {
    let groups = answer["workloads"].as_array().into_iter().flatten();
    groups.filter(|group| group["name"] == name).filter_map(|group| group["cpu_s"].as_f64()).sum()
}

fn number(answer: &Value, field: &str) -> f64 {
    answer[field].as_f64().unwrap_or_else(|| panic!("{field}: {answer}"))
}

/// The account when the agent has just renewed it, and the system's.
fn at_tick(agent: &Agent) -> (HostCpuSource, Value) {
    let account = || agent.json("/api/v1/workloads");
    let before = number(&account(), "attributed_cpu_s");
    wait("the agent's next second", Duration::from_secs(10), || {
        let now = account();
        (number(&now, "attributed_cpu_s") > before).then(|| (HostCpuSource::now(), now))
    })
}

#[test]
fn groups_are_what_their_programs_used_and_add_up_to_the_host() {
    let Some(_turn) = begin("workloads", &["cc", "setpriv", "sh"]) else { return };
    let groups = match Groups::new() {
        Ok(groups) => groups,
        Err(why) => return say(&format!("SKIPPED workloads: {why}")),
    };
    let dir = scratch();
    let program = compile(dir.path(), "toil");
    let copy = |name: &str| {
        let path = dir.path().join(name);
        std::fs::copy(&program, &path).expect("a copy");
        path
    };
    let open = |path: &Path| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    };
    open(dir.path());
    let agent = Agent::start(dir.path(), &["--nice=-10"]);
    let (before, first) = at_tick(&agent);

    let millis = (1000.0 * scale()).max(200.0);
    let start =
        |name: &str, command: &mut Command| Process::start(name, command, &dir.path().join(format!("{name}.log")));
    let burns = millis.to_string();
    let (plain, other, grouped, many) =
        (copy("toil-plain"), copy("toil-other"), copy("toil-grouped"), copy("toil-many"));
    let mut programs = [
        ("command", "toil-plain", start("toil-plain", Command::new(&plain).arg(&burns))),
        // Runs as another user from its first instruction on.
        (
            "user",
            "games",
            start(
                "toil-other",
                Command::new("setpriv").args(["--reuid", "games", "--clear-groups"]).arg(&other).arg(&burns),
            ),
        ),
        (
            "unit",
            "toil.service",
            start(
                "toil-grouped",
                Command::new("sh")
                    .args(["-c", "echo $$ > \"$0\" && exec \"$1\" \"$2\""])
                    .arg(groups.procs())
                    .args([grouped.as_os_str(), burns.as_ref()]),
            ),
        ),
        // Its children end within milliseconds.
        ("command", "toil-many", start("toil-many", Command::new(&many).arg("1").arg("200"))),
    ];
    let truths: Vec<f64> = programs
        .iter_mut()
        .map(|(_, _, program)| program.line("USED", Duration::from_secs(60)).parse().expect("a number"))
        .collect();

    // Threads report what they used within seconds.
    let mut seen = Vec::new();
    wait("the groups to have what their programs used", Duration::from_secs(20), || {
        seen = programs
            .iter()
            .map(|(by, name, _)| cpu(&agent.json(&format!("/api/v1/workloads?by={by}")), name))
            .collect();
        seen.iter().zip(&truths).all(|(seen, truth)| (seen / truth - 1.0).abs() < 0.03).then_some(())
    });
    for (((by, name, _), truth), seen) in programs.iter().zip(&truths).zip(&seen) {
        say(&format!("  {by} {name}: {truth:.3} s by getrusage, {seen:.3} s in its group"));
    }
    let by_command = agent.json("/api/v1/workloads?by=command");
    let cgroups = agent.json("/api/v1/workloads?by=cgroup");
    let own = cgroups["workloads"].as_array().into_iter().flatten();
    let named: Vec<&str> =
        own.filter_map(|group| group["name"].as_str()).filter(|name| name.ends_with(GROUP)).collect();
    assert_eq!(named.len(), 1, "{cgroups}");
    // Other commands of the same CPU.
    assert!((cpu(&by_command, "toil-grouped") / truths[2] - 1.0).abs() < 0.03, "{by_command}");
    assert!((cpu(&by_command, "toil-other") / truths[1] - 1.0).abs() < 0.03, "{by_command}");

    // In one answer everything adds up.
    for by in GROUPINGS {
        let answer = agent.json(&format!("/api/v1/workloads?by={by}"));
        let rows = answer["workloads"].as_array().expect("rows");
        let sum: f64 = rows.iter().filter_map(|row| row["cpu_s"].as_f64()).sum();
        let all = number(&answer, "workloads_cpu_s");
        assert!((sum - all).abs() < 1e-6, "{by}: {sum} of {all}");
        let parts = all + number(&answer, "kernel_cpu_s") + number(&answer, "unreported_cpu_s");
        assert!((parts - number(&answer, "attributed_cpu_s")).abs() < 1e-6, "{answer}");
    }
    let (after, last) = at_tick(&agent);
    let system = after.since(before).busy;
    let attributed = number(&last, "attributed_cpu_s") - number(&first, "attributed_cpu_s");
    let ratio = number(&last, "capture_ratio");
    say(&format!(
        "host: {attributed:.3} s attributed, /proc/stat {system:.3} s ({:+.2} %), capture ratio {ratio:.4}",
        100.0 * (attributed / system - 1.0)
    ));
    figure("capture ratio of workloads", &format!("{ratio:.4}"));
    assert!((0.98..=1.02).contains(&ratio), "{last}");
    // Counted by ticks of 10 ms, and read a little later.
    assert!((attributed / system - 1.0).abs() < 0.05, "{attributed} s, {system} s");

    let metrics = agent.metrics();
    let name = "tracer_workload_cpu_seconds_total";
    let sums: Vec<f64> = GROUPINGS.iter().map(|by| metrics.sum(name, &[("by", by)])).collect();
    assert!(sums.iter().all(|sum| (sum - sums[0]).abs() < 1e-3), "{sums:?}");
    assert!(metrics.of(name, &[("by", "command")]).count() <= 21, "too many series");
    assert!(agent.text("/workloads").contains("CPU by unit"));
    drop(programs);
    agent.stop();
}
