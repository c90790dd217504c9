//! Which transactions are exported. Pure.

mod trace_state;

use crate::model::{Kept, Threshold};
pub use trace_state::{randomness, with_threshold};

/// The threshold of a span after a downstream share: no stage can lower what an earlier one raised.
pub fn combined(kept: Option<Kept>, share: Threshold) -> Option<Threshold> {
    let before = kept.map(|kept| kept.threshold);
    if share == Threshold::ALL { before } else { before.max(Some(share)) }
}
