//! Arbitrary bytes as a record file: header, frames, truncated anywhere.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tracer_user::record::{Kind, Reader};

fuzz_target!(|data: &[u8]| {
    let Ok(mut reader) = Reader::new("fuzz".into(), data) else { return };
    let mut taken = 0;
    while let Ok((kind, bytes)) = reader.next_frame() {
        taken += bytes.len();
        assert!(taken <= data.len(), "more than there is");
        if kind == Kind::End {
            break;
        }
    }
});
