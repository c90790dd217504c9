//! Stacks of a class as `/profile.folded` shows them.

use std::collections::HashMap;
use std::time::Duration;

use crate::agent::Agent;
use crate::{http, wait};

/// A stack: frames from the root, and its weight.
pub type Stacks = HashMap<String, f64>;

/// The folded stacks of a class, on the CPU in samples of `hertz` a second, off it in microseconds; none while it is not known, or
/// the agent is busy.
pub fn stacks(agent: &Agent, service: &str, path: &str, kind: &str, hertz: f64) -> Stacks {
    let class = path.trim_matches('/');
    read(agent, &format!("service={service}&class=GET%20%2F{class}"), kind, hertz)
}

/// The same of all that a service does.
pub fn of_service(agent: &Agent, service: &str, kind: &str, hertz: f64) -> Stacks {
    read(agent, &format!("service={service}"), kind, hertz)
}

fn read(agent: &Agent, which: &str, kind: &str, hertz: f64) -> Stacks {
    let target = format!("/profile.folded?{which}&kind={kind}");
    let reply = http::get(agent.listen, &target).ok().filter(|reply| reply.status == 200);
    let text = reply.map_or_else(String::new, |reply| reply.text());
    let line = |line: &str| {
        let (stack, micros) = line.rsplit_once(' ')?;
        let micros: f64 = micros.parse().ok()?;
        Some((stack.to_owned(), if kind == "cpu" { micros * hertz / 1e6 } else { micros }))
    };
    text.lines().filter_map(line).collect()
}

/// What came since `before`.
pub fn since(now: &Stacks, before: &Stacks) -> Stacks {
    let more = |(stack, weight): (&String, &f64)| {
        let more = weight - before.get(stack).copied().unwrap_or_default();
        (more > 0.0).then(|| (stack.clone(), more))
    };
    now.iter().filter_map(more).collect()
}

/// An interpreted function in a stack: name and line; `None` for a native frame.
pub fn function(frame: &str) -> Option<(&str, u32)> {
    let (name, place) = frame.strip_suffix(')')?.split_once(" (")?;
    Some((name, place.rsplit_once(':')?.1.parse().ok()?))
}

/// All stacks since `before`, once they have names.
pub fn named(before: &Stacks, now: impl Fn() -> Stacks) -> Stacks {
    wait("stacks with names", Duration::from_secs(30), || {
        let all = since(&now(), before);
        let unnamed = all.keys().any(|stack| stack.contains("[not named in time]"));
        (!all.is_empty() && !unnamed).then_some(all)
    })
}
