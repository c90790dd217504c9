//! The examples of RFC 7541 appendix C, and partly unknown tables.

use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    let hex: String = hex.split_whitespace().collect();
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).unwrap()).collect()
}

fn read(table: &mut Table, block: &[u8], whole: bool) -> (Vec<(Name, String)>, Ended) {
    let mut fields = Vec::new();
    let settings = Settings::default();
    let ended = table.decode(block, whole, &settings, |name, value| {
        fields.push((name, String::from_utf8_lossy(value).into_owned()));
    });
    (fields, ended)
}

fn expect(table: &mut Table, hex: &str, expected: &[(Name, &str)]) {
    let (fields, ended) = read(table, &bytes(hex), true);
    let fields: Vec<(Name, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!((fields.as_slice(), ended), (expected, Ended::Whole), "{hex}");
}

use Name::{Authority, Method, Other, Path, Scheme, Status, Unknown};

const FIRST: [(Name, &str); 4] = [(Method, "GET"), (Scheme, "http"), (Path, "/"), (Authority, "www.example.com")];

#[test]
fn requests_of_the_specification() {
    // C.3 without, C.4 with Huffman code.
    for [first, second, third] in [
        [
            "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "8286 84be 5808 6e6f 2d63 6163 6865",
            "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        ],
        [
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
            "8286 84be 5886 a8eb 1064 9cbf",
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        ],
    ] {
        let mut table = Table::new(false);
        expect(&mut table, first, &FIRST);
        expect(&mut table, second, &[&FIRST[..], &[(Other, "no-cache")]].concat());
        let third_fields = [
            (Method, "GET"),
            (Scheme, "https"),
            (Path, "/index.html"),
            (Authority, "www.example.com"),
            (Other, "custom-value"),
        ];
        expect(&mut table, third, &third_fields);
    }
}

#[test]
fn replies_of_the_specification_with_eviction() {
    // C.5: a table of 256 bytes; evicted entries are not used again.
    let mut table = Table::new(false);
    let (fields, _) = read(
        &mut table,
        &bytes(
            "3fe101 4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32
             3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        ),
        true,
    );
    assert_eq!(fields[0], (Status, "302".into()));
    let (fields, _) = read(&mut table, &bytes("4803 3330 37c1 c0bf"), true);
    assert_eq!(fields[0], (Status, "307".into()));
    assert_eq!(fields.len(), 4);
    assert!(fields.iter().all(|(name, _)| *name != Unknown));
    // `:status: 302` was evicted by 307, and later entries shift by one.
    let (fields, _) = read(&mut table, &bytes("88c1 c0bf"), true);
    assert_eq!(fields[0], (Status, "200".into()));
    assert!(fields.iter().all(|(name, _)| *name != Unknown), "{fields:?}");
}

#[test]
fn what_was_added_before_is_unknown_and_what_comes_after_is_not() {
    let mut table = Table::new(true);
    let first = "8286 84c0 4104 686f 7374";
    expect(&mut table, first, &[(Method, "GET"), (Scheme, "http"), (Path, "/"), (Unknown, ""), (Authority, "host")]);
    expect(&mut table, "be bf", &[(Authority, "host"), (Unknown, "")]);
    // An unknown name with a known value: the entry is as unknown as its name.
    expect(&mut table, "7f 00 01 61", &[(Unknown, "a")]);
    expect(&mut table, "be bf", &[(Unknown, ""), (Authority, "host")]);
}

#[test]
fn a_broken_block_makes_everything_unknown() {
    for (hex, whole) in [("82 41 04 68 6f", true), ("82", false), ("80", true), ("ff ff ff ff ff ff", true)] {
        let mut table = Table::new(false);
        expect(&mut table, "4104 686f 7374", &[(Authority, "host")]);
        expect(&mut table, "be", &[(Authority, "host")]);
        assert_eq!(read(&mut table, &bytes(hex), whole).1, Ended::Broken, "{hex}");
        expect(&mut table, "be", &[(Unknown, "")]);
    }
}

#[test]
fn a_table_is_bounded_and_keeps_only_requested_values() {
    let mut table = Table::new(false);
    // The peer uses a table of a megabyte.
    expect(&mut table, "3f e1ff3f", &[]);
    for _ in 0..10_000 {
        // cookie: secret
        let (fields, _) = read(&mut table, &bytes("60 06 736563726574"), true);
        assert_eq!(fields, [(Other, "secret".into())]);
    }
    assert!(table.entries.listed().len() <= KEPT as usize / 32);
    assert!(table.entries.listed().iter().all(|entry| entry.value.is_empty()));
    assert!(table.bytes() < 64 * 1024);
}
