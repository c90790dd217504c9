//! The one list of kernel struct members that are read, and where user space puts their offsets.
//!
//! User space resolves each against the running kernel's BTF and writes it into the frozen global named here before
//! the programs are loaded. The verifier accepts offset 0 without a word, so a required member that is missing is a
//! reason to refuse, by name.

/// A struct member whose offset the kernel side needs.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Name of the global in the BPF object.
    pub global: &'static str,
    /// Struct.
    pub of: &'static str,
    /// Path of members, separated by dots; anonymous members are looked through.
    pub path: &'static str,
    /// Whether tracing is impossible without it. An optional one that is missing has offset [`ABSENT`].
    pub required: bool,
}

/// Offset of an optional member this kernel does not have.
pub const ABSENT: u64 = u64::MAX;

const fn need(global: &'static str, of: &'static str, path: &'static str) -> Member {
    Member { global, of, path, required: true }
}

/// Every member, whatever the processor. Registers are in [`crate::arch`].
pub const MEMBERS: &[Member] = &[
    need("OFF_SK_FAMILY", "sock_common", "skc_family"),
    need("OFF_SK_STATE", "sock_common", "skc_state"),
    need("OFF_SK_NUM", "sock_common", "skc_num"),
    need("OFF_SK_DPORT", "sock_common", "skc_dport"),
    need("OFF_SK_RCV_SADDR", "sock_common", "skc_rcv_saddr"),
    need("OFF_SK_DADDR", "sock_common", "skc_daddr"),
    need("OFF_SK_V6_RCV_SADDR", "sock_common", "skc_v6_rcv_saddr"),
    need("OFF_SK_V6_DADDR", "sock_common", "skc_v6_daddr"),
    need("OFF_SK_NET", "sock_common", "skc_net.net"),
    need("OFF_SK_FLAGS", "sock_common", "skc_flags"),
    need("OFF_NET_INUM", "net", "ns.inum"),
    need("OFF_SK_PROTOCOL", "sock", "sk_protocol"),
    need("OFF_SK_TYPE", "sock", "sk_type"),
    need("OFF_SK_SOCKET", "sock", "sk_socket"),
    need("OFF_SK_SHUTDOWN", "sock", "sk_shutdown"),
    need("OFF_TCP_WRITE_SEQ", "tcp_sock", "write_seq"),
    need("OFF_TCP_COPIED_SEQ", "tcp_sock", "copied_seq"),
    need("OFF_TCP_RCV_NXT", "tcp_sock", "rcv_nxt"),
    need("OFF_TCP_SND_UNA", "tcp_sock", "snd_una"),
    need("OFF_TCP_BYTES_ACKED", "tcp_sock", "bytes_acked"),
    need("OFF_TCP_BYTES_RECEIVED", "tcp_sock", "bytes_received"),
    need("OFF_UNIX_PEER", "unix_sock", "peer"),
    need("OFF_TASK_PID", "task_struct", "pid"),
    need("OFF_TASK_TGID", "task_struct", "tgid"),
    need("OFF_TASK_FLAGS", "task_struct", "flags"),
    need("OFF_TASK_EXEC", "task_struct", "se.sum_exec_runtime"),
    need("OFF_TASK_COMM", "task_struct", "comm"),
    need("OFF_TASK_FILES", "task_struct", "files"),
    need("OFF_FILES_FDT", "files_struct", "fdt"),
    need("OFF_FDT_FD", "fdtable", "fd"),
    need("OFF_FILE_PRIVATE", "file", "private_data"),
    need("OFF_SOCKET_SK", "socket", "sk"),
    need("OFF_SOCKET_FILE", "socket", "file"),
    need("OFF_FILE_FLAGS", "file", "f_flags"),
    // Without CONFIG_SCHED_INFO the time a thread waits for a CPU is shown as blocked.
    Member { global: "OFF_TASK_RUN_DELAY", of: "task_struct", path: "sched_info.run_delay", required: false },
    // Where a thread's own data are; where the processor has it elsewhere, tasks of Python cannot be told apart.
    Member { global: "OFF_TASK_FSBASE", of: "task_struct", path: "thread.fsbase", required: false },
    Member { global: "OFF_URING_OPCODE", of: "io_kiocb", path: "opcode", required: false },
    Member { global: "OFF_URING_FLAGS", of: "io_kiocb", path: "flags", required: false },
    Member { global: "OFF_URING_FD", of: "io_kiocb", path: "cqe.fd", required: false },
    Member { global: "OFF_URING_SR_BUF", of: "io_sr_msg", path: "buf", required: false },
    Member { global: "OFF_URING_SR_MSG", of: "io_sr_msg", path: "umsg", required: false },
    Member { global: "OFF_URING_RW_ADDR", of: "io_rw", path: "addr", required: false },
];

/// Bit of `sock_common.skc_flags` that says that the owner lends the kernel memory to send from (`SO_ZEROCOPY`).
pub const LENDS: Bit = Bit { global: "MASK_SK_ZEROCOPY", of: "sock_flags", name: "SOCK_ZEROCOPY" };

/// A bit whose number is an enumerator; the kernel side gets its mask.
#[derive(Clone, Copy, Debug)]
pub struct Bit {
    /// Name of the global in the BPF object.
    pub global: &'static str,
    /// Enumeration.
    pub of: &'static str,
    /// Enumerator.
    pub name: &'static str,
}
