//! How large the frames of a Go program are, at each of its instructions, and where its stacks end: from the table that Go's
//! own runtime walks stacks by (`runtime/symtab.go`, `pcvalue`). Frame pointers do not say as much: functions without a frame
//! of their own, as `runtime.memmove`, would take their callers' place.

use std::borrow::Cow;
use std::ops::Range;

use object::ReadRef;

use super::functions::{self, Functions};
use super::image::{self, Image, Source};

/// Most places of one program: some five a function.
const PLACES: usize = 4 << 20;

/// What is known of the frame at an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Frame {
    /// The return address stands this many bytes above the stack pointer.
    Bytes {
        /// How many.
        bytes: u32,
        /// Whether the caller's frame pointer stands below the return address.
        saved: bool,
    },
    /// The function switched to another stack, and the frame pointer leads back: `runtime.systemstack`.
    Switched,
    /// The function switched to another stack, and never goes back: what it calls has no callers. `runtime.mcall`.
    Left,
    /// The outermost function of a stack.
    Outermost,
    /// What a signal handler returns to.
    Signal,
    /// Nothing.
    Unknown,
}

/// A file as far as it is read here.
struct Bytes<R>(R);

impl<'a, R: ReadRef<'a>> Source for Bytes<R> {
    fn piece(&self, at: u64, len: usize) -> Option<Vec<u8>> {
        self.0.read_bytes_at(at, len as u64).ok().map(<[u8]>::to_vec)
    }
}

/// From which addresses on what holds, in order; the last one is the end of Go's code. `None` if this is no Go program, or one
/// whose code is not found.
pub fn frames<'a, R: ReadRef<'a>>(data: R) -> Option<Vec<(u64, Frame)>> {
    let source = Bytes(data);
    let image = Image::read(&source)?;
    if image.machine != image::X86_64 {
        return None;
    }
    let section = image.section(".gopclntab").filter(|section| section.size <= functions::TABLE as u64)?;
    let table = data.read_bytes_at(section.offset, section.size).ok()?;
    let functions = Functions::of(Cow::Borrowed(table))?;
    let text = text(&image, &functions)?;
    let mut found = Vec::new();
    let mut end = text;
    functions.each_record(|record| {
        let (Some(start), Some(after)) =
            (text.checked_add(record.range.start), text.checked_add(record.range.end.max(record.range.start)))
        else {
            return;
        };
        // Out of order: the table lies.
        if start >= end && found.len() < PLACES {
            let before = found.len();
            one(&image, &record, start, after, &mut found);
            if found.len() == before {
                found.push((start, Frame::Unknown));
            }
            end = after;
        }
    });
    found.push((end, Frame::Unknown));
    found.sort_by_key(|(address, _)| *address);
    Some(found)
}

/// Where the code begins, checked by a call that is known.
fn text<S: Source + ?Sized>(image: &Image<'_, S>, functions: &Functions<'_>) -> Option<u64> {
    let (mut creates, mut queues): (Option<Range<u64>>, Option<Range<u64>>) = (None, None);
    functions.each(|name, range| match name {
        b"runtime.newproc.func1" => creates = Some(range),
        b"runtime.runqput" => queues = Some(range),
        _ => {}
    });
    functions::text(image, functions.text, &creates?, &queues?)
}

/// What one function says.
fn one<S: Source + ?Sized>(
    image: &Image<'_, S>,
    record: &functions::Record<'_>,
    start: u64,
    end: u64,
    found: &mut Vec<(u64, Frame)>,
) {
    match record.name {
        // The place of a return address is looked up by the byte before it, and a handler returns to the first instruction.
        b"runtime.sigreturn" | b"runtime.sigreturn__sigaction" => {
            found.push((start.saturating_sub(1), Frame::Signal));
            return;
        }
        // The runtime's own walks end here, too; the frame is of the size the table says.
        b"runtime.sigtramp" | b"runtime.cgoSigtramp" => {}
        _ if record.flags & functions::OUTERMOST != 0 => {
            found.push((start, Frame::Outermost));
            return;
        }
        _ => {}
    }
    let switches = record.flags & functions::WRITES_STACK_POINTER != 0;
    // Functions in assembly save the frame pointer where they have a frame that the assembler made.
    let saved = record.flags & functions::ASSEMBLY == 0
        || image.code(start, 32.min((end - start) as usize)).is_some_and(|code| functions::has_frame(&code));
    let never_back = !saved || record.name == b"runtime.mcall";
    for (offset, bytes) in record.heights() {
        let at = start.saturating_add(u64::from(offset));
        if at >= end {
            break;
        }
        found.push((
            at,
            match bytes {
                _ if switches && never_back => Frame::Left,
                Some(8..) if switches => Frame::Switched,
                Some(bytes) => Frame::Bytes { bytes, saved: saved && bytes >= 8 },
                None => Frame::Unknown,
            },
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    #[test]
    fn frames_of_a_program() {
        let text = fixture::BASE + fixture::TEXT;
        let framed = |bytes| Frame::Bytes { bytes, saved: bytes >= 8 };
        for announced in [text, 0] {
            let file = fixture::program("go1.25.5", announced, 0);
            let found = frames(&*file).expect("a Go program");
            let expected = [
                (text, framed(0)),
                (text + 7, framed(8)),
                (text + 10, framed(40)),
                // No table.
                (text + 64, Frame::Unknown),
                (text + 128, framed(0)),
                (text + 129, framed(8)),
                (text + 192, Frame::Unknown),
                (text + 256, Frame::Outermost),
                (text + 319, Frame::Signal),
                (text + 384, framed(0)),
                (text + 385, Frame::Switched),
                (text + 448, Frame::Unknown),
            ];
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn never_panics_on_damaged_files() {
        let whole = fixture::program("go1.25.5", 0, 0);
        fixture::survives(&whole, |bytes| drop(frames(bytes)));
        assert_eq!(frames(&b""[..]), None);
    }
}
