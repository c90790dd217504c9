//! Global variables as values of a declared call: they are as far from the place of the probe as in the file, wherever the
//! program is loaded.

use tracer_common::runtime::{NO_REGISTER, OPERAND_MEMORY, OPERAND_REGISTER, Operand, Operands};

use super::{Binary, Declared, Refusal, Site, Source, elf, plain};

/// Offsets in the kernel's `pt_regs` of x86-64: of the address of the instruction, and of the registers of arguments in C and
/// in Go.
const INSTRUCTION: u8 = 128;
const C: [u8; 6] = [112, 104, 96, 88, 72, 64];
const GO: [u8; 9] = [80, 40, 88, 112, 104, 72, 64, 56, 48];

impl Binary {
    /// Where the values at the beginning of a call are; `None`: no global variable is among them.
    pub(super) fn with_globals(&self, declared: &Declared, site: &Site) -> Result<Option<Box<Operands>>, Refusal> {
        let mut operands = Operands::default();
        let address = self.program.address_at(site.entry).ok_or(Refusal::NotProgram)?;
        if !self.put_globals(declared, address, site.go, &mut operands)? {
            return Ok(None);
        }
        let registers: &[u8] = if site.go { &GO } else { &C };
        let used = declared.values().map(|value| usize::from(value.registers())).max().unwrap_or(0);
        for (operand, base) in operands.iter_mut().zip(registers).take(used) {
            *operand = Operand { kind: OPERAND_REGISTER, base: *base, index: NO_REGISTER, ..Operand::default() };
        }
        Ok(Some(Box::new(operands)))
    }

    /// Puts the global variables where the declaration has them, as seen from the instruction at `place`; whether there are
    /// any. `wide`: an `int` has 64 bits.
    pub(super) fn put_globals(
        &self,
        declared: &Declared,
        place: u64,
        wide: bool,
        operands: &mut Operands,
    ) -> Result<bool, Refusal> {
        let mut any = false;
        for value in declared.values() {
            let (Source::Global(number), Some(name)) = (value.source(), value.global()) else { continue };
            let refuse = |why: String| Refusal::Global { value: value.to_string(), why };
            if cfg!(not(target_arch = "x86_64")) {
                return Err(refuse("global variables are read on x86-64 only".into()));
            }
            let found = elf::variables(&self.path, |symbol| symbol == name || plain(symbol) == name);
            let variable = match found[..] {
                [one] if one.is_local => return Err(refuse(format!("every thread has a '{name}' of its own"))),
                [one] => one,
                [] => return Err(refuse(format!("no symbol of a variable '{name}': stripped, or optimised away"))),
                _ => return Err(refuse(format!("several matches: {} variables are called '{name}'", found.len()))),
            };
            let (bits, is_signed) = value.bits_in_memory(wide);
            if variable.size != u64::from(bits / 8) {
                let (bytes, size) = (bits / 8, variable.size);
                let what = if value.is_text() { "a pointer".into() } else { format!("{bytes} bytes") };
                return Err(refuse(format!("'{name}' has {size} bytes and is not {what}: give its type")));
            }
            any = true;
            if let Some(operand) = operands.get_mut(usize::from(number).saturating_sub(1)) {
                *operand = Operand {
                    displacement: variable.address.wrapping_sub(place) as i64,
                    kind: OPERAND_MEMORY,
                    base: INSTRUCTION,
                    index: NO_REGISTER,
                    unused_bits: 64 - bits as u8,
                    is_signed: u8::from(is_signed),
                    ..Operand::default()
                };
            }
        }
        Ok(any)
    }
}
