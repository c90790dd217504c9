//! Arbitrary bytes as the notes of a program's USDT probes.
use tracer_runtimes::declared::usdt_notes;

pub(crate) fn run(data: &[u8]) {
    for (base, is_x86) in [(None, true), (Some(0x1000), true), (None, false)] {
        let found = usdt_notes(data, base, true, is_x86);
        // A note has 12 bytes before its contents, and those 24 before the texts.
        assert!(found.len() <= data.len() / 36);
        for probe in found {
            assert!(probe.arguments.len() <= data.len());
            let _ = probe.arguments.iter().map(ToString::to_string).collect::<String>();
        }
    }
}
