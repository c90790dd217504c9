//! Any frames of a record file through the whole pipeline, as `tracer replay` would run them, and what comes out of it.
#![no_main]

use std::cell::RefCell;
use std::collections::HashMap;

use libfuzzer_sys::fuzz_target;
use tracer_user::config::Config;
use tracer_user::host::process::ProcessFacts;
use tracer_user::pipeline::{Introduce, Pipeline};
use tracer_user::record::{Kind, Reader};

#[derive(Default)]
struct Known(RefCell<HashMap<u32, ProcessFacts>>);

impl Introduce for Known {
    fn introduce(&mut self, tgid: u32) -> Option<ProcessFacts> {
        self.0.borrow().get(&tgid).cloned()
    }
}

fuzz_target!(|data: &[u8]| {
    let Ok(mut reader) = Reader::new("fuzz".into(), data) else { return };
    let mut pipeline = Pipeline::new(&Config::default(), reader.origin.seed, reader.origin.wall_offset, "fuzz");
    let mut known = Known::default();
    while let Ok((kind, bytes)) = reader.next_frame() {
        match kind {
            Kind::Record => pipeline.record(bytes, &mut known),
            Kind::Process => {
                if let Ok(facts) = serde_json::from_slice::<ProcessFacts>(bytes) {
                    known.0.get_mut().insert(facts.pid, facts);
                }
            }
            Kind::Tick => {
                if let Some(nanos) = bytes.first_chunk() {
                    pipeline.tick(u64::from_ne_bytes(*nanos));
                }
            }
            Kind::End => break,
        }
    }
    pipeline.finish();
    let _ = tracer_user::metrics::text(&pipeline.metrics.registry());
});
