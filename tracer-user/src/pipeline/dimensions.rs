//! The values of declared dimensions that requests have: their own, else those of the request that caused them on this host.

use tracer_model::Side;
use tracer_model::dimensions::{Facts, inherited};
use tracer_transactions::slot::Slot;

use super::Pipeline;

impl Pipeline {
    /// A request began (`is_new`), or more became known of it.
    pub(super) fn decide_dimensions(&mut self, slot: Slot, is_new: bool) {
        if self.dimensions.is_empty() {
            return;
        }
        let Some(live) = self.engine.span(slot) else { return };
        if live.side == Side::Client {
            // The other end may have been read first.
            if let Some(callee) = live.client.callee {
                self.decide_dimensions(callee, false);
            }
            return;
        }
        let own = self.dimensions.of(&Facts {
            path: &live.request.path,
            host: live.request.host.as_deref(),
            headers: &live.request.headers,
            header_names: &self.engine.settings().headers,
        });
        let values = inherited(own, self.engine.dimensions_of_caller(slot));
        if is_new {
            self.dimensions.count(values);
        }
        self.engine.set_dimensions(slot, values);
    }
}
