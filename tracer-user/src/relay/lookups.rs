//! Questions by UDP and their answers between hosts: which answer given here is the other end of which call.
//!
//! Nothing counts datagrams as TCP counts bytes, so a name for one is made of what both ends know of it: the client's
//! address and port, the number, and a digest of what is asked for ([`Key::of_lookup`]). The server's address is not part of
//! it: destination translation and balancers change that one, and the client's socket is named without it. Source translation
//! changes the client's port just when two clients would have the same, so through it nothing is matched.
//!
//! The same bytes may be asked again, so time has to tell them apart as well, without a clock that both hosts have:
//!
//! - a call is told when its answer was *read*, and only where nobody on its host used the same port, number and question in
//!   the [`WINDOW`] before: so its answer was written here, before the word came, and none of an earlier call is left;
//! - the answer of a later call with the same name follows: its question was read after the first answer of this one was
//!   written. So what was read before the first answer is the call's, however often it asked; what was read later may be
//!   anybody's, and is nobody's;
//! - a word that was held up on its way is told by when its sender says the answer was read (`Tempo`).
//!
//! That holds where all answers are known: nothing is matched around a loss. Pure: time comes with what is told. `U` names
//! a request of the engine.

use std::collections::VecDeque;
use std::net::IpAddr;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Outcomes;
use super::key::Key;
use super::matches::{Given, less};
use crate::guard::room::Room;
use crate::model::Nanos;

/// Most answers and words that are remembered.
pub const LIMIT: usize = 65_536;
/// How long before its call was over an answer can have been written, nanoseconds; another call with the same port, number
/// and question is not told for longer than that.
pub const WINDOW: Nanos = 2_000_000_000;
/// How long a word waits until all answers of its time are known: records of several processors come out of their rings one
/// after the other. Nanoseconds.
const SETTLE: Nanos = 50_000_000;
/// How long a word waits for its answer, and is remembered. Nanoseconds.
const KEEP: Nanos = 5_000_000_000;
/// How fast clocks may drift apart (one part in so many); how long at least the quickest word of an agent stands for its
/// pace, and words in that time.
const DRIFT: u64 = 1000;
const PACE: Nanos = 60_000_000_000;
const WORDS: u32 = 16;
/// Most agents whose pace is known, and most processes that lost records.
const AGENTS: usize = 1024;
const PROCESSES: usize = 1024;

/// Who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// The client's address.
    Known(IpAddr),
    /// A socket without an address of its own, in this network namespace (inode number): the address by which the other
    /// agent is spoken to is filled in where that is the same way. Not told.
    In(u32),
    /// Not known.
    Unknown,
}

/// What is told of a call that is a lookup, beside the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// Who asked.
    pub asker: Asker,
    /// When its answer was read, by the client's `CLOCK_MONOTONIC`; nanoseconds.
    pub told: Nanos,
    /// Times it was asked; 255 is that or more.
    pub sent: u8,
}

/// Whether an address is one host's, as far as can be told: link-local ones are there once on each link.
pub fn names_a_host(address: IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.segments().first().is_some_and(|first| first & 0xffc0 == 0xfe80),
    };
    !(local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// An answer given here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<U> {
    /// The request; `None` where it could be to several.
    pub unit: Option<U>,
    /// Its process.
    pub tgid: u32,
    /// When the question was read; 0 where it is not known which.
    pub read: Nanos,
    /// When the answer was written.
    pub told: Nanos,
}

/// What became of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found<U> {
    /// It is this request's.
    Met(U, Given),
    /// It is this request's, and says more than the one before.
    More(U, Given),
    /// It is this request's, which was reported.
    Late(U, Given),
}

/// How long words of an agent take, as far as the difference of two clocks tells.
#[derive(Debug)]
struct Tempo {
    /// Here minus there at the quickest word, and when that was there: of the stretch before, and of this one.
    before: Option<(i64, Nanos)>,
    newest: Option<(i64, Nanos)>,
    /// When this one began, and words since.
    since: Nanos,
    words: u32,
}

impl Tempo {
    fn new(told: Nanos) -> Self {
        Self { before: None, newest: None, since: told, words: 0 }
    }

    /// A word of `told` (there) came at `now`; gives when it was told at the latest, by the clock of this host.
    fn bound(&mut self, now: Nanos, told: Nanos) -> Nanos {
        if told.saturating_sub(self.since) >= PACE && self.words >= WORDS {
            (self.before, self.newest) = (self.newest, None);
            (self.since, self.words) = (told, 0);
        }
        self.words = self.words.saturating_add(1);
        let apart = now.wrapping_sub(told) as i64;
        let drifted = |(apart, at): (i64, Nanos)| apart.saturating_add((told.abs_diff(at) / DRIFT) as i64);
        let newest = self.newest.map(drifted);
        if newest.is_none_or(|newest| apart <= newest) {
            self.newest = Some((apart, told));
        }
        let least = [newest, self.before.map(drifted)].into_iter().flatten().fold(apart, i64::min);
        told.wrapping_add(least as u64).min(now)
    }
}

#[derive(Debug)]
struct Kept<U> {
    answer: Answer<U>,
    reported: bool,
    /// Whose it is was said.
    taken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Until all is known.
    Waits,
    /// Two calls go by one name.
    Contradicted,
    Matched,
}

#[derive(Debug)]
struct Word {
    given: Given,
    state: State,
    /// When its answer was read at the latest, and when it is decided.
    told: Nanos,
    due: Nanos,
}

#[derive(Debug)]
struct Entry<U> {
    number: u64,
    answers: SmallVec<[Kept<U>; 1]>,
    word: Option<Word>,
}

/// The client and what it asks.
type Place = (IpAddr, Key);

/// Answers given here, and what other agents say of their calls.
#[derive(Debug)]
pub struct Lookups<U> {
    entries: FxHashMap<Place, Entry<U>>,
    /// Answers and words in them.
    held: usize,
    /// When each may be forgotten.
    order: VecDeque<(Nanos, Place, u64)>,
    /// Words that are to be decided.
    due: VecDeque<(Nanos, Place)>,
    /// Words that wait, by who said them: nobody may take all the room.
    waiting: FxHashMap<u64, usize>,
    paces: FxHashMap<u64, Tempo>,
    /// Answers up to then may not be known: of all, and of processes.
    lost: Nanos,
    lost_by: FxHashMap<u32, Nanos>,
    number: u64,
    limit: usize,
    /// What became of words.
    pub outcomes: Outcomes,
    /// Answers and words there was no room for.
    pub refused: u64,
    /// Words of which it is not clear which answer is theirs.
    pub unclear: u64,
}

/// Which answers are a call's that was asked `sent` times and whose answer was read by `until`: those that were read before
/// the first was written. `None`: it is not clear.
fn judge<U>(answers: &[Kept<U>], until: Nanos, sent: u8) -> Option<SmallVec<[usize; 1]>> {
    let from = until.saturating_sub(WINDOW);
    let near = |kept: &Kept<U>| kept.answer.told > from && kept.answer.told <= until;
    let first = answers.iter().filter(|kept| near(kept)).map(|kept| kept.answer.told).min()?;
    let of_it = |kept: &Kept<U>| near(kept) && kept.answer.read <= first;
    let found: SmallVec<_> = (0..answers.len()).filter(|at| answers.get(*at).is_some_and(of_it)).collect();
    let unclear = |at: &usize| answers.get(*at).is_none_or(|kept| kept.taken || kept.answer.unit.is_none());
    // More than were sent: somebody else asked as well.
    (!found.iter().any(unclear) && found.len() <= usize::from(sent)).then_some(found)
}

impl<U: Copy> Lookups<U> {
    /// An empty table for `limit` answers and words.
    pub fn new(limit: usize) -> Self {
        Self {
            entries: FxHashMap::default(),
            held: 0,
            order: VecDeque::new(),
            due: VecDeque::new(),
            waiting: FxHashMap::default(),
            paces: FxHashMap::default(),
            lost: 0,
            lost_by: FxHashMap::default(),
            number: 0,
            limit: limit.max(4),
            outcomes: Outcomes::default(),
            refused: 0,
            unclear: 0,
        }
    }

    /// Answers and words remembered.
    pub fn len(&self) -> usize {
        self.held
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Most that are.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Not all answers before `now` were seen: by all processes, or by one.
    pub fn lose(&mut self, now: Nanos, tgid: Option<u32>) {
        match tgid {
            Some(tgid) if self.lost_by.len() < PROCESSES || self.lost_by.contains_key(&tgid) => {
                self.lost_by.insert(tgid, now);
            }
            _ => self.lost = self.lost.max(now),
        }
    }

    /// An answer was given to `client`.
    pub fn answered(&mut self, now: Nanos, client: IpAddr, key: Key, answer: Answer<U>) {
        let place = (client, key);
        if self.held >= self.limit {
            self.refused += 1;
            return self.lose(now.max(answer.told), None);
        }
        let kept = Kept { answer, reported: false, taken: false };
        self.held += 1;
        let entry = self.entry(now, place);
        let before = entry.answers.len();
        entry.answers.retain(|kept| kept.answer.told.saturating_add(KEEP) > now);
        let gone = before - entry.answers.len();
        entry.answers.push(kept);
        let waits = entry.word.as_mut().filter(|word| word.state == State::Waits);
        if let Some(word) = waits {
            word.due = now.saturating_add(SETTLE);
            self.due.push_back((now.saturating_add(SETTLE), place));
        }
        self.held -= gone;
        self.shorten();
    }

    /// Another agent said something of a lookup.
    pub fn word(&mut self, now: Nanos, given: Given) -> SmallVec<[Found<U>; 1]> {
        self.outcomes.received += 1;
        let mut found = SmallVec::new();
        let Some(Lookup { asker: Asker::Known(client), told, .. }) = given.context.lookup else {
            self.outcomes.unmatched += 1;
            return found;
        };
        let (from, place) = (given.from.number, (client, given.context.key));
        if self.paces.len() >= AGENTS && !self.paces.contains_key(&from) {
            // Those in use come again.
            self.paces.clear();
        }
        let told = self.paces.entry(from).or_insert_with(|| Tempo::new(told)).bound(now, told);
        if let Some(entry) = self.entries.get_mut(&place)
            && let Some(word) = &mut entry.word
        {
            let known = &word.given;
            let same = known.from.number == from && known.context.parent == given.context.parent;
            let later = word.state != State::Waits && word.told.saturating_add(WINDOW) <= told;
            if same {
                let more =
                    given.context.settled && (!known.context.settled || known.context.trace != given.context.trace);
                if !more {
                    self.outcomes.duplicate += 1;
                    return found;
                }
                self.outcomes.settled += 1;
                word.given = given;
                if word.state != State::Matched {
                    return found;
                }
                for kept in entry.answers.iter().filter(|kept| kept.taken) {
                    let (Some(unit), given) = (kept.answer.unit, word.given.clone()) else { continue };
                    found.push(if kept.reported { Found::Late(unit, given) } else { Found::More(unit, given) });
                }
                return found;
            }
            if !later {
                self.outcomes.refused += 1;
                if word.state == State::Waits {
                    word.state = State::Contradicted;
                }
                return found;
            }
            // The same was asked again, long after the other was over.
            if let Some(word) = entry.word.take() {
                self.over(&word);
            }
        }
        let has = self.waiting.get(&from).copied().unwrap_or_default();
        if has >= self.limit / 2 || self.held >= self.limit {
            self.outcomes.dropped += 1;
            self.refused += 1;
            return found;
        }
        *self.waiting.entry(from).or_default() += 1;
        self.held += 1;
        let due = now.saturating_add(SETTLE);
        self.due.push_back((due, place));
        self.entry(now, place).word = Some(Word { given, state: State::Waits, told, due });
        self.shorten();
        found
    }

    /// Decides what can be decided by `now`.
    pub fn decide(&mut self, now: Nanos, found: &mut Vec<Found<U>>) {
        while let Some((due, place)) = self.due.front().copied()
            && due <= now
        {
            self.due.pop_front();
            let Some(Entry { answers, word: Some(word), .. }) = self.entries.get_mut(&place) else { continue };
            if word.due != due || word.state != State::Waits {
                continue;
            }
            let sent = word.given.context.lookup.map_or(0, |lookup| lookup.sent);
            if !answers.iter().any(|kept| kept.answer.told <= word.told) {
                continue;
            }
            let from = word.told.saturating_sub(WINDOW);
            let lost_by = |kept: &Kept<U>| self.lost_by.get(&kept.answer.tgid).is_some_and(|lost| *lost > from);
            let incomplete = self.lost > from || answers.iter().any(lost_by);
            let Some(of_it) = judge(answers, word.told, sent).filter(|_| !incomplete) else {
                word.state = State::Contradicted;
                self.unclear += 1;
                continue;
            };
            word.state = State::Matched;
            less(&mut self.waiting, word.given.from.number);
            let mut late = true;
            for at in of_it {
                let Some(kept) = answers.get_mut(at) else { continue };
                let Some(unit) = kept.answer.unit else { continue };
                kept.taken = true;
                late &= kept.reported;
                let given = word.given.clone();
                found.push(if kept.reported { Found::Late(unit, given) } else { Found::Met(unit, given) });
            }
            let count = if late { &mut self.outcomes.late } else { &mut self.outcomes.matched };
            *count += 1;
        }
    }

    /// The request was reported: what comes from now on is late.
    pub fn reported(&mut self, client: IpAddr, key: Key, is_it: impl Fn(&U) -> bool) {
        let answers = self.entries.get_mut(&(client, key)).into_iter().flat_map(|entry| &mut entry.answers);
        for kept in answers.filter(|kept| kept.answer.unit.as_ref().is_some_and(&is_it)) {
            kept.reported = true;
        }
    }

    /// Forgets what is old.
    pub fn expire(&mut self, now: Nanos) {
        while let Some((due, place, number)) = self.order.front().copied()
            && due <= now
        {
            self.order.pop_front();
            if self.entries.get(&place).is_some_and(|entry| entry.number == number) {
                self.forget(place);
            }
        }
        self.lost_by.retain(|_, lost| lost.saturating_add(2 * KEEP) > now);
    }

    /// Gives back the room of tables that are mostly empty.
    pub fn give_back(&mut self) {
        self.entries.give_back();
        self.order.give_back();
        self.due.give_back();
        self.waiting.give_back();
        self.lost_by.give_back();
    }

    /// What is known of a place, from now on for a while.
    fn entry(&mut self, now: Nanos, place: Place) -> &mut Entry<U> {
        self.number += 1;
        let number = self.number;
        self.order.push_back((now.saturating_add(KEEP), place, number));
        let entry = self.entries.entry(place).or_insert_with(|| Entry { number, answers: SmallVec::new(), word: None });
        entry.number = number;
        entry
    }

    /// Leaves out places of what was used again since.
    fn shorten(&mut self) {
        if self.order.len() >= 2 * self.limit {
            let entries = &self.entries;
            self.order.retain(|(_, place, number)| entries.get(place).is_some_and(|entry| entry.number == *number));
        }
        if self.due.len() >= 2 * self.limit {
            let entries = &self.entries;
            let waits = |due: Nanos, entry: &Entry<U>| entry.word.as_ref().is_some_and(|word| word.due == due);
            self.due.retain(|(due, place)| entries.get(place).is_some_and(|entry| waits(*due, entry)));
        }
    }

    fn forget(&mut self, place: Place) {
        let Some(entry) = self.entries.remove(&place) else { return };
        self.held -= entry.answers.len();
        if let Some(word) = entry.word {
            self.over(&word);
        }
    }

    /// A word is forgotten.
    fn over(&mut self, word: &Word) {
        self.held -= 1;
        if word.state == State::Matched {
            return;
        }
        less(&mut self.waiting, word.given.from.number);
        if word.given.context.broadcast {
            self.outcomes.elsewhere += 1;
        } else {
            self.outcomes.unmatched += 1;
        }
    }
}

/// How long it stands that agents at an address speak of lookups, or do not. Nanoseconds.
const CONTACT: Nanos = 30_000_000_000;

/// Whether agents at an address speak of its lookups.
#[derive(Debug, Default)]
pub struct Contacts {
    known: FxHashMap<IpAddr, (bool, Nanos)>,
}

impl Contacts {
    /// Whether one does: `None` where that is not known, or was so long ago that it may have changed.
    pub fn of(&self, now: Nanos, address: IpAddr) -> Option<bool> {
        let (speaks, at) = self.known.get(&address).copied()?;
        (now < at.saturating_add(CONTACT)).then_some(speaks)
    }

    /// One did, or was waited for in vain.
    pub fn learn(&mut self, now: Nanos, address: IpAddr, speaks: bool) {
        if self.known.len() >= 4 * AGENTS && !self.known.contains_key(&address) {
            // Those in use come again.
            self.known.clear();
        }
        self.known.insert(address, (speaks, now));
    }
}

/// Where this agent speaks from on a session.
#[derive(Clone, Copy, Debug)]
pub struct Home {
    /// Network namespace of this agent (inode number).
    pub netns: u32,
    /// This end of the session.
    pub own: IpAddr,
}

impl Lookup {
    /// What is told on a session from `home` to the address that was asked: a socket without an address sends by the one that
    /// leads there, which is the session's where both are in one namespace.
    #[must_use]
    pub fn from(self, home: Option<Home>) -> Self {
        let asker = match (self.asker, home) {
            (Asker::Known(address), _) => Asker::Known(address),
            (Asker::In(netns), Some(home)) if netns == home.netns && names_a_host(home.own) => Asker::Known(home.own),
            _ => Asker::Unknown,
        };
        Self { asker, ..self }
    }

    /// The client's address, where it is known.
    pub fn client(&self) -> Option<IpAddr> {
        match self.asker {
            Asker::Known(client) => Some(client),
            Asker::In(_) | Asker::Unknown => None,
        }
    }
}

#[cfg(test)]
#[path = "lookups_tests.rs"]
mod tests;
