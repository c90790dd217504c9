//! The context of the request that each thread holds, in a map that other programs of this host read
//! (`tracer_common::limits::TRACE_CONTEXTS_MAX`). User space writes it, because only it knows ids; here a thread's entry
//! goes as soon as the thread reads another request, so that what it does next does not count for the one before.

use aya_ebpf::{macros::map, maps::LruHashMap};
use tracer_common::limits::{TRACE_CONTEXT_BYTES, TRACE_CONTEXTS_MAX};

use crate::{
    offsets::PUBLISHES_CONTEXTS,
    storage::{SOCK_PASSIVE, Sock},
};

/// By process id (upper half) and thread id. The loader puts the shared map in its place, or sizes it to one element.
#[map]
static TRACE_CONTEXTS: LruHashMap<u64, [u8; TRACE_CONTEXT_BYTES]> = LruHashMap::with_max_entries(TRACE_CONTEXTS_MAX, 0);

/// A thread receives from a socket whose direction `turned`, before that is noted. Without branches, for the verifier: of
/// other operations the key is 0, which no thread has.
#[inline(always)]
pub(crate) fn received(sock: &Sock, turned: bool, tgid: u32, tid: u32) {
    if PUBLISHES_CONTEXTS.load() == 0 {
        return;
    }
    let passive = (sock.flags & SOCK_PASSIVE) / SOCK_PASSIVE;
    let begins = turned as u32 | (sock.rx == 0) as u32;
    let key = ((tgid as u64) << 32 | tid as u64) * (passive & begins) as u64;
    // Not there is what is wanted.
    let _ = TRACE_CONTEXTS.remove(key);
}
