//! Losses from program runs the kernel skipped. With two programs on a hook, skips are rare, and both being skipped for
//! the same operation is rarer still.

use std::collections::BTreeMap;

use super::probes::SAMPLER;
use super::usage::Usage;

/// First programs and the second ones that back them up; see [`super::probes::Until::Skipped`].
const SECONDS: [(&str, &str); 2] = [("tx", "tx_again"), ("rx", "rx_again")];

/// Operations lost by skipped runs.
#[derive(Debug, Default)]
pub struct Skips {
    /// Skipped runs of each first program in [`SECONDS`] when its second one was attached.
    before: [Option<u64>; SECONDS.len()],
}

impl Skips {
    /// Upper bound on the skipped runs that no other program covered, by the programs' usage so far.
    ///
    /// Once `seconds` are attached, an operation is lost only if both programs were skipped for it: at most as often as
    /// the program that was skipped less.
    pub fn lost(&mut self, usage: &BTreeMap<String, Usage>, seconds: bool) -> u64 {
        let missed = |program: &str| usage.get(program).map_or(0, |usage| usage.missed);
        let mut lost = 0;
        for program in usage.keys() {
            // A lost stack is not a lost operation.
            if program == SAMPLER || SECONDS.iter().any(|(_, second)| second == program) {
                continue;
            }
            let skipped = missed(program);
            let Some(at) = SECONDS.iter().position(|(first, _)| first == program) else {
                lost += skipped;
                continue;
            };
            let (Some((_, second)), Some(before)) = (SECONDS.get(at), self.before.get_mut(at)) else { continue };
            if seconds && usage.contains_key(*second) {
                let before = *before.get_or_insert(skipped);
                lost += before + skipped.saturating_sub(before).min(missed(second));
            } else {
                lost += skipped;
            }
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(missed: &[(&str, u64)]) -> BTreeMap<String, Usage> {
        missed
            .iter()
            .map(|(name, missed)| ((*name).to_owned(), Usage { missed: *missed, ..Usage::default() }))
            .collect()
    }

    #[test]
    fn what_a_second_program_saw_is_not_lost() {
        let mut skips = Skips::default();
        let first = usage(&[("tx", 3), ("tx_again", 0), ("rx", 0), ("rx_again", 0), ("state", 1), (SAMPLER, 9)]);
        assert_eq!(skips.lost(&first, false), 4);
        assert_eq!(skips.lost(&first, true), 4);
        let later = usage(&[("tx", 50), ("tx_again", 2), ("rx", 40), ("rx_again", 1), ("state", 1), (SAMPLER, 9)]);
        assert_eq!(skips.lost(&later, true), 3 + 2 + 1 + 1);
    }

    #[test]
    fn without_second_programs_every_skip_counts() {
        assert_eq!(Skips::default().lost(&usage(&[("tx", 3), ("rx", 2)]), true), 5);
    }
}
