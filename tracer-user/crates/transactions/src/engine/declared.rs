//! Declared transactions, as the agent handles them: which are in use, what was lost of them, whose spans they are kept with.

use tracer_model::Span;
use tracer_runtimes::declared::CallPairing;

use super::Engine;
use crate::slot::Slot;
use crate::strategies::declared::{DeclaredLosses, KEPT};

impl Engine {
    /// Expects calls of the declared transactions whose numbers are in use, and of no others.
    pub fn expect_declared(&mut self, in_use: Vec<Option<CallPairing>>) {
        self.declared.expect(in_use);
    }

    /// Losses of declared calls.
    pub fn declared_losses(&self) -> DeclaredLosses {
        self.declared.losses
    }

    /// Keeps the span of a declared call with its open request, so that both are reported with one trace id; gives it
    /// back if that request is reported already. `Ok(false)`: the request has enough of them.
    pub fn keep_declared(&mut self, slot: Slot, span: Box<Span>) -> Result<bool, Box<Span>> {
        let Some(live) = self.world.spans.get_mut(slot) else { return Err(span) };
        if live.rare.declared.len() >= KEPT {
            return Ok(false);
        }
        live.rare.declared.push(span);
        Ok(true)
    }
}
