//! Node.js: finds where callbacks of its event loop end, and where it keeps its async ids.
//!
//! Symbols name the functions that run timers and immediates. `node::Environment` has a libuv handle whose callback is
//! the second function, so a search of the program's heap for the function's address finds the environment. The handle
//! points to the loop, whose public layout gives the function that handles wake-ups from other threads; since libuv 1.52
//! (Node.js 24) only a number is there, and a symbol or the code of libuv gives the function. The async ids are near the
//! handle: four doubles, recognised by their invariants. So detection needs neither version tables nor offsets of private
//! structures, and libuv may be stripped.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tracer_common::runtime::{KIND_NODE, NUMBERS, Runtime, UserProbe};

use super::cheap_places::{CODE, place};
use super::elf::Program;
use super::maps::{Maps, name};
use super::{DetectionState, Found, Place};

/// The runtime's name.
const NAME: &str = "nodejs";

const TIMERS: &str = "_ZN4node11Environment9RunTimersEP10uv_timer_s";
const IMMEDIATES: &str = "_ZN4node11Environment14CheckImmediateEP10uv_check_s";
/// Not in every build; without these symbols, a connection accepted or opened between two reads is attributed to the
/// callback before.
const ACCEPTS: &str = "uv__server_io";
const CONNECTS: &str = "_ZN4node14ConnectionWrapINS_7TCPWrapE8uv_tcp_sE12AfterConnectEP12uv_connect_si";
const PIPES: &str = "_ZN4node14ConnectionWrapINS_8PipeWrapE9uv_pipe_sE12AfterConnectEP12uv_connect_si";

/// `uv_check_t` (libuv 1, public): offsets of its loop, type and callback.
const CHECK_LOOP: u64 = 8;
const CHECK_TYPE: u64 = 16;
const CHECK_CALLBACK: u64 = 96;
/// `UV_CHECK`.
const CHECK: u32 = 2;
/// `uv_loop_t.async_io_watcher` (libuv 1, public, Linux on 64 bits): begins with its callback; since 1.52 with a number.
const LOOP_ASYNC: u64 = 0x1c8;
/// The function that handles wake-ups from other threads, and an exported one of the same source file.
const MESSAGES: &str = "uv__async_io";
const BESIDE_MESSAGES: &str = "uv_async_init";
/// That function's check that the watcher is `LOOP_ASYNC` of its loop: `lea 0x1c8(%rdi),%rax; cmp %rax,%rsi`.
const MESSAGES_CODE: [u8; 10] = [0x48, 0x8d, 0x87, 0xc8, 0x01, 0, 0, 0x48, 0x39, 0xc6];
/// How far from [`BESIDE_MESSAGES`] that code may be.
const BESIDE: u64 = 16 << 10;
/// How far from its handles an environment may keep its async ids.
const AROUND: u64 = 16 << 10;
/// Most bytes of memory searched; bytes per read.
const MOST: u64 = 256 << 20;
const PIECE: u64 = 1 << 20;
/// Most bytes read of `/proc/PID/maps`.
const READ_LIMIT: u64 = 4 << 20;
/// Doubles represent all whole numbers up to this one.
const WHOLE: f64 = 9_007_199_254_740_992.0;

/// Detects Node.js in a process; `None` if there is none.
pub(super) fn recognise(pid: u32, maps: &Maps) -> Option<Found> {
    let library = maps.named(|name| name.starts_with("libnode.so"));
    let path = match library {
        Some(mapping) => mapping.path.as_str(),
        None if is_node(name(&maps.exe)) => maps.exe.as_str(),
        None => return None,
    };
    log::debug!("process {pid} runs Node.js: {path}");
    let bare = Runtime { kind: KIND_NODE, ..Runtime::default() };
    let found = Found::known(NAME, String::new(), bare);
    let less = |state| Some(found.clone().without(state));
    if !cfg!(target_arch = "x86_64") {
        return less(DetectionState::Unsupported);
    }
    let file = maps.open_by(path);
    let wanted = [TIMERS, IMMEDIATES, ACCEPTS, CONNECTS, PIPES, MESSAGES, BESIDE_MESSAGES];
    let Some(program) = Program::read(&file, &wanted) else { return less(DetectionState::Unreadable) };
    let (Some(timers), Some(immediates)) = (program.address(TIMERS), program.address(IMMEDIATES)) else {
        return less(DetectionState::NoSymbols);
    };
    let Some(bias) = program.bias(maps.of(path)) else { return less(DetectionState::Unreadable) };
    let Some(memory) = WritableMemory::of(pid) else { return less(DetectionState::Unreadable) };
    let Some(environment) = memory.environment(bias.wrapping_add(immediates)) else {
        return less(DetectionState::Unreadable);
    };
    let Some(messages) = messages(maps, path, &program, environment.messages) else {
        return less(DetectionState::Unreadable);
    };
    let mut places = vec![messages];
    for (probe, address) in [
        (UserProbe::NodeTimers, Some(timers)),
        (UserProbe::NodeImmediates, Some(immediates)),
        (UserProbe::NodeAccepts, program.address(ACCEPTS)),
        (UserProbe::NodeConnects, program.address(CONNECTS)),
        (UserProbe::NodePipes, program.address(PIPES)),
    ] {
        let Some(address) = address else { continue };
        let Some(offset) = program.offset(address) else { return less(DetectionState::Unreadable) };
        let cheap = maps.memory::<CODE>(bias.wrapping_add(address)).map_or(0, |code| cheapest(&code));
        places.push(Place { probe, file: file.clone(), offset: offset + cheap });
    }
    let mut at = [0; NUMBERS];
    at[0] = 1;
    at[1] = environment.ids.unwrap_or(0);
    Some(Found { runtime: Runtime { at, ..bare }, places, ..found })
}

/// Where the function is that handles wake-ups from other threads: in the program or in libuv. `watcher` is the first word
/// of the loop's watcher for them.
fn messages(maps: &Maps, path: &str, program: &Program, watcher: u64) -> Option<Place> {
    let place = |file: PathBuf, offset: u64| Place { probe: UserProbe::NodeMessages, file, offset };
    let of_libuv = |name: &str| name.starts_with("libuv.so");
    let shows = maps.files.iter().find(|mapping| (mapping.from..mapping.until).contains(&watcher));
    if let Some(shows) = shows.filter(|shown| shown.path == path || of_libuv(name(&shown.path))) {
        let cheap = maps.memory::<CODE>(watcher).map_or(0, |code| cheapest(&code));
        return Some(place(maps.open_by(&shows.path), watcher - shows.from + shows.offset + cheap));
    }
    let Some(library) = maps.named(of_libuv) else {
        let file = maps.open_by(path);
        let offset = messages_in(&file, program)?;
        return Some(place(file, offset));
    };
    let file = maps.open_by(&library.path);
    let libuv = Program::read(&file, &[MESSAGES, BESIDE_MESSAGES])?;
    let offset = messages_in(&file, &libuv)?;
    Some(place(file, offset))
}

/// The offset of that function in a file that contains libuv: by its symbol, or by its code.
fn messages_in(file: &Path, libuv: &Program) -> Option<u64> {
    let open = File::open(file).ok()?;
    if let Some(offset) = libuv.address(MESSAGES).and_then(|address| libuv.offset(address)) {
        let mut code = [0; CODE];
        open.read_exact_at(&mut code, offset).ok()?;
        return Some(offset + cheapest(&code));
    }
    let beside = libuv.offset(libuv.address(BESIDE_MESSAGES)?)?;
    let from = beside.saturating_sub(BESIDE);
    let mut code = Vec::new();
    let mut piece = open;
    piece.seek(SeekFrom::Start(from)).ok()?;
    piece.take(2 * BESIDE).read_to_end(&mut code).ok()?;
    Some(from + messages_code(&code)?)
}

/// Where in `code` the function makes its check; `None` unless at exactly one place.
fn messages_code(code: &[u8]) -> Option<u64> {
    let mut found = memchr::memmem::find_iter(code, &MESSAGES_CODE);
    let first = found.next()?;
    if found.next().is_some() {
        return None;
    }
    // The jump after it, where there is one: the kernel emulates it.
    let jump = first + MESSAGES_CODE.len();
    let jumps = matches!(code.get(jump..jump + 2), Some([0x0f, 0x80..=0x8f] | [0x70..=0x7f, _]));
    Some(if jumps { jump } else { first } as u64)
}

/// Whether a program's name means Node.js: `node`, `nodejs`, `node-22`.
pub(super) fn is_node(name: &str) -> bool {
    let rest = name.strip_prefix("nodejs").or_else(|| name.strip_prefix("node"));
    rest.is_some_and(|rest| rest.trim_start_matches(['-', '.']).bytes().all(|b| b.is_ascii_digit() || b == b'.'))
}

/// The cheapest offset for a probe in a function that starts with `code`. The programs there read no argument.
fn cheapest(code: &[u8]) -> u64 {
    place(code, 0).map_or(0, |(at, _)| at as u64)
}

/// The facts found in an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Environment {
    /// First word of the watcher for wake-ups from other threads: the address of the function, or a number.
    messages: u64,
    /// Address of the async ids.
    ids: Option<u64>,
}

/// The writable anonymous memory of a process.
struct WritableMemory {
    file: File,
    ranges: Vec<(u64, u64)>,
}

impl WritableMemory {
    fn of(pid: u32) -> Option<Self> {
        let mut text = Vec::new();
        File::open(format!("/proc/{pid}/maps")).ok()?.take(READ_LIMIT).read_to_end(&mut text).ok()?;
        let ranges = written(&String::from_utf8_lossy(&text));
        Some(Self { file: File::open(format!("/proc/{pid}/mem")).ok()?, ranges })
    }

    fn piece(&self, at: u64, len: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        self.file.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    }

    fn word(&self, at: u64) -> Option<u64> {
        number(&self.piece(at, 8)?, 0)
    }

    /// The first environment whose loop calls `immediates`: the main thread's, which is created first.
    fn environment(&self, immediates: u64) -> Option<Environment> {
        let pattern = immediates.to_ne_bytes();
        let mut left = MOST;
        for (from, to) in &self.ranges {
            let mut at = *from;
            while at < *to && left > 0 {
                let len = PIECE.min(to - at);
                left = left.saturating_sub(len);
                if let Some(bytes) = self.piece(at, len) {
                    for found in memchr::memmem::find_iter(&bytes, &pattern).filter(|found| found % 8 == 0) {
                        let handle = (at + found as u64).checked_sub(CHECK_CALLBACK);
                        if let Some(environment) = handle.and_then(|handle| self.around(handle)) {
                            return Some(environment);
                        }
                    }
                }
                at += len;
            }
        }
        None
    }

    /// The environment that has a check handle at `handle`, if there is one.
    fn around(&self, handle: u64) -> Option<Environment> {
        let kind = self.word(handle.checked_add(CHECK_TYPE)?)? as u32;
        if kind != CHECK {
            return None;
        }
        let of_loop = self.word(handle.checked_add(CHECK_LOOP)?)?;
        let messages = self.word(of_loop.checked_add(LOOP_ASYNC)?)?;
        let from = handle.saturating_sub(AROUND).max(self.ranges.iter().find(|(_, to)| handle < *to)?.0);
        let to = self.ranges.iter().find(|(_, to)| handle < *to)?.1.min(handle.saturating_add(AROUND));
        let bytes = self.piece(from, to.checked_sub(from)?)?;
        // An array of four: its length, its offset in its buffer, its address.
        let arrays = (0..bytes.len()).step_by(8).filter_map(|at| {
            let (count, offset) = (number(&bytes, at)?, number(&bytes, at + 8)?);
            let address = number(&bytes, at + 16)?;
            (count == 4 && offset < PIECE && address % 8 == 0 && address != 0).then_some(address)
        });
        let mut ids = arrays.filter(|address| self.piece(*address, 32).is_some_and(|bytes| are_ids(&bytes)));
        let first = ids.next();
        // Ambiguous if there are two candidates.
        let ids = if ids.any(|other| Some(other) != first) { None } else { first };
        Some(Environment { messages, ids })
    }
}

/// Whether these are a loop's async ids: execution, trigger, counter, default trigger.
fn are_ids(bytes: &[u8]) -> bool {
    let double = |n: usize| number(bytes, 8 * n).map_or(f64::NAN, f64::from_bits);
    let whole = |value: f64| value.fract() == 0.0 && value.abs() < WHOLE;
    let (execution, trigger, counter, default) = (double(0), double(1), double(2), double(3));
    // The environment itself has id 1.
    counter >= 1.0
        && [execution, trigger, counter, default].into_iter().all(whole)
        && (0.0..=counter).contains(&execution)
        && (0.0..=counter).contains(&trigger)
        && (-1.0..=counter).contains(&default)
}

/// Writable anonymous ranges from the text of `/proc/PID/maps`; the heap first.
fn written(maps: &str) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut heaps = 0;
    for line in maps.lines() {
        let mut words = line.splitn(6, ' ');
        let Some((from, to)) = words.next().and_then(|range| range.split_once('-')) else { continue };
        let (Some(access), path) = (words.next(), words.nth(3).unwrap_or_default().trim()) else { continue };
        let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16)) else { continue };
        if !access.starts_with("rw") || from >= to {
            continue;
        }
        if path == "[heap]" {
            found.insert(heaps, (from, to));
            heaps += 1;
        } else if path.is_empty() {
            found.push((from, to));
        }
    }
    found
}

/// The word at `at`.
fn number(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at.checked_add(8)?)?.first_chunk().map(|word| u64::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_are_it_are_known_by_name() {
        for (name, expected) in [
            ("node", true),
            ("nodejs", true),
            ("node18", true),
            ("node-22.1", true),
            ("node_exporter", false),
            ("nodetool", false),
            ("no", false),
        ] {
            assert_eq!(is_node(name), expected, "{name}");
        }
    }

    #[test]
    fn ids_are_known_by_what_they_are() {
        let bytes = |ids: [f64; 4]| ids.map(f64::to_ne_bytes).concat();
        for (ids, expected) in [
            ([0.0, 0.0, 26.0, -1.0], true),
            ([26.0, 1.0, 26.0, 26.0], true),
            ([27.0, 1.0, 26.0, -1.0], false),
            ([0.0, 0.0, 0.0, -1.0], false),
            ([0.5, 0.0, 26.0, -1.0], false),
            ([0.0, -1.0, 26.0, -1.0], false),
            ([0.0, 0.0, f64::NAN, -1.0], false),
            ([0.0, 0.0, f64::INFINITY, -1.0], false),
            ([0.0, 0.0, 2.1e-314, 0.0], false),
        ] {
            assert_eq!(are_ids(&bytes(ids)), expected, "{ids:?}");
        }
        assert!(!are_ids(&[0; 31]));
    }

    #[test]
    fn memory_is_looked_through_heap_first() {
        let maps = "00400000-0041f000 r--p 00000000 fe:01 1 /usr/bin/node\n\
                    00500000-00501000 rw-p 00000000 fe:01 1 /usr/bin/node\n\
                    00501000-00502000 rw-p 00000000 00:00 0 \n\
                    01a00000-01b00000 rw-p 00000000 00:00 0 [heap]\n\
                    7f00-8000 ---p 00000000 00:00 0 \n\
                    9-8 rw-p 00000000 00:00 0 \nnonsense\nx-y rw-p 0 0 0 \n";
        assert_eq!(written(maps), [(0x01a0_0000, 0x01b0_0000), (0x0050_1000, 0x0050_2000)]);
    }

    /// Looks like memory of a Node.js process from outside, in this process.
    #[repr(C, align(8))]
    struct Likeness {
        before: [u64; 64],
        handle: [u64; 14],
        array: [u64; 3],
        ids: [f64; 4],
        of_loop: [u64; 64],
    }

    #[test]
    fn an_environment_is_found_by_what_it_calls() {
        const CALLS: u64 = 0x0bad_cafe_0000_0dd1;
        let mut likeness = Box::new(Likeness {
            before: [0; 64],
            handle: [0; 14],
            array: [4, 0, 0],
            ids: [0.0, 0.0, 26.0, -1.0],
            of_loop: [0; 64],
        });
        let ids = likeness.ids.as_ptr() as u64;
        // The function's address alone is no handle.
        likeness.before[40] = CALLS;
        likeness.array[2] = ids;
        likeness.of_loop[LOOP_ASYNC as usize / 8] = 0x1234;
        likeness.handle[CHECK_LOOP as usize / 8] = likeness.of_loop.as_ptr() as u64;
        likeness.handle[CHECK_TYPE as usize / 8] = u64::from(CHECK);
        likeness.handle[CHECK_CALLBACK as usize / 8] = CALLS;
        // Only this memory: other tests use and free the rest of this process's meanwhile.
        let from = std::ptr::from_ref(&*likeness) as u64;
        let ranges = vec![(from, from + size_of::<Likeness>() as u64)];
        let memory = WritableMemory { ranges, ..WritableMemory::of(std::process::id()).expect("this process") };
        let expected = Environment { messages: 0x1234, ids: Some(ids) };
        assert_eq!(memory.environment(CALLS), Some(expected));
        assert_eq!(memory.around(likeness.handle.as_ptr() as u64), Some(expected));
        assert_eq!(memory.environment(CALLS + 8), None);
        likeness.handle[CHECK_TYPE as usize / 8] = 0;
        assert_eq!(memory.environment(CALLS), None);
    }

    #[test]
    fn memory_of_a_process_is_found() {
        let own = Box::new(0u64);
        let at = std::ptr::from_ref(&*own) as u64;
        let memory = WritableMemory::of(std::process::id()).expect("this process");
        assert!(memory.ranges.iter().any(|(from, to)| (*from..*to).contains(&at)));
    }

    #[test]
    fn a_stripped_libuv_shows_by_its_code_where_it_takes_messages() {
        // Debian's libuv 1.53, from the function's first byte on.
        let newer: &[u8] = b"\xf3\x0f\x1e\xfa\x48\x83\xec\x38\x64\x48\x8b\x04\x25\x28\x00\x00\x00\x48\x89\x44\x24\x18\
            \x48\x8d\x87\xc8\x01\x00\x00\x48\x39\xc6\x0f\x85\x8f\x78\xff\xff\x48\x89\x5c\x24\x20";
        assert_eq!(messages_code(newer), Some(32));
        assert_eq!(messages_code(&newer[..32]), Some(22));
        assert_eq!(messages_code(&newer[..31]), None);
        assert_eq!(messages_code(&[newer, newer].concat()), None);
    }

    #[test]
    fn functions_are_probed_where_it_costs_least() {
        assert_eq!(cheapest(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55]), 4);
        assert_eq!(cheapest(&[0x55, 0x48, 0x89, 0xe5, 0x41]), 0);
        // `uv__async_io` of Node.js 20: `lea 0x1c8(%rdi),%rax; cmp %rax,%rsi; jne`.
        assert_eq!(cheapest(b"\x48\x8d\x87\xc8\x01\x00\x00\x48\x39\xc6\x75\x05\xe9\xdf\xfe\xff"), 10);
        assert_eq!(cheapest(b"\x0f\x05\x55"), 0);
    }
}
