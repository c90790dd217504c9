//! Header self-test cases for `MSG_ZEROCOPY`, where the sender's memory is in use until the kernel reports the
//! completion of the send by number (`Documentation/networking/msg_zerocopy.rst`).

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::pair::{Pair, drained, last, pattern, words};
use super::{PATIENCE, injected};

/// Size of the body, bytes: several pages, so that the kernel presents it in fragments.
const BODY: usize = 200_000;
/// `SO_EE_ORIGIN_ZEROCOPY` (`include/uapi/linux/errqueue.h`).
const ORIGIN: u8 = 5;

/// Every send must complete exactly once, numbered from zero, and nothing is inserted into the request.
pub(super) fn completes(pair: &mut Pair) -> Result<(), String> {
    let on = 1i32;
    let (value, len) = ((&raw const on).cast(), size_of::<i32>() as libc::socklen_t);
    // SAFETY: the value has the given length.
    if unsafe { libc::setsockopt(pair.client.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, value, len) } != 0 {
        return Err(last("SO_ZEROCOPY"));
    }
    let head = format!("POST /lent HTTP/1.1\r\nHost: a\r\nContent-Length: {BODY}\r\n\r\n");
    let bytes = [head.as_bytes(), &pattern(BODY)].concat();
    let (mut sends, mut done) = (0u32, Vec::new());
    let got = drained(pair, |client| {
        let mut sent = 0;
        while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            let (fd, flags) = (client.as_raw_fd(), libc::MSG_ZEROCOPY | libc::MSG_NOSIGNAL);
            // SAFETY: the bytes live until the kernel has reported completion, or the connection is over.
            let more = unsafe { libc::send(fd, rest.as_ptr().cast(), rest.len(), flags) };
            sent += usize::try_from(more).map_err(|_| last("a send"))?;
            sends += 1;
        }
        acknowledged(client)?;
        done = completions(client)?;
        Ok(())
    })?;
    injected(&got, &bytes, 0)?;
    done.sort_unstable();
    if done.iter().copied().eq(0..sends) { Ok(()) } else { Err(format!("{sends} sends, {} completions", done.len())) }
}

/// Waits until the peer has acknowledged everything.
pub(super) fn acknowledged(client: &TcpStream) -> Result<(), String> {
    let end = Instant::now() + PATIENCE;
    loop {
        let mut waiting = -1i32;
        // SAFETY: the kernel writes an int.
        if unsafe { libc::ioctl(client.as_raw_fd(), libc::TIOCOUTQ, &raw mut waiting) } != 0 {
            return Err(last("TIOCOUTQ"));
        }
        if waiting == 0 {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("{waiting} bytes were not acknowledged"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The numbers of completed sends.
fn completions(client: &TcpStream) -> Result<Vec<u32>, String> {
    let mut all = Vec::new();
    loop {
        let mut control = [0u64; 16];
        // SAFETY: all zeros is a valid value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: the buffer has the given length.
        if unsafe { libc::recvmsg(client.as_raw_fd(), &raw mut message, flags) } < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(all) } else { Err(words("MSG_ERRQUEUE")(error)) };
        }
        // SAFETY: the kernel filled the message.
        let mut at = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        while !at.is_null() {
            // SAFETY: not null, and written by the kernel.
            let about = unsafe { libc::CMSG_DATA(at).cast::<libc::sock_extended_err>().read_unaligned() };
            if about.ee_origin == ORIGIN {
                // A longer range cannot be right after a handful of sends.
                all.extend((about.ee_info..=about.ee_data).take(1024));
            }
            // SAFETY: as above.
            at = unsafe { libc::CMSG_NXTHDR(&raw const message, at) };
        }
    }
}
