//! Where the code of running programs is not that of their files: a probe replaces a byte of it while it is there.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Longest part that is compared at once.
const PART: u64 = 1 << 20;

/// The bytes of a process's code that differ from its files: the file and the place in it. Panics if the process has none.
pub fn of(pid: u32) -> Vec<(String, u64)> {
    let read = |path: String| File::open(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let maps = format!("/proc/{pid}/maps");
    let maps = std::fs::read_to_string(&maps).unwrap_or_else(|error| panic!("{maps}: {error}"));
    let memory = read(format!("/proc/{pid}/mem"));
    let (mut found, mut compared) = (Vec::new(), 0);
    for line in maps.lines() {
        // Range, permissions, place in the file, device, inode, file.
        let mut words = line.split_whitespace();
        let (Some(range), Some("r-xp"), Some(offset), _, _, Some(path)) =
            (words.next(), words.next(), words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        let hexadecimal = |word| u64::from_str_radix(word, 16).unwrap_or_else(|error| panic!("{line}: {error}"));
        let (from, to) = range.split_once('-').unwrap_or_else(|| panic!("{line}"));
        let (from, to, offset) = (hexadecimal(from), hexadecimal(to), hexadecimal(offset));
        if !Path::new(path).is_file() {
            continue;
        }
        let file = read(path.to_owned());
        for at in (0..to - from).step_by(PART as usize) {
            let mut code = vec![0; (to - from - at).min(PART) as usize];
            memory.read_exact_at(&mut code, from + at).unwrap_or_else(|error| panic!("{line}: {error}"));
            let mut original = vec![0; code.len()];
            // The last page goes on behind the file's end.
            let known = file.read_at(&mut original, offset + at).unwrap_or_else(|error| panic!("{path}: {error}"));
            let pairs = code.iter().zip(&original).take(known).enumerate();
            let differ = pairs.filter(|(_, (now, before))| now != before);
            found.extend(differ.map(|(place, _)| (path.to_owned(), offset + at + place as u64)));
            compared += known;
        }
    }
    assert!(compared > 0, "process {pid} has no code");
    found
}
