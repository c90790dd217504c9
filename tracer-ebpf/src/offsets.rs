//! One frozen global per line of `tracer_common::members` (and of the registers in `tracer_common::arch`).
//!
//! User space sets each before the programs are loaded; the verifier then sees constants and allows direct loads.

use aya_ebpf::Global;

macro_rules! offsets {
    ($($name:ident),+ $(,)?) => { $(
        #[unsafe(no_mangle)]
        pub(crate) static $name: Global<u64> = Global::new(0);
    )+ };
}

offsets! {
    OFF_SK_FAMILY,
    OFF_SK_STATE,
    OFF_SK_NUM,
    OFF_SK_DPORT,
    OFF_SK_RCV_SADDR,
    OFF_SK_DADDR,
    OFF_SK_V6_RCV_SADDR,
    OFF_SK_V6_DADDR,
    OFF_SK_NET,
    OFF_SK_FLAGS,
    OFF_SK_COOKIE,
    MASK_SK_ZEROCOPY,
    OFF_NET_INUM,
    OFF_SK_PROTOCOL,
    OFF_SK_TYPE,
    OFF_SK_SHUTDOWN,
    OFF_SK_SOCKET,
    OFF_TCP_WRITE_SEQ,
    OFF_TCP_COPIED_SEQ,
    OFF_TCP_RCV_NXT,
    OFF_TCP_SND_UNA,
    OFF_TCP_BYTES_ACKED,
    OFF_TCP_BYTES_RECEIVED,
    OFF_TCP_RTT,
    OFF_TCP_RTT_MIN,
    OFF_MINMAX_VALUE,
    OFF_TCP_RETRANSMITS,
    OFF_SK_ERROR,
    OFF_MPTCP_LOCAL_KEY,
    OFF_MPTCP_REMOTE_KEY,
    OFF_MPTCP_WRITE_SEQ,
    OFF_MPTCP_SND_NXT,
    OFF_MPTCP_BYTES_SENT,
    OFF_MPTCP_BYTES_RECEIVED,
    OFF_MPTCP_BYTES_CONSUMED,
    OFF_MPTCP_FIRST,
    OFF_UNIX_PEER,
    OFF_UNIX_ADDR,
    OFF_TASK_PID,
    OFF_TASK_TGID,
    OFF_TASK_FLAGS,
    OFF_TASK_EXIT_CODE,
    OFF_SK_OWNED,
    OFF_TASK_EXEC,
    OFF_TASK_RUN_DELAY,
    OFF_TASK_COMM,
    OFF_TASK_FILES,
    OFF_TASK_FSBASE,
    OFF_FILES_FDT,
    OFF_FDT_FD,
    OFF_FILE_PRIVATE,
    OFF_SOCKET_SK,
    OFF_SOCKET_FILE,
    OFF_FILE_FLAGS,
    OFF_FILE_POS,
    OFF_URING_OPCODE,
    OFF_URING_FLAGS,
    OFF_URING_FD,
    OFF_URING_SR_BUF,
    OFF_URING_SR_MSG,
    OFF_URING_RW_ADDR,
    OFF_REG_NR,
    OFF_REG_ARG0,
    OFF_REG_ARG1,
    OFF_REG_ARG2,
    OFF_REG_ARG4,
    OFF_REG_TASK,
    OFF_REG_THREAD,
    OFF_REG_PC,
    OFF_REG_SP,
    OFF_REG_FP,
    OFF_REG_CS,
    OFF_TASK_MM,
    OFF_MM_TREE,
    OFF_MM_VDSO,
    OFF_VMA_PGOFF,
    OFF_VMA_FILE,
    OFF_FILE_INODE,
    OFF_INODE_INO,
    OFF_INODE_GENERATION,
    OFF_INODE_SIZE,
    OFF_INODE_SB,
    OFF_INODE_MODE,
    OFF_SB_DEV,
}

/// Process id of the agent: its own sockets are not traced.
#[unsafe(no_mangle)]
pub(crate) static AGENT_TGID: Global<u32> = Global::new(0);

/// Cookie of the only network namespace whose connections carry in-band contexts; 0 = all of them.
#[unsafe(no_mangle)]
pub(crate) static INBAND_NETNS: Global<u64> = Global::new(0);

/// 1: contexts of requests are published for other programs.
#[unsafe(no_mangle)]
pub(crate) static PUBLISHES_CONTEXTS: Global<u32> = Global::new(0);

/// HTTP headers carry contexts: scan the head of what is received for one.
#[unsafe(no_mangle)]
pub(crate) static INBAND_HEADER: Global<u32> = Global::new(0);

/// 1: this kernel has what walking stacks by unwind tables needs.
#[unsafe(no_mangle)]
pub(crate) static UNWIND: Global<u32> = Global::new(0);
