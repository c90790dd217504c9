//! Faults: a full disk: written data stays readable, unwritten data is counted, tracing goes on. And a stalled disk:
//! tracing goes on, and pending data is written once the disk recovers.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::{self, Agent};
use tracer_tests::faults::{self, Figures};
use tracer_tests::spans::Tail;
use tracer_tests::vitals::Vitals;
use tracer_tests::workload::Server;
use tracer_tests::{begin, bpf, load, say, scratch, spans, wait};

/// A disk of its own in memory; unmounted when dropped.
struct Disk(PathBuf);

impl Disk {
    fn new(dir: &Path, bytes: u64) -> Self {
        let at = dir.join("disk");
        std::fs::create_dir(&at).expect("a directory");
        let done =
            Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]).arg(&at).output();
        let done = done.expect("mount");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Self(at)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn not_written(agent: &Agent, what: &str) -> f64 {
    agent.metrics().sum("tracer_events_lost_total", &[("reason", what)])
}

#[test]
fn a_full_disk_costs_files_and_nothing_else() {
    let Some(_turn) = begin("faults_disk", &["cc", "mount", "umount"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let port = server.address.port().to_string();
    let disk = Disk::new(dir.path(), faults::size(1 << 20, 16 << 20));
    let (file, recording) = (disk.0.join("spans.ndjson"), disk.0.join("recording"));
    // A file to remove later, to free space.
    let ballast = disk.0.join("ballast");
    std::fs::write(&ballast, vec![7; 128 * 1024]).expect("ballast");
    let path = recording.to_str().expect("a path").to_owned();
    let arguments = ["--hertz", "0", "--port", &port, "--record", &path];
    let mut agent = Agent::launch_writing("agent", dir.path(), &file, &arguments, |_| ()).ready();
    let held = bpf::held(agent.process().pid());

    // Far more than fits.
    let plans = faults::plans("full", 8, faults::size(500, 8000));
    let loaded = load::run(server.address, plans.clone());
    let sent: usize = plans.iter().map(Vec::len).sum();
    let written = wait("every span to be written or counted", Duration::from_secs(30), || {
        let written = Tail::new(&file).read().iter().filter(|span| span.path.starts_with("/full/")).count();
        let counted = not_written(&agent, "spans_not_written");
        // The port keeps out this test's own requests, which the agent also traces.
        ((written as f64 + counted) >= 2.0 * sent as f64).then_some(written)
    });
    let counted = not_written(&agent, "spans_not_written");
    let lost = faults::operations_lost(&agent.metrics());
    let records = not_written(&agent, "records_not_written");
    assert!(
        written < 2 * sent && counted > 0.0 && records > 0.0,
        "the disk was never full: {written} {counted} {records}"
    );
    let before = Vitals::of(agent.process().pid());
    assert!(
        (written as f64 + counted - 2.0 * sent as f64).abs() < 0.5,
        "{written} written, {counted} counted, {sent} sent"
    );
    let classes = agent.json("/api/v1/classes");
    let traced: u64 = classes["classes"].as_array().expect("classes").iter().filter_map(|c| c["count"].as_u64()).sum();
    assert_eq!(traced, 2 * sent as u64, "tracing went on: {classes}");

    // With space again, the agent writes spans again, and the file contains only whole lines.
    std::fs::remove_file(&ballast).expect("ballast");
    let again = faults::plans("room", 2, 20);
    let mut rounds = 0;
    wait("spans to be written again", Duration::from_secs(20), || {
        load::run(server.address, again.clone());
        rounds += 1;
        std::thread::sleep(Duration::from_millis(1200));
        Tail::new(&file).read().iter().any(|span| span.path.starts_with("/room/")).then_some(())
    });
    let after = Vitals::of(agent.process().pid());
    let ended = agent.end(libc::SIGTERM);
    // An incomplete recording is reported at the end.
    assert_eq!(ended.status.code(), Some(1), "{}", ended.output);
    for message in ["spans.ndjson", "recording has stopped", "spans are written again"] {
        assert!(ended.output.contains(message), "{message}:\n{}", ended.output);
    }
    let spans = spans::read(&file);
    // The part recorded before the disk was full can be replayed, and the replay names its end.
    let replayed = agent::command(&["replay", &path]);
    assert_eq!(replayed.code, Some(1), "{replayed:?}");
    assert!(replayed.err.contains("cut off") && replayed.out.contains("GET /full"), "{replayed:?}");
    say(&format!(
        "disk full: {written} spans written, {counted} counted, {records} records counted; with room again {} spans in \
         the file after {rounds} rounds",
        spans.len()
    ));
    let mut figures = Figures::of("disk full", format!("{} KiB", faults::size(1024, 16384)));
    figures.loaded(&loaded).growth(before, after).attached(bpf::left(&held));
    figures.note(format!("{written} spans written, {counted} counted as not written, {lost} operations lost")).finish();
}

/// A pipe without a reader takes some bytes and then none, like a stalled disk.
#[test]
fn a_disk_that_stalls_holds_up_nothing() {
    let Some(_turn) = begin("faults_disk", &["cc", "mkfifo"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let port = server.address.port().to_string();
    let config = dir.path().join("tracer.toml");
    // A blocked pipeline would trip the watchdog within this time.
    std::fs::write(&config, "[watchdog]\nstall = \"2s\"\n").expect("a configuration");
    let file = dir.path().join("spans.ndjson");
    assert!(Command::new("mkfifo").arg(&file).status().expect("mkfifo").success());
    // Without O_NONBLOCK the open would wait for a writer.
    let pipe = std::fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&file).expect("a pipe");
    let arguments = ["--hertz", "0", "--port", &port, "--config", config.to_str().expect("a path")];
    let mut agent = Agent::launch_writing("agent", dir.path(), &file, &arguments, |_| ()).ready();

    let plans = faults::plans("stalled", 4, 500);
    load::run(server.address, plans.clone());
    let sent = plans.iter().map(Vec::len).sum::<usize>();
    let traced = |agent: &Agent| -> u64 {
        let classes = agent.json("/api/v1/classes");
        classes["classes"].as_array().expect("classes").iter().filter_map(|class| class["count"].as_u64()).sum()
    };
    wait("every request to be traced", Duration::from_secs(30), || (traced(&agent) >= 2 * sent as u64).then_some(()));
    let waiting = |agent: &Agent| agent.metrics().sum("tracer_table_bytes", &[("table", "file_bytes")]);
    let waits =
        wait("spans to wait", Duration::from_secs(10), || Some(waiting(&agent)).filter(|bytes| *bytes > 100_000.0));
    // Longer than the watchdog lets a pipeline stall.
    std::thread::sleep(Duration::from_secs(3));
    load::run(server.address, faults::plans("meanwhile", 2, 20));
    wait("more to be traced", Duration::from_secs(10), || (traced(&agent) >= 2 * sent as u64 + 80).then_some(()));
    assert!(not_written(&agent, "spans_not_written") < 0.5, "all of it has room");

    // The pipe moves again.
    // SAFETY: this test's own descriptor; it blocks from here on.
    assert_eq!(unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&pipe), libc::F_SETFL, 0) }, 0);
    let reader = std::thread::spawn(move || {
        let lines = BufReader::new(pipe).lines().map_while(Result::ok);
        lines.filter(|line| line.contains("/stalled/") || line.contains("/meanwhile/")).count()
    });
    wait("nothing to wait", Duration::from_secs(10), || (waiting(&agent) < 0.5).then_some(()));
    assert!(agent.process().ended().is_none());
    let ended = agent.end(libc::SIGTERM);
    assert!(ended.status.success(), "{}", ended.output);
    let read = reader.join().expect("a reader");
    assert_eq!(read, 2 * sent + 80, "every span is in the file");
    say(&format!("disk stalled: {waits} bytes waited, {read} spans written"));
}
