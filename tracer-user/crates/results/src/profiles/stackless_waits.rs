//! Waits whose stack was not taken: they count as those that have one, of the same owner and for the same reason.
//!
//! Which waits have a stack is decided by chance before it is known how long they will take, so the others were in the same
//! places in the same proportions. The time of each owner and reason is known exactly; only how it divides into stacks is an
//! estimate (a ratio estimate: Cochran, Sampling Techniques, chapter 6).

use std::hash::Hash;

use rustc_hash::FxHashMap;
use tracer_model::Wait;

/// A stack of a thread that was off the CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OffCpuWait {
    /// Why, and for which peer.
    pub(super) wait: Wait,
    /// Whether it has any frames.
    pub(super) has_stack: bool,
}

/// Number and nanoseconds.
type Sum = (u64, u64);

/// Divides the waits without stack in `sums`, by owner and stack, among those with one. Where an owner has none for a reason, they
/// stay. `wait` says what a stack is; `None`: its thread ran.
pub(super) fn divide<'a, O: Copy + Eq + Hash>(
    sums: &mut FxHashMap<(O, u32), Sum>,
    wait: impl Fn(u32) -> Option<&'a OffCpuWait>,
) {
    let mut all: FxHashMap<(O, &Wait), [Sum; 2]> = FxHashMap::default();
    for ((owner, stack), (count, nanos)) in sums.iter() {
        if let Some(wait) = wait(*stack) {
            let sum = &mut all.entry((*owner, &wait.wait)).or_default()[usize::from(wait.has_stack)];
            *sum = (sum.0 + count, sum.1 + nanos);
        }
    }
    all.retain(|_, [without, with]| without.1 > 0 && with.1 > 0);
    if all.is_empty() {
        return;
    }
    sums.retain(|(owner, stack), (count, nanos)| {
        let Some(wait) = wait(*stack) else { return true };
        let Some([without, with]) = all.get(&(*owner, &wait.wait)) else { return true };
        if wait.has_stack {
            *count = part(*count, without.0 + with.0, with.0);
            *nanos = part(*nanos, without.1 + with.1, with.1);
        }
        wait.has_stack
    });
}

/// `of` times `all` divided by `with`, rounded.
pub(super) fn part(of: u64, all: u64, with: u64) -> u64 {
    let with = u128::from(with.max(1));
    u64::try_from((u128::from(of) * u128::from(all) + with / 2) / with).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use tracer_common::off_cpu::Reason;

    use super::*;

    /// Stacks 0 and 1: in a lock; 2: without stack, in a lock; 3: on a disk; 4: without stack, asleep; 5: on the CPU.
    static STACKS: LazyLock<[OffCpuWait; 5]> = LazyLock::new(|| {
        let of = |reason, has_stack| OffCpuWait { wait: Wait::of(reason), has_stack };
        let (locks, unknown) = (of(Reason::Futex, true), of(Reason::Futex, false));
        [locks.clone(), locks, unknown, of(Reason::Disk, true), of(Reason::Sleep, false)]
    });

    fn stacks(stack: u32) -> Option<&'static OffCpuWait> {
        STACKS.get(stack as usize)
    }

    #[test]
    fn time_without_stack_counts_as_that_with_one_for_the_same_reason() {
        let owned = |owner: &'static str, of: [(u32, Sum); 6]| of.map(|(stack, sum)| ((owner, stack), sum));
        let shop = [(0, (3, 300)), (1, (1, 100)), (2, (12, 1200)), (3, (1, 50)), (4, (7, 70)), (5, (9, 90))];
        // Another owner's waits in the same places are its own.
        let mut sums: FxHashMap<_, _> =
            owned("shop", shop).into_iter().chain([(("stock", 0), (1, 10)), (("stock", 2), (1, 20))]).collect();
        divide(&mut sums, stacks);
        let mut left: Vec<_> = sums.into_iter().collect();
        left.sort_unstable();
        let expected = [
            (("shop", 0), (12, 1200)),
            (("shop", 1), (4, 400)),
            (("shop", 3), (1, 50)),
            (("shop", 4), (7, 70)),
            (("shop", 5), (9, 90)),
            (("stock", 0), (2, 30)),
        ];
        assert_eq!(left, expected);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_made(of in proptest::collection::vec((0u8..3, 0u32..6, 0u64..1 << 50), 0..40)) {
            let mut sums: FxHashMap<(u8, u32), Sum> = FxHashMap::default();
            for (owner, stack, nanos) in of {
                let sum = sums.entry((owner, stack)).or_default();
                *sum = (sum.0 + 1, sum.1 + nanos);
            }
            let whole = |sums: &FxHashMap<(u8, u32), Sum>| sums.values().map(|(_, nanos)| nanos).sum::<u64>();
            let before = whole(&sums);
            divide(&mut sums, stacks);
            // A nanosecond a stack is rounding.
            prop_assert!(whole(&sums).abs_diff(before) <= 18);
        }
    }
}
