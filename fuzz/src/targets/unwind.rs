//! Any bytes as a program with unwind information, and as unwind information; any rule on any stack.
use tracer_common::unwind::{CFA_OTHER_STACK, Frame, Rule, Stack, call};
use tracer_unwind::compile::{Rules, compile};
use tracer_unwind::image::{Image, Segment};

/// A stack of arbitrary bytes.
struct Bytes<'a>(&'a [u8]);

impl Stack for Bytes<'_> {
    fn pair(&mut self, at: u64) -> Option<[u64; 2]> {
        Some([self.word(at)?, self.word(at.checked_add(8)?)?])
    }

    fn word(&mut self, at: u64) -> Option<u64> {
        let at = usize::try_from(at).ok()?;
        self.0.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
    }
}

fn compiled(image: &Image<'_>, stack: &[u8]) {
    let mut rules = Rules::new();
    let Ok(table) = compile(image, &mut rules) else { return };
    for page in 0..table.pages.len() {
        let rows = table.page(page);
        assert!(rows.first().is_some_and(|row| row >> 16 == 0), "a page begins with its first byte");
        assert!(rows.windows(2).all(|pair| pair[0] >> 16 < pair[1] >> 16), "rows rise");
        assert!(rows.iter().all(|row| usize::from(*row as u16) < rules.all().len()), "rules exist");
    }
    for rule in rules.all().iter().take(64) {
        walk(rule, stack);
    }
}

/// A stack that loops, or shrinks, must not be followed for ever.
fn walk(rule: &Rule, stack: &[u8]) {
    let mut frame = Frame { pc: 0x1000, sp: 0, fp: 8, exact: 1 };
    for _ in 0..127 {
        let sp = frame.sp;
        if call(&mut frame, rule, &mut Bytes(stack)).is_err() {
            break;
        }
        let may_be_lower = frame.exact == 1 || rule.cfa == CFA_OTHER_STACK;
        assert!(frame.sp > sp || may_be_lower, "only signals and other stacks lead to a lower one");
    }
}

pub(crate) fn run(data: &[u8]) {
    if let Ok(image) = Image::parse(data) {
        compiled(&image, data);
    }
    let segments = vec![Segment { offset: 0x1000, address: 0x40_1000, bytes: 0x10_0000 }];
    let bases = [0x40_0000, 0x40_1000, 0];
    let main = Some((0x40_2000, data));
    compiled(&Image { segments, unwind: data, bases, entry: 0x40_1000, main, go: Vec::new() }, data);
}
