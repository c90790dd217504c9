//! OpenSSL 1.1 and 3: `SSL_read`, `SSL_write` and their `_ex` forms call one internal function each, with the same
//! arguments. Where that function is found, it alone is watched; else the exported ones are.

use std::fs::File;
use std::path::Path;

use tracer_common::runtime::{UserProbe, tls};

use super::super::elf::Program;
use super::super::go::image::{Image, X86_64};
use super::code::{CODE, begins_with_push, callee, landing, place};
use super::{Refusal, Site, Sites};

const READ: [&str; 2] = ["SSL_read", "SSL_read_ex"];
const WRITE: [&str; 2] = ["SSL_write", "SSL_write_ex"];
const HANDSHAKE: &str = "SSL_do_handshake";
const FORGET: [&str; 2] = ["SSL_free", "SSL_clear"];

struct Reader<'a> {
    program: Program,
    image: Image<'a, File>,
    found: Sites,
}

/// The places in the library's file.
pub(super) fn inspect(path: &Path, file: &File) -> Result<Sites, Refusal> {
    let wanted: Vec<&str> = READ.into_iter().chain(WRITE).chain([HANDSHAKE]).chain(FORGET).collect();
    let image = Image::read(file).filter(|image| image.machine == X86_64).ok_or(Refusal::NotProgram)?;
    let program = Program::read(path, &wanted).ok_or(Refusal::NotProgram)?;
    let mut reader = Reader { program, image, found: Sites::default() };
    if [READ[0], WRITE[0], HANDSHAKE, FORGET[0]].iter().any(|name| reader.program.address(name).is_none()) {
        return Err(Refusal::NoFunctions);
    }
    // Forgetting first: an object must never be taken for the one before it.
    for name in FORGET {
        if let Some(address) = reader.program.address(name) {
            reader.entry(UserProbe::TlsFree, address, 1, 0)?;
        }
    }
    reader.call(HANDSHAKE, 1, tls::HANDSHAKE)?;
    for (names, kind) in [(READ, tls::READ), (WRITE, tls::WRITE)] {
        if let Some(address) = reader.internal(names) {
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

impl Reader<'_> {
    fn code(&self, address: u64) -> Option<Vec<u8>> {
        // The last function may end earlier.
        [CODE, CODE / 2, CODE / 4].into_iter().find_map(|len| self.image.code(address, len))
    }

    /// The internal function that both forms call.
    fn internal(&self, [plain, extended]: [&str; 2]) -> Option<u64> {
        let called = |name: &str, arguments: usize| {
            let address = self.program.address(name)?;
            address.checked_add_signed(callee(&self.code(address)?, arguments)?)
        };
        // The plain form extends the length before the call.
        let inner = called(extended, 4)?;
        (called(plain, 2)? == inner && begins_with_push(&self.code(inner)?)).then_some(inner)
    }

    fn call(&mut self, name: &str, arguments: usize, cookie: u64) -> Result<(), Refusal> {
        let address = self.program.address(name).ok_or(Refusal::NoFunctions)?;
        self.function(address, arguments, cookie)
    }

    /// Watches the entry and the return of a function.
    fn function(&mut self, address: u64, arguments: usize, cookie: u64) -> Result<(), Refusal> {
        let code = self.code(address).ok_or(Refusal::UnknownCode)?;
        // The return address is on top of the stack behind `endbr64`, too, which the kernel would single-step.
        let at = address.checked_add(landing(&code) as u64).ok_or(Refusal::UnknownCode)?;
        self.found.stepped += usize::from(!begins_with_push(&code));
        self.put(UserProbe::TlsReturn, at, cookie)?;
        self.entry(UserProbe::TlsEnter, address, arguments, cookie)
    }

    fn entry(&mut self, probe: UserProbe, address: u64, arguments: usize, cookie: u64) -> Result<(), Refusal> {
        let code = self.code(address).ok_or(Refusal::UnknownCode)?;
        let into = place(&code, arguments).map(|(into, _)| into);
        self.found.stepped += usize::from(into.is_none());
        let at = address.checked_add(into.unwrap_or(0) as u64).ok_or(Refusal::UnknownCode)?;
        self.put(probe, at, cookie)
    }

    fn put(&mut self, probe: UserProbe, address: u64, cookie: u64) -> Result<(), Refusal> {
        let offset = self.program.offset(address).ok_or(Refusal::UnknownCode)?;
        self.found.sites.push(Site { probe, offset, cookie });
        Ok(())
    }
}
