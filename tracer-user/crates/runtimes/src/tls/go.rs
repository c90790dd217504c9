//! Go's `crypto/tls`: text is complete in `(*Conn).Write`'s arguments, and where `(*Conn).Read` copies it to its caller.
//! Found by the function table, which stripped programs have too. No return probes: Go moves its stacks.

use std::fs::File;

use tracer_common::runtime::UserProbe;

use super::super::declared::go_functions;
use super::super::go::functions::{call, frame};
use super::super::go::image::{Image, X86_64};
use super::{Refusal, Site, Sites};

/// Bytes of a function's beginning that set up its frame.
const PROLOGUE: usize = 96;
/// Bytes of `push %rbp; mov %rsp,%rbp`.
const FRAME: usize = 4;
/// Where the room for the first argument is, above the frame pointer: behind it and the return address.
const FIRST: i32 = 16;

/// Whether a file is a Go program.
pub(super) fn is_go(file: &File) -> bool {
    Image::read(file).is_some_and(|image| image.section(".gopclntab").is_some())
}

/// The places in a program's file.
pub(super) fn inspect(file: &File) -> Result<Sites, Refusal> {
    let image = Image::read(file).filter(|image| image.machine == X86_64).ok_or(Refusal::NotProgram)?;
    if image.section(".gopclntab").is_none() {
        return Err(Refusal::NotProgram);
    }
    let (table, text) = go_functions(&image).ok_or(Refusal::UnknownCode)?;
    let (mut reads, mut writes, mut copies) = (None, None, None);
    table.each(|name, range| match name {
        b"crypto/tls.(*Conn).Read" => reads = Some(range),
        b"crypto/tls.(*Conn).Write" => writes = Some(range),
        b"runtime.memmove" => copies = Some(range),
        _ => {}
    });
    let (Some(reads), Some(writes), Some(copies)) = (reads, writes, copies) else { return Err(Refusal::NoFunctions) };
    let beginning = |start: u64| image.code(text.checked_add(start)?, PROLOGUE);
    let known = || {
        let prologue = beginning(writes.start)?;
        let write = text.checked_add(writes.start)?.checked_add(frame(&prologue)? as u64)?;
        let copy = text.checked_add(call(&image, text, &reads, &copies)?)?;
        let keeps = keeps_receiver(&beginning(reads.start)?);
        keeps.then_some([(UserProbe::TlsGoWrite, image.place(write)?), (UserProbe::TlsGoRead, image.place(copy)?)])
    };
    let places = known().ok_or(Refusal::UnknownCode)?;
    let sites = places.into_iter().map(|(probe, offset)| Site { probe, offset, cookie: 0 }).collect();
    Ok(Sites { sites, ..Sites::default() })
}

/// Whether a function stores its first argument in the room its caller left for it.
fn keeps_receiver(code: &[u8]) -> bool {
    let Some(rest) = frame(code).and_then(|at| code.get(at + FRAME..)) else { return false };
    let (size, rest) = match rest {
        [0x48, 0x83, 0xec, size, rest @ ..] => (i32::from(*size as i8), rest),
        [0x48, 0x81, 0xec, a, b, c, d, rest @ ..] => (i32::from_le_bytes([*a, *b, *c, *d]), rest),
        _ => return false,
    };
    let Some(wanted) = size.checked_add(FIRST) else { return false };
    // `mov %rax,wanted(%rsp)`, with a displacement of one byte or of four.
    let short = i8::try_from(wanted).ok().map(|at| vec![0x48, 0x89, 0x44, 0x24, at as u8]);
    let long = [&[0x48, 0x89, 0x84, 0x24][..], &wanted.to_le_bytes()].concat();
    let has = |needle: &[u8]| rest.windows(needle.len()).any(|bytes| bytes == needle);
    has(&long) || short.is_some_and(|needle| has(&needle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receiver_is_where_the_caller_left_room() {
        let code = |text: &str| -> Vec<u8> {
            text.split(' ').map(|byte| u8::from_str_radix(byte, 16).expect("a byte in hexadecimal")).collect()
        };
        let check = "49 3b 66 10 0f 86 93 04 00 00 55 48 89 e5";
        for (rest, keeps) in [
            ("48 83 ec 50 48 89 44 24 60", true),
            ("48 81 ec 88 00 00 00 48 89 84 24 98 00 00 00", true),
            ("48 83 ec 50 48 89 44 24 58", false),
            ("48 83 ec 50 90 90", false),
            ("90 48 89 44 24 60", false),
        ] {
            assert_eq!(keeps_receiver(&code(&format!("{check} {rest}"))), keeps, "{rest}");
        }
    }
}
