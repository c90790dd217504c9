//! The call of a function within another: the call instruction, and the one behind it.

use super::code::{self, CODE, Flow, Instructions, JumpTarget};
use super::{Binary, CallEnd, Found, Refusal, Site, elf, plain};
use crate::go::image::Image;

/// Bytes of a stub of the linkage table.
const STUB: usize = 16;

/// What a function calls when it calls `callee`.
struct Callee {
    /// Addresses of its code.
    code: Vec<u64>,
    /// Addresses of pointers to it.
    pointers: Vec<u64>,
}

impl Callee {
    /// Whether what goes there reaches it.
    fn is_reached(&self, image: &Image<'_, std::fs::File>, goes: JumpTarget) -> bool {
        match goes {
            JumpTarget::To(address) => {
                self.code.contains(&address)
                    || stub(image, address).is_some_and(|pointer| self.pointers.contains(&pointer))
            }
            JumpTarget::Through(pointer) => self.pointers.contains(&pointer),
            JumpTarget::Unknown => false,
        }
    }
}

impl Binary {
    /// Where the probes of the call of `callee` within `caller` go.
    pub(super) fn call(&self, caller: &str, callee: &str) -> Result<Site, Refusal> {
        let found = self.find(caller)?;
        let image = Image::read(&self.file).ok_or(Refusal::NotProgram)?;
        let wanted = self.callee(callee)?;
        let instructions = self.instructions(&image, &found)?;
        let is_callee = |goes: JumpTarget| wanted.is_reached(&image, goes);
        let (mut calls, mut jumps, mut pointers) = (Vec::new(), Vec::new(), 0);
        for (at, one) in &instructions {
            match one.flow {
                Flow::Call(goes) if is_callee(goes) => calls.push((*at, one.end)),
                Flow::Call(JumpTarget::Unknown) => pointers += 1,
                Flow::Jump(goes) if is_callee(goes) && !is_within(&instructions, goes) => jumps.push(*at),
                Flow::Branch(to) if is_callee(JumpTarget::To(to)) && !instructions.contains_key(&to) => jumps.push(*at),
                _ => {}
            }
        }
        let names = || (caller.to_owned(), callee.to_owned());
        let (at, end) = match (&calls[..], &jumps[..]) {
            ([one], []) => *one,
            ([], []) => {
                let (caller, callee) = names();
                return Err(match self.called_variant(&instructions, &callee) {
                    Some(variant) => Refusal::CallsVariant { caller, callee, variant },
                    None => Refusal::NoCall { caller, callee, pointers },
                });
            }
            ([], _) => {
                let (caller, callee) = names();
                return Err(Refusal::TailCall { caller, callee, addresses: jumps });
            }
            _ => {
                let (caller, callee) = names();
                let mut addresses: Vec<u64> = calls.iter().map(|(at, _)| *at).chain(jumps).collect();
                addresses.sort_unstable();
                return Err(Refusal::SeveralCalls { caller, callee, addresses });
            }
        };
        if !instructions.contains_key(&end) {
            return Err(Refusal::NoReturn(callee.into()));
        }
        let shared = instructions.values().any(|one| match one.flow {
            Flow::Jump(JumpTarget::To(to)) | Flow::Branch(to) => to == end,
            // A table of jumps may lead anywhere.
            Flow::Jump(JumpTarget::Unknown) => true,
            _ => false,
        });
        let place = |address| image.place(address).ok_or(Refusal::NotProgram);
        let ends = vec![CallEnd { at: place(end)?, shared, stack: 0 }];
        Ok(Site { name: format!("{callee} in {caller}"), entry: place(at)?, ends, go: found.go, operands: None })
    }

    /// The offsets in the file of all calls of `callee` within `caller`; an error if there is none.
    pub(super) fn all_calls(&self, caller: &str, callee: &str) -> Result<Vec<u64>, Refusal> {
        let found = self.find(caller)?;
        let image = Image::read(&self.file).ok_or(Refusal::NotProgram)?;
        let wanted = self.callee(callee)?;
        let instructions = self.instructions(&image, &found)?;
        let calls = instructions.iter().filter(|(_, one)| match one.flow {
            Flow::Call(goes) => wanted.is_reached(&image, goes),
            _ => false,
        });
        let places: Vec<u64> = calls.filter_map(|(at, _)| image.place(*at)).collect();
        if places.is_empty() {
            return Err(Refusal::NoCall { caller: caller.to_owned(), callee: callee.to_owned(), pointers: 0 });
        }
        Ok(places)
    }

    /// The function's code, with the part that the compiler set aside because it seldom runs.
    pub(super) fn instructions(
        &self,
        image: &Image<'_, std::fs::File>,
        found: &Found,
    ) -> Result<Instructions, Refusal> {
        let cold = format!("{}.cold", found.name);
        let is_part =
            |name: &str| name.strip_prefix(&*cold).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let parts = self.functions.iter().filter(|one| is_part(&one.name)).map(|one| (one.address, one.size));
        let mut all = Instructions::new();
        let mut total = 0u64;
        for (address, size) in std::iter::once((found.address, found.size)).chain(parts) {
            total = total.saturating_add(size);
            if total > CODE {
                return Err(Refusal::TooLarge(found.name.clone()));
            }
            if size == 0 {
                return Err(Refusal::NoSize(found.name.clone()));
            }
            let bytes = image.code(address, size as usize).ok_or(Refusal::NotProgram)?;
            let part = code::decode(image.machine, &bytes, address)
                .map_err(|at| Refusal::UnknownCode(found.name.clone(), at))?;
            all.extend(part);
        }
        Ok(all)
    }

    /// What a call of `callee` looks like.
    fn callee(&self, callee: &str) -> Result<Callee, Refusal> {
        let imports = elf::imports(&self.path).into_iter();
        let pointers: Vec<u64> = imports
            .filter(|(_, name)| **name == *callee || plain(name) == callee)
            .map(|(pointer, _)| pointer)
            .collect();
        match self.find(callee) {
            Ok(found) => Ok(Callee { code: vec![found.address], pointers }),
            Err(_) if !pointers.is_empty() => Ok(Callee { code: Vec::new(), pointers }),
            Err(why) => Err(why),
        }
    }

    /// A variant of `callee` that is called.
    fn called_variant(&self, instructions: &Instructions, callee: &str) -> Option<String> {
        let is_variant = |name: &str| name.strip_prefix(callee).is_some_and(|rest| rest.starts_with('.'));
        let variants = self.functions.iter().filter(|one| is_variant(&one.name));
        let is_called = |address: u64| instructions.values().any(|one| one.flow == Flow::Call(JumpTarget::To(address)));
        variants.filter(|one| is_called(one.address)).map(|one| one.name.to_string()).next()
    }
}

fn is_within(instructions: &Instructions, goes: JumpTarget) -> bool {
    matches!(goes, JumpTarget::To(to) if instructions.contains_key(&to))
}

/// The pointer that the stub at `address` jumps through, if there is one.
fn stub(image: &Image<'_, std::fs::File>, address: u64) -> Option<u64> {
    code::stub(image.machine, &image.code(address, STUB)?, address)
}
