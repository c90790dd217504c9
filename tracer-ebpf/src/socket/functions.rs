//! What no tracepoint shows: accept; and, on kernels without `sock_send_length` and `sock_recv_length`, socket I/O at
//! the exits of the functions that do it.
//!
//! The kernel calls these through the protocol's table, so no compiler inlines them, and none calls another: each
//! operation passes exactly one. Until 6.5 `…_sendpage` carries sendfile and splice, page by page; since then those use
//! `…_sendmsg` too.

use aya_ebpf::{
    macros::{fentry, fexit},
    programs::{FEntryContext, FExitContext},
};

use super::{ALONE, ALONE_PAGES, ALONE_UNIX, MSG_PEEK, connection, frames, moved};
use crate::{call_stack, kernel::sock::SockPtr};

/// The socket of the first argument moved `moved_bytes` bytes; ignores errors, and sends of zero bytes.
#[inline(always)]
fn exit<const TX: bool, const WHICH: u8>(ctx: &FExitContext, moved_bytes: i64) {
    if moved_bytes < 0 || (TX && moved_bytes == 0) {
        return;
    }
    let Some(sk) = SockPtr::of_socket(ctx.arg(0)) else { return };
    moved::<TX, WHICH>(ctx, sk, moved_bytes as u32);
}

macro_rules! sends {
    ($($name:ident $function:literal $which:ident),+) => { $(
        /// hook: fexit (socket, msg, size) → int. Emits [`tracer_common::event::Op`].
        #[fexit(function = $function)]
        pub(crate) fn $name(ctx: FExitContext) -> i32 {
            exit::<true, $which>(&ctx, ctx.arg::<i32>(3) as i64);
            0
        }
    )+ };
}
sends!(
    inet_sendmsg "inet_sendmsg" ALONE,
    inet6_sendmsg "inet6_sendmsg" ALONE,
    unix_sendmsg "unix_stream_sendmsg" ALONE_UNIX
);

macro_rules! pages {
    ($($name:ident $function:literal),+) => { $(
        /// hook: fexit (socket, page, offset, size, flags) → ssize_t, until 6.5. Emits [`tracer_common::event::Op`].
        #[fexit(function = $function)]
        pub(crate) fn $name(ctx: FExitContext) -> i32 {
            exit::<true, ALONE_PAGES>(&ctx, ctx.arg(5));
            0
        }
    )+ };
}
pages!(inet_sendpage "inet_sendpage", unix_sendpage "unix_stream_sendpage");

macro_rules! receives {
    ($($name:ident $function:literal $which:ident),+) => { $(
        /// hook: fexit (socket, msg, size, flags) → int. Emits [`tracer_common::event::Op`].
        #[fexit(function = $function)]
        pub(crate) fn $name(ctx: FExitContext) -> i32 {
            if ctx.arg::<i32>(3) & MSG_PEEK == 0 {
                exit::<false, $which>(&ctx, ctx.arg::<i32>(4) as i64);
            }
            0
        }
    )+ };
}
receives!(
    inet_recvmsg "inet_recvmsg" ALONE,
    inet6_recvmsg "inet6_recvmsg" ALONE,
    unix_recvmsg "unix_stream_recvmsg" ALONE_UNIX
);

/// hook: fentry sock_def_readable(sk), which `sk_data_ready` traces where it exists.
#[fentry(function = "sock_def_readable")]
pub(crate) fn arrived_entry(ctx: FEntryContext) -> i32 {
    connection::readable(SockPtr(ctx.arg(0)));
    0
}

macro_rules! accepts {
    ($($name:ident $function:literal),+) => { $(
        /// hook: fexit (socket, newsock, …) → int. Emits nothing: stores when the connection was accepted. `newsock` is
        /// empty if the accept failed.
        #[fexit(function = $function)]
        pub(crate) fn $name(ctx: FExitContext) -> i32 {
            if let Some(sk) = SockPtr::of_socket(ctx.arg(1)) {
                connection::taken(sk);
            }
            0
        }
    )+ };
}
accepts!(accepted "inet_accept", accepted_unix "unix_accept");

macro_rules! follows {
    ($($name:ident $function:literal $tx:literal $unix:literal $array:ident),+) => { $(
        /// Tail-called by the programs above.
        #[fexit(function = $function)]
        pub(crate) fn $name(ctx: FExitContext) -> i32 {
            if let Some(sk) = SockPtr::of_socket(ctx.arg(0)) {
                frames::follow::<$tx>(&ctx, &frames::$array, sk);
                if $tx {
                    call_stack::go_on_of_current::<$unix>(&ctx);
                }
            }
            0
        }
    )+ };
}
follows!(
    frames_sent "inet_sendmsg" true false FRAMES_TX,
    frames_received "inet_recvmsg" false false FRAMES_RX,
    frames_unix_sent "unix_stream_sendmsg" true true FRAMES_TX_UNIX,
    frames_unix_received "unix_stream_recvmsg" false true FRAMES_RX_UNIX
);
