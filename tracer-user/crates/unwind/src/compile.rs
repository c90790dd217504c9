//! `.eh_frame`, and what Go has instead, to rows and rules, as `tracer_common::unwind` has them. Total: any bytes.

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, CommonInformationEntry, EhFrame, EndianSlice, FrameDescriptionEntry,
    LittleEndian, RegisterRule, UnwindContext, UnwindExpression, UnwindSection, UnwindTableRow, X86_64,
};
use rustc_hash::FxHashMap;
use tracer_common::unwind::{
    CFA_AT_FP, CFA_AT_SP, CFA_END, CFA_FP, CFA_NONE, CFA_OTHER_STACK, CFA_PLT, CFA_SIGNAL, CFA_SP, CFA_UNSUPPORTED,
    FP_AT_CFA, FP_AT_FP, PAGE_SHIFT, RULES, Rule,
};
use tracer_runtimes::declared::depths;
use tracer_runtimes::go;

use super::image::{Image, NoTable};

/// Most rows of one file: 16 MB. The largest known, LLVM's library, has 1.3 million.
const ROWS: usize = 4 << 20;
/// Most bytes of a CIE: its instructions are run again for each of its functions, and compilers write some 30.
const CIE_BYTES: usize = 256;

const LOW: u64 = (1 << PAGE_SHIFT) - 1;

/// No function is known.
pub const NONE: Rule = rule_of(CFA_NONE);
const UNSUPPORTED: Rule = rule_of(CFA_UNSUPPORTED);
const END: Rule = rule_of(CFA_END);

const fn rule_of(cfa: u8) -> Rule {
    Rule { cfa, fp: 0, extra: 0, reserved: 0, cfa_offset: 0, fp_offset: 0, reserved_too: 0 }
}

/// Every rule, of all files: there are a few thousand on a whole machine.
#[derive(Debug, Default)]
pub struct Rules {
    list: Vec<Rule>,
    numbers: FxHashMap<Rule, u16>,
    /// Rules that found no room: their rows say that they are not supported.
    pub refused: u64,
}

impl Rules {
    /// Empty, but for what stands in for others.
    pub fn new() -> Self {
        let mut rules = Self::default();
        rules.number(UNSUPPORTED);
        rules
    }

    pub(super) fn number(&mut self, rule: Rule) -> u16 {
        if let Some(number) = self.numbers.get(&rule) {
            return *number;
        }
        if self.list.len() >= RULES as usize {
            self.refused += 1;
            return 0;
        }
        let number = self.list.len() as u16;
        self.list.push(rule);
        self.numbers.insert(rule, number);
        number
    }

    /// All, by number.
    pub fn all(&self) -> &[Rule] {
        &self.list
    }
}

/// The rows of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Offset in the file where the first page begins.
    pub from: u64,
    /// Rows of all pages.
    pub rows: Vec<u32>,
    /// First row of each page.
    pub pages: Vec<u32>,
}

impl Table {
    /// Rows of one page.
    pub fn page(&self, page: usize) -> &[u32] {
        let from = self.pages.get(page).map_or(self.rows.len(), |first| *first as usize);
        let to = self.pages.get(page + 1).map_or(self.rows.len(), |first| *first as usize);
        self.rows.get(from..to).unwrap_or_default()
    }

    /// Takes the numbers that rules have among `all` in the place of those that they have in `own`.
    pub(super) fn renumber(&mut self, own: &Rules, all: &mut Rules) {
        let numbers: Vec<u16> = own.list.iter().map(|rule| all.number(*rule)).collect();
        all.refused += own.refused;
        for row in &mut self.rows {
            let number = numbers.get((*row & 0xffff) as usize).copied().unwrap_or_default();
            *row = *row & 0xffff_0000 | u32::from(number);
        }
    }

    /// Number of the rule in force at an offset of the file, found as the kernel side finds it.
    pub fn rule(&self, offset: u64) -> Option<u16> {
        let offset = offset.checked_sub(self.from)?;
        let page = usize::try_from(offset >> PAGE_SHIFT).ok().filter(|page| *page < self.pages.len())?;
        let target = ((offset & LOW) as u32 + 1) << 16;
        let rows = self.page(page);
        rows.get(rows.partition_point(|row| *row < target).checked_sub(1)?).map(|row| *row as u16)
    }
}

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Compiles what the file says.
pub fn compile(image: &Image<'_>, rules: &mut Rules) -> Result<Table, NoTable> {
    let section = EhFrame::new(image.unwind, LittleEndian);
    let [unwind, text, got] = image.bases;
    let bases = BaseAddresses::default().set_eh_frame(unwind).set_text(text).set_got(got);
    let functions = functions(image, &section, &bases);
    if functions.is_empty() && image.go.is_empty() {
        return Err(NoTable::Absent);
    }
    let none = rules.number(NONE);
    let mut rows: Vec<(u64, u16)> = Vec::with_capacity(image.unwind.len() / 8);
    let mut context = UnwindContext::new();
    let mut covered = 0;
    for (at, end, fde) in &functions {
        let (at, end) = (*at, *end);
        if at > covered {
            rows.push((covered, none));
        }
        let before = rows.len();
        let signal = fde.is_signal_trampoline();
        let begin = fde.initial_address();
        let mut unreadable = true;
        if let Ok(mut table) = fde.rows(&section, &bases, &mut context) {
            unreadable = loop {
                match table.next_row() {
                    Ok(Some(row)) => {
                        let number = rules.number(rule(row, &section, signal));
                        let place = row.start_address().wrapping_sub(begin);
                        if place < end - at {
                            rows.push((at + place, number));
                        }
                    }
                    Ok(None) => break false,
                    Err(_) => break true,
                }
                if rows.len() > ROWS {
                    return Err(NoTable::TooLarge);
                }
            };
        }
        if unreadable {
            // The rows before it may be wrong too.
            rows.truncate(before);
            rows.push((at, rules.number(UNSUPPORTED)));
        }
        covered = covered.max(end);
    }
    rows.push((covered, none));
    let is_covered = |place: u64| functions.iter().any(|(at, end, _)| (*at..*end).contains(&place));
    if let Some((address, code)) = image.main
        && let Some((place, _)) = image.offset(address).filter(|(place, _)| !is_covered(*place))
    {
        let next = functions.iter().map(|(at, ..)| *at).find(|at| *at > place).unwrap_or(u64::MAX);
        let code = usize::try_from(next - place).ok().and_then(|bytes| code.get(..bytes)).unwrap_or(code);
        rows.extend(by_code(code, place, rules));
    }
    put_go(image, rules, &mut rows);
    if let Some((entry, _)) = image.offset(image.entry).filter(|(entry, _)| !is_covered(*entry)) {
        // A program's entry point has no caller, whether its unwind table says so or not: the dynamic linker's does not.
        rows.push((entry, rules.number(END)));
    }
    // Functions that overlap are rare; what comes later wins.
    rows.sort_by_key(|(place, _)| *place);
    let first = image.segments.first().map_or(0, |segment| segment.offset);
    let last = image.segments.iter().map(|segment| segment.offset + segment.bytes).max().unwrap_or(first);
    Ok(pages(first, last, &rows, none))
}

/// Where functions begin and end in the file, and their unwind information; sorted.
fn functions<'a>(
    image: &Image<'a>,
    section: &EhFrame<Slice<'a>>,
    bases: &BaseAddresses,
) -> Vec<(u64, u64, FrameDescriptionEntry<Slice<'a>>)> {
    let mut found = Vec::with_capacity(image.unwind.len() / 48);
    let mut cies: FxHashMap<usize, CommonInformationEntry<Slice<'a>>> = FxHashMap::default();
    let mut entries = section.entries(bases);
    // What is cut or corrupt ends it; what stands before it counts.
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(|_, bases, offset| {
            if let Some(cie) = cies.get(&offset.0) {
                return Ok(cie.clone());
            }
            let cie = section.cie_from_offset(bases, offset)?;
            cies.insert(offset.0, cie.clone());
            Ok(cie)
        });
        let Ok(fde) = fde else { continue };
        if fde.cie().entry_len() > CIE_BYTES {
            continue;
        }
        if let Some((at, left)) = image.offset(fde.initial_address())
            && fde.len() > 0
        {
            found.push((at, at + fde.len().min(left), fde));
        }
    }
    found.sort_by_key(|(at, ..)| *at);
    found
}

/// Rows of a function of the program without unwind information, from what its instructions do to the stack. Of the function
/// `main` that Rust makes the compiler writes none where panics abort, and the stack of the first thread would end there.
fn by_code(code: &[u8], place: u64, rules: &mut Rules) -> Vec<(u64, u16)> {
    let none = rules.number(NONE);
    // `push %rbp` first, behind `endbr64`.
    let saved = code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]).unwrap_or(code).starts_with(&[0x55]);
    let mut rows = vec![(place, none)];
    for (at, end, depth) in depths::of_code(code, place) {
        let bytes = depth.and_then(i64::checked_neg).and_then(|bytes| u32::try_from(bytes).ok());
        let rule = bytes.map_or(UNSUPPORTED, |bytes| above(bytes, saved && bytes >= 8));
        // What follows is no code that is reached, unless it says so itself.
        rows.extend([(at, rules.number(rule)), (end, none)]);
    }
    rows
}

/// The return address stands so many bytes above the stack pointer, and below it the frame pointer of the caller, if that was
/// `saved`.
fn above(bytes: u32, saved: bool) -> Rule {
    let Some(cfa_offset) = i32::try_from(bytes).ok().and_then(|bytes| bytes.checked_add(8)) else { return UNSUPPORTED };
    let rule = Rule { cfa_offset, ..rule_of(CFA_SP) };
    if saved { Rule { fp: FP_AT_CFA, fp_offset: -16, ..rule } } else { rule }
}

/// Puts what Go says of its code in the place of what else is said of it: that nothing is known.
fn put_go(image: &Image<'_>, rules: &mut Rules, rows: &mut Vec<(u64, u16)>) {
    let place = |(address, frame): &(u64, go::Frame)| Some((image.offset(*address)?.0, *frame));
    let places: Vec<(u64, go::Frame)> = image.go.iter().filter_map(place).collect();
    let (Some((first, _)), Some((last, _))) = (places.first(), places.last()) else { return };
    let behind = rows.iter().filter(|(place, _)| place <= last).max_by_key(|(place, _)| *place).copied();
    rows.retain(|(place, _)| place < first || place > last);
    for (place, frame) in &places {
        let rule = match frame {
            go::Frame::Bytes { bytes, saved } => above(*bytes, *saved),
            go::Frame::Switched => rule_of(CFA_OTHER_STACK),
            go::Frame::Left => Rule { extra: 1, ..rule_of(CFA_OTHER_STACK) },
            go::Frame::Outermost => END,
            go::Frame::Signal => rule_of(CFA_SIGNAL),
            go::Frame::Unknown => NONE,
        };
        rows.push((*place, rules.number(rule)));
    }
    rows.extend(behind.map(|(_, number)| (*last, number)));
}

/// Rows, sorted by their place, to pages of what lies between two places.
pub(super) fn pages(first: u64, last: u64, rows: &[(u64, u16)], none: u16) -> Table {
    let from = first & !LOW;
    let count = ((last - from) >> PAGE_SHIFT) as usize + 1;
    let mut table = Table { from, rows: Vec::with_capacity(rows.len() + count), pages: Vec::with_capacity(count) };
    let mut in_force = none;
    let open = |table: &mut Table, in_force: u16| {
        table.pages.push(table.rows.len() as u32);
        table.rows.push(u32::from(in_force));
    };
    open(&mut table, in_force);
    for (place, number) in rows {
        let Some(place) = place.checked_sub(from) else { continue };
        let page = (place >> PAGE_SHIFT) as usize;
        if page >= count {
            break;
        }
        while table.pages.len() <= page {
            open(&mut table, in_force);
        }
        let row = ((place & LOW) as u32) << 16 | u32::from(*number);
        match table.rows.last_mut() {
            Some(last) if *last >> 16 == row >> 16 => *last = row,
            _ if in_force == *number => continue,
            _ => table.rows.push(row),
        }
        in_force = *number;
    }
    while table.pages.len() < count {
        open(&mut table, in_force);
    }
    table
}

/// The rule one row of a function amounts to.
fn rule(row: &UnwindTableRow<usize>, section: &EhFrame<Slice<'_>>, signal: bool) -> Rule {
    if signal {
        return rule_of(CFA_SIGNAL);
    }
    match row.register(X86_64::RA) {
        Some(RegisterRule::Undefined) => return END,
        Some(RegisterRule::Offset(-8)) => {}
        _ => return UNSUPPORTED,
    }
    cfa(row, section).and_then(|cfa| frame_pointer(row, section, cfa)).unwrap_or(UNSUPPORTED)
}

/// Where its CFA comes from.
fn cfa(row: &UnwindTableRow<usize>, section: &EhFrame<Slice<'_>>) -> Option<Rule> {
    match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            let cfa = match *register {
                X86_64::RSP => CFA_SP,
                X86_64::RBP => CFA_FP,
                _ => return None,
            };
            Some(Rule { cfa_offset: i32::try_from(*offset).ok()?, ..rule_of(cfa) })
        }
        CfaRule::Expression(expression) => {
            let code = expression.get(section).ok()?.0.slice();
            // rsp + 8 + (((rip & 15) >= k) << 3): an entry of the procedure linkage table.
            if let [0x77, 8, 0x80, 0, 0x3f, 0x1a, literal @ 0x30..=0x3f, 0x2a, 0x33, 0x24, 0x22] = code {
                return Some(Rule { extra: literal - 0x30, ..rule_of(CFA_PLT) });
            }
            let Address { register, offset, loaded: true, added } = address(code)? else { return None };
            let cfa = match register {
                RSP => CFA_AT_SP,
                RBP => CFA_AT_FP,
                _ => return None,
            };
            let (cfa_offset, extra) = (i32::try_from(offset).ok()?, u8::try_from(added).ok()?);
            Some(Rule { cfa_offset, extra, ..rule_of(cfa) })
        }
    }
}

/// Adds where its caller's frame pointer is.
fn frame_pointer(row: &UnwindTableRow<usize>, section: &EhFrame<Slice<'_>>, rule: Rule) -> Option<Rule> {
    match row.register(X86_64::RBP) {
        None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => Some(rule),
        Some(RegisterRule::Offset(offset)) => {
            Some(Rule { fp: FP_AT_CFA, fp_offset: i32::try_from(offset).ok()?, ..rule })
        }
        Some(RegisterRule::Expression(expression)) => at_frame_pointer(expression, section, rule),
        _ => None,
    }
}

fn at_frame_pointer(expression: UnwindExpression<usize>, section: &EhFrame<Slice<'_>>, rule: Rule) -> Option<Rule> {
    match address(expression.get(section).ok()?.0.slice())? {
        Address { register: RBP, offset, loaded: false, added: 0 } => {
            Some(Rule { fp: FP_AT_FP, fp_offset: i32::try_from(offset).ok()?, ..rule })
        }
        _ => None,
    }
}

/// Numbers of registers in DWARF.
const RBP: u8 = 6;
const RSP: u8 = 7;

/// The expressions compilers write besides that of the linkage table: register + offset, perhaps loaded from there, perhaps
/// with something added.
struct Address {
    register: u8,
    offset: i64,
    loaded: bool,
    added: u64,
}

fn address(code: &[u8]) -> Option<Address> {
    const BREG: u8 = 0x70;
    const DEREF: u8 = 0x06;
    const PLUS: u8 = 0x23;
    let (operation, rest) = code.split_first()?;
    let register = operation.checked_sub(BREG).filter(|register| *register < 32)?;
    let mut rest = EndianSlice::new(rest, LittleEndian);
    let offset = gimli::Reader::read_sleb128(&mut rest).ok()?;
    let plain = Address { register, offset, loaded: false, added: 0 };
    match rest.slice() {
        [] => Some(plain),
        [DEREF] => Some(Address { loaded: true, ..plain }),
        [DEREF, PLUS, added @ ..] => {
            let mut added = EndianSlice::new(added, LittleEndian);
            let value = gimli::Reader::read_uleb128(&mut added).ok()?;
            gimli::Reader::is_empty(&added).then_some(Address { loaded: true, added: value, ..plain })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
