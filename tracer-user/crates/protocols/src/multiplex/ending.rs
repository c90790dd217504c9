//! How connections end, and how requests without an end are reported.

use std::ops::RangeInclusive;

use tracer_model::{Direction, Nanos, Outcome};

use super::{LONGEST, Multiplexed, Open, PATIENCE};
use crate::framed::Way;
use crate::{Closed, ExchangeEvent, Settings, Stamp, Totals, Verdict};

impl Multiplexed {
    /// The request open longest, and whether its reply is optional.
    pub(super) fn oldest(&self) -> Option<(u64, bool)> {
        // Keys count up, except where either end assigns them.
        let oldest = if self.framed.is_mutual() {
            self.open.iter().min_by_key(|(_, open)| open.exchange)
        } else {
            self.open.first_key_value()
        };
        oldest.map(|(key, open)| (*key, open.expected.optional))
    }

    /// A frame of `len` bytes answers all open requests with these keys.
    pub(super) fn settle(
        &mut self,
        keys: RangeInclusive<u64>,
        (status, failure): (u16, Option<&'static str>),
        len: u64,
        (first, at): (Stamp, Stamp),
        out: &mut Vec<ExchangeEvent>,
    ) {
        let settled: Vec<u64> = self.open.range(keys).map(|(key, _)| *key).collect();
        let each = len / (settled.len().max(1) as u64);
        for key in settled {
            self.touch(key);
            // An unseen reply may have answered it: then this failure is not its own.
            if failure.is_some() && self.open.get(&key).is_some_and(|open| open.doubtful && !open.replied) {
                self.done(key, Outcome::Unfinished, at, out);
                continue;
            }
            if let Some(open) = self.open.get_mut(&key) {
                open.replied = true;
                open.reply_bytes += each;
                out.push(ExchangeEvent::Replied { exchange: open.exchange, status, failure, first, sure: true });
            }
            self.done(key, Outcome::Complete, at, out);
        }
    }

    /// The connection ended, in one direction or both.
    pub(crate) fn closed(
        &mut self,
        how: Closed,
        at: Stamp,
        totals: Option<Totals>,
        settings: &Settings,
        out: &mut Vec<ExchangeEvent>,
    ) {
        if self.verdict == Verdict::Ignore {
            return;
        }
        self.touched.clear();
        while !self.parked.is_empty() {
            self.release_one(settings, out);
        }
        if let Some(totals) = totals {
            for (dir, total, last) in
                [(Direction::Rx, totals.rx, totals.last_rx), (Direction::Tx, totals.tx, totals.last_tx)]
            {
                let missed = total.saturating_sub(self.lane(dir).pos);
                if missed > 0 {
                    let lane = self.lane(dir);
                    lane.last.nanos = lane.last.nanos.max(last);
                    self.pass(dir, missed, settings, out);
                }
            }
        }
        for way in [Way::Request, Way::Reply] {
            let replies = if way == Way::Request { self.requests.flip() } else { self.requests };
            let over = match how {
                Closed::Local => replies == Direction::Tx,
                Closed::Remote => replies == Direction::Rx,
                Closed::Both => true,
            };
            if !over {
                continue;
            }
            let lost = self.lane(replies).lost.is_some();
            let ended = self.open.iter().filter(|(_, open)| open.way == way);
            let ended: Vec<(u64, bool)> = ended.map(|(key, open)| (*key, open.doubtful)).collect();
            for (key, doubtful) in ended {
                // The end may have been among bytes that were missed.
                let outcome = if lost || doubtful { Outcome::Unfinished } else { Outcome::Aborted };
                self.done(key, outcome, at, out);
            }
        }
        if how == Closed::Both {
            self.verdict = Verdict::Ignore;
        }
        self.give_up_left(at, out);
    }

    /// Once the parser ignores the connection, open requests can never complete: gives them up.
    pub(super) fn give_up_left(&mut self, at: Stamp, out: &mut Vec<ExchangeEvent>) {
        if self.verdict != Verdict::Ignore {
            return;
        }
        self.parked = Vec::new();
        while let Some((key, _)) = self.open.first_key_value() {
            self.done(*key, Outcome::Unfinished, at, out);
        }
    }

    /// Releases operations parked for too long; reports requests silent for `idle` nanoseconds, and those open longer
    /// than [`LONGEST`], as they stand.
    pub(crate) fn overdue(&mut self, now: Nanos, idle: u64, settings: &Settings, out: &mut Vec<ExchangeEvent>) {
        self.touched.clear();
        while self.parked.first().is_some_and(|held| now.saturating_sub(held.at.nanos) >= PATIENCE) {
            self.release_one(settings, out);
        }
        self.give_up_left(Stamp { nanos: now, ..Stamp::default() }, out);
        let over =
            |open: &Open| now.saturating_sub(open.last.nanos) >= idle || now.saturating_sub(open.began) >= LONGEST;
        let old: Vec<(u64, Stamp)> =
            self.open.iter().filter(|(_, open)| over(open)).map(|(key, open)| (*key, open.last)).collect();
        for (key, last) in old {
            self.done(key, Outcome::Unfinished, last, out);
        }
    }

    /// After `idle` nanoseconds without any operation, ends everything as it stands.
    pub(crate) fn expire(&mut self, now: Nanos, idle: u64, out: &mut Vec<ExchangeEvent>) {
        if now.saturating_sub(self.rx.last.nanos.max(self.tx.last.nanos)) < idle {
            return;
        }
        for held in std::mem::take(&mut self.parked) {
            out.push(ExchangeEvent::Lost { dir: held.dir, bytes: held.len });
        }
        while let Some((key, last)) = self.open.first_key_value().map(|(key, open)| (*key, open.last)) {
            self.done(key, Outcome::Unfinished, last, out);
        }
    }
}
