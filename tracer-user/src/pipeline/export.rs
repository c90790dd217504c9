//! What writers get of finished spans: all, or what is kept of transactions at their end.

use std::collections::HashSet;

use tracer_model::{ClassId, Names, Span};
use tracer_policies::tail_sampling::DECISION_NAMES;
use tracer_results::analysis::finding::{Finding, FindingKind};

use super::Pipeline;

impl Pipeline {
    /// Passes a finished span to the writers, now or when it is known whether its transaction is exported. `is_top`: it is the
    /// first of its transaction on this host.
    pub(super) fn export(&mut self, span: &Span, is_top: bool) {
        if self.writers.is_empty() {
            return;
        }
        let Some(tail) = &mut self.tail else {
            self.write(span);
            return;
        };
        let now = self.engine.now();
        let reason = tail.reason(span, is_top, now, |class| self.stats.tail(class));
        if let Some(kept) = tail.offer(span, is_top, reason, now) {
            self.write(&Span { kept: Some(kept), ..span.clone() });
        }
        self.export_due(false);
    }

    /// Passes on what is decided by now. `over`: nothing more comes.
    pub(super) fn export_due(&mut self, over: bool) {
        let now = self.engine.now();
        while let Some(spans) = self.tail.as_mut().and_then(|tail| tail.due(now, over)) {
            for span in &spans {
                self.write(span);
            }
        }
    }

    fn write(&mut self, span: &Span) {
        for writer in &mut self.writers {
            writer.span(&self.names, span);
        }
    }

    /// Tells which classes have open findings, and publishes what was decided.
    pub(super) fn publish_export(&mut self) {
        let Some(tail) = &mut self.tail else { return };
        if tail.wants_findings() {
            tail.set_findings(classes_with_findings(self.detector.own_findings(), &self.names));
        }
        let decided = tail.decided();
        let named = |counts: [u64; DECISION_NAMES.len()]| {
            let mut counts = counts.into_iter();
            DECISION_NAMES.map(|name| (name, counts.next().unwrap_or_default()))
        };
        self.metrics.set_export_decisions(&named(decided.spans), &named(decided.transactions), &tail.shares());
    }
}

/// Classes that open findings name, or whose service they name. Those about the whole host name none, and other load is none.
fn classes_with_findings<'a>(findings: impl Iterator<Item = &'a Finding>, names: &Names) -> HashSet<ClassId> {
    let is_open = |finding: &&Finding| {
        let is_about_one = finding.kind != FindingKind::WorkloadChange && !finding.service_name.is_empty();
        finding.until_ns.is_none() && is_about_one
    };
    let open: Vec<&Finding> = findings.filter(is_open).collect();
    let is_named = |class: &str, service: &str| {
        let names_class = |finding: &Finding| {
            finding.request_classes.is_empty() || finding.request_classes.iter().any(|name| name == class)
        };
        open.iter().any(|finding| finding.service_name == service && names_class(finding))
    };
    let classes = names.classes.iter().enumerate().filter(|(_, info)| is_named(&info.name, &info.service_name));
    classes.map(|(id, _)| ClassId(id as u32)).collect()
}
