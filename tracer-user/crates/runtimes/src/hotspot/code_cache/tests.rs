//! A heap of code in memory as HotSpot keeps it: what is found in it, and what is not believed.

use super::*;

/// Memory in regions; everything else cannot be read.
#[derive(Clone)]
struct Regions(Vec<(u64, Vec<u8>)>);

impl ProcessMemory for Regions {
    fn read(&mut self, at: u64, into: &mut [u8]) -> bool {
        self.0.iter().any(|(from, bytes)| {
            let found = at.checked_sub(*from).and_then(|from| bytes.get(from as usize..)?.get(..into.len()));
            found.map(|found| into.copy_from_slice(found)).is_some()
        })
    }
}

impl Regions {
    fn put(&mut self, at: u64, value: impl Into<u64>, len: usize) {
        let value = value.into();
        let (from, bytes) =
            self.0.iter_mut().find(|(from, bytes)| (*from..*from + bytes.len() as u64).contains(&at)).unwrap();
        let at = (at - *from) as usize;
        bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
    }
}

const LAYOUT: HotspotLayout = HotspotLayout::SAMPLE;
const CODE: u64 = 0x10_0000;
const SEGMENTS: u64 = 0x20_0000;
const NAMES: u64 = 0x30_0000;
const METHOD: u64 = 0x40_0000;

/// A heap of 64 segments: a block of 40 with a method, one that is free, and one with the interpreter.
fn memory() -> Regions {
    let mut memory = Regions(vec![
        (0x1000, vec![0; 0x1000]),
        (CODE, vec![0; 64 << 7]),
        (SEGMENTS, vec![FREE; 64]),
        (NAMES, vec![0; 0x100]),
        (METHOD, vec![0; 0x1000]),
    ]);
    for (at, value) in [
        (0x1000, 0x1100),
        (0x1008, CODE),
        (0x1010, CODE + (1 << 20)),
        (0x1108, 0x1200),
        (0x1200, 0x1300),
        (0x1300 + 8 + 16, CODE),
        (0x1300 + 8 + 24, CODE + (64 << 7)),
        (0x1300 + 120 + 16, SEGMENTS),
    ] {
        memory.put(at, value, 8);
    }
    memory.put(0x1100, 1u64, 4);
    memory.put(0x1300 + 256, 7u64, 4);
    for (number, back) in (0..40).chain(0..8).chain(0..16).enumerate() {
        memory.put(SEGMENTS + number as u64, back as u64, 1);
    }
    for (text, at) in [("nmethod", 0), ("Interpreter", 16)] {
        for (number, byte) in text.bytes().enumerate() {
            memory.put(NAMES + at + number as u64, byte, 1);
        }
    }
    for (segment, name, bytes, frame) in [(0u64, 0u64, 40u64, 6u64), (48, 16, 16, 0)] {
        let block = CODE + (segment << 7);
        let blob = block + 16;
        memory.put(block + 8, 1u64, 1);
        memory.put(blob + 96, NAMES + name, 8);
        memory.put(blob + 32, blob + 352, 8);
        memory.put(blob + 24, (bytes << 7) - 16, 4);
        memory.put(blob + 28, frame, 4);
        memory.put(blob + 112, METHOD, 8);
    }
    // The method, what does not change of it, its constants with the third as its name, its class.
    for (at, value) in [(8, 0x100), (0x108, 0x200), (0x218, 0x300), (0x318, 0x400), (0x200 + 72 + 24, 0x500)] {
        memory.put(METHOD + at, METHOD + value, 8);
    }
    memory.put(METHOD + 0x100 + 34, 3u64, 2);
    for (at, text) in [(0x400, "shop/Cart$$Lambda$14/0x0000000800c03000"), (0x500, "total")] {
        memory.put(METHOD + at + 4, text.len() as u64, 2);
        for (number, byte) in text.bytes().enumerate() {
            memory.put(METHOD + at + 6 + number as u64, byte, 1);
        }
    }
    memory
}

#[test]
fn blobs_are_found_by_their_segments() {
    let mut memory = memory();
    let cache = CodeCache::read(&mut memory, &LAYOUT).expect("a heap");
    assert_eq!(cache.range(), CODE..CODE + (64 << 7));
    let segments = cache.segments(&mut memory).expect("segments");
    let blobs = cache.blobs(&mut memory, &segments);
    let kinds: Vec<_> = blobs.iter().map(|blob| (blob.kind, blob.frame)).collect();
    assert_eq!(kinds, [(BlobKind::Method, 48), (BlobKind::Interpreter, 0)]);
    assert_eq!(cache.find(&mut memory, CODE + 0x400).as_ref(), blobs.first());
    assert_eq!(cache.find(&mut memory, CODE + (45 << 7)), None, "nothing uses it");
    assert_eq!(cache.find(&mut memory, CODE + (50 << 7) + 3).as_ref(), blobs.last());
    assert_eq!(cache.find(&mut memory, CODE - 1), None);
}

#[test]
fn code_has_the_name_of_its_method() {
    let mut memory = memory();
    let cache = CodeCache::read(&mut memory, &LAYOUT).expect("a heap");
    assert_eq!(cache.names(&mut memory, CODE + 0x400), ["shop.Cart$$Lambda.total"]);
    assert_eq!(cache.names(&mut memory, CODE + (50 << 7)), ["[Java interpreter]"]);
    assert_eq!(cache.names(&mut memory, CODE - 1), Vec::<String>::new());
}

/// The method with another one inlined at [`CODE`] + 368 + 0x20 to 0x40, with bytes from zero, as Java 17 has them, or from one, as Java 25.
fn inlining(memory: &mut Regions, excluded: u8) -> CodeBlob {
    let cache = CodeCache::read(memory, &LAYOUT).expect("a heap");
    let blob = cache.find(memory, CODE + 0x400).expect("a method");
    // Below the code: distances of the positions, of their end, and of the methods; then these, and the scopes.
    for (member, distance) in [(268, 0x130u64), (272, 0x160), (260, 0x120)] {
        memory.put(blob.at + member, distance + 0x1000, 4);
    }
    memory.put(blob.at + 120, blob.at + 0x1200, 8);
    let positions = [(0x20i32, 8u8), (0x40, 4), (i32::MAX, 0)];
    for (number, (distance, scope)) in positions.into_iter().enumerate() {
        memory.put(blob.at + 0x1130 + 16 * number as u64, distance as u32, 4);
        memory.put(blob.at + 0x1134 + 16 * number as u64, scope, 4);
    }
    for (number, method) in [METHOD, METHOD + 0x800].into_iter().enumerate() {
        memory.put(blob.at + 0x1120 + 8 * number as u64, method, 8);
    }
    // Scope 4 is the compiled method's own; scope 8 is within it, and of the second method.
    for (scope, number) in [(4u64, 0u8), (5, 1), (8, 4), (9, 2)] {
        memory.put(blob.at + 0x1200 + scope, number + excluded, 1);
    }
    // The second method has the first one's constants, and the fourth of them as its name.
    memory.put(METHOD + 0x800 + 8, METHOD + 0x900, 8);
    memory.put(METHOD + 0x900 + 8, METHOD + 0x200, 8);
    memory.put(METHOD + 0x900 + 34, 4u64, 2);
    memory.put(METHOD + 0x200 + 72 + 32, METHOD + 0x600, 8);
    memory.put(METHOD + 0x600 + 4, 5u64, 2);
    memory.put(METHOD + 0x600 + 6, u64::from_le_bytes(*b"price\0\0\0"), 8);
    blob
}

#[test]
fn inlined_methods_follow_the_one_they_are_in() {
    for excluded in [0, 1] {
        let mut memory = memory();
        let blob = inlining(&mut memory, excluded);
        let cache = CodeCache::read(&mut memory, &LAYOUT).expect("a heap");
        let names = |distance: u64| cache.names(&mut memory.clone(), blob.code.start + distance);
        let outer = "shop.Cart$$Lambda.total";
        for distance in [0, 0x20] {
            assert_eq!(names(distance), [outer, "shop.Cart$$Lambda.price"], "{distance:x}, {excluded}");
        }
        for distance in [0x21, 0x40] {
            assert_eq!(names(distance), [outer], "{distance:x}, {excluded}");
        }
        // Behind the last position.
        assert_eq!(names(0x41), [outer]);
        // A chain that ends at another method, or nowhere, proves nothing.
        for (scope, number) in [(5u64, 2u8), (4, 4), (5, 0)] {
            let mut changed = memory.clone();
            changed.put(blob.at + 0x1200 + scope, number + excluded, 1);
            assert_eq!(cache.names(&mut changed, blob.code.start), [outer]);
        }
    }
}

#[test]
fn machines_that_lie_are_not_believed() {
    for (at, value) in [
        (0x1300 + 8 + 16, CODE - 1),
        (0x1300 + 8 + 24, CODE + (2 << 20)),
        (0x1010, CODE + 1),
        (0x1300 + 256, 60),
        (0x1000, 0),
        (0x1000, u64::MAX),
        (0x1200, u64::MAX - 8),
    ] {
        let mut memory = memory();
        memory.put(at, value, 8);
        assert!(CodeCache::read(&mut memory, &LAYOUT).is_none(), "{at:x}");
    }
    // Segments that lead nowhere, and code that is not where its blob is.
    let mut changed = memory();
    changed.put(SEGMENTS, 1u64, 1);
    let cache = CodeCache::read(&mut changed, &LAYOUT).expect("a heap");
    assert_eq!(cache.find(&mut changed, CODE + 0x400), None);
    let mut changed = memory();
    changed.put(CODE + 16 + 32, 8u64, 8);
    assert_eq!(cache.find(&mut changed, CODE + 0x400), None);
}
