//! OpenSSL 1.1 and 3.
//!
//! Text is best seen inside the library ([`super::inside`]): where it is copied to its reader, which calls that find
//! nothing do not reach, and where a record is written. An object's socket is then that of its handshake, of the
//! descriptor in its BIO, or the one on which the client's random number passed.
//!
//! Where either is not found: `SSL_read` and `SSL_read_ex` call one internal function with the same arguments, whose entry
//! and return are watched; else those of the exported ones. The same for writing, up to OpenSSL 3.1.

use std::fs::File;
use std::path::Path;

use tracer_common::runtime::tls;

use super::super::cheap_places::{begins_with_push, callee};
use super::super::go::image::Image;
use super::flow::{Value, follow};
use super::functions::LibraryReader;
use super::{CONSTANTS, Refusal, Sites, inside};

const READ: [&str; 2] = ["SSL_read", "SSL_read_ex"];
const WRITE: [&str; 2] = ["SSL_write", "SSL_write_ex"];
const HANDSHAKE: &str = "SSL_do_handshake";
const FORGET: [&str; 2] = ["SSL_free", "SSL_clear"];

/// The places in the library's file, which lies at `beside`.
pub(super) fn inspect(path: &Path, beside: &Path, file: &File) -> Result<Sites, Refusal> {
    let wanted: Vec<&str> = READ.into_iter().chain(WRITE).chain([HANDSHAKE]).chain(FORGET).collect();
    let mut reader = LibraryReader::new(path, file, &wanted, &[READ[0], WRITE[0], HANDSHAKE, FORGET[0]])?;
    reader.forgets(&FORGET)?;
    reader.call(HANDSHAKE, 1, tls::HANDSHAKE)?;
    let inside = inside::find(path, beside, &reader.image);
    reader.found.sites.extend(inside.copies.iter().chain(&inside.record));
    reader.found.memory_unbound = inside.memory_unbound();
    let reads = (READ, tls::READ | inside.to_socket, !inside.copies.is_empty());
    let writes = (WRITE, tls::WRITE | inside.to_socket | inside.written, inside.record.is_some());
    for (names, kind, is_found) in [reads, writes] {
        if is_found {
            continue;
        }
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

/// The internal function that both forms call, if the address of the count is its fourth argument, as it is that of the
/// extended form. OpenSSL 3.2 has another before it where it writes.
fn internal(reader: &LibraryReader<'_>, [plain, extended]: [&str; 2]) -> Option<u64> {
    let called = |name: &str, arguments: usize| {
        let address = reader.program.address(name)?;
        address.checked_add_signed(callee(&reader.code(address)?, arguments)?)
    };
    // The plain form extends the length before the call.
    let inner = called(extended, 4)?;
    if called(plain, 2)? != inner || !begins_with_push(&reader.code(inner)?) {
        return None;
    }
    let address = reader.program.address(plain)?;
    let followed = follow(&reader.code(address)?, address)?;
    let mut calls = followed.iter().filter(|(one, _)| one.is_call_near() && one.near_branch_target() == inner);
    calls.all(|(_, state)| matches!(state.argument(3), Value::Frame(_))).then_some(inner)
}
