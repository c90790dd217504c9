//! Trace and span ids: a function of the recording's seed, the socket, the exchange number on it and the time, so that
//! a replay yields the ids of the original run. The ids are not secret; 128 and 64 mixed bits make chance collisions
//! negligible.

use tracer_model::{Nanos, Side, SpanId, TraceId};

/// Finaliser of SplitMix64 (Steele, Lea, Flood 2014): mixes every bit of the input into every bit of the output.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn of(seed: u64, cookie: u64, exchange: u64, begun: Nanos, salt: u64) -> u64 {
    let a = mix(seed ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let b = mix(a ^ mix(cookie.wrapping_add(0x9e37_79b9_7f4a_7c15)));
    let c = mix(b ^ mix(exchange.wrapping_add(0x3c6e_f372_fe94_f82a)));
    // An id of zero is invalid in W3C trace context.
    mix(c ^ mix(begun)).max(1)
}

/// Id of the span of the `exchange`-th request on socket `cookie`, begun at `begun`. The time keeps ids distinct
/// because a forgotten connection that is seen again counts from 0.
pub fn span(seed: u64, cookie: u64, exchange: u64, begun: Nanos, side: Side) -> SpanId {
    SpanId(of(seed, cookie, exchange, begun, 1 + u64::from(side == Side::Client)))
}

/// Id of a new transaction that begins with that request.
pub fn trace(seed: u64, cookie: u64, exchange: u64, begun: Nanos) -> TraceId {
    let half = |salt| u128::from(of(seed, cookie, exchange, begun, salt));
    TraceId(half(3) << 64 | half(4))
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
                assert!(seen.insert(span(7, cookie, exchange, 9, Side::Server).0));
                assert!(seen.insert(span(7, cookie, exchange, 9, Side::Client).0));
                assert!(seen.insert(trace(7, cookie, exchange, 9).0 as u64));
            }
        }
        assert_eq!(span(7, 1, 2, 9, Side::Server), span(7, 1, 2, 9, Side::Server));
        assert_ne!(span(7, 1, 2, 9, Side::Server), span(7, 1, 2, 8, Side::Server));
        assert_ne!(span(8, 1, 2, 9, Side::Server), span(7, 1, 2, 9, Side::Server));
    }
}
