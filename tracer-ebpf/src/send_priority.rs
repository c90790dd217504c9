//! Packets of connections that serve an important request go first, by their priority. Loaded only if a service class
//! asks for it.
//!
//! The priority is each packet's, not the socket's: nothing stays when the program is detached.

use aya_ebpf::{
    EbpfContext,
    bindings::__sk_buff,
    helpers::generated::{bpf_get_socket_cookie, bpf_ktime_get_ns},
    macros::{cgroup_skb, map},
    maps::HashMap,
    programs::SkBuffContext,
};
use tracer_common::policy::SendPriority;

/// Priorities by socket cookie. The loader sizes it only if they are in use.
#[map]
static SEND_PRIORITIES: HashMap<u64, SendPriority> = HashMap::with_max_entries(1, 0);

/// Let the packet pass.
const PASS: i32 = 1;

/// hook: cgroup skb, egress, of the root. First seen: 5.15.
#[cgroup_skb(egress)]
pub(crate) fn send_priority(ctx: SkBuffContext) -> i32 {
    // SAFETY: the context is one the helper takes.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    // SAFETY: the value is read at once; user space replaces it as a whole.
    let Some(wanted) = (unsafe { SEND_PRIORITIES.get(cookie) }) else { return PASS };
    // SAFETY: no argument.
    if unsafe { bpf_ktime_get_ns() } < wanted.until {
        // SAFETY: a member of the context that programs of this type may write to.
        unsafe { (*ctx.as_ptr().cast::<__sk_buff>()).priority = wanted.priority };
    }
    PASS
}
