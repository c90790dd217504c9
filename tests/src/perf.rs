//! `perf record --call-graph dwarf` beside the agent: stacks of the same processes by another unwinder.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::call_pairs::Place;
use crate::process::Process;

/// How long perf may take to end, and to walk what it copied.
const END: Duration = Duration::from_secs(120);

/// A running `perf record`.
#[derive(Debug)]
pub struct Perf {
    process: Process,
    data: PathBuf,
}

impl Perf {
    /// Starts it for `pids` and what they start, `hertz` times a second of CPU; waits until it writes. `method` is one of
    /// `--call-graph`.
    pub fn start(dir: &Path, method: &str, pids: &[u32], hertz: u32) -> Self {
        let data = dir.join("perf.data");
        let list = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut command = Command::new(crate::find("perf").unwrap_or_else(|| panic!("no perf")));
        command.args(["record", "-e", "cpu-clock", "--call-graph", method, "-m", "2M"]);
        command.args(["-F", &hertz.to_string(), "-p", &list, "-o"]).arg(&data);
        let process = Process::start("perf", &mut command, &dir.join("perf.log"));
        crate::wait("perf", END, || std::fs::metadata(&data).is_ok_and(|about| about.len() > 0).then_some(()));
        Self { process, data }
    }

    /// Ends it; the user frames of each sample, innermost first. Callers are places of their calls.
    pub fn stop(mut self) -> Vec<Vec<Place>> {
        self.process.signal(libc::SIGINT);
        self.process.wait(END);
        let mut command = Command::new(crate::find("perf").unwrap_or_else(|| panic!("no perf")));
        command.args(["script", "-F", "pid,ip,dso", "--no-inline", "--max-stack", "512", "-i"]).arg(&self.data);
        let done = command.output().unwrap_or_else(|error| panic!("perf script: {error}"));
        assert!(done.status.success(), "perf script: {}", String::from_utf8_lossy(&done.stderr));
        parse(&String::from_utf8_lossy(&done.stdout))
    }
}

/// Reads `perf script -F pid,ip,dso`: a line with the process, lines `offset (file)`, an empty line.
fn parse(text: &str) -> Vec<Vec<Place>> {
    let sample = |sample: &str| sample.lines().filter_map(frame).collect::<Vec<_>>();
    text.split("\n\n").map(sample).filter(|frames| !frames.is_empty()).collect()
}

fn frame(line: &str) -> Option<Place> {
    let (offset, file) = line.strip_prefix(['\t', ' '])?.trim().split_once(' ')?;
    let file = file.strip_prefix('(')?.strip_suffix(')')?.trim_end_matches(" (deleted)");
    // Of the kernel: `[kernel.kallsyms]`, and its modules.
    if file.starts_with("[kernel") || (file.starts_with('[') && file != "[vdso]" && file != "[unknown]") {
        return None;
    }
    let is_code =
        (file.starts_with('/') && !file.starts_with("//") && !file.starts_with("/tmp/perf-")) || file == "[vdso]";
    let offset = u64::from_str_radix(offset, 16).ok()?;
    Some(if is_code { Place::Code { file: file.into(), offset } } else { Place::Generated })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_perf_script() {
        let text = "  245 \n\tffffffff81 ([kernel.kallsyms])\n\t  4e49 (/usr/lib/libc.so.6)\n\t 7f00 ([unknown])\n\n  9 \n\t12 ([vdso])\n\n7 \n\n";
        let code = |file: &str, offset| Place::Code { file: file.into(), offset };
        assert_eq!(
            parse(text),
            [vec![code("/usr/lib/libc.so.6", 0x4e49), Place::Generated], vec![code("[vdso]", 0x12)]]
        );
    }
}
