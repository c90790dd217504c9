//! Runs test programs, shows their output and sums up the results: passed, failed, skipped, and by name.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::shell;

/// The line a test prints if it cannot run here: `SKIPPED name: reason`.
const SKIPPED: &str = "SKIPPED ";

/// Last lines of a failed program repeated after everything else: most of a backtrace and what preceded it.
const LAST: usize = 120;

/// Most tests of a run that may fail once and pass when rerun. More of them are not bad luck: the run fails.
const MOST_RERUNS: usize = 2;

/// Stands for a failed test of unknown name.
const NAMELESS: &str = "a test whose name was not printed";

/// The sums of a test run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    passed: usize,
    failed: Vec<String>,
    skipped: Vec<String>,
    /// Tests that failed and passed when rerun.
    unsteady: Vec<String>,
    /// Total time of reruns.
    rerun_time: Duration,
    /// The last lines of failed programs.
    lines: Vec<String>,
}

impl Tally {
    /// Counts one test outside of libtest.
    pub(crate) fn add(&mut self, name: &str, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.passed += 1,
            Err(error) => {
                let error = format!("error: {name}: {error:#}");
                eprintln!("{error}");
                self.lines.push(error);
                self.failed.push(name.to_owned());
            }
        }
    }

    /// Counts one test that cannot run here.
    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        self.skipped.push(format!("{name}: {reason}"));
    }

    /// Tests that failed.
    pub(crate) fn failed(&self) -> &[String] {
        &self.failed
    }

    /// The number of failures in the last line.
    fn failures(&self) -> usize {
        self.failed.len() + usize::from(self.steady().is_err())
    }

    /// Tests that could not run.
    pub(crate) fn skipped(&self) -> &[String] {
        &self.skipped
    }

    /// Total time of reruns.
    pub(crate) fn rerun_time(&self) -> Duration {
        self.rerun_time
    }

    /// Fails if more tests than allowed passed only when rerun.
    pub(crate) fn steady(&self) -> Result<()> {
        if self.unsteady.len() > MOST_RERUNS {
            let names = self.unsteady.join(", ");
            bail!("{} tests passed only when run once more, at most {MOST_RERUNS} may: {names}", self.unsteady.len());
        }
        Ok(())
    }

    /// Runs a test program (or cargo running several) and counts. `name` stands for it if it dies without output.
    pub(crate) fn run(&mut self, command: &mut Command, name: &str) -> Result<()> {
        let sums = whole(command, name, show)?;
        self.take(sums);
        Ok(())
    }

    /// The same for tests that watch the whole machine, which other activity can disturb: reruns each failed test once,
    /// alone, and if it passes then, reports and counts that. `command` makes the command for arguments. The first
    /// run's output is shown when it has ended, and marked if it failed, so that only what counts reads as a failure.
    pub(crate) fn run_twice(&mut self, command: impl Fn(&[&str]) -> Command, name: &str) -> Result<()> {
        let mut lines = Vec::new();
        let first = whole(&mut command(&[]), name, |line| lines.push(line.to_owned()))?;
        let mark = if first.named { "first run | " } else { "" };
        for line in lines {
            show(&format!("{mark}{line}"));
        }
        self.twice(first, |failed| {
            shell::print(format!("first run | of {}; run once more", failed.join(", ")));
            let mut only: Vec<&str> = vec!["--exact"];
            only.extend(failed.iter().map(String::as_str));
            whole(&mut command(&only), name, show)
        })
    }

    fn twice(&mut self, mut first: Whole, again: impl FnOnce(&[String]) -> Result<Whole>) -> Result<()> {
        if first.named {
            first.sums.lines.clear();
            let failed = std::mem::take(&mut first.sums.failed);
            let begin = Instant::now();
            let again = again(&failed)?;
            self.rerun_time += begin.elapsed();
            self.unsteady.extend(failed.into_iter().filter(|name| !again.sums.failed.contains(name)));
            self.take(again);
        }
        self.take(first);
        Ok(())
    }

    fn take(&mut self, Whole { sums, .. }: Whole) {
        self.passed += sums.passed;
        self.failed.extend(sums.failed);
        self.skipped.extend(sums.skipped);
        self.unsteady.extend(sums.unsteady);
        self.lines.extend(sums.lines);
    }

    /// Prints the last output of failed programs, their names, the number of reruns, then the sums as the last line.
    /// Too many reruns count as one failure: the last line alone shows whether the run passed.
    pub(crate) fn print(&self) {
        for line in &self.lines {
            shell::print(line);
        }
        for name in &self.skipped {
            shell::print(format!("{SKIPPED}{name}"));
        }
        for name in &self.unsteady {
            shell::print(format!("UNSTEADY {name}: failed, and passed when run once more"));
        }
        for name in &self.failed {
            shell::print(format!("FAILED {name}"));
        }
        let again = self.unsteady.len();
        if let Err(error) = self.steady() {
            shell::print(format!("FAILED {error:#}"));
        }
        shell::print(format!("{again} passed only when run once more, of at most {MOST_RERUNS}"));
        let (failed, skipped) = (self.failures(), self.skipped.len());
        shell::print(format!("{} passed, {failed} failed, {skipped} skipped", self.passed));
    }
}

/// The result of a test program.
struct Whole {
    sums: Tally,
    /// Some tests failed, and their names are known.
    named: bool,
}

fn whole(command: &mut Command, name: &str, mut see: impl FnMut(&str)) -> Result<Whole> {
    let mut last = VecDeque::new();
    let (status, mut sums) = watch(command, |line| {
        see(line);
        if last.len() == LAST {
            last.pop_front();
        }
        last.push_back(line.to_owned());
    })?;
    let named = !sums.failed.is_empty() && !sums.failed.iter().any(|name| name == NAMELESS);
    if sums.failed.is_empty() && !status.success() {
        sums.failed.push(format!("{name} ({status})"));
    }
    if !sums.failed.is_empty() {
        sums.lines.push(format!("---- the last of {name}, which failed ({status}) ----"));
        sums.lines.extend(last);
    }
    Ok(Whole { sums, named })
}

/// Shows a line. A closed reader of our output must not stop the tests.
fn show(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Runs a command, passes its output on line by line, and parses libtest's messages in it.
fn watch(command: &mut Command, mut see: impl FnMut(&str)) -> Result<(std::process::ExitStatus, Tally)> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{}`", shell::shown(command)))?;
    let (send, lines) = mpsc::channel();
    let pipes: [Option<Box<dyn Read + Send>>; 2] =
        [child.stdout.take().map(|p| Box::new(p) as _), child.stderr.take().map(|p| Box::new(p) as _)];
    for pipe in pipes.into_iter().flatten() {
        let send = send.clone();
        thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n') {
                let Ok(line) = line else { break };
                if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
    }
    drop(send);
    let mut reader = OutputReader::default();
    for line in lines {
        see(&line);
        reader.line(&line);
    }
    let status = child.wait().context("cannot wait for the test program")?;
    Ok((status, reader.end()))
}

/// Parses libtest's output.
#[derive(Default)]
struct OutputReader {
    tally: Tally,
    /// Names under the latest `failures:`.
    failures: Vec<String>,
    listing: bool,
    /// Tests that printed SKIPPED; libtest counts them as passed.
    skipped: usize,
}

impl OutputReader {
    fn line(&mut self, line: &str) {
        // With --nocapture the line begins with libtest's `test name ... `.
        if let Some((_, rest)) = line.split_once(SKIPPED)
            && rest.contains(": ")
        {
            self.tally.skipped.push(rest.trim().to_owned());
            self.skipped += 1;
        } else if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ignored")) {
            let reason = name.1.trim_start_matches(',').trim();
            let reason = if reason.is_empty() { "marked #[ignore]" } else { reason };
            self.tally.skipped.push(format!("{}: {reason}", name.0));
        } else if line == "failures:" {
            self.failures.clear();
            self.listing = true;
        } else if let Some(sums) = line.strip_prefix("test result: ") {
            self.listing = false;
            let number = |word: &str| {
                let before = sums.split(&format!(" {word}")).next().unwrap_or_default();
                before.rsplit(' ').next().and_then(|n| n.parse::<usize>().ok()).unwrap_or(0)
            };
            self.tally.passed += number("passed");
            let failed = number("failed");
            self.failures.truncate(failed);
            while self.failures.len() < failed {
                self.failures.push(NAMELESS.into());
            }
            self.tally.failed.append(&mut self.failures);
        } else if self.listing
            && let Some(name) = line.strip_prefix("    ")
            && !name.starts_with(' ')
        {
            self.failures.push(name.to_owned());
        }
    }

    fn end(mut self) -> Tally {
        self.tally.passed = self.tally.passed.saturating_sub(self.skipped);
        self.tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Tally {
        let mut reader = OutputReader::default();
        text.lines().for_each(|line| reader.line(line));
        reader.end()
    }

    #[test]
    fn sums_of_several_programs() {
        let tally = read(
            "running 2 tests\ntest a ... ok\ntest b ... ok\n\ntest result: ok. 2 passed; 0 failed; 0 ignored; 0 measured\n\
             test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        );
        assert_eq!(tally, Tally { passed: 5, ..Tally::default() });
    }

    #[test]
    fn names_of_failures_come_from_the_last_list() {
        let tally = read(
            "failures:\n\n---- a::b stdout ----\n    indented output\n\nfailures:\n    a::b\n\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out",
        );
        assert_eq!(tally, Tally { passed: 1, failed: vec!["a::b".into()], ..Tally::default() });
    }

    #[test]
    fn skipped_is_not_passed() {
        let tally = read(
            "test uring ... SKIPPED uring: no liburing\nok\nSKIPPED v6: IPv6 is off\ntest slow ... ignored, takes a day\n\
             test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out",
        );
        let skipped = ["uring: no liburing", "v6: IPv6 is off", "slow: takes a day"].map(String::from).to_vec();
        assert_eq!(tally, Tally { passed: 1, skipped, ..Tally::default() });
    }

    #[test]
    fn a_program_that_dies_silently_has_failed() {
        let mut tally = Tally::default();
        tally.run(Command::new("sh").args(["-c", "seq 200; exit 3"]), "silent").expect("sh");
        assert_eq!(tally.failed(), ["silent (exit status: 3)"]);
        assert_eq!(tally.lines.len(), LAST + 1, "{:?}", tally.lines);
        assert_eq!(tally.lines.last().map(String::as_str), Some("200"));
    }

    #[test]
    fn more_than_two_that_pass_only_when_run_once_more_fail_the_run() {
        let mut tally = Tally { unsteady: vec!["a".into(), "b".into()], ..Tally::default() };
        assert!(tally.steady().is_ok());
        assert_eq!(tally.failures(), 0);
        tally.unsteady.push("c".into());
        assert!(tally.steady().is_err());
        assert_eq!(tally.failures(), 1);
    }

    #[test]
    fn a_test_that_fails_once_is_listed_and_one_that_fails_twice_has_failed() {
        let first = || {
            let lines = vec!["first".into()];
            let sums = Tally { passed: 1, failed: vec!["a".into(), "b".into()], lines, ..Tally::default() };
            Whole { sums, named: true }
        };
        let mut tally = Tally::default();
        let again = |failed: &[String]| {
            assert_eq!(failed, ["a", "b"]);
            let lines = vec!["again".into()];
            Ok(Whole { sums: Tally { passed: 1, failed: vec!["b".into()], lines, ..Tally::default() }, named: true })
        };
        tally.twice(first(), again).expect("sums");
        let unsteady = vec!["a".into()];
        // The second run's result counts.
        let lines = vec!["again".into()];
        tally.rerun_time = Duration::ZERO;
        assert_eq!(tally, Tally { passed: 2, failed: vec!["b".into()], unsteady, lines, ..Tally::default() });
        // A program that died has no names to rerun.
        let mut tally = Tally::default();
        tally.twice(Whole { named: false, ..first() }, |_| unreachable!()).expect("sums");
        assert_eq!(tally.failed(), ["a", "b"]);
    }
}
