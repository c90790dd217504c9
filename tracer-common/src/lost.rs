//! One counter per way something is lost or refused in the kernel; the index into the per-CPU array of counters.

/// Why something did not reach user space.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lost {
    /// The event ring was full: a socket operation was not reported.
    RingOp = 0,
    /// The event ring was full: a connection's opening or state change was not reported.
    RingConnection = 1,
    /// The event ring was full: a thread's counters or a process event were not reported (counters catch up later).
    RingThread = 2,
    /// The sample ring was full.
    RingSample = 3,
    /// The kernel refused storage for a socket.
    SocketStorage = 4,
    /// The kernel refused storage for a thread.
    ThreadStorage = 5,
    /// A user buffer could not be read: the operation was reported without its bytes.
    PayloadFault = 6,
    /// The buffer address of an operation is not known: reported without its bytes.
    PayloadUnknown = 7,
    /// Stack could not be walked.
    Stack = 8,
    /// After one operation a thread woke more request-holding threads than it may report.
    Wakes = 9,
    /// A thread's memory did not look as its runtime's version demands: its task is unknown.
    Runtime = 10,
    /// The event ring was full: a task edge was not reported.
    RingKin = 11,
    /// The event ring was full: an in-band context was not reported, and one to be sent was not sent.
    RingTag = 12,
    /// The TCP options of a request's first segment had no room for a context: it went without.
    TagRoom = 13,
    /// The operation that wrote a request did not send its first segment (held back, or no window): the request went
    /// without a context.
    TagLate = 14,
    /// The event ring was full: a call of a declared function, or its return, was not reported.
    RingDeclared = 15,
    /// A wait was reported without its stack: the CPU had reached its limit.
    OffCpuStack = 16,
    /// The sample ring was full: a wait, or the stack that ended one, was not reported.
    RingOffCpu = 17,
    /// The event ring was full: text of a TLS library was not reported.
    RingText = 18,
    /// A TLS library's object moved bytes on another socket than before, or there were too many objects: its text was
    /// not reported.
    TlsObject = 19,
    /// Text of a TLS library's object whose socket is not known was not reported.
    TlsUnbound = 20,
    /// An operation on a connection by shared memory (SMC), whose bytes are not read.
    Smc = 21,
    /// No stack was taken of a call or an exception: the overhead budget allows those of a part of all calls, or the CPU had reached
    /// its limit.
    CallStack = 22,
    /// The sample ring was full: the stack of a call or an exception was not reported.
    RingCallStack = 23,
    /// The table of counted exchanges was full: one was not counted.
    ExchangeSums = 24,
    /// The event ring was more than half full: a slow or failed exchange was counted and not reported.
    RingNoteworthyExchange = 25,
    /// The event ring was half full: what a thread wrote to a log was not reported.
    RingLog = 26,
    /// What a thread wrote to a log was not reported: its process writes more often than its limit.
    LogRate = 27,
}

impl Lost {
    /// Every reason.
    pub const ALL: [Self; 28] = [
        Self::RingOp,
        Self::RingConnection,
        Self::RingThread,
        Self::RingSample,
        Self::SocketStorage,
        Self::ThreadStorage,
        Self::PayloadFault,
        Self::PayloadUnknown,
        Self::Stack,
        Self::Wakes,
        Self::Runtime,
        Self::RingKin,
        Self::RingTag,
        Self::TagRoom,
        Self::TagLate,
        Self::RingDeclared,
        Self::OffCpuStack,
        Self::RingOffCpu,
        Self::RingText,
        Self::TlsObject,
        Self::TlsUnbound,
        Self::Smc,
        Self::CallStack,
        Self::RingCallStack,
        Self::ExchangeSums,
        Self::RingNoteworthyExchange,
        Self::RingLog,
        Self::LogRate,
    ];

    /// Whether an event of a request, or of its cost, is missing; other reasons only cost a reported event a part.
    pub fn is_event(self) -> bool {
        !matches!(
            self,
            Self::PayloadFault
                | Self::PayloadUnknown
                | Self::Stack
                | Self::Wakes
                | Self::Runtime
                | Self::TagRoom
                | Self::TagLate
                | Self::OffCpuStack
                | Self::RingOffCpu
                | Self::TlsObject
                | Self::TlsUnbound
                | Self::Smc
                | Self::CallStack
                | Self::RingCallStack
                | Self::RingNoteworthyExchange
                | Self::RingLog
                | Self::LogRate
        )
    }

    /// Label value of `tracer_events_lost_total{reason}`.
    pub fn name(self) -> &'static str {
        match self {
            Self::RingOp => "ring_full_op",
            Self::RingConnection => "ring_full_connection",
            Self::RingThread => "ring_full_thread",
            Self::RingSample => "ring_full_sample",
            Self::SocketStorage => "socket_storage_refused",
            Self::ThreadStorage => "thread_storage_refused",
            Self::PayloadFault => "payload_fault",
            Self::PayloadUnknown => "payload_unknown",
            Self::Stack => "stack_unreadable",
            Self::Wakes => "wakes_not_told",
            Self::Runtime => "runtime_check_failed",
            Self::RingKin => "ring_full_kin",
            Self::RingTag => "ring_full_tag",
            Self::TagRoom => "tcp_option_no_room",
            Self::TagLate => "tcp_option_late",
            Self::RingDeclared => "ring_full_declared",
            Self::OffCpuStack => "off_cpu_stack_limit",
            Self::RingOffCpu => "ring_full_off_cpu",
            Self::RingText => "ring_full_text",
            Self::TlsObject => "tls_object",
            Self::TlsUnbound => "tls_unbound",
            Self::Smc => "smc",
            Self::CallStack => "call_stack_limit",
            Self::RingCallStack => "ring_full_call_stack",
            Self::ExchangeSums => "exchange_sums_full",
            Self::RingNoteworthyExchange => "ring_full_noteworthy_exchange",
            Self::RingLog => "ring_full_log",
            Self::LogRate => "log_rate_limit",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_follow_the_list() {
        for (i, lost) in Lost::ALL.into_iter().enumerate() {
            assert_eq!(lost as usize, i);
        }
    }
}
