//! Tables are compiled from files of this machine, used to walk this thread's own stack, and from damaged ones.

use object::{Object, ObjectSection, ObjectSymbol};
use proptest::prelude::*;
use tracer_common::unwind::{Frame, Outcome, Stack, call, call_by_frame_pointer};

use super::*;

/// Everything mapped as code here, and its tables.
struct Own {
    /// Start, end, offset in the file, and the file's table.
    mappings: Vec<(u64, u64, u64, Option<Table>)>,
    rules: Rules,
}

impl Own {
    fn read() -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let (mut mappings, mut rules) = (Vec::new(), Rules::new());
        for line in maps.lines().filter(|line| line.contains(" r-x")) {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let (start, end) = words[0].split_once('-').expect("a range");
            let hex = |text| u64::from_str_radix(text, 16).expect("hexadecimal");
            let bytes = words.get(5).and_then(|path| std::fs::read(path).ok());
            let table = bytes.and_then(|bytes| compile(&Image::parse(&*bytes).ok()?, &mut rules).ok());
            mappings.push((hex(start), hex(end), hex(words[2]), table));
        }
        Self { mappings, rules }
    }

    fn walk(&self, mut frame: Frame) -> (Vec<u64>, Outcome) {
        let mut frames = Vec::new();
        loop {
            frames.push(frame.pc);
            let place = frame.place();
            let Some((start, _, offset, table)) = self.mappings.iter().find(|m| (m.0..m.1).contains(&place)) else {
                return (frames, Outcome::NoMapping);
            };
            let stepped = match table.as_ref().map(|table| table.rule(place - start + offset)) {
                Some(Some(number)) => call(&mut frame, &self.rules.all()[usize::from(number)], &mut Memory),
                Some(None) => Err(Outcome::TableMismatch),
                None => call_by_frame_pointer(&mut frame, &mut Memory),
            };
            if let Err(outcome) = stepped {
                return (frames, outcome);
            }
            assert!(frames.len() < 1000);
        }
    }
}

/// This process's memory.
struct Memory;

impl Stack for Memory {
    fn pair(&mut self, at: u64) -> Option<[u64; 2]> {
        Some([self.word(at)?, self.word(at + 8)?])
    }

    fn word(&mut self, at: u64) -> Option<u64> {
        use std::os::unix::fs::FileExt;
        let mut bytes = [0; 8];
        std::fs::File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, at).ok()?;
        Some(u64::from_ne_bytes(bytes))
    }
}

#[inline(never)]
#[cfg(target_arch = "x86_64")]
fn here() -> Frame {
    let (pc, sp, fp): (u64, u64, u64);
    // SAFETY: reads three registers.
    unsafe { std::arch::asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) pc, out(reg) sp, out(reg) fp) };
    Frame { pc, sp, fp, exact: 1 }
}

#[inline(never)]
fn deeper(own: &Own, levels: u32) -> (Vec<u64>, Outcome) {
    if levels == 0 {
        // The frame must be alive while it is walked: from the caller's on it is.
        let mut frame = here();
        let own_frame = own.mappings.iter().find(|m| (m.0..m.1).contains(&frame.pc)).expect("this program");
        let table = own_frame.3.as_ref().expect("its table");
        let rule = table.rule(frame.pc - own_frame.0 + own_frame.2).expect("a rule");
        call(&mut frame, &own.rules.all()[usize::from(rule)], &mut Memory).expect("a caller");
        return std::hint::black_box(own.walk(frame));
    }
    let found = deeper(own, levels - 1);
    std::hint::black_box(levels);
    found
}

#[test]
#[cfg(target_arch = "x86_64")]
fn this_thread_is_walked_to_its_outermost_frame() {
    let own = Own::read();
    let (frames, outcome) = deeper(&own, 20);
    assert_eq!(outcome, Outcome::Complete, "{frames:x?}");
    let start = deeper as *const () as u64;
    let inside = frames.iter().filter(|pc| (start..start + 4096).contains(pc)).count();
    assert!(inside >= 20 && frames.len() > 25, "{inside} of {}", frames.len());
}

/// The C library as it is mapped here.
fn libc() -> Vec<u8> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let path = maps.lines().find(|line| line.contains("libc.so")).and_then(|line| line.split_ascii_whitespace().nth(5));
    std::fs::read(path.expect("a C library")).expect("it is readable")
}

#[test]
fn of_the_c_library_nearly_everything_is_covered() {
    let bytes = libc();
    let image = Image::parse(&*bytes).expect("an ELF file");
    let mut rules = Rules::new();
    let table = compile(&image, &mut rules).expect("a table");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let (mut covered, mut all) = (0, 0);
    for symbol in file.dynamic_symbols().filter(|s| s.is_definition() && s.size() > 0) {
        let Some((offset, _)) = image.offset(symbol.address()) else { continue };
        all += 1;
        let rule = table.rule(offset).map(|number| rules.all()[usize::from(number)]).expect("a rule");
        // At a function's first instruction nothing was pushed yet.
        covered += usize::from(rule.cfa == CFA_SP && rule.cfa_offset == 8);
    }
    assert!(all > 1000 && covered * 100 > all * 99, "{covered} of {all}");
    let unsupported = table.rows.iter().filter(|row| rules.all()[usize::from(**row as u16)] == UNSUPPORTED).count();
    assert!(unsupported * 1000 < table.rows.len(), "{unsupported} of {}", table.rows.len());
    assert!(table.rows.len() * 4 < image.unwind.len() * 2, "{} rows of {} bytes", table.rows.len(), image.unwind.len());
    // Every page begins with a row for its first byte, and its rows rise.
    for page in 0..table.pages.len() {
        let rows = table.page(page);
        assert!(rows[0] >> 16 == 0 && rows.windows(2).all(|pair| pair[0] >> 16 < pair[1] >> 16), "page {page}");
    }
}

#[test]
fn entries_of_the_linkage_table_and_signal_frames_are_known() {
    let bytes = std::fs::read("/proc/self/exe").expect("this program");
    let libc = libc();
    let mut rules = Rules::new();
    let mut plt = false;
    for bytes in [&bytes, &libc] {
        let image = Image::parse(&**bytes).expect("an ELF file");
        let table = compile(&image, &mut rules).expect("a table");
        let file = object::File::parse(&**bytes).expect("an ELF file");
        if let Some(section) = file.section_by_name(".plt").filter(|section| section.size() > 32) {
            // Behind the first entry, which is for resolving.
            let (offset, _) = image.offset(section.address() + 16).expect("code");
            plt |= rules.all()[usize::from(table.rule(offset).expect("a rule"))].cfa == CFA_PLT;
        }
    }
    assert!(plt, "no entry of a linkage table");
    assert!(rules.all().iter().any(|rule| rule.cfa == CFA_SIGNAL), "the C library returns from signals");
    assert!(rules.all().iter().any(|rule| rule.cfa == CFA_END), "threads begin somewhere");
}

#[test]
fn an_entry_point_has_no_caller() {
    let path =
        ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"].into_iter().find_map(|p| std::fs::read(p).ok());
    let Some(bytes) = path else {
        println!("SKIPPED unwind::compile: no dynamic linker where it is looked for");
        return;
    };
    let image = Image::parse(&*bytes).expect("an ELF file");
    let mut rules = Rules::new();
    let table = compile(&image, &mut rules).expect("a table");
    let (entry, _) = image.offset(image.entry).expect("code");
    let rule = rules.all()[usize::from(table.rule(entry).expect("a rule"))];
    assert_eq!(rule.cfa, CFA_END);
}

#[test]
fn what_instructions_do_to_the_stack_is_what_unwind_information_says() {
    let mut compared = 0;
    for path in ["/proc/self/exe", "/bin/sh", "/bin/ls", "/usr/bin/env", "/usr/sbin/nginx"] {
        let Ok(bytes) = std::fs::read(path) else { continue };
        let Ok(image) = Image::parse(&*bytes) else { continue };
        let Some((address, code)) = image.main else { continue };
        let (place, _) = image.offset(address).expect("code");
        let mut rules = Rules::new();
        let table = compile(&image, &mut rules).expect("a table");
        let of = |rules: &Rules, number: u16| rules.all()[usize::from(number)];
        // To the end of the function: where another rule than its own is in force.
        for (at, number) in by_code(code, place, &mut rules) {
            let (own, said) = (of(&rules, number), of(&rules, table.rule(at).expect("a rule")));
            if said.cfa == CFA_NONE {
                break;
            }
            // Where the frame pointer leads, the same frame is described otherwise.
            if own.cfa == CFA_SP && said.cfa == CFA_SP {
                assert_eq!(own.cfa_offset, said.cfa_offset, "{path}: {at:#x}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 3, "{compared} instructions compared");
}

#[test]
fn the_first_function_is_read_from_its_code_where_nothing_else_is_said_of_it() {
    let bytes = std::fs::read("/proc/self/exe").expect("this program");
    let mut image = Image::parse(&*bytes).expect("an ELF file");
    let (place, _) = image.main.and_then(|(address, _)| image.offset(address)).expect("a function");
    // What cannot be unwound says nothing of it.
    let end = image.unwind.len().min(1 << 12);
    image.unwind = &image.unwind[..end];
    let mut rules = Rules::new();
    let table = compile(&image, &mut rules).expect("a table");
    let rule = rules.all()[usize::from(table.rule(place).expect("a rule"))];
    assert_eq!((rule.cfa, rule.cfa_offset), (CFA_SP, 8));
}

#[test]
fn what_go_says_stands_between_what_others_say() {
    let bytes = libc();
    let mut image = Image::parse(&*bytes).expect("an ELF file");
    let mut rules = Rules::new();
    let before = compile(&image, &mut rules).expect("a table");
    let from = image.segments[0].address + 0x2000;
    let framed = |bytes| go::Frame::Bytes { bytes, saved: bytes >= 8 };
    let go = [
        framed(0),
        framed(40),
        go::Frame::Switched,
        go::Frame::Left,
        go::Frame::Outermost,
        go::Frame::Signal,
        go::Frame::Unknown,
    ];
    image.go = go.into_iter().enumerate().map(|(n, frame)| (from + 16 * n as u64, frame)).collect();
    let after = compile(&image, &mut rules).expect("a table");
    let (place, _) = image.offset(from).expect("code");
    let at = |table: &Table, offset: u64| rules.all()[usize::from(table.rule(place + offset).expect("a rule"))];
    let found: Vec<_> = (0..6).map(|n| at(&after, 16 * n + 15)).map(|rule| (rule.cfa, rule.extra, rule.fp)).collect();
    let expected = [
        (CFA_SP, 0, 0),
        (CFA_SP, 0, FP_AT_CFA),
        (CFA_OTHER_STACK, 0, 0),
        (CFA_OTHER_STACK, 1, 0),
        (CFA_END, 0, 0),
        (CFA_SIGNAL, 0, 0),
    ];
    assert_eq!(found, expected);
    for offset in [0, 1, 16, 500, 5000, 50_000] {
        assert_eq!(at(&after, 96 + offset), at(&before, 96 + offset), "behind it");
    }
    assert_eq!(after.rule(place - 1), before.rule(place - 1), "in front of it");
    // Go alone.
    image.unwind = &[];
    let alone = compile(&image, &mut rules).expect("a table");
    assert_eq!(rules.all()[usize::from(alone.rule(place + 20).expect("a rule"))].cfa_offset, 48);
}

#[test]
fn what_has_no_unwind_information_has_no_table() {
    for bytes in [&b""[..], b"\x7fELF", &[0; 4096], b"#!/bin/sh\n"] {
        assert_eq!(Image::parse(bytes).map(|_| ()), Err(NoTable::Absent));
    }
    let bytes = libc();
    let mut image = Image::parse(&*bytes).expect("an ELF file");
    image.unwind = &[];
    assert_eq!(compile(&image, &mut Rules::new()).map(|_| ()), Err(NoTable::Absent));
}

#[test]
fn too_many_rules_are_counted_and_unsupported() {
    let mut rules = Rules::new();
    for offset in 0..RULES as i32 + 10 {
        rules.number(Rule { cfa_offset: offset, ..rule_of(CFA_SP) });
    }
    assert_eq!((rules.all().len(), rules.refused), (RULES as usize, 11));
    assert_eq!(rules.number(Rule { cfa_offset: -1, ..rule_of(CFA_SP) }), 0);
    assert_eq!(rules.all()[0], UNSUPPORTED);
}

/// Compiles and looks up; nothing may panic, and what is found stands in the table.
fn survives(bytes: &[u8]) {
    let Ok(image) = Image::parse(bytes) else { return };
    let mut rules = Rules::new();
    let Ok(table) = compile(&image, &mut rules) else { return };
    for segment in &image.segments {
        for offset in [segment.offset, segment.offset + segment.bytes / 2, segment.offset + segment.bytes] {
            if let Some(number) = table.rule(offset) {
                assert!(usize::from(number) < rules.all().len());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn never_panics_on_damaged_files(damage in proptest::collection::vec((any::<u32>(), any::<u8>()), 1..40), cut in any::<u32>()) {
        let vdso = super::super::worker::vdso().unwrap_or_default();
        let mut bytes = vdso.clone();
        for (place, byte) in damage {
            let place = place as usize % bytes.len().max(1);
            if let Some(at) = bytes.get_mut(place) {
                *at = byte;
            }
        }
        survives(&bytes);
        survives(&vdso[..cut as usize % (vdso.len() + 1)]);
    }

    #[test]
    fn never_panics_on_arbitrary_unwind_information(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let libc = libc();
        let mut image = Image::parse(&*libc).expect("an ELF file");
        image.unwind = &bytes;
        let _ = compile(&image, &mut Rules::new());
    }
}
