//! Arbitrary bytes as kernel records of every kind.
use tracer_common::event::Kind;
use tracer_model::decode::{self, Record};

pub(crate) fn run(data: &[u8]) {
    let _ = decode::record(data);
    let mut fixed = data.to_vec();
    if fixed.len() < 8 {
        return;
    }
    // A matching length gets further; tries each kind in turn.
    let len = (fixed.len() as u32).to_ne_bytes();
    fixed[4..8].copy_from_slice(&len);
    for kind in Kind::ALL {
        fixed[0] = kind as u8;
        match decode::record(&fixed) {
            Ok(Record::Op { op, head, tail, .. }) => assert!(head.len() + tail.len() <= op.bytes as usize),
            Ok(Record::Sample { sample, user, kernel, interpreted }) => {
                assert_eq!((user.len(), kernel.len()), (usize::from(sample.user), usize::from(sample.kernel)));
                assert_eq!(interpreted.frames.len(), usize::from(sample.interpreted));
            }
            Ok(Record::WaitEnd { end, user, interpreted }) => {
                assert_eq!(
                    (user.len(), interpreted.frames.len()),
                    (usize::from(end.user), usize::from(end.interpreted))
                );
            }
            Ok(Record::CallStack { call, user, interpreted }) => {
                assert_eq!(
                    (user.len(), interpreted.frames.len()),
                    (usize::from(call.user), usize::from(call.interpreted))
                );
            }
            Ok(Record::ThreadStats(stats)) => drop(decode::comm(&stats.comm).into_owned()),
            _ => {}
        }
    }
}
