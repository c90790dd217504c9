//! What the self-test of headers tries on senders that lend the kernel their memory (`MSG_ZEROCOPY`) until it says, by the number
//! of the send, that it is done with it (`Documentation/networking/msg_zerocopy.rst`).

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::pair::{Pair, drained, last, pattern, words};
use super::{PATIENCE, injected};

/// Bytes of what is sent: several pages, so that the kernel shows it in pieces.
const BODY: usize = 200_000;
/// `SO_EE_ORIGIN_ZEROCOPY` (`include/uapi/linux/errqueue.h`).
const ORIGIN: u8 = 5;

/// Every send must be done with once, and they are numbered from zero; nothing is put into the request.
pub(super) fn completes(pair: &mut Pair) -> Result<(), String> {
    let on = 1i32;
    let (value, len) = ((&raw const on).cast(), size_of::<i32>() as libc::socklen_t);
    // SAFETY: as many bytes as are said to be there.
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
            // SAFETY: the bytes live until the kernel has said that it is done, or the connection is over.
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

/// Waits until the peer has everything.
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

/// The numbers of sends that the kernel is done with.
fn completions(client: &TcpStream) -> Result<Vec<u32>, String> {
    let mut all = Vec::new();
    loop {
        let mut control = [0u64; 16];
        // SAFETY: zero is a value of it.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: room for as much as is said.
        if unsafe { libc::recvmsg(client.as_raw_fd(), &raw mut message, flags) } < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(all) } else { Err(words("MSG_ERRQUEUE")(error)) };
        }
        // SAFETY: as the kernel filled it.
        let mut at = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        while !at.is_null() {
            // SAFETY: not null, and of the kernel's making.
            let about = unsafe { libc::CMSG_DATA(at).cast::<libc::sock_extended_err>().read_unaligned() };
            if about.ee_origin == ORIGIN {
                // So many would be no answer to a handful of sends.
                all.extend((about.ee_info..=about.ee_data).take(1024));
            }
            // SAFETY: as above.
            at = unsafe { libc::CMSG_NXTHDR(&raw const message, at) };
        }
    }
}
