//! Arbitrary bytes as the head of one message, whole and cut short, and as a `traceparent`.
use tracer_protocols::{ExpectedReply, PROTOCOLS, Settings, Step, context};

pub(crate) fn run(data: &[u8]) {
    let settings = Settings { request_id: true, host: true, headers: vec!["x-a".into()], ..Settings::default() };
    for protocol in PROTOCOLS {
        let _ = protocol.detect(data);
        for cut in [false, true] {
            let mut parser = protocol.open();
            match parser.request(data, cut, &settings) {
                Step::Head { used, .. } | Step::Skip { used } => assert!(used <= data.len()),
                Step::Part { used, rest } | Step::Pass { used, rest } => {
                    assert!(used <= data.len() && used as u64 + rest > 0);
                }
                Step::NeedMore | Step::Invalid | Step::Trailing | Step::Leave | Step::Tls => {}
            }
            for expected in
                [ExpectedReply::default(), ExpectedReply { bodiless: true, tunnel: true, ..ExpectedReply::default() }]
            {
                match parser.reply(data, cut, &expected) {
                    Step::Head { used, .. } | Step::Skip { used } => assert!(used <= data.len()),
                    Step::Part { used, rest } | Step::Pass { used, rest } => {
                        assert!(used <= data.len() && used as u64 + rest > 0);
                    }
                    Step::NeedMore | Step::Invalid | Step::Trailing | Step::Leave | Step::Tls => {}
                }
            }
        }
    }
    if let Some(context) = context::traceparent(data) {
        assert!(context.trace_id != 0 && context.parent_id != 0);
    }
}
