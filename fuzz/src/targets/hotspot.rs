//! Any bytes as the memory of a process with HotSpot: its description of its structures, heaps of code, blobs,
//! methods, and what was inlined into them.
use crate::process_memory::Bytes;
use tracer_runtimes::hotspot::code_cache::CodeCache;
use tracer_runtimes::hotspot::layout::{HotspotLayout, SYMBOLS};

pub(crate) fn run(data: &[u8]) {
    let Some((head, bytes)) = data.split_first_chunk::<4>() else { return };
    let mut memory = Bytes { bytes, read: 0 };
    let place = |name: &str| SYMBOLS.iter().position(|symbol| *symbol == name).map(|place| 8 * place as u64);
    let read = HotspotLayout::read(&mut memory, place);
    // Two tables of 8192 entries, with two names each.
    assert!(memory.read <= 8192 * (2 * 128 + 4 * 128), "{} bytes read for a description", memory.read);
    for layout in read.iter().chain([&HotspotLayout::SAMPLE]) {
        memory.read = 0;
        let Some(cache) = CodeCache::read(&mut memory, layout) else { continue };
        let Some(segments) = cache.segments(&mut memory) else { continue };
        for blob in cache.blobs(&mut memory, &segments).iter().take(16) {
            assert!(blob.code.start <= blob.code.end);
            let _ = cache.names(&mut memory, blob.code.start);
        }
        let address = cache.range().start.wrapping_add(u32::from_ne_bytes(*head).into());
        memory.read = 0;
        let names = cache.names(&mut memory, address);
        // Of characters that are no text each becomes three bytes.
        assert!(names.len() <= 64 && names.iter().all(|name| name.len() <= 2 * 3 * 256 + 1));
        assert!(memory.read <= 64 << 10, "{} bytes read for an address", memory.read);
    }
}
