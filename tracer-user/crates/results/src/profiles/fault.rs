//! A mapped file can be cut short while it is read: its owner is a traced process. The kernel then sends SIGBUS, which
//! would end the agent. On the thread that names stacks such a page reads as zeros instead.

use std::cell::Cell;
use std::sync::Once;

thread_local! {
    /// Constant and without a destructor: the handler may look at it at any time.
    static READS: Cell<bool> = const { Cell::new(false) };
}

/// From now on this thread survives files that shrink under it.
pub(super) fn survive() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: zeroes are a valid sigaction; the handler is async-signal-safe.
        let refused = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut())
        };
        if refused != 0 {
            log::warn!("SIGBUS: {}", std::io::Error::last_os_error());
        }
    });
    READS.set(true);
}

/// `mmap` and `sigaction` are system calls: both may be made in a handler.
extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid record.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if READS.get() && code == libc::BUS_ADRERR {
        // SAFETY: takes a constant.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let start = address & !(page - 1);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: replaces one page of a mapping that has nothing behind it; whoever unmaps it unmaps this too.
        let mapped = unsafe { libc::mmap(start as *mut libc::c_void, page, libc::PROT_READ, flags, -1, 0) };
        if mapped != libc::MAP_FAILED {
            return;
        }
    }
    // Not ours: it happens again at once, and does what it does without a handler.
    // SAFETY: a plain system call.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_file_that_shrinks_reads_as_zeros() {
        let file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut &file, &[7; 8192]).unwrap();
        let read = std::thread::spawn(move || {
            survive();
            // SAFETY: a private mapping of an open file, unmapped below.
            unsafe {
                let at =
                    libc::mmap(std::ptr::null_mut(), 8192, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0);
                assert_ne!(at, libc::MAP_FAILED);
                file.set_len(4096).unwrap();
                let at = at.cast::<u8>();
                let bytes = (at.read_volatile(), at.add(8000).read_volatile());
                libc::munmap(at.cast(), 8192);
                bytes
            }
        });
        assert_eq!(read.join().unwrap(), (7, 0));
    }
}
