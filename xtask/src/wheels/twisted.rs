//! What Twisted imports: unpacked into its directory, so that one look-up finds all of it.

/// Name, version and SHA-256 of the wheel, as [`super::Wheel`] has them.
pub(super) const IMPORTED: &[(&str, &str, &str)] = &[
    ("attrs", "26.1.0", "c647aa4a12dfbad9333ca4e71fe62ddc36f4e63b2d260a37a8b83d2f043ac309"),
    ("automat", "25.4.16", "04e9bce696a8d5671ee698005af6e5a9fa15354140a87f4870744604dcdd3ba1"),
    ("constantly", "23.10.4", "3fd9b4d1c3dc1ec9757f3c52aef7e53ad9323dbe39f51dfd4c43853b68dfa3f9"),
    ("hyperlink", "21.0.0", "e6b14c37ecb73e89c77d78cdb4c2cc8f3fb59a885c5b3f819ff4ed80f25af1b4"),
    ("idna", "3.20", "ab7ae7122974553370f0bdb919e1a960b2cd1bc1ef0276416d896db81c14582c"),
    ("incremental", "24.11.0", "a34450716b1c4341fe6676a0598e88a39e04189f4dce5dc96f656e040baa10b3"),
    ("packaging", "26.4", "81383611a09c1bc0b08b76e0fd5829d7c6824c65b27a6aee339da133f4233ea2"),
    ("typing-extensions", "4.16.0", "481caa481374e813c1b176ada14e97f1f67a4539ce9cfeb3f350d78d6370c2e8"),
    ("zope-interface", "8.7", "1613beb1fb1b4f457818c5443e985142ec9e71af391bfb26e583e0353f206792"),
];
