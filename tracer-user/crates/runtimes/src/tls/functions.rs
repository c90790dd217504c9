//! Entries and returns of C functions: probes at their cheapest instructions.

use std::fs::File;
use std::path::Path;

use tracer_common::runtime::UserProbe;

use super::super::cheap_places::{CODE, begins_with_push, landing, place};
use super::super::elf::Program;
use super::super::go::image::{Image, X86_64};
use super::{Refusal, Site, Sites};

/// A library's file, and the places found in it so far.
pub(super) struct LibraryReader<'a> {
    pub(super) program: Program,
    pub(super) image: Image<'a, File>,
    pub(super) found: Sites,
}

impl<'a> LibraryReader<'a> {
    /// Reads the addresses of `wanted` functions; refused if one of `needed` is missing.
    pub(super) fn new(path: &Path, file: &'a File, wanted: &[&str], needed: &[&str]) -> Result<Self, Refusal> {
        let image = Image::read(file).filter(|image| image.machine == X86_64).ok_or(Refusal::NotProgram)?;
        let program = Program::read(path, wanted).ok_or(Refusal::NotProgram)?;
        if needed.iter().any(|name| program.address(name).is_none()) {
            return Err(Refusal::NoFunctions);
        }
        Ok(Self { program, image, found: Sites::default() })
    }
}

impl LibraryReader<'_> {
    /// Watches where objects are forgotten. To be called first: an object must never be taken for the one before it.
    pub(super) fn forgets(&mut self, names: &[&str]) -> Result<(), Refusal> {
        for name in names {
            if let Some(address) = self.program.address(name) {
                self.forgets_by(address)?;
            }
        }
        Ok(())
    }

    /// As [`Self::forgets`], by address.
    pub(super) fn forgets_by(&mut self, address: u64) -> Result<(), Refusal> {
        self.entry(UserProbe::TlsFree, address, 1, 0)
    }

    /// The beginning of a function's code.
    pub(super) fn code(&self, address: u64) -> Option<Vec<u8>> {
        // The last function may end earlier.
        [CODE, CODE / 2, CODE / 4].into_iter().find_map(|len| self.image.code(address, len))
    }

    /// As [`Self::function`], by name.
    pub(super) fn call(&mut self, name: &str, arguments: usize, cookie: u64) -> Result<(), Refusal> {
        let address = self.program.address(name).ok_or(Refusal::NoFunctions)?;
        self.function(address, arguments, cookie)
    }

    /// Watches the entry and the return of a function.
    pub(super) fn function(&mut self, address: u64, arguments: usize, cookie: u64) -> Result<(), Refusal> {
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
