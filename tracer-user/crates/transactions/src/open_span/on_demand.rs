//! A part of a struct that few values of it have.

use std::ops::{Deref, DerefMut};

/// What a part reads as before anything is known of it.
pub trait Blank: Sized + 'static {
    /// A part of which nothing is known.
    fn new() -> Self;

    /// The one that is read where there is none.
    fn blank() -> &'static Self;

    /// Forgets what is known. What it holds of the heap may stay for the next time.
    fn clear(&mut self) {
        *self = Self::new();
    }
}

/// A part in memory of its own, which it gets when it is first written. Until then it reads as blank.
///
/// Writing includes borrowing it mutably: where there may be nothing to change, ask [`OnDemand::get_mut`] or
/// [`OnDemand::take`].
#[derive(Debug)]
pub struct OnDemand<T>(Option<Box<T>>);

impl<T> Default for OnDemand<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Blank> OnDemand<T> {
    /// Blank again, with the memory that it has.
    pub fn clear(&mut self) {
        if let Some(part) = self.get_mut() {
            part.clear();
        }
    }

    /// The part, if it was written.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// Takes a value out of it.
    pub fn take<V: Default>(&mut self, value: impl FnOnce(&mut T) -> &mut V) -> V {
        self.get_mut().map(|part| std::mem::take(value(part))).unwrap_or_default()
    }
}

impl<T: Blank> Deref for OnDemand<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or_else(|| T::blank())
    }
}

impl<T: Blank> DerefMut for OnDemand<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_with(|| Box::new(T::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Part {
        calls: Vec<u32>,
    }

    impl Blank for Part {
        fn new() -> Self {
            Self { calls: Vec::new() }
        }

        fn blank() -> &'static Self {
            static BLANK: Part = Part { calls: Vec::new() };
            &BLANK
        }
    }

    #[test]
    fn only_what_is_written_takes_memory() {
        let mut part = OnDemand::<Part>::default();
        assert_eq!((part.calls.len(), part.take(|part| &mut part.calls)), (0, Vec::new()));
        assert!(part.get_mut().is_none(), "nothing was written yet");
        part.calls.push(5);
        assert_eq!((part.calls.len(), part.take(|part| &mut part.calls)), (1, vec![5]));
        assert_eq!(part.get_mut(), Some(&mut Part { calls: Vec::new() }));
    }

    #[test]
    fn a_cleared_part_reads_as_blank_in_the_same_memory() {
        let mut part = OnDemand::<Part>::default();
        part.clear();
        assert!(part.get_mut().is_none(), "clearing writes nothing");
        part.calls.push(5);
        let place = std::ptr::from_ref::<Part>(&part);
        part.clear();
        part.calls.push(6);
        assert_eq!((&part.calls, std::ptr::from_ref::<Part>(&part)), (&vec![6], place));
    }
}
