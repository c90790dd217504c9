//! tokio (Rust): a thread-local value of the program holds the id of the task that a thread polls, and one function for
//! each kind of scheduler binds new tasks.
//!
//! The code of `context::set_current_task_id`, which is not generic, shows where the value is: it loads the old id from
//! where it stores the new one. Where link-time optimisation inlined it into its callers, the drop of `TaskIdGuard`,
//! which restores the old id, shows it. So no version's layout needs to be known. In a stripped program only tokio's
//! presence and version can be detected, from source paths in its panic messages.

mod wakers;

use std::fs::File;

use tracer_common::runtime::{KIND_TOKIO, NUMBERS, Runtime, TOKIO_WATCHABLE, TOKIO_WATCHED, UserProbe};

use super::go::Source;
use super::go::image::{Image, Section, X86_64, number};
use super::maps::Maps;
use super::rust_functions::{self, FoundFunction};
use super::{DetectionState, Found, Place, WatchWakes};

/// The runtime's name.
const NAME: &str = "tokio";
/// What precedes and follows tokio's version in a source path of the program.
const PATH: &[u8] = b"/tokio-1.";
const BEHIND: &[u8] = b"/src/";
/// Parts of mangled names that both mangling schemes contain.
const SETS: &[u8] = b"5tokio7runtime7context19set_current_task_id";
const GUARD: &[u8] = b"TaskIdGuard";
const DROP: &[u8] = b"Drop";
const TASKS: &[u8] = b"7runtime4task4list";
const BINDS: &[u8] = b"10bind_inner";
const WAKER: &[u8] = b"5tokio7runtime4task5waker";
const WAKES: &[u8] = b"wake_by_";
const POOL: &[u8] = b"7runtime8blocking4pool";
const QUEUES: &[u8] = b"7Spawner10spawn_task";
/// Most bytes searched of constants, and how many are read at once.
const CONSTANTS: usize = 32 << 20;
const PIECE: usize = 1 << 20;
/// Bytes searched of the function that sets the id: it has some 90.
const CODE: u64 = 512;
/// How far below the thread pointer a thread-local value may be, bytes.
const VALUES: i64 = 1 << 20;
/// Most copies of the function that binds tasks: one for each kind of scheduler of each version of tokio.
const COPIES: usize = 8;

/// A program with tokio in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// tokio's version; empty if not found.
    pub version: Box<str>,
    /// Whether its tasks can be distinguished.
    pub state: DetectionState,
    /// Offset of the current task id from the thread pointer.
    pub current: i64,
    /// File offsets where tasks are bound.
    pub binds: Vec<u64>,
    /// File offsets where tasks are woken.
    pub wakes: Vec<u64>,
    /// File offsets where closures are queued for threads of their own.
    pub closures: Vec<u64>,
}

/// Inspects a program's file; `None` if tokio is not found.
pub fn inspect<S: Source + ?Sized>(file: &S) -> Option<Program> {
    let image = Image::read(file)?;
    let version = version(&image);
    let mut program = match functions(&image) {
        Some(functions) if !functions.sets.is_empty() || version.is_some() => known(&image, &functions),
        _ if version.is_some() => Program {
            version: "".into(),
            state: DetectionState::NoSymbols,
            current: 0,
            binds: Vec::new(),
            wakes: Vec::new(),
            closures: Vec::new(),
        },
        _ => return None,
    };
    program.version = version.unwrap_or_default();
    if image.machine != X86_64 {
        program.state = DetectionState::Unsupported;
    }
    Some(program)
}

/// Detects tokio in a process; `None` if there is none.
pub(super) fn recognise(pid: u32, maps: &Maps, wakers: WatchWakes) -> Option<Found> {
    let path = maps.open_by(&maps.exe);
    let program = inspect(&File::open(&path).ok()?)?;
    log::debug!("process {pid} runs tokio: {program:x?}");
    let mut at = [0; NUMBERS];
    at[0] = program.current as u64;
    let always = wakers == WatchWakes::Always;
    at[1] = match wakers {
        _ if program.wakes.is_empty() => 0,
        WatchWakes::Always => TOKIO_WATCHED,
        WatchWakes::OnDemand => TOKIO_WATCHABLE,
        WatchWakes::Never => 0,
    };
    let place = |probe, offset| Place { probe, file: path.clone(), offset };
    if always && program.state == DetectionState::Known && program.wakes.is_empty() {
        log::warn!("process {pid} runs tokio, and where tasks are woken is not known");
    }
    // That a closure is over shows by a wake-up.
    let closures = if program.wakes.is_empty() { Vec::new() } else { program.closures };
    let closures = closures.into_iter().map(|at| place(UserProbe::TokioClosure, at));
    let wakes = program.wakes.into_iter().map(|at| place(UserProbe::TokioWoken, at));
    let wakes: Vec<Place> = wakes.chain(closures).collect();
    let (extra, on_demand) = wakers.split(wakes);
    let found = Found {
        name: NAME,
        version: program.version.into(),
        state: program.state,
        runtime: Runtime { kind: KIND_TOKIO, at, ..Runtime::default() },
        places: program.binds.into_iter().map(|at| place(UserProbe::TokioSpawned, at)).collect(),
        extra,
        on_demand,
    };
    Some(if program.state == DetectionState::Known { found } else { found.without(program.state) })
}

/// The version in a source path.
fn version<S: Source + ?Sized>(image: &Image<'_, S>) -> Option<Box<str>> {
    let constants = image.section(".rodata")?;
    let mut from = 0;
    let end = (constants.size as usize).min(CONSTANTS);
    while from < end {
        // Pieces overlap, so that a path across a boundary is found.
        let piece = Section { offset: constants.offset.checked_add(from as u64)?, ..constants.clone() };
        let bytes = image.bytes(&piece, PIECE.min(end - from))?;
        for found in memchr::memmem::find_iter(&bytes, PATH) {
            let rest = bytes.get(found + PATH.len()..).unwrap_or_default();
            let rest = rest.get(..rest.len().min(16)).unwrap_or_default();
            let len = rest.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
            if len > 0 && rest.get(len..).is_some_and(|rest| rest.starts_with(BEHIND)) {
                let digits = rest.get(..len).unwrap_or_default();
                return Some(format!("1.{}", String::from_utf8_lossy(digits)).into());
            }
        }
        from += PIECE - 64;
    }
    None
}

/// tokio's functions: addresses and sizes.
#[derive(Debug, Default)]
struct Functions {
    sets: Vec<(u64, u64)>,
    /// Used where the setters were inlined into their callers.
    puts_back: Vec<(u64, u64)>,
    binds: Vec<u64>,
    wakes: Vec<(u64, u64)>,
    closures: Vec<u64>,
}

/// The role of a tokio function, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Sets,
    PutsBack,
    Binds,
    Wakes,
    Closures,
}

/// Finds tokio's functions; `None` if the program has no readable symbol table.
fn functions<S: Source + ?Sized>(image: &Image<'_, S>) -> Option<Functions> {
    let wanted = [
        (SETS, &b""[..], Role::Sets),
        (GUARD, DROP, Role::PutsBack),
        (BINDS, TASKS, Role::Binds),
        (WAKER, WAKES, Role::Wakes),
        (POOL, QUEUES, Role::Closures),
    ];
    let mut found = Functions::default();
    for FoundFunction { role, address, size } in rust_functions::find(image, &wanted)? {
        match role {
            Role::Sets => found.sets.push((address, size)),
            Role::PutsBack => found.puts_back.push((address, size)),
            Role::Binds if !found.binds.contains(&address) => found.binds.push(address),
            Role::Wakes if !found.wakes.contains(&(address, size)) => found.wakes.push((address, size)),
            Role::Closures if !found.closures.contains(&address) => found.closures.push(address),
            Role::Binds | Role::Wakes | Role::Closures => {}
        }
    }
    Some(found)
}

/// Detects how the program's tasks can be distinguished.
fn known<S: Source + ?Sized>(image: &Image<'_, S>, functions: &Functions) -> Program {
    let mut program = Program {
        version: "".into(),
        state: DetectionState::NoSymbols,
        current: 0,
        binds: Vec::new(),
        wakes: Vec::new(),
        closures: Vec::new(),
    };
    let setters = if functions.sets.is_empty() { &functions.puts_back } else { &functions.sets };
    let mut places = setters.iter().map(|(address, size)| {
        let code = image.code(*address, (*size).min(CODE) as usize)?;
        if functions.sets.is_empty() { put_back(&code) } else { swapped(&code) }
    });
    let Some(first) = places.next() else { return program };
    // Two versions of tokio in one program: which one runs a thread is not known.
    let Some(at) = first.filter(|first| places.all(|other| other == Some(*first))) else {
        program.state = DetectionState::UnknownVersion;
        return program;
    };
    (program.state, program.current) = (DetectionState::Known, at);
    let binds: Option<Vec<u64>> = functions.binds.iter().take(COPIES).map(|address| image.place(*address)).collect();
    match binds {
        Some(binds) => program.binds = binds,
        None => program.state = DetectionState::Unreadable,
    }
    let wakes = functions.wakes.iter().take(2 * COPIES).map(|(address, size)| {
        let code = image.code(*address, (*size).min(CODE) as usize)?;
        image.place(address.checked_add(wakers::gentle(&code) as u64)?)
    });
    program.wakes = wakes.collect::<Option<_>>().unwrap_or_default();
    program.closures = functions.closures.iter().take(COPIES).filter_map(|address| image.place(*address)).collect();
    program
}

/// A memory operand (x86-64): the base register and the displacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MemoryOperand {
    base: u8,
    add: i64,
}

/// [`MemoryOperand::base`]: the thread pointer (`%fs`); `OWN_AND` plus a register's number: that plus the register.
const OWN: u8 = 16;
const OWN_AND: u8 = 17;
/// Opcodes that [`moves`] decodes: `mov` to memory, `mov` from memory, `lea`.
const STORE: u8 = 0x89;
const LOAD: u8 = 0x8b;
const ADDRESS: u8 = 0x8d;
/// `%rdi`, the first argument.
const ARGUMENT: u8 = 7;

/// Decodes an eight-byte `mov` between a register and memory, or a `lea`: opcode, register, memory operand, length.
fn moves(code: &[u8]) -> Option<(u8, u8, MemoryOperand, usize)> {
    if let [0x64, rest @ ..] = code {
        // `%fs:ADD`, without a register and with one.
        if let [rex @ (0x48 | 0x4c), what @ (STORE | LOAD), modes, 0x25, ..] = *rest
            && modes & 0xc7 == 4
        {
            let add = i64::from(number::<4>(rest, 4)? as u32 as i32);
            return Some((what, (modes >> 3 & 7) | (rex << 1 & 8), MemoryOperand { base: OWN, add }, 9));
        }
        let (what, register, MemoryOperand { base, add }, len) =
            moves(rest).filter(|(.., memory, _)| memory.base < OWN)?;
        return (what != ADDRESS).then_some((what, register, MemoryOperand { base: base + OWN_AND, add }, len + 1));
    }
    let [rex @ 0x48..=0x4f, what @ (STORE | LOAD | ADDRESS), modes, ..] = *code else { return None };
    let register = (modes >> 3 & 7) | (rex << 1 & 8);
    let base = (modes & 7) | (rex << 3 & 8);
    // An index register is not decoded, nor a prefix for one.
    if modes & 7 == 4 || rex & 2 != 0 {
        return None;
    }
    let (add, len) = match modes >> 6 {
        // With mode 0 this would be relative to the next instruction.
        0 if modes & 7 != 5 => (0, 3),
        1 => (i64::from(*code.get(3)? as i8), 4),
        2 => (i64::from(number::<4>(code, 3)? as u32 as i32), 7),
        _ => return None,
    };
    Some((what, register, MemoryOperand { base, add }, len))
}

/// The common value of all items; `None` if they differ.
fn only(mut all: impl Iterator<Item = i64>) -> Option<i64> {
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}

/// The start of the thread-local block that the code computes, relative to the thread pointer: `mov %fs:0, REGISTER`,
/// then `lea ADD(REGISTER), …`.
fn values(code: &[u8]) -> Option<i64> {
    only((0..code.len()).filter_map(|at| {
        let (LOAD, register, MemoryOperand { base: OWN, add: 0 }, len) = moves(code.get(at..)?)? else { return None };
        let (ADDRESS, _, memory, _) = moves(code.get(at + len..)?)? else { return None };
        (memory.base == register).then_some(memory.add)
    }))
}

/// The constant loaded into a register: `mov $NUMBER, REGISTER`.
fn constant(code: &[u8], register: u8) -> Option<i64> {
    only(code.windows(7).filter_map(|bytes| {
        let [rex @ (0x48 | 0x49), 0xc7, into @ 0xc0..=0xc7, ..] = *bytes else { return None };
        let into = (into & 7) | (rex << 3 & 8);
        (into == register).then_some(i64::from(number::<4>(bytes, 3)? as u32 as i32))
    }))
}

/// The offset of a memory operand from the thread pointer.
fn place(code: &[u8], memory: MemoryOperand) -> Option<i64> {
    let from = match memory.base {
        OWN => 0,
        OWN_AND.. => constant(code, memory.base - OWN_AND)?,
        _ => values(code)?,
    };
    let place = from.checked_add(memory.add)?;
    (place % 8 == 0 && (-VALUES..0).contains(&place)).then_some(place)
}

/// The offset from the thread pointer of the value that a function replaces by its argument; `None` if it does
/// something else, or the code is ambiguous.
fn swapped(code: &[u8]) -> Option<i64> {
    // A load of the old value directly followed by a store of the new one.
    let pairs = (0..code.len()).filter_map(|at| {
        let (LOAD, taken, memory, len) = moves(code.get(at..)?)? else { return None };
        let (STORE, put, same, _) = moves(code.get(at + len..)?)? else { return None };
        (memory == same && taken != put).then_some(memory)
    });
    only_place(code, pairs)
}

/// The same for a function that restores a value: its argument, or what its argument points to.
fn put_back(code: &[u8]) -> Option<i64> {
    let taken = |register: u8| {
        (0..code.len()).any(|at| {
            let taken = code.get(at..).and_then(moves);
            taken.is_some_and(|(what, into, memory, _)| {
                what == LOAD && into == register && memory == MemoryOperand { base: ARGUMENT, add: 0 }
            })
        })
    };
    let stores = (0..code.len()).filter_map(|at| {
        let (STORE, register, memory, _) = moves(code.get(at..)?)? else { return None };
        if code.get(at.wrapping_sub(1)) == Some(&0x64) {
            // The byte before is the `%fs` prefix of this instruction, which was decoded from there.
            return None;
        }
        (memory.base >= OWN || taken(register)).then_some(memory)
    });
    only_place(code, stores)
}

fn only_place(code: &[u8], all: impl Iterator<Item = MemoryOperand>) -> Option<i64> {
    let all: Vec<Option<i64>> = all.map(|memory| place(code, memory)).collect();
    let all: Option<Vec<i64>> = all.into_iter().collect();
    only(all?.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::go::fixture;
    use crate::rust_functions::fixture::program;

    /// `context::set_current_task_id` of tokio 1.54 as rustc 1.95 compiled it for a program; the call is cut out.
    const SETTER: &[u8] = &[
        0x48, 0x89, 0xfb, // mov %rdi,%rbx
        0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0, // mov %fs:0,%rax
        0x48, 0x8d, 0x80, 0xe0, 0xfe, 0xff, 0xff, // lea -0x120(%rax),%rax
        0x0f, 0xb6, 0x48, 0x48, // movzbl 0x48(%rax),%ecx
        0x83, 0xf9, 0x01, 0x74, 0x24, // cmp $1,%ecx; je
        0x41, 0xc6, 0x46, 0x48, 0x01, // movb $1,0x48(%r14)
        0x48, 0x8b, 0x48, 0x30, // mov 0x30(%rax),%rcx
        0x48, 0x89, 0x58, 0x30, // mov %rbx,0x30(%rax)
        0x48, 0x89, 0xc8, 0xc3, // mov %rcx,%rax; ret
    ];

    #[test]
    fn the_value_is_where_the_code_swaps_it() {
        assert_eq!(swapped(SETTER), Some(-0x120 + 0x30));
        let changed = |at: usize, byte: u8| {
            let mut code = SETTER.to_vec();
            code[at] = byte;
            swapped(&code)
        };
        // Another register; another destination; no `lea`; not a thread-local address.
        let (lea, store) = (12, SETTER.len() - 8);
        assert_eq!(changed(lea + 2, 0x81), None);
        assert_eq!(changed(store + 3, 0x38), None);
        assert_eq!(changed(store + 2, 0x4b), None);
        assert_eq!(changed(lea + 1, 0x8b), None);
        assert_eq!(changed(lea + 6, 0x00), None);
        for cut in 0..SETTER.len() - 4 {
            assert_eq!(swapped(&SETTER[..cut]), None, "{cut}");
        }
    }

    /// `TaskIdGuard::drop` in a program with link-time optimisation.
    const PUTS_BACK: &[u8] = &[
        0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0, // mov %fs:0,%rax
        0x48, 0x8d, 0x80, 0x10, 0xff, 0xff, 0xff, // lea -0xf0(%rax),%rax
        0x48, 0x89, 0xfb, 0x48, 0x89, 0xc7, // mov %rdi,%rbx; mov %rax,%rdi
        0x64, 0xc6, 0x04, 0x25, 0x58, 0xff, 0xff, 0xff, 0x01, // movb $1,%fs:-0xa8
        0x64, 0x48, 0x89, 0x3c, 0x25, 0x40, 0xff, 0xff, 0xff, // mov %rdi,%fs:-0xc0
        0xc3,
    ];
    /// The same without link-time optimisation.
    const PUTS_BACK_WHAT: &[u8] = &[
        0x48, 0x8b, 0x1f, // mov (%rdi),%rbx
        0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0, // mov %fs:0,%rax
        0x48, 0x8d, 0x80, 0xe0, 0xfe, 0xff, 0xff, // lea -0x120(%rax),%rax
        0x49, 0x89, 0xc6, 0x41, 0xc6, 0x46, 0x48, 0x01, // mov %rax,%r14; movb $1,0x48(%r14)
        0x48, 0x89, 0x58, 0x30, // mov %rbx,0x30(%rax)
        0xc3,
    ];

    #[test]
    fn the_value_is_where_the_old_one_is_put_back() {
        assert_eq!(put_back(PUTS_BACK), Some(-0xc0));
        assert_eq!(put_back(PUTS_BACK_WHAT), Some(-0x120 + 0x30));
        for code in [PUTS_BACK, PUTS_BACK_WHAT] {
            assert_eq!(swapped(code), None);
            for cut in 0..code.len() - 1 {
                assert_eq!(put_back(&code[..cut]), None, "{cut}");
            }
        }
        // The thread-local value is far from where it was linked: a register holds the distance.
        let far = [
            0x48, 0x8b, 0x1f, // mov (%rdi),%rbx
            0x49, 0xc7, 0xc6, 0xf8, 0xfd, 0xff, 0xff, // mov $-0x208,%r14
            0x64, 0x48, 0x8b, 0x3c, 0x25, 0, 0, 0, 0, // mov %fs:0,%rdi
            0x4c, 0x01, 0xf7, // add %r14,%rdi
            0x64, 0x49, 0x89, 0x5e, 0x30, // mov %rbx,%fs:0x30(%r14)
            0xc3,
        ];
        assert_eq!(put_back(&far), Some(-0x208 + 0x30));
        let far = [
            0x48, 0xc7, 0xc3, 0xf8, 0xfd, 0xff, 0xff, // mov $-0x208,%rbx
            0x64, 0x48, 0x8b, 0x43, 0x30, // mov %fs:0x30(%rbx),%rax
            0x64, 0x48, 0x89, 0x7b, 0x30, // mov %rdi,%fs:0x30(%rbx)
            0xc3,
        ];
        assert_eq!(swapped(&far), Some(-0x208 + 0x30));
        assert_eq!(swapped(&far[7..]), None);
        let both = [PUTS_BACK, PUTS_BACK_WHAT].concat();
        assert_eq!(put_back(&both), None);
    }

    #[test]
    fn an_old_number_of_two_words_is_not_taken_for_one() {
        // tokio 1.38: a flag before the id tells whether there is one.
        let code = [
            &SETTER[..19],
            &[0x48, 0x8b, 0x48, 0x20, 0x48, 0x8b, 0x50, 0x28, 0x4c, 0x89, 0x70, 0x20, 0x48, 0x89, 0x58, 0x28, 0xc3],
        ];
        assert_eq!(swapped(&code.concat()), None);
    }

    const GUARD_DROPS: &str =
        "_ZN81_$LT$tokio..runtime..task..core..TaskIdGuard$u20$as$u20$core..ops..drop..Drop$GT$4drop17h6fb9E";
    const SET: &str = "_ZN5tokio7runtime7context19set_current_task_id17h406c4bb9331c84afE";
    /// The other mangling scheme.
    const SET_OTHER: &str = "_RNvNtNtCs3NkKWAmpbAk_5tokio7runtime7context19set_current_task_id";
    const BIND: &str = "_ZN5tokio7runtime4task4list19OwnedTasks$LT$S$GT$10bind_inner17h9f32dbd2d9816a23E";
    const SOURCE: &str = "/home/a/.cargo/registry/src/b/tokio-1.54.1/src/runtime/task/core.rs";

    fn found(constants: &str, functions: &[(&str, &[u8])]) -> Option<(DetectionState, i64, Vec<u64>)> {
        let found = inspect(program(constants, functions).as_slice())?;
        assert_eq!(&*found.version, if constants.is_empty() { "" } else { "1.54.1" });
        Some((found.state, found.current, found.binds))
    }

    #[test]
    fn programs_with_and_without_names() {
        let whole: &[(&str, &[u8])] = &[(SET, SETTER), (BIND, &[0x55]), ("main", &[0xc3])];
        let known = Some((DetectionState::Known, -0xf0, vec![fixture::TEXT + 128]));
        assert_eq!(found(SOURCE, whole), known);
        assert_eq!(found("", whole), known);
        assert_eq!(found(SOURCE, &[(SET_OTHER, SETTER)]), Some((DetectionState::Known, -0xf0, vec![])));
        assert_eq!(found(SOURCE, &[]), Some((DetectionState::NoSymbols, 0, vec![])));
        assert_eq!(found(SOURCE, &[("main", &[0xc3])]), Some((DetectionState::NoSymbols, 0, vec![])));
        assert_eq!(found("", &[("main", &[0xc3])]), None);
        assert_eq!(found("", &[]), None);
        assert_eq!(found(SOURCE, &[(GUARD_DROPS, PUTS_BACK)]), Some((DetectionState::Known, -0xc0, vec![])));
        // The setter takes precedence.
        let merged = [(GUARD_DROPS, PUTS_BACK), (SET, SETTER)];
        assert_eq!(found(SOURCE, &merged), Some((DetectionState::Known, -0xf0, vec![])));
        // One that does something else; two that differ.
        assert_eq!(found("", &[(SET, &[0xc3])]), Some((DetectionState::UnknownVersion, 0, vec![])));
        let mut other = SETTER.to_vec();
        other[15] = 0xd0;
        let both = [(SET, SETTER), (SET_OTHER, other.as_slice())];
        assert_eq!(found(SOURCE, &both), Some((DetectionState::UnknownVersion, 0, vec![])));
    }

    #[test]
    fn where_closures_are_queued_is_found_by_either_scheme_of_names() {
        let names = [
            "_ZN5tokio7runtime8blocking4pool7Spawner10spawn_task17h825bd12701c9dac1E",
            // A closure in it.
            "_ZN5tokio7runtime8blocking4pool7Spawner10spawn_task28_$u7b$$u7b$closure$u7d$$u7d$17had50442bc8753fdfE",
            "_RNvMs1_NtNtNtCs3NkKWAmpbAk_5tokio7runtime8blocking4poolNtB5_7Spawner10spawn_task",
            "_RNCNvMs1_NtNtNtCs3NkKWAmpbAk_5tokio7runtime8blocking4poolNtB7_7Spawner10spawn_task0B9_",
            "_ZN5tokio7runtime8blocking4pool14spawn_blocking17hb94b16e096dede7fE",
        ];
        let all: Vec<(&str, &[u8])> =
            [(SET, SETTER)].into_iter().chain(names.map(|name| (name, &[0x55][..]))).collect();
        let found = inspect(program(SOURCE, &all).as_slice()).expect("tokio");
        assert_eq!(found.closures, [fixture::TEXT + 128, fixture::TEXT + 3 * 128]);
    }

    #[test]
    fn never_panics_on_damaged_files() {
        let whole = program(SOURCE, &[(SET, SETTER), (BIND, &[0x55])]);
        fixture::survives(&whole, |bytes| drop(inspect(bytes)));
    }

    #[test]
    fn this_program_has_tokio_and_no_other_has() {
        let own = std::fs::File::open("/proc/self/exe").expect("this program");
        let found = inspect(&own).expect("tokio");
        assert!(found.version.starts_with("1."), "{found:?}");
        for bytes in [&b""[..], b"\x7fELF", &[0; 4096]] {
            assert_eq!(inspect(bytes), None);
        }
        let shell = std::fs::File::open("/bin/sh").expect("a shell");
        assert_eq!(inspect(&shell), None);
    }
}
