//! TCP segments as they pass a host's interface, read from a packet socket: a view independent of any agent.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::hosts::Hosts;

/// `ETH_P_ALL`, in network byte order.
const EVERYTHING: u16 = 3u16.to_be();
/// Most segments kept.
const MOST: usize = 1_000_000;

/// A segment with an option of kind 25.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked {
    /// The option's bytes, kind and length included.
    pub option: Vec<u8>,
    /// The first bytes of its payload.
    pub payload: Vec<u8>,
}

/// Everything that passed.
#[derive(Debug, Default)]
pub struct Passed {
    /// Segments with such an option.
    pub marked: Vec<Marked>,
    /// Segments with data.
    pub data: u64,
    /// Segments whose options report bytes received behind a gap (kind 5).
    pub selective: u64,
    /// Length of the longest IP packet, bytes.
    pub longest: usize,
}

/// Reads packets until stopped.
#[derive(Debug)]
pub struct Capture {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Passed>,
}

impl Capture {
    /// Begins to read the packets on a host's interfaces.
    pub fn start(hosts: &Hosts, host: u8) -> Self {
        let socket = hosts.inside(host, open).unwrap_or_else(|error| panic!("a packet socket: {error}"));
        let over = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&over);
        let thread = std::thread::spawn(move || read(&socket, &end));
        Self { over, thread }
    }

    /// Returns everything that passed.
    pub fn stop(self) -> Passed {
        self.over.store(true, Ordering::SeqCst);
        self.thread.join().unwrap_or_else(|_| panic!("the capturing thread panicked"))
    }
}

fn open() -> io::Result<OwnedFd> {
    // SAFETY: a plain system call; the descriptor is new and nothing else owns it.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, i32::from(EVERYTHING));
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    let set = |name: i32, bytes: &[u8]| {
        // SAFETY: the pointer and length describe `bytes`.
        let done = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                name,
                bytes.as_ptr().cast(),
                bytes.len() as libc::socklen_t,
            )
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    set(libc::SO_RCVBUFFORCE, &(64i32 << 20).to_ne_bytes())?;
    let wait = libc::timeval { tv_sec: 0, tv_usec: 50_000 };
    set(libc::SO_RCVTIMEO, &[wait.tv_sec.to_ne_bytes(), wait.tv_usec.to_ne_bytes()].concat())?;
    Ok(socket)
}

fn read(socket: &OwnedFd, over: &AtomicBool) -> Passed {
    let mut passed = Passed::default();
    let mut bytes = vec![0u8; 1 << 16];
    loop {
        // SAFETY: the kernel writes at most the given length.
        let got = unsafe { libc::recv(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        match usize::try_from(got) {
            Ok(got) => {
                // Packets other than TCP return `None`.
                let _ = note(&mut passed, bytes.get(..got).unwrap_or_default());
            }
            // Everything that had passed before the stop is read.
            Err(_) if over.load(Ordering::SeqCst) => return passed,
            Err(_) => {}
        }
    }
}

/// Records an IPv4 packet; skips everything but TCP.
fn note(passed: &mut Passed, packet: &[u8]) -> Option<()> {
    let (first, protocol) = (*packet.first()?, *packet.get(9)?);
    if first >> 4 != 4 || protocol != 6 {
        return None;
    }
    let total = u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]) as usize;
    let segment = packet.get(usize::from(first & 15) * 4..total.min(packet.len()))?;
    let header = usize::from(segment.get(12)? >> 4) * 4;
    let (mut options, payload) = (segment.get(20..header)?, segment.get(header..)?);
    passed.longest = passed.longest.max(total);
    passed.data += u64::from(!payload.is_empty());
    while let Some(kind) = options.first() {
        let len = match kind {
            0 => break,
            1 => 1,
            _ => usize::from(*options.get(1)?).max(2),
        };
        let option = options.get(..len)?;
        passed.selective += u64::from(*kind == 5);
        if *kind == 25 && passed.marked.len() < MOST {
            let payload = payload.get(..payload.len().min(64)).unwrap_or_default();
            passed.marked.push(Marked { option: option.to_vec(), payload: payload.to_vec() });
        }
        options = options.get(len..)?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_and_garbage_is_survived() {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let mut segment = vec![0u8; 20];
        segment[12] = 12 << 4;
        segment.extend([1, 25, 26]);
        segment.extend([7; 24]);
        segment.push(0);
        packet.extend(segment);
        packet.extend(b"GET / ");
        let total = (packet.len() as u16).to_be_bytes();
        packet[2..4].copy_from_slice(&total);
        let mut passed = Passed::default();
        let _ = note(&mut passed, &packet);
        let option = [&[25, 26][..], &[7; 24]].concat();
        assert_eq!(passed.marked, [Marked { option, payload: b"GET / ".to_vec() }]);
        assert_eq!(passed.longest, packet.len());
        for end in 0..packet.len() {
            let _ = note(&mut Passed::default(), &packet[..end]);
        }
    }
}
