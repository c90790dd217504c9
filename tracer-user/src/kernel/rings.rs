//! Events up: drains the rings of events and the ring of stacks.

use std::os::fd::AsRawFd;

use aya::maps::{MapData, RingBuf};

use super::level::RingLevel;
use super::load::monotonic;
use super::ring::Events;

/// The event rings, the sample ring, and the one the reader sleeps on.
pub struct Rings {
    events: Events,
    /// Keeps the memory of `events` where it is.
    _events: MapData,
    samples: RingBuf<MapData>,
    wake: RingBuf<MapData>,
}

impl Rings {
    pub(super) fn new((events, map): (Events, MapData), samples: RingBuf<MapData>, wake: RingBuf<MapData>) -> Self {
        Self { events, _events: map, samples, wake }
    }

    /// Gauge of the ring of stacks.
    pub fn sample_level(&self) -> std::io::Result<RingLevel> {
        RingLevel::of(self.samples.as_raw_fd())
    }

    /// Most bytes that one of the event rings held since last asked, and how many it can hold.
    pub fn event_level(&mut self) -> (u64, u64) {
        (self.events.take_most(), self.events.bytes())
    }

    /// Hands what the event rings hold to `take`, one record at a time, at most `limit`; returns how many.
    pub fn events(&mut self, limit: usize, take: &mut impl FnMut(&[u8])) -> usize {
        self.events.drain(monotonic(), limit, take)
    }

    /// The same for the sample ring.
    pub fn samples(&mut self, limit: usize, take: &mut impl FnMut(&[u8])) -> usize {
        drain(&mut self.samples, limit, take)
    }

    /// Sleeps until the kernel side says a ring fills up or `millis` have passed.
    pub fn wait(&mut self, millis: i32) {
        let mut poll = libc::pollfd { fd: self.wake.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&raw mut poll, 1, millis) };
        drain(&mut self.wake, usize::MAX, &mut |_| ());
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
