//! NSS 3 (`libssl3.so`). Whichever function of NSPR a program reads and writes by, its call meets the others in two functions of
//! the library that are not exported. They are in a table of what a secured socket does, which stands beside that of plain
//! sockets (`sslSocketOps` in `sslimpl.h`, `ssl_secure_ops` and `ssl_default_ops` in `sslsock.c`): the only two tables of this
//! shape that share the entries for what security does not change.

use std::fs::File;
use std::ops::RangeInclusive;
use std::path::Path;

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use tracer_common::runtime::tls;

use super::super::elf::relative;
use super::super::go::image::Image;
use super::functions::LibraryReader;
use super::{Refusal, Sites};

/// Shakes hands, which reading and writing also do if it was not called. Given the descriptor of NSPR (`PRFileDesc`, `prio.h`), whose
/// second word points to the secured socket, unless a program has put a layer of its own above.
const HANDSHAKE: &str = "SSL_ForceHandshake";
/// Functions of a table: connect, accept, bind, listen, shutdown, close, recv, send, read, write, getpeername, getsockname.
const ENTRIES: usize = 12;
/// Of which none has this one.
const ACCEPT: usize = 1;
/// Both tables have the same for these.
const SHARED: [usize; 4] = [2, 3, 10, 11];
const CLOSE: usize = 5;
const RECEIVE: usize = 6;
const SEND: usize = 7;
/// Where `PRIOMethods` (`prio.h`) has `recv` and `send`: what is plain goes on to these of the layer below.
const BELOW: RangeInclusive<u64> = 0x88..=0x90;
/// Bytes of a function in which what is plain does so.
const PLAIN: usize = 128;
/// Most bytes that are searched for tables.
const TABLES: u64 = 1 << 20;

type Table = [u64; ENTRIES];

/// The places in the library's file.
pub(super) fn inspect(path: &Path, file: &File) -> Result<Sites, Refusal> {
    let mut reader = LibraryReader::new(path, file, &[HANDSHAKE], &[HANDSHAKE])?;
    let secured = secured(path, &reader.image).ok_or(Refusal::UnknownCode)?;
    reader.forgets_by(secured[CLOSE])?;
    reader.call(HANDSHAKE, 1, tls::HANDSHAKE | tls::POINTS)?;
    // (socket, buffer, int length, int flags); returns the count or -1.
    reader.function(secured[RECEIVE], 4, tls::READ | tls::INT | tls::FLAGS)?;
    reader.function(secured[SEND], 4, tls::WRITE | tls::INT)?;
    Ok(reader.found)
}

/// The table of secured sockets.
fn secured(path: &Path, image: &Image<'_, File>) -> Option<Table> {
    let section = image.section(".data.rel.ro")?;
    let end = section.address.checked_add(section.size.min(TABLES))?;
    let relocated = relative(path, section.address..end);
    let table = |at: u64| -> Option<Table> {
        let mut entries = [0; ENTRIES];
        for (number, entry) in entries.iter_mut().enumerate() {
            let place = at.checked_add(8 * number as u64)?;
            *entry = relocated.get(&place).copied().unwrap_or(0);
        }
        is_table(&entries).then_some(entries)
    };
    let mut pairs = (section.address..end).step_by(8).filter_map(|at| {
        let (first, second) = (table(at)?, table(at.checked_add(8 * ENTRIES as u64)?)?);
        are_alike(&first, &second).then_some([first, second])
    });
    let pair = pairs.next().filter(|_| pairs.next().is_none())?;
    let mut secured = pair.into_iter().filter(|table| !is_plain(image, table[RECEIVE]));
    secured.next().filter(|_| secured.next().is_none())
}

fn is_table(entries: &Table) -> bool {
    entries.iter().enumerate().all(|(number, entry)| (*entry == 0) == (number == ACCEPT))
}

/// Whether two tables have the same functions where they should, and nowhere else.
fn are_alike(first: &Table, second: &Table) -> bool {
    (0..ENTRIES).filter(|number| *number != ACCEPT).all(|one| (first[one] == second[one]) == SHARED.contains(&one))
}

/// Whether a function goes on to the layer below by its table.
fn is_plain(image: &Image<'_, File>, function: u64) -> bool {
    let code = [PLAIN, PLAIN / 2, PLAIN / 4].into_iter().find_map(|len| image.code(function, len)).unwrap_or_default();
    let decoder = Decoder::with_ip(64, &code, function, DecoderOptions::NONE);
    let leads_below = |one: &iced_x86::Instruction| {
        matches!(one.flow_control(), FlowControl::IndirectCall | FlowControl::IndirectBranch)
            && BELOW.contains(&one.memory_displacement64())
    };
    decoder.into_iter().any(|one| leads_below(&one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_tables_are_known_by_what_they_share() {
        let secured = [1, 0, 20, 30, 4, 5, 6, 7, 8, 9, 100, 110];
        let plain = [11, 0, 20, 30, 14, 15, 16, 17, 18, 19, 100, 110];
        assert!(is_table(&secured) && is_table(&plain) && are_alike(&secured, &plain));
        assert!(!are_alike(&secured, &secured), "the same table");
        let mut other = plain;
        other[2] = 21;
        assert!(!are_alike(&secured, &other), "nothing to share");
        other = plain;
        other[SEND] = 7;
        assert!(!are_alike(&secured, &other), "security changes how to send");
        other = plain;
        other[ACCEPT] = 1;
        assert!(!is_table(&other));
        other = plain;
        other[9] = 0;
        assert!(!is_table(&other));
    }

    #[test]
    fn the_librarys_places_need_no_single_step() {
        let path = Path::new("/usr/lib/x86_64-linux-gnu/libssl3.so");
        let Ok(file) = File::open(path) else {
            println!("SKIPPED runtimes::tls::nss: no libssl3.so here");
            return;
        };
        let found = inspect(path, &file).expect("NSS");
        assert!(found.sites.len() == 7 && found.stepped == 0, "{found:?}");
        let other = Path::new("/proc/self/exe");
        assert_eq!(inspect(other, &File::open(other).expect("a file")), Err(Refusal::NoFunctions));
    }
}
