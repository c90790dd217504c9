//! What one class spends its CPU on: the functions that ran when it was sampled.

use std::collections::HashMap;

use super::table::ClassKey;

/// Functions that are shown.
const SHOWN: usize = 20;

/// The hottest functions of a class.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Details {
    pub(super) class: ClassKey,
    /// CPU of the class by its samples, microseconds.
    pub(super) micros: u64,
    /// Functions with the CPU that they themselves used, microseconds, most first.
    pub(super) hottest: Vec<(String, u64)>,
}

/// Sums folded stacks (`outermost;…;innermost MICROSECONDS`) by their innermost frame.
pub(super) fn hottest(class: ClassKey, folded: &str) -> Details {
    let mut own: HashMap<&str, u64> = HashMap::new();
    let mut micros = 0;
    for line in folded.lines() {
        let Some((stack, count)) = line.rsplit_once(' ') else { continue };
        let Ok(count) = count.parse::<u64>() else { continue };
        micros += count;
        *own.entry(stack.rsplit(';').next().unwrap_or(stack)).or_default() += count;
    }
    let mut hottest: Vec<(String, u64)> = own.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
    hottest.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    hottest.truncate(SHOWN);
    Details { class, micros, hottest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_frame_counts() {
        let key = ClassKey::default();
        let details = hottest(key, "shop;GET /;main;parse args 3\nshop;GET /;main;write 5\nshop;other;write 1\nbad\n");
        assert_eq!(details.micros, 9);
        assert_eq!(details.hottest, [("write".to_owned(), 6), ("parse args".to_owned(), 3)]);
    }
}
