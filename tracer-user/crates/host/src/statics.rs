//! Address ranges of a process's static data: that of its program, and of the interpreter or virtual machine in it.

use std::fs::File;
use std::io::Read;

/// Most bytes read of `/proc/PID/maps`.
const READ_LIMIT: u64 = 4 << 20;
/// Most ranges reported.
pub const RANGES: usize = 3;
/// Libraries that are an interpreter or a virtual machine, by the prefix of their file names.
const MACHINES: [&str; 4] = ["libpython", "libjvm.", "libruby", "libphp"];

/// The ranges of a process, unused ones empty; `None` if it is gone.
pub fn read(pid: u32) -> Option<[(u64, u64); RANGES]> {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let mut text = Vec::new();
    File::open(format!("/proc/{pid}/maps")).ok()?.take(READ_LIMIT).read_to_end(&mut text).ok()?;
    Some(ranges(&String::from_utf8_lossy(&text), &exe.to_string_lossy()))
}

/// The ranges in the text of `/proc/PID/maps`: writable mappings of those files, and the zeroed data behind them.
fn ranges(maps: &str, exe: &str) -> [(u64, u64); RANGES] {
    let mut found = [(0, 0); RANGES];
    let mut used = 0;
    // End of the last range: an anonymous mapping directly behind it belongs to it.
    let mut open = None;
    for line in maps.lines() {
        let Some((from, to, access, path)) = mapping(line) else { continue };
        let own =
            path == exe || path.rsplit('/').next().is_some_and(|name| MACHINES.iter().any(|m| name.starts_with(m)));
        let behind = path.is_empty() && open == Some(from);
        if !access.starts_with("rw") || !(behind || own) {
            open = None;
            continue;
        }
        open = Some(to);
        if let Some(last) = found.get_mut(..used).and_then(<[(u64, u64)]>::last_mut).filter(|last| last.1 == from) {
            last.1 = to;
        } else if let Some(range) = found.get_mut(used) {
            *range = (from, to);
            used += 1;
        }
    }
    found
}

/// Start, end, access and path of a line.
fn mapping(line: &str) -> Option<(u64, u64, &str, &str)> {
    let mut words = line.splitn(6, ' ');
    let (from, to) = words.next()?.split_once('-')?;
    let access = words.next()?;
    let path = words.nth(3).unwrap_or_default().trim();
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?, access, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
00400000-0041f000 r--p 00000000 fe:01 1 /usr/bin/python3.11
00a21000-00bb2000 rw-p 00620000 fe:01 1 /usr/bin/python3.11
00bb2000-00ce4000 rw-p 00000000 00:00 0 
01a00000-01b00000 rw-p 00000000 00:00 0 [heap]
7f00-8000 rw-p 00000000 00:00 0 
7f10000000-7f10001000 rw-p 00000000 fe:01 2 /usr/lib/libc.so.6
7f20000000-7f20001000 rw-p 00000000 fe:01 3 /opt/a b/libpython3.12.so.1.0
7f20002000-7f20003000 rw-p 00000000 00:00 0 
nonsense
";

    #[test]
    fn data_of_program_and_interpreter_with_its_zeroed_part() {
        let found = ranges(MAPS, "/usr/bin/python3.11");
        assert_eq!(found, [(0x00a2_1000, 0x00ce_4000), (0x7f_2000_0000, 0x7f_2000_1000), (0, 0)]);
    }

    #[test]
    fn this_process_has_static_data() {
        static LOCK: std::sync::Mutex<u64> = std::sync::Mutex::new(7);
        let at = std::ptr::from_ref(&LOCK) as u64;
        let found = read(std::process::id()).expect("this process");
        assert!(found.iter().any(|(from, to)| (*from..*to).contains(&at)), "{at:x} in {found:x?}");
    }
}
