//! Which findings have been announced: that they opened, and that they ended.

use std::collections::BTreeMap;

use super::finding::Finding;

/// What is announced of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingEvent {
    /// It was found.
    Opened,
    /// It is over.
    Ended,
}

impl FindingEvent {
    /// As the webhook and OTLP name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Ended => "ended",
        }
    }

    /// One sentence for people.
    pub fn text(self, finding: &Finding, host: &str) -> String {
        let over = if self == Self::Ended { "over: " } else { "" };
        format!("{over}{} on {host}: {}", finding.kind.name(), finding.summary())
    }
}

/// Findings that were announced, and whether their end was, too.
#[derive(Debug, Default)]
pub struct AnnouncedFindings(BTreeMap<u64, bool>);

impl AnnouncedFindings {
    /// How many were announced.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Calls `announce` with what opened or ended since the last call. What it refuses is offered again with the next one.
    pub fn news<'a>(
        &mut self,
        findings: impl Iterator<Item = &'a Finding>,
        mut announce: impl FnMut(FindingEvent, &Finding) -> bool,
    ) {
        let mut seen = BTreeMap::new();
        for finding in findings {
            let ended = finding.until_ns.is_some();
            let known = self.0.get(&finding.id).copied();
            // One that is found only once it is over opens first, too.
            let events: &[FindingEvent] = match (known, ended) {
                (None | Some(true), false) => &[FindingEvent::Opened],
                (None, true) => &[FindingEvent::Opened, FindingEvent::Ended],
                (Some(false), true) => &[FindingEvent::Ended],
                (Some(_), _) => &[],
            };
            let mut now = known;
            for event in events {
                if !announce(*event, finding) {
                    break;
                }
                now = Some(*event == FindingEvent::Ended);
            }
            if let Some(state) = now {
                seen.insert(finding.id, state);
            }
        }
        // The detector forgets old ones, and so does this.
        self.0 = seen;
    }
}
