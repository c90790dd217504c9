//! Drains the event rings and the stack ring.

use std::os::fd::{AsRawFd, BorrowedFd};

use aya::maps::{MapData, RingBuf};

use super::ring::Events;
use super::ring_occupancy::RingLevel;

/// The event rings, the sample ring, and the ring the reader sleeps on.
pub struct Rings {
    events: Events,
    /// Keeps the memory of `events` mapped.
    _events: MapData,
    samples: RingBuf<MapData>,
    wake: RingBuf<MapData>,
}

/// What ended a sleep.
struct Woken {
    /// The kernel side did.
    woken: bool,
    /// The other descriptor is readable.
    also: bool,
}

impl Rings {
    pub(super) fn new((events, map): (Events, MapData), samples: RingBuf<MapData>, wake: RingBuf<MapData>) -> Self {
        Self { events, _events: map, samples, wake }
    }

    /// Occupancy gauge of the sample ring.
    pub fn sample_level(&self) -> std::io::Result<RingLevel> {
        RingLevel::of(self.samples.as_raw_fd())
    }

    /// Most bytes in one event ring since the last call, and the size of a ring.
    pub fn event_level(&mut self) -> (u64, u64) {
        (self.events.take_most(), self.events.bytes())
    }

    /// How full the fullest event ring was at the last drain, 0 to 1.
    pub fn events_filled(&self) -> f64 {
        self.events.seen() as f64 / self.events.bytes() as f64
    }

    /// Hands the event rings' records up to `now` (`CLOCK_MONOTONIC`, nanoseconds) to `take` one by one, at most
    /// `limit`; returns how many.
    pub fn events(&mut self, now: u64, limit: usize, take: &mut impl FnMut(&[u8])) -> usize {
        self.events.drain(now, limit, take)
    }

    /// The same for the sample ring.
    pub fn samples(&mut self, limit: usize, take: &mut impl FnMut(&[u8])) -> usize {
        drain(&mut self.samples, limit, take)
    }

    /// Sleeps until the kernel side signals that a ring fills up, `millis` have passed, or `also` is readable; returns
    /// whether it is.
    pub fn wait(&mut self, millis: i32, also: Option<BorrowedFd<'_>>) -> bool {
        self.poll(millis, also).also
    }

    /// Sleeps until there is a record that is worth it, `millis` have passed, or `also` is readable. Returns whether there was such
    /// a record; `None`: there were records already, and it did not sleep.
    pub fn wait_for_record(&mut self, millis: i32, also: BorrowedFd<'_>) -> Option<bool> {
        let woken = self.events.fall_asleep().then(|| self.poll(millis, Some(also)).woken);
        self.events.wake_up();
        woken
    }

    fn poll(&mut self, millis: i32, also: Option<BorrowedFd<'_>>) -> Woken {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // poll skips negative descriptors.
        let mut poll = [entry(self.wake.as_raw_fd()), entry(also.map_or(-1, |fd| fd.as_raw_fd()))];
        // SAFETY: the array has as many valid entries as the call declares.
        unsafe { libc::poll(poll.as_mut_ptr(), poll.len() as libc::nfds_t, millis) };
        let woken = drain(&mut self.wake, usize::MAX, &mut |_| ()) > 0;
        let [_, also] = poll;
        Woken { woken, also: also.revents & libc::POLLIN != 0 }
    }
}

fn drain(ring: &mut RingBuf<MapData>, limit: usize, take: &mut impl FnMut(&[u8])) -> usize {
    let mut n = 0;
    while n < limit
        && let Some(item) = ring.next()
    {
        take(&item);
        n += 1;
    }
    n
}
