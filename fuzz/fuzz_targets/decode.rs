//! Any bytes as a kernel record, and as a kernel's type information.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tracer_user::{decode, kernel::btf::Btf, record::Reader};

fuzz_target!(|data: &[u8]| {
    let _ = decode::record(data);
    let mut fixed = data.to_vec();
    if fixed.len() >= 8 {
        // A length that agrees gets further.
        let len = (fixed.len() as u32).to_ne_bytes();
        fixed[4..8].copy_from_slice(&len);
        let _ = decode::record(&fixed);
    }
    if let Ok(btf) = Btf::parse(data.to_vec()) {
        let _ = btf.offset("sock", "sk_protocol");
    }
    if let Ok(mut reader) = Reader::new("fuzz".into(), data) {
        while reader.next_frame().is_ok_and(|(_, bytes)| bytes.len() < 1 << 20) {}
    }
});
