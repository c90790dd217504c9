//! Load for programs of interpreted languages whose stacks are judged.

use std::net::SocketAddr;
use std::time::Duration;

use crate::folded::{Stacks, since};
use crate::load::{self, Request};
use crate::wait;

/// Least samples of each path that is judged.
pub const SAMPLES: f64 = 250.0;
/// How long enough of them may take.
const PATIENCE: Duration = Duration::from_secs(240);

/// Asks for every path some times, in turn.
pub fn ask(address: SocketAddr, paths: &[&str], times: usize) {
    let plan = (0..times).flat_map(|_| paths.iter().map(|path| Request::get((*path).to_owned()))).collect();
    let loaded = load::run(address, vec![plan]);
    assert!(loaded.broken().is_empty(), "{:?}", loaded.broken().first());
}

/// Asks for all `paths` in turn until each of the `stacks`, which are those of a path, has enough samples that know of unwind
/// tables and of functions, whose frames have `marker` (such as `.py:`); the stacks from before those.
pub fn load_until_sampled(
    address: SocketAddr,
    paths: &[&str],
    marker: &str,
    stacks: impl Fn() -> Vec<Stacks>,
) -> Vec<Stacks> {
    let new = |now: &[Stacks], before: &[Stacks]| -> Vec<Stacks> {
        now.iter().zip(before).map(|(now, before)| since(now, before)).collect()
    };
    let mut before = stacks();
    wait("tables and functions", PATIENCE, || {
        ask(address, paths, 2);
        let now = stacks();
        let seen = new(&now, &before);
        before = now;
        let is_known = |seen: &Stacks| {
            !seen.is_empty()
                && !seen.keys().any(|stack| stack.contains("not ready"))
                && seen.keys().any(|stack| stack.contains(marker))
        };
        seen.iter().all(is_known).then_some(())
    });
    wait("samples", PATIENCE, || {
        ask(address, paths, 2);
        new(&stacks(), &before).iter().all(|stacks| stacks.values().sum::<f64>() >= SAMPLES).then_some(())
    });
    before
}
