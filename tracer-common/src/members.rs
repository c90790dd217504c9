//! The one list of kernel struct members that are read, and where user space puts their offsets.
//!
//! User space resolves each against the running kernel's BTF and writes it into the frozen global named here before
//! loading the programs. The verifier accepts offset 0 silently, so the loader refuses to start without a required
//! member and names it.

/// A struct member whose offset the kernel side needs.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Name of the global in the BPF object.
    pub global: &'static str,
    /// Struct.
    pub of: &'static str,
    /// Path of members, separated by dots; the lookup descends into anonymous members.
    pub path: &'static str,
    /// Whether tracing is impossible without it. A missing optional member has offset [`ABSENT`].
    pub required: bool,
}

/// Offset of an optional member this kernel does not have.
pub const ABSENT: u64 = u64::MAX;

const fn need(global: &'static str, of: &'static str, path: &'static str) -> Member {
    Member { global, of, path, required: true }
}

const fn mptcp(global: &'static str, path: &'static str) -> Member {
    Member { global, of: "mptcp_sock", path, required: false }
}

const fn network(global: &'static str, of: &'static str, path: &'static str) -> Member {
    Member { global, of, path, required: false }
}

const fn unwind(global: &'static str, of: &'static str, path: &'static str) -> Member {
    Member { global, of, path, required: false }
}

/// Members that walking stacks by unwind tables takes at exactly these offsets: the kernel side has them compiled in.
pub const UNWIND_LAYOUT: &[(&str, &str, u64)] = &[
    ("vm_area_struct", "vm_start", 0),
    ("vm_area_struct", "vm_end", 8),
    ("maple_range_64", "pivot", 8),
    ("maple_range_64", "slot", 128),
    ("maple_arange_64", "pivot", 8),
    ("maple_arange_64", "slot", 80),
];

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
    need("OFF_SK_COOKIE", "sock_common", "skc_cookie"),
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
    // What TCP measures of the network; figures that a kernel has elsewhere are unknown.
    network("OFF_TCP_RTT", "tcp_sock", "srtt_us"),
    network("OFF_TCP_RTT_MIN", "tcp_sock", "rtt_min.s"),
    network("OFF_MINMAX_VALUE", "minmax_sample", "v"),
    network("OFF_TCP_RETRANSMITS", "tcp_sock", "total_retrans"),
    network("OFF_SK_ERROR", "sock", "sk_err"),
    // Kernels without MPTCP have none of these, and older ones do not count the bytes.
    mptcp("OFF_MPTCP_LOCAL_KEY", "local_key"),
    mptcp("OFF_MPTCP_REMOTE_KEY", "remote_key"),
    mptcp("OFF_MPTCP_WRITE_SEQ", "write_seq"),
    mptcp("OFF_MPTCP_SND_NXT", "snd_nxt"),
    mptcp("OFF_MPTCP_BYTES_SENT", "bytes_sent"),
    mptcp("OFF_MPTCP_BYTES_RECEIVED", "bytes_received"),
    mptcp("OFF_MPTCP_BYTES_CONSUMED", "bytes_consumed"),
    mptcp("OFF_MPTCP_FIRST", "first"),
    need("OFF_UNIX_PEER", "unix_sock", "peer"),
    need("OFF_UNIX_ADDR", "unix_sock", "addr"),
    need("OFF_TASK_PID", "task_struct", "pid"),
    need("OFF_TASK_TGID", "task_struct", "tgid"),
    need("OFF_TASK_FLAGS", "task_struct", "flags"),
    // How a process ends; without both, requests that it leaves open are `aborted` and no more.
    Member { global: "OFF_TASK_EXIT_CODE", of: "task_struct", path: "exit_code", required: false },
    Member { global: "OFF_SK_OWNED", of: "sock", path: "sk_lock.owned", required: false },
    need("OFF_TASK_EXEC", "task_struct", "se.sum_exec_runtime"),
    need("OFF_TASK_COMM", "task_struct", "comm"),
    need("OFF_TASK_FILES", "task_struct", "files"),
    need("OFF_FILES_FDT", "files_struct", "fdt"),
    need("OFF_FDT_FD", "fdtable", "fd"),
    need("OFF_FILE_PRIVATE", "file", "private_data"),
    need("OFF_SOCKET_SK", "socket", "sk"),
    need("OFF_SOCKET_FILE", "socket", "file"),
    need("OFF_FILE_FLAGS", "file", "f_flags"),
    // Where a line of a log ends, on kernels without function exits.
    Member { global: "OFF_FILE_POS", of: "file", path: "f_pos", required: false },
    // Without CONFIG_SCHED_INFO, runnable time counts as blocked.
    Member { global: "OFF_TASK_RUN_DELAY", of: "task_struct", path: "sched_info.run_delay", required: false },
    // Where thread-local data lies; on processors that keep it elsewhere, Python's tasks cannot be distinguished.
    Member { global: "OFF_TASK_FSBASE", of: "task_struct", path: "thread.fsbase", required: false },
    // The way from a task to the file that is mapped at an address. Where one is missing, stacks are followed by frame
    // pointers only.
    unwind("OFF_TASK_MM", "task_struct", "mm"),
    unwind("OFF_MM_TREE", "mm_struct", "mm_mt.ma_root"),
    unwind("OFF_MM_VDSO", "mm_struct", "context.vdso"),
    unwind("OFF_VMA_PGOFF", "vm_area_struct", "vm_pgoff"),
    unwind("OFF_VMA_FILE", "vm_area_struct", "vm_file"),
    unwind("OFF_FILE_INODE", "file", "f_inode"),
    unwind("OFF_INODE_INO", "inode", "i_ino"),
    unwind("OFF_INODE_GENERATION", "inode", "i_generation"),
    unwind("OFF_INODE_SIZE", "inode", "i_size"),
    Member { global: "OFF_INODE_MODE", of: "inode", path: "i_mode", required: false },
    unwind("OFF_INODE_SB", "inode", "i_sb"),
    unwind("OFF_SB_DEV", "super_block", "s_dev"),
    Member { global: "OFF_URING_OPCODE", of: "io_kiocb", path: "opcode", required: false },
    Member { global: "OFF_URING_FLAGS", of: "io_kiocb", path: "flags", required: false },
    Member { global: "OFF_URING_FD", of: "io_kiocb", path: "cqe.fd", required: false },
    Member { global: "OFF_URING_SR_BUF", of: "io_sr_msg", path: "buf", required: false },
    Member { global: "OFF_URING_SR_MSG", of: "io_sr_msg", path: "umsg", required: false },
    Member { global: "OFF_URING_RW_ADDR", of: "io_rw", path: "addr", required: false },
];

/// Bit of `sock_common.skc_flags`: the owner sends from memory it shares with the kernel (`SO_ZEROCOPY`).
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
