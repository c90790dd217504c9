//! How connections end, and requests that do not.

use super::{LONGEST, Multiplexed, Open, PATIENCE};
use crate::model::{Direction, Nanos, Outcome};
use crate::protocols::framed::Way;
use crate::protocols::{Closed, Said, Settings, Stamp, Totals, Verdict};

impl Multiplexed {
    /// The connection ended, one way or both.
    pub(in crate::protocols) fn closed(
        &mut self,
        how: Closed,
        at: Stamp,
        totals: Option<Totals>,
        settings: &Settings,
        out: &mut Vec<Said>,
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
            let asked = self.open.iter().filter(|(_, open)| open.way == way);
            let asked: Vec<(u64, bool)> = asked.map(|(key, open)| (*key, open.doubtful)).collect();
            for (key, doubtful) in asked {
                // Its end may have been in what was not seen.
                let outcome = if lost || doubtful { Outcome::Unfinished } else { Outcome::Aborted };
                self.done(key, outcome, at, out);
            }
        }
        if how == Closed::Both {
            self.verdict = Verdict::Ignore;
        }
    }

    /// What waited long enough is taken; requests of which nothing was heard for `idle` nanoseconds, and those that are
    /// open longer than [`LONGEST`], are reported as they stand.
    pub(in crate::protocols) fn overdue(&mut self, now: Nanos, idle: u64, settings: &Settings, out: &mut Vec<Said>) {
        self.touched.clear();
        while self.parked.first().is_some_and(|held| now.saturating_sub(held.at.nanos) >= PATIENCE) {
            self.release_one(settings, out);
        }
        let over =
            |open: &Open| now.saturating_sub(open.last.nanos) >= idle || now.saturating_sub(open.began) >= LONGEST;
        let old: Vec<(u64, Stamp)> =
            self.open.iter().filter(|(_, open)| over(open)).map(|(key, open)| (*key, open.last)).collect();
        for (key, last) in old {
            self.done(key, Outcome::Unfinished, last, out);
        }
    }

    /// Nothing happened for `idle` nanoseconds: everything is over as it stands.
    pub(in crate::protocols) fn expire(&mut self, now: Nanos, idle: u64, out: &mut Vec<Said>) {
        if now.saturating_sub(self.rx.last.nanos.max(self.tx.last.nanos)) < idle {
            return;
        }
        for held in std::mem::take(&mut self.parked) {
            out.push(Said::Lost { dir: held.dir, bytes: held.len });
        }
        while let Some((key, last)) = self.open.first_key_value().map(|(key, open)| (*key, open.last)) {
            self.done(key, Outcome::Unfinished, last, out);
        }
    }
}
