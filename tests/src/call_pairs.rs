//! Stacks of two unwinders compared by the calls in them: which function called which.
//!
//! Two samplers never see the same instant, so stacks are not compared one by one. Each step of a walk goes from a function
//! to its caller; a step that both unwinders took, at whatever time, is one that they agree on. The last step goes to the end
//! of the stack, so that a walk that ends too early, or goes on too long, differs as well. Steps from functions that the other
//! one has never seen are not compared: a function that was sampled once may have been sampled by one of them only.
//!
//! Where the other unwinder is known to be wrong, the program's own code is asked: before a return address stands a call, and if
//! that names the function that was called, it bears the step out.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};

/// Where a frame is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In code of a file, by its offset there. For callers that of the call.
    Code {
        /// Path, or `[vdso]`.
        file: Arc<str>,
        /// Bytes from its beginning.
        offset: u64,
    },
    /// In code that was made while running.
    Generated,
}

/// Where a process has mapped code.
#[derive(Clone, Debug, Default)]
pub struct Mappings(Vec<(std::ops::Range<u64>, u64, Arc<str>)>);

impl Mappings {
    /// Those of a process now; empty if it is gone.
    pub fn of(pid: u32) -> Self {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let words: Vec<&str> = line.splitn(6, ' ').collect();
            let [range, permissions, offset, _, _, path] = words[..] else { return None };
            let (start, end) = range.split_once('-')?;
            let hex = |text| u64::from_str_radix(text, 16).ok();
            let path = path.trim().trim_end_matches(" (deleted)");
            let is_code = permissions.contains('x') && (path.starts_with('/') || path == "[vdso]");
            is_code.then_some((hex(start)?..hex(end)?, hex(offset)?, path.into()))
        };
        Self(text.lines().filter_map(line).collect())
    }

    /// Where an address is.
    pub fn place(&self, address: u64) -> Place {
        let found = self.0.iter().find(|(range, _, _)| range.contains(&address));
        found.map_or(Place::Generated, |(range, offset, file)| Place::Code {
            file: Arc::clone(file),
            offset: address - range.start + offset,
        })
    }
}

/// Where the functions of files begin, by offset, in order; and what calls that were looked at name.
#[derive(Debug, Default)]
pub struct FunctionStarts {
    starts: HashMap<Arc<str>, Vec<u64>>,
    calls: HashMap<Place, Option<u64>>,
}

/// A function, by its file and where it begins.
type Function = (Arc<str>, u64);

impl FunctionStarts {
    /// The function of a place; `None` of generated code.
    fn of(&mut self, place: &Place) -> Option<Function> {
        let Place::Code { file, offset } = place else { return None };
        let starts =
            self.starts.entry(Arc::clone(file)).or_insert_with(|| starts(Path::new(&**file)).unwrap_or_default());
        let before = starts.partition_point(|start| start <= offset);
        let start = before.checked_sub(1).and_then(|at| starts.get(at)).copied().unwrap_or(0);
        Some((Arc::clone(file), start))
    }

    /// Whether the call at a caller's place names this function.
    fn calls(&mut self, caller: &Place, (callee, start): &Function) -> bool {
        let Place::Code { file, offset } = caller else { return false };
        if file != callee {
            return false;
        }
        if let Some(target) = self.calls.get(caller) {
            return *target == Some(*start);
        }
        let target = named(Path::new(&**file), *offset);
        self.calls.insert(caller.clone(), target);
        target == Some(*start)
    }
}

/// What the call whose last byte is at `last` names, by its offset in the file; `None` of a call by a register or by memory.
fn named(file: &Path, last: u64) -> Option<u64> {
    // E8 and a distance from the next instruction, which is of the same segment.
    let mut code = [0; 5];
    File::open(file).ok()?.read_exact_at(&mut code, last.checked_sub(4)?).ok()?;
    let [0xe8, distance @ ..] = code else { return None };
    (last + 1).checked_add_signed(i32::from_le_bytes(distance).into())
}

/// Offsets in an ELF file at which functions begin: by the sorted table of `.eh_frame_hdr`, or by symbols where there is none
/// (Go).
fn starts(file: &Path) -> Option<Vec<u64>> {
    let bytes = std::fs::read(file).ok()?;
    let elf = ElfFile64::<Endianness>::parse(&*bytes).ok()?;
    let segments: Vec<_> = elf.segments().map(|segment| (segment.address(), segment.file_range())).collect();
    let offset = |address: u64| {
        let inside = |(start, (_, size)): &&(u64, (u64, u64))| (*start..*start + *size).contains(&address);
        segments.iter().find(inside).map(|(start, (offset, _))| address - start + offset)
    };
    let mut all: Vec<u64> = if let Some(header) = elf.section_by_name(".eh_frame_hdr") {
        let (data, address) = (header.data().ok()?, header.address());
        // Version 1; pointer by 4 bytes from here, count by 4 bytes, table of pairs of 4 bytes from the header.
        let table = data.strip_prefix(&[1, 0x1b, 0x03, 0x3b])?.get(8..)?;
        let first = |entry: &[u8]| entry.first_chunk().map(|bytes| i64::from(i32::from_le_bytes(*bytes)));
        table.chunks_exact(8).filter_map(|entry| offset(address.checked_add_signed(first(entry)?)?)).collect()
    } else {
        let functions = elf.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text);
        functions.filter_map(|symbol| offset(symbol.address())).collect()
    };
    all.sort_unstable();
    Some(all)
}

/// A step from a function to its caller; `None` is the end of the stack.
type Pair = (Function, Option<Function>);

/// How often a step was taken, and how often from a call that names the callee.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    times: u64,
    called: u64,
}

/// How often each step was taken, and frames and stacks seen.
#[derive(Debug, Default)]
pub struct CallPairs {
    steps: HashMap<Pair, Taken>,
    frames: u64,
    stacks: u64,
}

impl CallPairs {
    /// Adds a stack, innermost frame first. Without unwind information it is unknown what called generated code: what is
    /// beyond it is not compared.
    pub fn add(&mut self, stack: &[Place], functions: &mut FunctionStarts) {
        self.stacks += 1;
        self.frames += stack.len() as u64;
        let named: Vec<Option<Function>> = stack.iter().map(|place| functions.of(place)).collect();
        for (at, callee) in named.iter().enumerate() {
            let Some(callee) = callee else { return };
            match named.get(at + 1) {
                Some(Some(caller)) => {
                    let called = stack.get(at + 1).is_some_and(|place| functions.calls(place, callee));
                    let taken = self.steps.entry((callee.clone(), Some(caller.clone()))).or_default();
                    taken.times += 1;
                    taken.called += u64::from(called);
                }
                Some(None) => return,
                None => self.steps.entry((callee.clone(), None)).or_default().times += 1,
            }
        }
    }

    /// Stacks that were added.
    pub fn stacks(&self) -> u64 {
        self.stacks
    }

    /// Mean depth.
    pub fn depth(&self) -> f64 {
        self.frames as f64 / self.stacks.max(1) as f64
    }

    fn functions(&self) -> HashSet<&Function> {
        self.steps.keys().map(|(callee, _)| callee).collect()
    }

    /// How these steps compare with those of others. `early`: the others' walks may have ended too early, so steps from where
    /// they ended are not compared.
    pub fn compare(&self, others: &Self, early: bool) -> Agreement {
        let (seen, mut agreement) = (others.functions(), Agreement::default());
        for (pair, Taken { times: n, called }) in &self.steps {
            agreement.steps += n;
            let is_end = early && others.steps.contains_key(&(pair.0.clone(), None));
            agreement.compared += if seen.contains(&pair.0) && !is_end { *n } else { 0 };
            if is_end {
                continue;
            }
            let is_same = others.steps.contains_key(pair);
            agreement.same += if is_same { *n } else { 0 };
            agreement.called += if seen.contains(&pair.0) && !is_same { *called } else { 0 };
        }
        agreement
    }

    /// The most frequent of these steps that the others did not take, as text.
    pub fn unknown_to(&self, others: &Self) -> String {
        let mut all: Vec<_> = self.steps.iter().filter(|(pair, _)| !others.steps.contains_key(pair)).collect();
        all.sort_by_key(|(_, taken)| std::cmp::Reverse(taken.times));
        let name = |(file, start): &Function| format!("{}+{start:x}", file.rsplit('/').next().unwrap_or(file));
        let line = |((callee, caller), Taken { times, called }): (&Pair, &Taken)| {
            let caller = caller.as_ref().map_or_else(|| "end".into(), name);
            format!("  {times:>5} {} <- {caller}, {called} by its name", name(callee))
        };
        let seen = others.functions();
        let text = |(pair, taken): (&Pair, &Taken)| {
            let whether = if seen.contains(&pair.0) { "" } else { " (no such function there)" };
            line((pair, taken)) + whether
        };
        all.into_iter().take(12).map(text).collect::<Vec<_>>().join("\n")
    }
}

/// Steps of one unwinder beside those of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// All its steps.
    pub steps: u64,
    /// Those from functions that the other one has seen.
    pub compared: u64,
    /// Those of them that the other one took, too.
    pub same: u64,
    /// Those of the rest that the caller's code bears out: the call before the return address names the function.
    pub called: u64,
}

impl Agreement {
    /// Share of the compared steps that are the same.
    pub fn share(self) -> f64 {
        self.same as f64 / self.compared.max(1) as f64
    }

    /// The same with those that the program's code bears out.
    pub fn share_with_calls(self) -> f64 {
        (self.same + self.called) as f64 / self.compared.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(offset: u64) -> Place {
        Place::Code { file: "/none".into(), offset }
    }

    #[test]
    fn steps_that_only_one_took_count_against_it() {
        let starts = HashMap::from([("/none".into(), vec![100, 200, 300])]);
        let mut functions = FunctionStarts { starts, ..FunctionStarts::default() };
        let (mut ours, mut theirs) = (CallPairs::default(), CallPairs::default());
        for _ in 0..3 {
            ours.add(&[code(105), code(250), code(310)], &mut functions);
        }
        ours.add(&[code(105), code(250)], &mut functions);
        ours.add(&[code(301), Place::Generated, code(100)], &mut functions);
        theirs.add(&[code(199), code(201), code(399)], &mut functions);
        // One of the file's beginning, which the other has never seen.
        ours.add(&[code(50), code(250), code(310)], &mut functions);
        // Of 9 + 2 + 0 + 3 steps: one ends too early.
        assert_eq!(ours.compare(&theirs, false), Agreement { steps: 14, compared: 13, same: 12, called: 0 });
        assert_eq!(theirs.compare(&ours, false), Agreement { steps: 3, compared: 3, same: 3, called: 0 });
        // Where the others ended: the last step of five stacks.
        assert_eq!(ours.compare(&theirs, true), Agreement { steps: 14, compared: 9, same: 8, called: 0 });
        assert!(
            ours.unknown_to(&theirs).contains("      1 none+c8 <- end, 0 by its name"),
            "{}",
            ours.unknown_to(&theirs)
        );
        assert!(ours.unknown_to(&theirs).contains("      1 none+0 <- none+c8, 0 by its name (no such function there)"));
        assert!((ours.stacks(), ours.depth()) == (6, 17.0 / 6.0));
    }

    #[test]
    fn a_call_that_names_the_function_bears_a_step_out() {
        let dir = crate::scratch();
        let file = dir.path().join("code");
        // At 10 a call to 20, at 15 one by a register.
        let mut code = vec![0x90; 40];
        code[10..15].copy_from_slice(&[0xe8, 5, 0, 0, 0]);
        code[15..17].copy_from_slice(&[0xff, 0xd0]);
        std::fs::write(&file, code).unwrap_or_else(|error| panic!("{error}"));
        let path: Arc<str> = file.to_string_lossy().into();
        let starts = HashMap::from([(Arc::clone(&path), vec![0, 20, 30])]);
        let mut functions = FunctionStarts { starts, ..FunctionStarts::default() };
        let code = |offset| Place::Code { file: Arc::clone(&path), offset };
        let (mut ours, mut theirs) = (CallPairs::default(), CallPairs::default());
        // The second is called by a register, and the third is not the function that the call names.
        for stack in [[code(21), code(14)], [code(21), code(16)], [code(31), code(14)]] {
            ours.add(&stack, &mut functions);
        }
        theirs.add(&[code(21), code(31), code(21)], &mut functions);
        let agreement = ours.compare(&theirs, false);
        assert_eq!((agreement.compared, agreement.same, agreement.called), (3, 0, 1));
    }

    #[test]
    fn functions_of_this_program() {
        let own = std::env::current_exe().unwrap_or_else(|error| panic!("{error}"));
        let found = starts(&own).unwrap_or_else(|| panic!("no table"));
        assert!(found.len() > 1000 && found.is_sorted());
        let here = functions_of_this_program as *const () as u64;
        let place = Mappings::of(std::process::id()).place(here);
        let (file, start) = FunctionStarts::default().of(&place).unwrap_or_else(|| panic!("{place:?}"));
        assert_eq!((Path::new(&*file), Place::Code { file: Arc::clone(&file), offset: start }), (&*own, place));
        assert_eq!(Mappings::of(std::process::id()).place(1), Place::Generated);
        assert!(starts(Path::new("/proc/self/maps")).is_none());
    }
}
