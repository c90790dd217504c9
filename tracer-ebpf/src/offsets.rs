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
    OFF_UNIX_PEER,
    OFF_TASK_PID,
    OFF_TASK_TGID,
    OFF_TASK_FLAGS,
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
}

/// Process id of the agent: its own sockets are not traced.
#[unsafe(no_mangle)]
pub(crate) static AGENT_TGID: Global<u32> = Global::new(0);

/// Cookie of the only network namespace whose connections carry contexts in band; 0 = all of them.
#[unsafe(no_mangle)]
pub(crate) static INBAND_NETNS: Global<u64> = Global::new(0);

/// Contexts go and come by header: the head of what is received is looked at for one.
#[unsafe(no_mangle)]
pub(crate) static INBAND_HEADER: Global<u32> = Global::new(0);
