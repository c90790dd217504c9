//! Decodes kernel bytes into records. Pure and total; the only reader of raw kernel bytes, and fuzzed.

use tracer_common::event::{
    CallStack, DECLARED_VALUES, DeclaredCall, DeclaredValues, Exec, Fork, Header, InbandContext, Kind, OffCpu, Op,
    Open, ProcessEnd, Sample, State, TaskEdge, ThreadStats, WaitEnd, Wake,
};
use tracer_common::exchange_counts::{CountedExchanges, NoteworthyExchange};
use tracer_common::interpreter::{InterpretedFrame, InterpreterOutcome};
use tracer_common::log_write::LogWrite;

use crate::Interpreted;

/// One record; its variable part borrows from the input bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A socket operation with its payload prefix and suffix.
    Op {
        /// Fixed part.
        op: Op,
        /// Payload prefix.
        head: &'a [u8],
        /// Payload suffix; empty if `head` is everything.
        tail: &'a [u8],
        /// Payload fragments: the starts of frames in between, see [`Op::frames`].
        fragments: &'a [u8],
    },
    /// Text that a TLS library read or wrote, see [`tracer_common::event::OP_JOINED`].
    Text {
        /// Fixed part.
        op: Op,
        /// Its front.
        head: &'a [u8],
        /// Its end; empty if `head` is everything.
        tail: &'a [u8],
        /// The starts of frames in between, see [`Op::frames`].
        fragments: &'a [u8],
    },
    /// A socket seen for the first time.
    Open(Open),
    /// A TCP state change.
    State(State),
    /// A thread's counters.
    ThreadStats(ThreadStats),
    /// A process or thread was created.
    Fork(Fork),
    /// A process executed a new program.
    Exec(Exec),
    /// A process ended.
    ProcessEnd(ProcessEnd),
    /// A stack, innermost frame first.
    Sample {
        /// Fixed part.
        sample: Sample,
        /// User addresses.
        user: Vec<u64>,
        /// Kernel addresses.
        kernel: Vec<u64>,
        /// Interpreted frames.
        interpreted: Interpreted,
    },
    /// A thread that held a request was off the CPU.
    OffCpu {
        /// Fixed part.
        wait: OffCpu,
        /// User addresses, innermost first.
        user: Vec<u64>,
        /// Interpreted frames.
        interpreted: Interpreted,
    },
    /// A thread ended another's wait.
    WaitEnd {
        /// Fixed part.
        end: WaitEnd,
        /// User addresses, innermost first.
        user: Vec<u64>,
        /// Interpreted frames.
        interpreted: Interpreted,
    },
    /// Where a thread was when it began to send on a connection that it opened.
    CallStack {
        /// Fixed part.
        call: CallStack,
        /// User addresses, innermost first.
        user: Vec<u64>,
        /// Interpreted frames.
        interpreted: Interpreted,
    },
    /// Exchanges were counted in the kernel and not reported.
    CountedExchanges(CountedExchanges),
    /// A counted exchange that is worth a look.
    NoteworthyExchange(NoteworthyExchange),
    /// A thread woke another.
    Wake(Wake),
    /// A relation between two tasks of a runtime.
    TaskEdge(TaskEdge),
    /// A request's in-band context was sent or received with its first segment.
    InbandContext(InbandContext),
    /// A declared function was entered or returned.
    DeclaredCall {
        /// The call.
        call: DeclaredCall,
        /// Its values, where they are wanted.
        values: Option<DeclaredValues>,
    },
    /// A thread wrote to a log.
    LogWrite {
        /// Fixed part.
        write: LogWrite,
        /// Its front; empty: it could not be read.
        text: &'a [u8],
    },
}

/// Why bytes do not form a record. Counted by [`name`](Malformed::name); the record is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Malformed {
    /// Fewer bytes than the record needs.
    #[error("record is cut short")]
    Short,
    /// The first byte is no known kind.
    #[error("record of an unknown kind")]
    Kind,
    /// Its length contradicts its parts.
    #[error("record whose length does not agree with its parts")]
    Length,
}

impl Malformed {
    /// All reasons.
    pub const ALL: [Self; 3] = [Self::Short, Self::Kind, Self::Length];

    /// Label value of `tracer_events_lost_total{reason}`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Short => "decode_short",
            Self::Kind => "decode_kind",
            Self::Length => "decode_length",
        }
    }
}

/// Decodes the record that fills `bytes`.
pub fn record(bytes: &[u8]) -> Result<Record<'_>, Malformed> {
    let (kind, _) = header(bytes)?;
    content(kind, bytes)
}

/// Kind and header of the record that fills `bytes`.
pub fn header(bytes: &[u8]) -> Result<(Kind, Header), Malformed> {
    let header = Header::decode(bytes).ok_or(Malformed::Short)?;
    let kind = Kind::from_byte(header.kind).ok_or(Malformed::Kind)?;
    if header.len as usize == bytes.len() { Ok((kind, header)) } else { Err(Malformed::Length) }
}

/// The record that fills `bytes`, of the kind that [`header`] found.
pub fn content(kind: Kind, bytes: &[u8]) -> Result<Record<'_>, Malformed> {
    let rest = bytes.get(kind.fixed_size()..).ok_or(Malformed::Short)?;
    let fixed = |record| if rest.is_empty() { Ok(record) } else { Err(Malformed::Length) };
    match kind {
        Kind::Op | Kind::Text => {
            let op = Op::decode(bytes).ok_or(Malformed::Short)?;
            let (head, rest) = rest.split_at_checked(op.head as usize).ok_or(Malformed::Length)?;
            let (tail, rest) = rest.split_at_checked(op.tail as usize).ok_or(Malformed::Length)?;
            // Fragments start at a multiple of eight.
            let gap = if op.frames == 0 { 0 } else { (head.len() + tail.len()).wrapping_neg() & 7 };
            let fragments = rest.get(gap..).ok_or(Malformed::Length)?;
            if fragments.len() != op.frames as usize || op.head as u64 + op.tail as u64 > op.bytes as u64 {
                return Err(Malformed::Length);
            }
            Ok(match kind {
                Kind::Text => Record::Text { op, head, tail, fragments },
                _ => Record::Op { op, head, tail, fragments },
            })
        }
        Kind::Open => fixed(Record::Open(Open::decode(bytes).ok_or(Malformed::Short)?)),
        Kind::State => fixed(Record::State(State::decode(bytes).ok_or(Malformed::Short)?)),
        Kind::ThreadStats => fixed(Record::ThreadStats(ThreadStats::decode(bytes).ok_or(Malformed::Short)?)),
        Kind::Fork => fixed(Record::Fork(Fork::decode(bytes).ok_or(Malformed::Short)?)),
        Kind::Exec => fixed(Record::Exec(Exec::decode(bytes).ok_or(Malformed::Short)?)),
        Kind::ProcessEnd => fixed(Record::ProcessEnd(ProcessEnd::decode(bytes).ok_or(Malformed::Short)?)),
        Kind::CountedExchanges => {
            fixed(Record::CountedExchanges(CountedExchanges::decode(bytes).ok_or(Malformed::Short)?))
        }
        Kind::NoteworthyExchange => {
            fixed(Record::NoteworthyExchange(NoteworthyExchange::decode(bytes).ok_or(Malformed::Short)?))
        }
        Kind::Wake => fixed(Record::Wake(Wake::decode(bytes).ok_or(Malformed::Short)?)),
        Kind::TaskEdge => fixed(Record::TaskEdge(TaskEdge::decode(bytes).ok_or(Malformed::Short)?)),
        Kind::InbandContext => fixed(Record::InbandContext(InbandContext::decode(bytes).ok_or(Malformed::Short)?)),
        Kind::DeclaredCall => {
            let call = DeclaredCall::decode(bytes).ok_or(Malformed::Short)?;
            if call.header.flags & DECLARED_VALUES == 0 {
                return fixed(Record::DeclaredCall { call, values: None });
            }
            let values = DeclaredValues::decode(rest).ok_or(Malformed::Short)?;
            if rest.len() != DeclaredValues::SIZE {
                return Err(Malformed::Length);
            }
            Ok(Record::DeclaredCall { call, values: Some(values) })
        }
        Kind::LogWrite => {
            let write = LogWrite::decode(bytes).ok_or(Malformed::Short)?;
            if rest.len() != usize::from(write.text) || u64::from(write.text) > write.bytes {
                return Err(Malformed::Length);
            }
            Ok(Record::LogWrite { write, text: rest })
        }
        Kind::OffCpu => {
            let wait = OffCpu::decode(bytes).ok_or(Malformed::Short)?;
            let (user, rest) = rest.split_at_checked(wait.user as usize * 8).ok_or(Malformed::Length)?;
            let interpreted = interpreted(rest, wait.interpreted, wait.interpreter_outcome)?;
            Ok(Record::OffCpu { wait, user: addresses(user), interpreted })
        }
        Kind::WaitEnd => {
            let end = WaitEnd::decode(bytes).ok_or(Malformed::Short)?;
            let (user, rest) = rest.split_at_checked(end.user as usize * 8).ok_or(Malformed::Length)?;
            let interpreted = interpreted(rest, end.interpreted, end.interpreter_outcome)?;
            Ok(Record::WaitEnd { end, user: addresses(user), interpreted })
        }
        Kind::CallStack => {
            let call = CallStack::decode(bytes).ok_or(Malformed::Short)?;
            let (user, rest) = rest.split_at_checked(call.user as usize * 8).ok_or(Malformed::Length)?;
            let interpreted = interpreted(rest, call.interpreted, call.interpreter_outcome)?;
            Ok(Record::CallStack { call, user: addresses(user), interpreted })
        }
        Kind::Sample => {
            let sample = Sample::decode(bytes).ok_or(Malformed::Short)?;
            let (user, rest) = rest.split_at_checked(sample.user as usize * 8).ok_or(Malformed::Length)?;
            let (kernel, rest) = rest.split_at_checked(sample.kernel as usize * 8).ok_or(Malformed::Length)?;
            let interpreted = interpreted(rest, sample.interpreted, sample.interpreter_outcome)?;
            Ok(Record::Sample { sample, user: addresses(user), kernel: addresses(kernel), interpreted })
        }
    }
}

fn addresses(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).filter_map(|chunk| chunk.first_chunk()).map(|word| u64::from_ne_bytes(*word)).collect()
}

/// The interpreted frames that a record ends with.
fn interpreted(bytes: &[u8], count: u8, outcome: u8) -> Result<Interpreted, Malformed> {
    if bytes.len() != usize::from(count) * InterpretedFrame::SIZE {
        return Err(Malformed::Length);
    }
    let frames = bytes.chunks_exact(InterpretedFrame::SIZE).filter_map(InterpretedFrame::decode).collect();
    let (outcome, language) = InterpreterOutcome::of_record(outcome);
    Ok(Interpreted { frames, outcome, language })
}

/// The text of a zero-terminated `comm`.
pub fn comm(bytes: &[u8; 16]) -> std::borrow::Cow<'_, str> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn op(payload: &[u8], head: u16, tail: u16, bytes: u32) -> Vec<u8> {
        let len = (Op::SIZE + payload.len()) as u32;
        let op = Op {
            header: Header { kind: Kind::Op as u8, len, ..Header::default() },
            bytes,
            head,
            tail,
            ..Op::default()
        };
        let mut out = vec![0; Op::SIZE];
        op.encode(&mut out).unwrap();
        out.extend_from_slice(payload);
        out
    }

    #[test]
    fn payload_parts_are_distinguished() {
        let bytes = op(b"GET /end", 5, 3, 100);
        let Ok(Record::Op { head, tail, .. }) = record(&bytes) else { panic!("an op") };
        assert_eq!((head, tail), (&b"GET /"[..], &b"end"[..]));
    }

    #[test]
    fn a_calls_stack_has_both_kinds_of_frames() {
        let frame = InterpretedFrame { code: 5, cookie: 6, at: 7, flags: 0 };
        let len = (CallStack::SIZE + 16 + InterpretedFrame::SIZE) as u32;
        let header = Header { kind: Kind::CallStack as u8, len, nanos: 9, ..Header::default() };
        let call = CallStack { header, cookie: 4, user: 2, interpreted: 1, ..CallStack::default() };
        let mut bytes = vec![0; len as usize];
        call.encode(&mut bytes).unwrap();
        bytes[CallStack::SIZE] = 1;
        bytes[CallStack::SIZE + 8] = 2;
        frame.encode(&mut bytes[CallStack::SIZE + 16..]).unwrap();
        let Ok(Record::CallStack { call: read, user, interpreted }) = record(&bytes) else { panic!("a stack") };
        assert_eq!((read, user, interpreted.frames), (call, vec![1, 2], vec![frame]));
    }

    #[test]
    fn disagreement_is_refused() {
        for (bytes, why) in [
            (op(b"abc", 4, 0, 100), Malformed::Length),
            (op(b"abc", 2, 0, 100), Malformed::Length),
            (op(b"abc", 3, 0, 2), Malformed::Length),
            (vec![], Malformed::Short),
            (vec![99; 24], Malformed::Kind),
        ] {
            assert_eq!(record(&bytes), Err(why));
        }
    }

    proptest! {
        #[test]
        fn never_panics_on_arbitrary_input(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), kind in 0..=Kind::ALL.len() as u8 + 1) {
            if bytes.len() >= 8 {
                bytes[0] = kind;
                let len = (bytes.len() as u32).to_ne_bytes();
                bytes[4..8].copy_from_slice(&len);
            }
            let _ = record(&bytes);
        }
    }
}
