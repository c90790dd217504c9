//! W3C `tracestate` with OpenTelemetry's member `ot`.

use tracer_model::{Threshold, TraceId};

/// Most members of a list, and most bytes that everybody passes on (W3C Trace Context §3.3).
const MEMBERS: usize = 32;
const LENGTH: usize = 512;
/// Members longer than this go first where there is no room for all (W3C Trace Context §3.3.1.5).
const LONG: usize = 128;
/// Most bytes of the member `ot`'s value.
const OT: usize = 256;
/// Hexadecimal digits of `rv`.
const DIGITS: usize = 14;

/// The members of a list: key and value. What has no key is none.
fn members(state: &str) -> impl Iterator<Item = (&str, &str)> {
    state.split(',').filter_map(|member| member.trim().split_once('=')).filter(|(key, _)| !key.is_empty())
}

/// The parts of the member `ot`: key and value.
fn ot(state: &str) -> impl Iterator<Item = (&str, &str)> {
    let ot = members(state).find(|(key, _)| *key == "ot").map_or("", |(_, value)| value);
    ot.split(';').filter_map(|part| part.split_once(':'))
}

/// What the decision about a transaction is drawn from, 56 bits: `rv` of its `tracestate`, else the right-most seven bytes of
/// its trace id. Alike on all hosts.
pub fn randomness(trace: TraceId, state: &str) -> u64 {
    explicit_randomness(state).unwrap_or(trace.0 as u64 & ((1 << 56) - 1))
}

/// `rv`, if there is one.
pub(super) fn explicit_randomness(state: &str) -> Option<u64> {
    let (_, value) = ot(state).find(|(key, _)| *key == "rv")?;
    let is_valid = value.len() == DIGITS && value.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_valid.then(|| u64::from_str_radix(value, 16).ok())?
}

/// `state` with this threshold in the place of any other, and all other members as far as there is room.
pub fn with_threshold(state: &str, threshold: Threshold) -> String {
    let mut first = format!("ot=th:{threshold}");
    // Randomness that was given must stay; it comes first, so that it has room.
    let given = || ot(state).filter(|(key, _)| *key != "th");
    for (key, value) in given().filter(|(key, _)| *key == "rv").chain(given().filter(|(key, _)| *key != "rv")) {
        if first.len() + key.len() + value.len() + 2 <= OT + "ot=".len() {
            first.push_str(&format!(";{key}:{value}"));
        }
    }
    // A member that was changed stands first.
    let mut all = vec![first];
    all.extend(members(state).filter(|(key, _)| *key != "ot").map(|(key, value)| format!("{key}={value}")));
    all.truncate(MEMBERS);
    let length = |all: &[String]| all.iter().map(|member| member.len() + 1).sum::<usize>() - 1;
    while length(&all) > LENGTH && all.len() > 1 {
        let long = all.iter().skip(1).rposition(|member| member.len() > LONG).map(|at| at + 1);
        all.remove(long.unwrap_or(all.len() - 1));
    }
    all.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tenth() -> Threshold {
        Threshold::of_share(0.1)
    }

    #[test]
    fn a_threshold_takes_the_place_of_the_callers() {
        for (before, after) in [
            ("", "ot=th:e666"),
            ("ot=th:8", "ot=th:e666"),
            ("vendor=a:b;c,ot=th:8;x:1,other=2", "ot=th:e666;x:1,vendor=a:b;c,other=2"),
            ("ot=x:1;rv:0123456789abcd;th:0", "ot=th:e666;rv:0123456789abcd;x:1"),
            // The second of two, and what is no member, go.
            ("ot=x:1,ot=y:2,,=,nothing, a=b ", "ot=th:e666;x:1,a=b"),
        ] {
            assert_eq!(with_threshold(before, tenth()), after, "{before:?}");
        }
        assert_eq!(with_threshold("a=1", Threshold::ALL), "ot=th:0,a=1");
    }

    #[test]
    fn what_has_no_room_goes_long_members_first() {
        let long = format!("long={}", "x".repeat(200));
        let rest: Vec<String> = (0..31).map(|n| format!("m{n}=0123456789")).collect();
        let merged = with_threshold(&format!("{long},{}", rest.join(",")), tenth());
        assert!(merged.len() <= LENGTH && merged.starts_with("ot=th:e666,m0=") && !merged.contains("long"), "{merged}");
        let many: Vec<String> = (0..40).map(|n| format!("{n}=a")).collect();
        assert_eq!(with_threshold(&many.join(","), tenth()).split(',').count(), MEMBERS);
    }

    #[test]
    fn randomness_that_is_given_comes_before_the_trace_ids() {
        let trace = TraceId(0xff_1234_5678_9abc_def0);
        assert_eq!(randomness(trace, ""), 0x34_5678_9abc_def0);
        assert_eq!(randomness(trace, "a=1,ot=th:0;rv:6e6d1a75832a2f"), 0x6e_6d1a_7583_2a2f);
        for bad in ["ot=rv:6e6d1a75832a2", "ot=rv:+e6d1a75832a2f", "ot=rv:6e6d1a75832a2g", "rv:6e6d1a75832a2f", "ot=rv"]
        {
            assert_eq!(randomness(trace, bad), 0x34_5678_9abc_def0, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_state_gives_a_valid_one(state in "[a-c=:;,@ot hrv0-9é]{0,700}") {
            let merged = with_threshold(&state, tenth());
            prop_assert!(merged.len() <= LENGTH && members(&merged).count() <= MEMBERS);
            prop_assert_eq!(ot(&merged).filter(|(key, _)| *key == "th").map(|(_, value)| value.to_owned()).collect::<Vec<_>>(), ["e666"]);
            prop_assert_eq!(explicit_randomness(&merged), explicit_randomness(&state));
        }
    }
}
