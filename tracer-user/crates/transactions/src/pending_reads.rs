//! A thread's messages that it has read and sent nothing for.

use tracer_common::event::ThreadCounters;

/// Messages that a thread has read and sent nothing for.
#[derive(Clone, Copy, Debug, Default)]
pub struct PendingReads {
    pub(super) messages: u32,
    /// The thread's poll count when it read them.
    pub(super) polls: u32,
}

impl PendingReads {
    /// Records are missing: their number is unknown.
    pub(super) const UNKNOWN: u32 = u32::MAX;

    /// The thread read `messages`. `whole`: no record before is missing.
    pub(super) fn read(&mut self, messages: u32, counters: &ThreadCounters, whole: bool) {
        let before = if self.polls == counters.polls { self.messages } else { 0 };
        self.messages = if whole { before.saturating_add(messages) } else { Self::UNKNOWN };
        self.polls = counters.polls;
    }

    /// The thread sends a message: whether it had exactly one pending read, which this one is for.
    pub(super) fn sent(&mut self, counters: &ThreadCounters, whole: bool) -> bool {
        let one = whole && self.messages == 1 && self.polls == counters.polls;
        if one {
            self.messages = 0;
        }
        one
    }
}

/// Whether a call's thread had exactly one pending read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnePendingRead {
    /// When it sent the call.
    pub at_call: bool,
    /// When it began the answer in the group of the call's reply; none: it has not.
    pub(super) at_answer: Option<bool>,
}

impl OnePendingRead {
    /// It is not known to have had one at either.
    pub const fn unknown() -> Self {
        Self { at_call: false, at_answer: None }
    }

    /// An answer begins in the group of the call's reply. Of several, each must have been the only one possible.
    pub fn answered(&mut self, one: bool) {
        self.at_answer = Some(one && self.at_answer != Some(false));
    }

    /// Whether it had at both sides of the call.
    pub fn at_both(self) -> bool {
        self.at_call && self.at_answer == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(polls: u32) -> ThreadCounters {
        ThreadCounters { polls, ..ThreadCounters::default() }
    }

    #[test]
    fn one_message_is_in_hand_until_the_thread_sends_or_polls() {
        let mut pending_reads = PendingReads::default();
        assert!(!pending_reads.sent(&at(1), true), "it has read nothing");
        pending_reads.read(1, &at(1), true);
        assert!(pending_reads.sent(&at(1), true));
        assert!(!pending_reads.sent(&at(1), true), "the second is for something else");
        pending_reads.read(1, &at(1), true);
        assert!(pending_reads.sent(&at(1), true), "one after the other");
        pending_reads.read(1, &at(1), true);
        assert!(!pending_reads.sent(&at(2), true), "it has slept since");
    }

    #[test]
    fn of_several_none_is_the_only_one_before_the_next_poll() {
        let mut pending_reads = PendingReads::default();
        pending_reads.read(1, &at(1), true);
        pending_reads.read(1, &at(1), true);
        assert_eq!([pending_reads.sent(&at(1), true), pending_reads.sent(&at(1), true)], [false, false]);
        pending_reads.read(2, &at(2), true);
        assert!(!pending_reads.sent(&at(2), true), "two requests in one read");
        pending_reads.read(1, &at(3), true);
        assert!(pending_reads.sent(&at(3), true));
    }

    #[test]
    fn missing_records_leave_the_number_unknown() {
        let mut pending_reads = PendingReads::default();
        pending_reads.read(1, &at(1), false);
        assert!(!pending_reads.sent(&at(1), true));
        pending_reads.read(1, &at(1), true);
        assert!(!pending_reads.sent(&at(1), true), "still unknown");
        pending_reads.read(1, &at(2), true);
        assert!(!pending_reads.sent(&at(2), false), "what is missing may be another read");
    }

    #[test]
    fn a_second_answer_for_one_reply_is_no_evidence() {
        let mut one = OnePendingRead { at_call: true, ..OnePendingRead::unknown() };
        assert!(!one.at_both());
        one.answered(true);
        assert!(one.at_both());
        one.answered(false);
        one.answered(true);
        assert!(!one.at_both());
    }
}
