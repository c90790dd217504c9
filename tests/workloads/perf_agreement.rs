//! Uses CPU in calls of the standard library and of its own.
use std::collections::BTreeMap;
use std::fmt::Write;

fn depth(n: u64, text: &mut String) -> u64 {
    if n == 0 {
        text.clear();
        let _ = write!(text, "{:?}", (1.5f64, n, "text"));
        return text.len() as u64;
    }
    depth(n - 1, text) + n
}

fn main() {
    let mut text = String::new();
    loop {
        let mut map = BTreeMap::new();
        for n in 0..2000u64 {
            map.insert(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), format!("{n}:{}", depth(n % 20, &mut text)));
        }
        let mut all: Vec<_> = map.into_values().collect();
        all.sort_by_cached_key(|value| value.bytes().map(u64::from).sum::<u64>());
        std::hint::black_box(all);
    }
}
