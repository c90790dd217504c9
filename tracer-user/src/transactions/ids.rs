//! Trace and unit ids: a function of the recording's seed, the socket and the position in it, so that a replay gives
//! the ids of the live run. Not secrets; unique enough to never meet by chance (128 and 64 mixed bits).

use crate::model::{Side, TraceId, UnitId};

/// Finaliser of SplitMix64 (Steele, Lea, Flood 2014): mixes every bit of the input into every bit of the output.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn of(seed: u64, cookie: u64, exchange: u64, salt: u64) -> u64 {
    let a = mix(seed ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let b = mix(a ^ mix(cookie.wrapping_add(0x9e37_79b9_7f4a_7c15)));
    // An id of zero is invalid in W3C trace context.
    mix(b ^ mix(exchange.wrapping_add(0x3c6e_f372_fe94_f82a))).max(1)
}

/// Id of the unit for the `exchange`-th request on socket `cookie`.
pub fn unit(seed: u64, cookie: u64, exchange: u64, side: Side) -> UnitId {
    UnitId(of(seed, cookie, exchange, 1 + u64::from(side == Side::Client)))
}

/// A new transaction's id, begun by that request.
pub fn trace(seed: u64, cookie: u64, exchange: u64) -> TraceId {
    TraceId(u128::from(of(seed, cookie, exchange, 3)) << 64 | u128::from(of(seed, cookie, exchange, 4)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_differ_and_repeat() {
        let mut seen = HashSet::new();
        for cookie in 0..100 {
            for exchange in 0..100 {
                assert!(seen.insert(unit(7, cookie, exchange, Side::Server).0));
                assert!(seen.insert(unit(7, cookie, exchange, Side::Client).0));
                assert!(seen.insert(trace(7, cookie, exchange).0 as u64));
            }
        }
        assert_eq!(unit(7, 1, 2, Side::Server), unit(7, 1, 2, Side::Server));
        assert_ne!(unit(8, 1, 2, Side::Server), unit(7, 1, 2, Side::Server));
    }
}
