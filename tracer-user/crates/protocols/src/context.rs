//! Trace context carried by requests: W3C Trace Context, B3 and W3C Baggage.
//!
//! W3C's `traceparent` takes precedence, then `b3`, then the `X-B3-…` headers (openzipkin/b3-propagation). Only baggage
//! members named in the configuration are kept: applications often put personal data there.

use std::sync::Arc;

use tracer_model::{Linked, PropagatedContext, SpanId, TraceId};

use super::Settings;
use super::http1::text;

/// Longest `tracestate` kept, in bytes; W3C Trace Context §3.3.1.5 guarantees vendors this much.
const STATE_LIMIT: usize = 512;
/// Longest baggage member value kept, in bytes, and most bytes of a header searched.
const MEMBER_LIMIT: usize = 128;
const BAGGAGE_LIMIT: usize = 8192;

/// Which header carried the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// W3C `traceparent`.
    TraceParent,
    /// `b3`, or the headers `X-B3-…`.
    B3,
    /// None: the tracer saw which request began a session.
    Session,
}

impl Carrier {
    /// Display name.
    pub fn name(self) -> &'static str {
        match self {
            Self::TraceParent => "traceparent",
            Self::B3 => "b3",
            Self::Session => "session",
        }
    }
}

/// The parent of a request, as given by a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// 16 bytes, not zero.
    pub trace_id: u128,
    /// 8 bytes, not zero.
    pub parent_id: u64,
    /// Flags; bit 0 = sampled.
    pub flags: u8,
    /// The header that carried it.
    pub carrier: Carrier,
}

impl From<TraceParent> for Linked {
    /// A link to the producer of one message.
    fn from(context: TraceParent) -> Self {
        Self { to: vec![context.names()], ..Self::default() }
    }
}

impl TraceParent {
    /// The trace id and the parent's span id.
    pub fn names(self) -> (TraceId, SpanId) {
        (TraceId(self.trace_id), SpanId(self.parent_id))
    }
}

/// Headers that carry trace context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    TraceParent,
    TraceState,
    Baggage,
    B3,
    TraceId,
    SpanId,
    Sampled,
    Flags,
}

impl Which {
    const ALL: [(&'static str, Self); 8] = [
        ("traceparent", Self::TraceParent),
        ("tracestate", Self::TraceState),
        ("baggage", Self::Baggage),
        ("b3", Self::B3),
        ("x-b3-traceid", Self::TraceId),
        ("x-b3-spanid", Self::SpanId),
        ("x-b3-sampled", Self::Sampled),
        ("x-b3-flags", Self::Flags),
    ];

    /// The header of this name, in any case; `None` for other headers, and for baggage if none is wanted.
    pub(super) fn of(name: &[u8], settings: &Settings) -> Option<Self> {
        // Most headers are none of these, and the first letter rules out most of those.
        if !matches!(name.first(), Some(b't' | b'T' | b'b' | b'B' | b'x' | b'X')) {
            return None;
        }
        let which = Self::ALL.iter().find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()))?.1;
        (which != Self::Baggage || !settings.baggage.is_empty()).then_some(which)
    }

    /// The same by the name of a CGI variable, such as `HTTP_X_B3_TRACEID`.
    pub(super) fn of_variable(name: &[u8], settings: &Settings) -> Option<Self> {
        let mut header = [0u8; 12];
        let rest = name.strip_prefix(b"HTTP_")?;
        let header = header.get_mut(..rest.len())?;
        for (to, from) in header.iter_mut().zip(rest) {
            *to = if *from == b'_' { b'-' } else { *from };
        }
        Self::of(header, settings)
    }
}

/// Trace context collected from the headers of one request.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    /// Number of `traceparent` headers: with two, neither can be trusted (W3C Trace Context §3.2).
    seen: u8,
    w3c: Option<TraceParent>,
    b3: Option<TraceParent>,
    trace_id: Option<u128>,
    span_id: Option<u64>,
    flags: u8,
    state: Box<str>,
    baggage: Vec<(Arc<str>, Box<str>)>,
}

impl Contexts {
    /// Takes one header.
    pub(super) fn see(&mut self, which: Which, value: &[u8], settings: &Settings) {
        let value = value.trim_ascii();
        match which {
            Which::TraceParent => {
                self.seen = self.seen.saturating_add(1);
                self.w3c = if self.seen == 1 { traceparent(value) } else { None };
            }
            Which::TraceState => self.add_state(value),
            Which::Baggage => self.add_baggage(value, settings),
            Which::B3 => self.b3 = b3(value),
            Which::TraceId => self.trace_id = trace_id(value),
            Which::SpanId => self.span_id = hexadecimal(value, 16).map(|id| id as u64),
            Which::Sampled => self.flags |= u8::from(value == b"1" || value.eq_ignore_ascii_case(b"true")),
            Which::Flags => self.flags |= u8::from(value == b"1"),
        }
    }

    /// Several headers form one list (W3C Trace Context §3.3.1).
    fn add_state(&mut self, value: &[u8]) {
        let comma = usize::from(!self.state.is_empty());
        if value.is_empty() || self.state.len() + comma + value.len() > STATE_LIMIT {
            return;
        }
        let list = [self.state.as_bytes(), if comma == 1 { b"," } else { b"" }, value].concat();
        self.state = Box::from(&*text(&list));
    }

    /// `key=value;properties,key=value` (W3C Baggage §3).
    fn add_baggage(&mut self, value: &[u8], settings: &Settings) {
        let value = value.get(..value.len().min(BAGGAGE_LIMIT)).unwrap_or_default();
        for member in value.split(|byte| *byte == b',') {
            let member = member.split(|byte| *byte == b';').next().unwrap_or_default();
            let Some(at) = memchr::memchr(b'=', member) else { continue };
            let (key, rest) = member.split_at(at);
            let key = key.trim_ascii();
            let Some(name) = settings.baggage.iter().find(|name| name.as_bytes() == key) else { continue };
            if self.baggage.iter().all(|(known, _)| known != name) {
                let value = rest.get(1..).unwrap_or_default().trim_ascii();
                let value = value.get(..value.len().min(MEMBER_LIMIT)).unwrap_or_default();
                self.baggage.push((Arc::clone(name), Box::from(&*text(value))));
            }
        }
    }

    /// The parent, and the context propagated with it.
    pub(super) fn finish(self) -> (Option<TraceParent>, Option<Box<PropagatedContext>>) {
        let several = self.trace_id.zip(self.span_id).map(|(trace_id, parent_id)| TraceParent {
            trace_id,
            parent_id,
            flags: self.flags,
            carrier: Carrier::B3,
        });
        // `tracestate` belongs to `traceparent`, and means nothing without it.
        let state = if self.w3c.is_some() { self.state } else { Box::default() };
        let carried = (!state.is_empty() || !self.baggage.is_empty())
            .then(|| Box::new(PropagatedContext { state, baggage: self.baggage, ..PropagatedContext::default() }));
        (self.w3c.or(self.b3).or(several), carried)
    }
}

/// Parses exactly `count` lower-case hexadecimal digits, not all zero.
fn hexadecimal(digits: &[u8], count: usize) -> Option<u128> {
    let good = digits.len() == count && digits.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let text = good.then(|| std::str::from_utf8(digits).ok())??;
    u128::from_str_radix(text, 16).ok().filter(|number| *number != 0)
}

/// A B3 trace id: 128 or 64 bits.
fn trace_id(digits: &[u8]) -> Option<u128> {
    hexadecimal(digits, 32).or_else(|| hexadecimal(digits, 16))
}

/// `traceid-spanid-sampled-parentspanid`, the last two optional; a lone `0` only says "not sampled".
fn b3(value: &[u8]) -> Option<TraceParent> {
    let mut parts = value.split(|byte| *byte == b'-');
    let trace_id = trace_id(parts.next()?)?;
    let parent_id = hexadecimal(parts.next()?, 16)? as u64;
    let flags = match parts.next() {
        Some(b"1" | b"d") => 1,
        Some(b"0") | None => 0,
        Some(_) => return None,
    };
    Some(TraceParent { trace_id, parent_id, flags, carrier: Carrier::B3 })
}

/// W3C Trace Context §3.2: `version-traceid-parentid-flags`, lower-case hexadecimal, ids not zero, version not `ff`.
pub fn traceparent(value: &[u8]) -> Option<TraceParent> {
    let field = |from: usize, to: usize| -> Option<u128> {
        let digits = value.get(from..to)?;
        digits.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).then_some(())?;
        u128::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let dash = |at: usize| value.get(at) == Some(&b'-');
    let version = field(0, 2)?;
    let complete = if version == 0 { value.len() == 55 } else { value.len() == 55 || dash(55) };
    if version == 0xff || !complete || !(dash(2) && dash(35) && dash(52)) {
        return None;
    }
    let (trace_id, parent_id, flags) = (field(3, 35)?, field(36, 52)? as u64, field(53, 55)? as u8);
    let valid = trace_id != 0 && parent_id != 0;
    valid.then_some(TraceParent { trace_id, parent_id, flags, carrier: Carrier::TraceParent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const W3C: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const TRACE: u128 = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c;

    fn read(headers: &[(&str, &str)]) -> (Option<TraceParent>, Option<Box<PropagatedContext>>) {
        let settings = Settings { baggage: ["tenant".into(), "plan".into()].into(), ..Settings::default() };
        let mut contexts = Contexts::default();
        for (name, value) in headers {
            let which = Which::of(name.as_bytes(), &settings).unwrap_or_else(|| panic!("{name}"));
            let variable = format!("HTTP_{}", name.to_ascii_uppercase().replace('-', "_"));
            assert_eq!(Which::of_variable(variable.as_bytes(), &settings), Some(which), "{variable}");
            contexts.see(which, value.as_bytes(), &settings);
        }
        contexts.finish()
    }

    #[test]
    fn who_is_believed() {
        let (id, span) = ("463ac35c9f6413ad48485a3953bb6124", "a2fb4a1d1a96d312");
        let b3 = format!("{id}-{span}-1-05e3ac9a4f6e3b90");
        let parent = |headers: &[(&str, &str)]| {
            read(headers).0.map(|found| (found.trace_id, found.parent_id, found.flags, found.carrier.name()))
        };
        let of_b3 = |flags| Some((0x463a_c35c_9f64_13ad_4848_5a39_53bb_6124, 0xa2fb_4a1d_1a96_d312, flags, "b3"));
        let w3c = Some((TRACE, 0xb7ad_6b71_6920_3331, 1, "traceparent"));
        for (headers, expected) in [
            (&[("traceparent", W3C)][..], w3c),
            (&[("TraceParent", W3C), ("b3", &b3)], w3c),
            (&[("traceparent", "00-bad"), ("b3", &b3)], of_b3(1)),
            (&[("traceparent", W3C), ("traceparent", W3C)], None),
            (&[("b3", &b3[..49])], of_b3(0)),
            (&[("b3", "0")], None),
            (&[("b3", &format!("{id}-{span}-x"))], None),
            (&[("X-B3-TraceId", id), ("X-B3-SpanId", span), ("X-B3-Sampled", "1")], of_b3(1)),
            (&[("x-b3-traceid", id), ("x-b3-spanid", span), ("x-b3-flags", "1")], of_b3(1)),
            (&[("x-b3-traceid", id), ("x-b3-sampled", "1")], None),
            (
                &[("x-b3-traceid", &id[16..]), ("x-b3-spanid", span)],
                Some((0x4848_5a39_53bb_6124, 0xa2fb_4a1d_1a96_d312, 0, "b3")),
            ),
            (&[("x-b3-traceid", "0000000000000000"), ("x-b3-spanid", span)], None),
        ] {
            assert_eq!(parent(headers), expected, "{headers:?}");
        }
    }

    #[test]
    fn what_comes_with_it_is_bounded_and_asked_for() {
        let state = |headers: &[(&str, &str)]| read(headers).1.map(|carried| carried.state.to_string());
        assert_eq!(
            state(&[("traceparent", W3C), ("tracestate", "a=1"), ("tracestate", " b=2 ")]).as_deref(),
            Some("a=1,b=2")
        );
        assert_eq!(state(&[("tracestate", "a=1")]), None, "no traceparent");
        let long = "x".repeat(513);
        assert_eq!(state(&[("traceparent", W3C), ("tracestate", &long)]), None);
        let members = "name=Ada, tenant = t%2F1 ;p=1,plan=gold,tenant=other";
        let carried = read(&[("baggage", members)]).1.expect("what is asked for");
        assert_eq!(carried.baggage, [("tenant".into(), "t%2F1".into()), ("plan".into(), "gold".into())]);
        let most = format!("tenant={}", "y".repeat(9000));
        assert_eq!(read(&[("baggage", &most)]).1.expect("cut").baggage[0].1.len(), MEMBER_LIMIT);
        assert_eq!(Which::of(b"baggage", &Settings::default()), None, "not configured");
        for other in ["x-b3-parentspanid", "trace", "", "x", "b", "HTTP_X_B3_PARENTSPANID"] {
            assert_eq!(Which::of(other.as_bytes(), &Settings::default()), None, "{other}");
            assert_eq!(Which::of_variable(other.as_bytes(), &Settings::default()), None, "{other}");
        }
    }

    #[test]
    fn trace_context_is_strict() {
        let parsed = traceparent(W3C.as_bytes()).unwrap();
        assert_eq!((parsed.trace_id, parsed.parent_id, parsed.flags), (TRACE, 0xb7ad_6b71_6920_3331, 1));
        for bad in [
            &b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x"[..],
            b"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            b"00-00000000000000000000000000000000-b7ad6b7169203331-01",
            b"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            b"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            b"",
        ] {
            assert_eq!(traceparent(bad), None, "{}", String::from_utf8_lossy(bad));
        }
        assert!(traceparent(b"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-future").is_some());
    }

    proptest! {
        #[test]
        fn never_panics_on_arbitrary_input(value in prop::collection::vec(any::<u8>(), 0..600), text in "[-,;=0-9a-f]{0,80}") {
            let settings = Settings { baggage: ["a".into()].into(), ..Settings::default() };
            let mut contexts = Contexts::default();
            for (_, which) in Which::ALL {
                contexts.see(which, &value, &settings);
                contexts.see(which, text.as_bytes(), &settings);
            }
            let (parent, carried) = contexts.finish();
            prop_assert!(parent.is_none_or(|parent| parent.trace_id != 0 && parent.parent_id != 0));
            prop_assert!(carried.is_none_or(|carried| carried.state.len() <= 3 * STATE_LIMIT));
        }
    }
}
