//! Arbitrary bytes, cut and captured arbitrarily, in both directions of one connection.

use crate::conversation::converse;
pub(crate) fn run(data: &[u8]) {
    converse(&[], data);
}
