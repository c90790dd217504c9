//! Lines of a source file: which instructions they are, where they begin, and every way out of them.
//!
//! An optimising compiler moves, merges and copies lines. What is declared is therefore a region of the function's control
//! flow with one entry: the first statement of the lines, from which every other one is reached, and all that lies on
//! ways from one of their statements to another. Where there is no such region the lines are refused.
//!
//! Total: the debug information and the code may be anything.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Read;
use std::path::Path;

use gimli::{AttributeValue, DebugLine, DebugLineOffset, DebugLineStr, EndianSlice, RunTimeEndian};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection};

use super::code::{Flow, Instructions, JumpTarget};
use super::depths::depths;
use super::{Binary, CallEnd, Found, RETURNS, Refusal, SIMILAR, Site, elf};
use crate::go::image::Image;

/// Most bytes of line tables, and most of their rows.
const BYTES: u64 = 64 << 20;
const ROWS: usize = 16 << 20;
/// Most pieces of code that the lines are in, and most places where they may begin.
const PIECES: usize = 4096;
const BEGINNINGS: usize = 64;

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

/// Lines of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines<'a> {
    pub(super) file: &'a str,
    pub(super) from: u32,
    pub(super) to: u32,
}

/// Code of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    from: u64,
    to: u64,
    /// A statement begins here; otherwise it is a part that was moved.
    is_statement: bool,
}

impl Lines<'_> {
    fn refuse(&self, why: impl Into<String>) -> Refusal {
        Refusal::Lines { file: self.file.into(), from: self.from, to: self.to, why: why.into() }
    }
}

impl Binary {
    /// Where the probes of these lines go.
    pub(super) fn lines(&self, lines: Lines<'_>) -> Result<Site, Refusal> {
        let image = Image::read(&self.file).ok_or(Refusal::NotProgram)?;
        if image.machine != super::image::X86_64 {
            return Err(lines.refuse("lines can be declared on x86-64 only"));
        }
        let (table, names) = sections(&self.path).ok_or_else(|| {
            lines.refuse("the file has no line table that can be read: compile with -g, and do not strip")
        })?;
        let pieces = pieces(&table, &names, lines)?;
        let found = self.function_of(&pieces, lines)?;
        let instructions = self.instructions(&image, &found)?;
        let region = Region::of(&instructions, found.address, &pieces).map_err(|why| lines.refuse(why))?;
        let place = |address| image.place(address).ok_or(Refusal::NotProgram);
        let end = |(address, (shared, stack)): (&u64, &(bool, i32))| {
            Ok(CallEnd { at: place(*address)?, shared: *shared, stack: *stack })
        };
        let ends = region.ends.iter().map(end).collect::<Result<Vec<CallEnd>, Refusal>>()?;
        let name = format!("{}:{}-{} in {}", lines.file, lines.from, lines.to, found.name);
        Ok(Site { name, entry: place(region.entry)?, ends, go: found.go, operands: None })
    }

    /// The one function that has all of the code.
    fn function_of(&self, pieces: &[Piece], lines: Lines<'_>) -> Result<Found, Refusal> {
        let mut all: Vec<(u64, u64, String, bool)> = Vec::new();
        for one in &self.functions {
            // A part that seldom runs belongs to its function.
            let name = one.name.find(".cold").and_then(|at| one.name.get(..at)).unwrap_or(&one.name);
            all.push((one.address, one.size, name.to_owned(), false));
        }
        self.each_go(|name, from, size| all.push((from, size, name.to_owned(), true)));
        all.sort_unstable();
        let mut names: BTreeSet<&str> = BTreeSet::new();
        let (mut found, mut outside) = (None, true);
        for piece in pieces {
            let behind = all.partition_point(|one| one.0 <= piece.from);
            let one = all[..behind].iter().rev().take(8).find(|one| piece.from - one.0 < one.1);
            let Some((_, _, name, go)) = one else { continue };
            outside = false;
            names.insert(name);
            found = Some((name.clone(), *go));
        }
        let (name, go) = match (found, names.len()) {
            (Some(found), 1) => found,
            (None, _) if outside => return Err(lines.refuse("optimised out: they have no code in any function")),
            _ => {
                let some: Vec<&str> = names.iter().take(SIMILAR).copied().collect();
                let more = if names.len() > SIMILAR { ", …" } else { "" };
                let why = format!(
                    "they are code of {} functions ({}{more}): inlined several times, or more than one function's lines",
                    names.len(),
                    some.join(", ")
                );
                return Err(lines.refuse(why));
            }
        };
        let found = self.find(&name)?;
        Ok(Found { go: found.go || go, ..found })
    }
}

/// The sections `.debug_line` and `.debug_line_str`.
fn sections(path: &Path) -> Option<(Vec<u8>, Vec<u8>)> {
    let cache = elf::open(path)?;
    let elf = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
    let section = |name: &str| {
        let data = elf.section_by_name(name)?.compressed_data().ok()?;
        if data.uncompressed_size > BYTES || data.data.len() as u64 > BYTES {
            return None;
        }
        match data.format {
            object::CompressionFormat::None => Some(data.data.to_vec()),
            object::CompressionFormat::Zlib => {
                let mut out = Vec::new();
                flate2::read::ZlibDecoder::new(data.data).take(BYTES).read_to_end(&mut out).ok()?;
                Some(out)
            }
            object::CompressionFormat::Zstandard => {
                let mut out = Vec::new();
                zstd::Decoder::with_buffer(data.data).ok()?.take(BYTES).read_to_end(&mut out).ok()?;
                Some(out)
            }
            _ => None,
        }
    };
    Some((section(".debug_line")?, section(".debug_line_str").unwrap_or_default()))
}

/// Whether `path` ends with the components of `file`.
fn is_file(path: &str, file: &str) -> bool {
    let parts = |text: &str| -> Vec<String> {
        text.split('/').filter(|part| !part.is_empty() && *part != ".").map(str::to_owned).collect()
    };
    let (path, file) = (parts(path), parts(file));
    !file.is_empty() && path.ends_with(&file)
}

/// The code of the lines, in order.
fn pieces(table: &[u8], names: &[u8], lines: Lines<'_>) -> Result<Vec<Piece>, Refusal> {
    let endian = RunTimeEndian::Little;
    let section = DebugLine::from(EndianSlice::new(table, endian));
    let strings = DebugLineStr::from(EndianSlice::new(names, endian));
    let text = |value: AttributeValue<Slice<'_>>| -> Option<String> {
        let bytes = match value {
            AttributeValue::String(text) => text,
            AttributeValue::DebugLineStrRef(at) => strings.get_str(at).ok()?,
            _ => return None,
        };
        Some(String::from_utf8_lossy(bytes.slice()).into_owned())
    };
    let (mut at, mut rows, mut found) = (0usize, 0usize, Vec::new());
    let (mut files, mut coded): (BTreeSet<String>, BTreeSet<String>) = Default::default();
    while at < table.len() {
        let broken = |_| lines.refuse("the line table is damaged");
        let program = section.program(DebugLineOffset(at), 8, None, None).map_err(broken)?;
        let header = program.header();
        at = at.saturating_add(header.unit_length()).saturating_add(usize::from(header.format().initial_length_size()));
        let mut wanted: BTreeMap<u64, String> = BTreeMap::new();
        let first = u64::from(header.version() < 5);
        for (index, entry) in header.file_names().iter().enumerate() {
            let Some(name) = text(entry.path_name()) else { continue };
            let dir = entry.directory(header).and_then(text).unwrap_or_default();
            let path = if name.starts_with('/') { name } else { format!("{dir}/{name}") };
            if is_file(&path, lines.file) {
                wanted.insert(index as u64 + first, path);
            }
        }
        if wanted.is_empty() {
            continue;
        }
        files.extend(wanted.values().cloned());
        let mut walk = program.rows();
        let mut open: Option<(u64, bool, u64)> = None;
        while let Some((_, row)) = walk.next_row().map_err(broken)? {
            rows += 1;
            if rows > ROWS {
                return Err(lines.refuse("the line table is too large"));
            }
            let (here, mut is_beginning) = (row.address(), false);
            if let Some((from, is_statement, _)) = open.as_ref()
                && *from == here
            {
                // Several rows for one address: the last has the code, any may say that a statement begins.
                is_beginning = *is_statement;
            }
            if let Some((from, is_statement, file)) = open.take()
                && from < here
            {
                if found.len() >= PIECES {
                    return Err(lines.refuse(format!("they are more than {PIECES} pieces of code")));
                }
                found.push(Piece { from, to: here, is_statement });
                coded.extend(wanted.get(&file).cloned());
            }
            let line = row.line().map_or(0, std::num::NonZeroU64::get);
            let is_wanted = (u64::from(lines.from)..=u64::from(lines.to)).contains(&line);
            if is_wanted && !row.end_sequence() && wanted.contains_key(&row.file_index()) {
                open = Some((here, is_beginning || row.is_stmt(), row.file_index()));
            }
        }
    }
    if files.is_empty() {
        return Err(lines.refuse("no such file in the line table"));
    }
    if found.is_empty() {
        return Err(lines.refuse("optimised out: the line table has no code for them"));
    }
    if coded.len() > 1 {
        let some: Vec<String> = coded.into_iter().take(SIMILAR).collect();
        return Err(lines.refuse(format!("several files fit: {}; give more of the path", some.join(", "))));
    }
    found.sort_unstable_by_key(|piece| piece.from);
    found.dedup();
    Ok(found)
}

/// A part of a function's control flow with one entry.
#[derive(Debug, PartialEq, Eq)]
struct Region {
    entry: u64,
    /// Places behind it: whether each is also reached in other ways, and how far the stack pointer is above what it was at
    /// entry.
    ends: BTreeMap<u64, (bool, i32)>,
}

/// A function's control flow.
struct Graph<'a> {
    instructions: &'a Instructions,
    before: BTreeMap<u64, Vec<u64>>,
}

impl<'a> Graph<'a> {
    fn of(instructions: &'a Instructions) -> Self {
        let mut before: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for at in instructions.keys() {
            for to in after(instructions, *at) {
                before.entry(to).or_default().push(*at);
            }
        }
        Self { instructions, before }
    }

    /// What is reached from `from` by `next`, these included, without `except`.
    fn reached<I: IntoIterator<Item = u64>>(
        &self,
        from: impl IntoIterator<Item = u64>,
        except: u64,
        next: impl Fn(&Self, u64) -> I,
    ) -> BTreeSet<u64> {
        let mut seen: BTreeSet<u64> = from.into_iter().filter(|at| *at != except).collect();
        let mut queue: VecDeque<u64> = seen.iter().copied().collect();
        while let Some(at) = queue.pop_front() {
            for to in next(self, at) {
                if to != except && seen.insert(to) {
                    queue.push_back(to);
                }
            }
        }
        seen
    }

    fn forward(&self, at: u64) -> Vec<u64> {
        after(self.instructions, at)
    }

    fn back(&self, at: u64) -> Vec<u64> {
        self.before.get(&at).cloned().unwrap_or_default()
    }
}

/// The instructions of the function that may follow the one at `at`.
pub(super) fn after(instructions: &Instructions, at: u64) -> Vec<u64> {
    let Some(one) = instructions.get(&at) else { return Vec::new() };
    let all = match one.flow {
        Flow::Next | Flow::Call(_) => vec![one.end],
        Flow::Jump(JumpTarget::To(to)) => vec![to],
        Flow::Branch(to) => vec![one.end, to],
        Flow::Jump(_) | Flow::Return | Flow::Stop => Vec::new(),
    };
    // Behind a call that never returns there may be nothing.
    all.into_iter().filter(|to| instructions.contains_key(to)).collect()
}

/// No address.
const NOWHERE: u64 = u64::MAX;

impl Region {
    fn of(instructions: &Instructions, start: u64, pieces: &[Piece]) -> Result<Self, String> {
        let graph = Graph::of(instructions);
        let all = graph.reached([start], NOWHERE, Graph::forward);
        let jumps = |at: &u64| instructions.get(at).is_some_and(|one| one.flow == Flow::Jump(JumpTarget::Unknown));
        if let Some(at) = all.iter().find(|at| jumps(at)) {
            return Err(format!(
                "a table of jumps (at {at:#x}) leads to places that are not known; for C and C++ -fno-jump-tables avoids it"
            ));
        }
        let mut inside: BTreeSet<u64> = BTreeSet::new();
        let mut beginnings = Vec::new();
        for piece in pieces {
            let of: Vec<u64> = all.range(piece.from..piece.to).copied().collect();
            // A moved part without calls takes no time, and would lead to where it was moved.
            let matters = |at: &u64| instructions.get(at).is_some_and(|one| one.flow != Flow::Next);
            if piece.is_statement || of.iter().any(matters) {
                inside.extend(&of);
            }
            if piece.is_statement && beginnings.len() < BEGINNINGS && all.contains(&piece.from) {
                beginnings.push(piece.from);
            }
        }
        if inside.is_empty() || beginnings.is_empty() {
            return Err("optimised out: none of their statements has code that is reached".into());
        }
        let begins = |entry: u64| entry == start || graph.reached([start], entry, Graph::forward).is_disjoint(&inside);
        let entry = beginnings.iter().copied().find(|entry| begins(*entry)).ok_or_else(|| {
            "they are entered at several places: the compiler moved, merged or copied them; declare the function"
                .to_owned()
        })?;
        let onward = graph.reached(inside.iter().copied().collect::<Vec<_>>(), NOWHERE, |graph, at| {
            graph.forward(at).into_iter().filter(|to| *to != entry).collect::<Vec<_>>()
        });
        let back =
            graph.reached(inside.iter().copied().filter(|at| *at != entry).collect::<Vec<_>>(), entry, Graph::back);
        let region: BTreeSet<u64> = inside.iter().copied().chain(onward.intersection(&back).copied()).collect();
        let is_theirs = |at: u64| pieces.iter().any(|piece| (piece.from..piece.to).contains(&at));
        let between: BTreeSet<u64> = region.iter().copied().filter(|at| !is_theirs(*at)).collect();
        // How long moved code takes in between is unknown; a few instructions take no time.
        let takes_time = |at: &u64| {
            let is_call = instructions.get(at).is_some_and(|one| matches!(one.flow, Flow::Call(_)));
            is_call || graph.forward(*at).iter().any(|to| to <= at && between.contains(to))
        };
        if let Some(at) = between.iter().find(|at| takes_time(at)) {
            return Err(format!(
                "a call or loop of other lines (at {at:#x}) lies between them: it was inlined there, or the compiler moved their \
                 code; declare the function"
            ));
        }
        Self::ways_out(&graph, start, entry, &region)
    }

    fn ways_out(graph: &Graph<'_>, start: u64, entry: u64, region: &BTreeSet<u64>) -> Result<Self, String> {
        if graph.back(entry).iter().any(|at| region.contains(at)) {
            return Err(
                "they begin where a loop within them begins again; declare the line before the loop as well".into()
            );
        }
        let depths = depths(graph.instructions, start);
        let depth = |at: u64| depths.get(&at).copied().flatten();
        let begin = depth(entry).ok_or("the depth of the stack where they begin is not known")?;
        let mut ends = BTreeMap::new();
        let mut end = |at: u64, shared: bool| {
            let depth = depth(at).ok_or_else(|| format!("the depth of the stack at {at:#x} is not known"))?;
            let stack = i32::try_from(depth.saturating_sub(begin)).ok().filter(|by| by.unsigned_abs() < 1 << 22);
            ends.insert(at, (shared, stack.ok_or("they change the stack too much")?));
            if ends.len() > RETURNS { Err(format!("they have more than {RETURNS} ways out")) } else { Ok(()) }
        };
        for at in region {
            let Some(one) = graph.instructions.get(at) else { continue };
            match one.flow {
                Flow::Return if *at == entry => return Err("they are a return instruction and no more".into()),
                Flow::Return => end(*at, false)?,
                Flow::Jump(JumpTarget::To(to)) | Flow::Branch(to) if !graph.instructions.contains_key(&to) => {
                    return Err(format!("they end with a tail call (at {at:#x}); declare the function"));
                }
                Flow::Jump(JumpTarget::Through(_)) => {
                    return Err(format!("they end with a tail call (at {at:#x}); declare the function"));
                }
                _ => {}
            }
            for to in graph.forward(*at).into_iter().filter(|to| !region.contains(to)) {
                end(to, to == start || graph.back(to).iter().any(|from| !region.contains(from)))?;
            }
        }
        if ends.is_empty() {
            return Err("nothing leads out of them".into());
        }
        Ok(Self { entry, ends })
    }
}

#[cfg(test)]
mod tests {
    use super::super::code::{Instruction, Stack};
    use super::*;

    /// A function of instructions of one byte, from 0.
    fn function(flows: &[Flow]) -> Instructions {
        let one = |(at, flow): (usize, &Flow)| {
            (at as u64, Instruction { end: at as u64 + 1, flow: *flow, stack: Stack::Same })
        };
        flows.iter().enumerate().map(one).collect()
    }

    fn region(flows: &[Flow], pieces: &[(u64, u64)]) -> Result<(u64, Vec<(u64, bool)>), String> {
        let pieces: Vec<Piece> =
            pieces.iter().map(|(from, to)| Piece { from: *from, to: *to, is_statement: true }).collect();
        Region::of(&function(flows), 0, &pieces)
            .map(|region| (region.entry, region.ends.iter().map(|(at, (shared, _))| (*at, *shared)).collect()))
    }

    #[test]
    fn a_region_has_one_entry_and_all_ways_out() {
        use Flow::{Branch, Call, Jump, Next, Return};
        let call = Call(JumpTarget::Unknown);
        let jump = |to| Jump(JumpTarget::To(to));
        // 1 to 3 in straight code.
        assert_eq!(region(&[Next, Next, call, Next, Return], &[(1, 4)]), Ok((1, vec![(4, false)])));
        // A loop around them, and code of other lines in between.
        assert_eq!(region(&[Next, call, Next, call, Branch(1), Return], &[(1, 2), (3, 4)]), Ok((1, vec![(4, false)])));
        // Two ways out, one of them also reached otherwise; and a return.
        assert_eq!(
            region(&[Branch(4), Next, Branch(5), jump(4), Next, Return], &[(1, 4)]),
            Ok((1, vec![(4, true), (5, true)]))
        );
        assert_eq!(region(&[Next, Branch(3), Return, Return], &[(1, 3)]), Ok((1, vec![(2, false), (3, false)])));
        // A loop within them.
        assert_eq!(region(&[Next, Next, call, Branch(2), Return], &[(1, 4)]), Ok((1, vec![(4, false)])));
        for (flows, pieces, why) in [
            (&[Next, call, Branch(1), Return][..], &[(1u64, 3u64)][..], "a loop within them begins again"),
            (&[Next, Next, call, Next, Return], &[(1, 2), (3, 4)], "a call or loop of other lines (at 0x2)"),
            (&[Next, Next, Next, Branch(2), Next, Return], &[(1, 2), (4, 5)], "a call or loop of other lines (at 0x3)"),
            (&[Branch(2), Next, Next, Return], &[(1, 3)], "entered at several places"),
            (&[Branch(3), Next, Return, Next, Return], &[(1, 2), (3, 4)], "entered at several places"),
            (&[Next, Jump(JumpTarget::Unknown), Next], &[(0, 1)], "a table of jumps"),
            (&[Next, jump(99)], &[(1, 2)], "tail call"),
            (&[Return, Next, Next], &[(1, 2)], "optimised out"),
            (&[Next, jump(1)], &[(0, 2)], "nothing leads out of them"),
            (&[Next, Return], &[(1, 2)], "a return instruction and no more"),
        ] {
            let refused = region(flows, pieces).unwrap_err();
            assert!(refused.contains(why), "{flows:?}: {refused}");
        }
    }

    #[test]
    fn never_panics_on_arbitrary_line_tables() {
        let lines = Lines { file: "a.c", from: 1, to: u32::MAX };
        let mut state = 3u64;
        for length in [0usize, 3, 4, 11, 12, 40, 400] {
            for _ in 0..300 {
                let mut bytes: Vec<u8> = (0..length)
                    .map(|_| {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        (state >> 57) as u8
                    })
                    .collect();
                // Now and then a header that is nearly right.
                if state & 1 << 40 != 0 && length > 12 {
                    bytes[..6].copy_from_slice(&[(length - 4) as u8, ((length - 4) >> 8) as u8, 0, 0, 5, 0]);
                }
                assert!(pieces(&bytes, &bytes, lines).is_err() || length > 12);
            }
        }
        assert!(is_file("/src/shop/./sort.c", "shop/sort.c") && is_file("sort.c", "sort.c"));
        assert!(!is_file("/src/resort.c", "sort.c") && !is_file("/src/sort.c", "") && !is_file("sort.c", "a/sort.c"));
    }
}
