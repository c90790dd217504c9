//! Events up: drains the two rings.

use std::os::fd::AsRawFd;

use aya::maps::{MapData, RingBuf};

use super::level::RingLevel;

/// The event ring and the sample ring.
pub struct Rings {
    events: RingBuf<MapData>,
    samples: RingBuf<MapData>,
}

impl Rings {
    pub(super) fn new(events: RingBuf<MapData>, samples: RingBuf<MapData>) -> Self {
        Self { events, samples }
    }

    /// Gauges of both, events and stacks.
    pub fn levels(&self) -> std::io::Result<[RingLevel; 2]> {
        Ok([RingLevel::of(self.events.as_raw_fd())?, RingLevel::of(self.samples.as_raw_fd())?])
    }

    /// Hands what the event ring holds to `take`, one record at a time, at most `limit`; returns how many.
    pub fn events(&mut self, limit: usize, take: &mut impl FnMut(&[u8])) -> usize {
        drain(&mut self.events, limit, take)
    }

    /// The same for the sample ring.
    pub fn samples(&mut self, limit: usize, take: &mut impl FnMut(&[u8])) -> usize {
        drain(&mut self.samples, limit, take)
    }

    /// Sleeps until the kernel says a ring fills up or `millis` have passed.
    pub fn wait(&self, millis: i32) {
        let mut poll = libc::pollfd { fd: self.events.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // The ring is readable whenever it holds anything, and polling it would return at once under any load: sleep
        // a little first, then wait for the rest with the wake-up armed.
        let quiet = millis.min(2);
        if quiet > 0 {
            std::thread::sleep(std::time::Duration::from_millis(quiet as u64));
        }
        if millis > quiet {
            // SAFETY: one valid entry.
            unsafe { libc::poll(&raw mut poll, 1, millis - quiet) };
        }
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
