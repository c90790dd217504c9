//! OpenSSL 1.1 and 3.
//!
//! Text is best seen in two places inside the library ([`super::inside`]): where it is copied to its reader, which calls
//! that find nothing do not reach, and where a record is written. An object's socket is then that of its handshake, or of
//! the descriptor in its BIO.
//!
//! Where these are not found: `SSL_read`, `SSL_write` and their `_ex` forms call one internal function each, with the same
//! arguments, whose entry and return are watched; else those of the exported ones.

use std::fs::File;
use std::path::Path;

use tracer_common::runtime::tls;

use super::super::go::image::Image;
use super::code::{begins_with_push, callee};
use super::functions::Reader;
use super::{CONSTANTS, Refusal, Sites, inside};

const READ: [&str; 2] = ["SSL_read", "SSL_read_ex"];
const WRITE: [&str; 2] = ["SSL_write", "SSL_write_ex"];
const HANDSHAKE: &str = "SSL_do_handshake";
const FORGET: [&str; 2] = ["SSL_free", "SSL_clear"];

/// The places in the library's file.
pub(super) fn inspect(path: &Path, file: &File) -> Result<Sites, Refusal> {
    let wanted: Vec<&str> = READ.into_iter().chain(WRITE).chain([HANDSHAKE]).chain(FORGET).collect();
    let mut reader = Reader::new(path, file, &wanted, &[READ[0], WRITE[0], HANDSHAKE, FORGET[0]])?;
    reader.forgets(&FORGET)?;
    reader.call(HANDSHAKE, 1, tls::HANDSHAKE)?;
    if let Some(sites) = inside::find(path, &reader.image) {
        reader.found.sites.extend(sites);
        return Ok(reader.found);
    }
    for (names, kind) in [(READ, tls::READ), (WRITE, tls::WRITE)] {
        if let Some(address) = internal(&reader, names) {
            reader.function(address, 4, kind | tls::STORES)?;
            continue;
        }
        reader.call(names[0], 3, kind | tls::INT)?;
        if reader.program.address(names[1]).is_some() {
            reader.call(names[1], 4, kind | tls::STORES)?;
        }
    }
    Ok(reader.found)
}

/// The name of a source file of both, up to its ending: `.c` or `.cc`.
const SOURCE: &[u8] = b"ssl/ssl_lib.c";
/// Whether a program contains OpenSSL or BoringSSL: both name their source files where they report errors.
pub(super) fn is_inside(file: &File) -> bool {
    let names = |image: &Image<'_, File>| image.bytes(image.section(".rodata")?, CONSTANTS);
    let ends = |rest: &[u8]| rest.starts_with(b"\0") || rest.starts_with(b"c\0");
    Image::read(file).and_then(|image| names(&image)).is_some_and(|bytes| {
        memchr::memmem::find_iter(&bytes, SOURCE).any(|at| bytes.get(at + SOURCE.len()..).is_some_and(ends))
    })
}

/// The internal function that both forms call.
fn internal(reader: &Reader<'_>, [plain, extended]: [&str; 2]) -> Option<u64> {
    let called = |name: &str, arguments: usize| {
        let address = reader.program.address(name)?;
        address.checked_add_signed(callee(&reader.code(address)?, arguments)?)
    };
    // The plain form extends the length before the call.
    let inner = called(extended, 4)?;
    (called(plain, 2)? == inner && begins_with_push(&reader.code(inner)?)).then_some(inner)
}
