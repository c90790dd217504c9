//! Which threads ended waits: the time of each wait's stack, divided among the stacks that ended it.

use std::hash::Hash;

use rustc_hash::FxHashMap;

use super::stackless_waits::part;

/// Number and nanoseconds.
type Sum = (u64, u64);

/// By wait and waker; `None`: which thread ended it was not seen.
pub(super) type WaitsByWaker = FxHashMap<(u32, Option<u32>), Sum>;

/// Divides the time of `waits`, by owner and stack, among the wakers of the same owner and stack in `seen`. `before` is what was
/// counted, of which `seen` is a part; the rest has no known waker. `waits` is `before` with the waits that have no stack.
pub(super) fn divide<O: Copy + Eq + Hash>(
    waits: &FxHashMap<(O, u32), Sum>,
    before: &FxHashMap<(O, u32), Sum>,
    seen: &FxHashMap<((O, u32), u32), Sum>,
) -> WaitsByWaker {
    let mut by_waker = WaitsByWaker::default();
    let mut unseen = waits.clone();
    for ((key, waker), (count, nanos)) in seen {
        let (Some(whole), Some(of), Some(rest)) = (waits.get(key), before.get(key), unseen.get_mut(key)) else {
            continue;
        };
        let part = (part(*count, whole.0, of.0).min(rest.0), part(*nanos, whole.1, of.1).min(rest.1));
        *rest = (rest.0 - part.0, rest.1 - part.1);
        add(by_waker.entry((key.1, Some(*waker))).or_default(), part);
    }
    for ((_, wait), rest) in unseen {
        if rest.1 > 0 {
            add(by_waker.entry((wait, None)).or_default(), rest);
        }
    }
    by_waker
}

fn add(sum: &mut Sum, (count, nanos): Sum) {
    *sum = (sum.0 + count, sum.1 + nanos);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn waits_divide_as_those_whose_end_was_seen() {
        // Stack 1 of the shop: three of ten waits ended by 7, half of the time by 8; as many again had no stack.
        let before = [(("shop", 1), (10, 1000)), (("stock", 1), (1, 50))].into_iter().collect();
        let waits = [(("shop", 1), (20, 2000)), (("stock", 1), (1, 50))].into_iter().collect();
        let seen = [((("shop", 1), 7), (3, 300)), ((("shop", 1), 8), (6, 500)), ((("gone", 4), 7), (1, 1))];
        let mut divided: Vec<_> = divide(&waits, &before, &seen.into_iter().collect()).into_iter().collect();
        divided.sort_unstable();
        assert_eq!(divided, [((1, None), (3, 450)), ((1, Some(7)), (6, 600)), ((1, Some(8)), (12, 1000))]);
    }

    proptest! {
        #[test]
        fn time_adds_up(of in proptest::collection::vec((0u8..2, 0u32..3, 0u32..3, 0u64..1 << 40, 0u64..1 << 40), 0..30)) {
            let (mut before, mut seen) = (FxHashMap::default(), FxHashMap::default());
            for (owner, wait, waker, known, unknown) in of {
                add(before.entry((owner, wait)).or_default(), (2, known + unknown));
                add(seen.entry(((owner, wait), waker)).or_default(), (1, known));
            }
            let waits: FxHashMap<_, Sum> = before.iter().map(|(key, (count, nanos))| (*key, (*count, nanos * 3 / 2))).collect();
            let whole: u64 = waits.values().map(|(_, nanos)| nanos).sum();
            let divided: u64 = divide(&waits, &before, &seen).values().map(|(_, nanos)| nanos).sum();
            prop_assert_eq!(divided, whole);
        }
    }
}
