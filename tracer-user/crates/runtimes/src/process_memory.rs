//! Memory of other processes, which may say anything.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Memory of a process.
pub trait ProcessMemory {
    /// Fills `into` from `at`; `false` where that cannot be read.
    fn read(&mut self, at: u64, into: &mut [u8]) -> bool;
}

/// The memory of a running process, `/proc/PID/mem`. Once the process is gone, or another program, nothing can be read.
#[derive(Debug)]
pub struct MemoryFile(File);

impl MemoryFile {
    /// Opens it; fails where the process is gone or access is denied.
    pub fn open(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/mem")).map(Self)
    }
}

impl ProcessMemory for MemoryFile {
    fn read(&mut self, at: u64, into: &mut [u8]) -> bool {
        // Addresses of user space only: others are none as offsets.
        at < 1 << 47 && self.0.read_exact_at(into, at).is_ok()
    }
}

/// The number in `N` bytes, 8 at most.
pub fn number<const N: usize>(memory: &mut impl ProcessMemory, at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    memory.read(at, bytes.get_mut(..N)?).then(|| u64::from_le_bytes(bytes))
}

/// A word.
pub fn word(memory: &mut impl ProcessMemory, at: u64) -> Option<u64> {
    number::<8>(memory, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_can_be_read() {
        let value = 0x1122_3344_5566_7788_u64;
        let at = std::ptr::from_ref(&value) as u64;
        let mut own = MemoryFile::open(std::process::id()).expect("this process");
        assert_eq!(word(&mut own, at), Some(value));
        assert_eq!((number::<2>(&mut own, at), number::<4>(&mut own, at)), (Some(0x7788), Some(0x5566_7788)));
        assert_eq!((word(&mut own, 8), word(&mut own, u64::MAX - 8)), (None, None));
        assert!(MemoryFile::open(u32::MAX).is_err());
    }
}
