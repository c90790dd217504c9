//! CPU of processes by `/proc`: the truth that books of subsystems are checked against.

use std::fs::File;
use std::io::Read;

/// Nanoseconds of a tick of `USER_HZ`, which is 100 on every processor this builds for.
const TICK: u64 = 10_000_000;
/// Most bytes read of a file.
const BYTES: u64 = 4096;

/// CPU of a process, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessCpu {
    /// Its own, its ended threads included.
    pub own: u64,
    /// Of its ended children, which it has waited for, and of theirs.
    pub children: u64,
}

/// Parses `/proc/PID/stat`; also the number of threads.
pub fn parse(stat: &str) -> Option<(ProcessCpu, u64)> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    // The first field here is the third in proc(5).
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let own = field(14)?.saturating_add(field(15)?).saturating_mul(TICK);
    let children = field(16)?.saturating_add(field(17)?).saturating_mul(TICK);
    Some((ProcessCpu { own, children }, field(20)?))
}

/// Reads a process; `None` if it is gone. A process of one thread is read to the nanosecond where the kernel counts them.
pub fn read(pid: u32) -> Option<ProcessCpu> {
    let (cpu, threads) = parse(&text(&format!("/proc/{pid}/stat"))?)?;
    let exact = (threads == 1).then(|| text(&format!("/proc/{pid}/schedstat"))).flatten();
    let exact = exact.and_then(|text| text.split_ascii_whitespace().next()?.parse::<u64>().ok());
    Some(ProcessCpu { own: exact.filter(|exact| *exact > 0).unwrap_or(cpu.own), ..cpu })
}

/// CPU of these processes, a server and its children; those that are gone are missing. The server has to be the first: a child that
/// ends between two reads is missing until the next time, and not counted twice.
pub fn each(pids: &[u32]) -> Vec<(u32, ProcessCpu)> {
    pids.iter().filter_map(|pid| Some((*pid, read(*pid)?))).collect()
}

fn text(path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_stat() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 50 6 7 8 20 0 12 0 900 4096000 55 0";
        assert_eq!(parse(stat), Some((ProcessCpu { own: 560_000_000, children: 150_000_000 }, 12)));
        for bad in ["", "7 (a) S 1", "7", "7 (x) S 1 7 7 0 -1 4194560 1 2 3 4 x 6 7 8 20 0 12"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert!(read(std::process::id()).is_some_and(|cpu| cpu.own > 0));
        assert_eq!((read(0), each(&[u32::MAX, 0])), (None, Vec::new()));
    }
}
