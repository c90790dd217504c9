//! What the kernel is to capture of a connection.

use tracer_common::event::{ROLE_ACTIVE, ROLE_PASSIVE, ROLE_UNKNOWN};
use tracer_common::policy::{
    CapturePolicy, TEXT_UNWANTED, VERDICT_IGNORE, VERDICT_NONE, VERDICT_ROUND_TRIPS, VERDICT_TRACE,
};
use tracer_model::Side;
use tracer_protocols::Verdict;

use crate::engine::Engine;
use crate::plaintext::Plaintext;

impl Engine {
    /// Sends the kernel a new capture policy if the connection's needs changed.
    pub(super) fn update_policy(&mut self, cookie: u64) {
        let Some(connection) = self.world.connections.get_mut(&cookie) else { return };
        let want = connection.talk.awake().want();
        let verdict = match want.verdict {
            Verdict::Unknown => VERDICT_NONE,
            Verdict::Trace => VERDICT_TRACE,
            Verdict::RoundTrips => VERDICT_ROUND_TRIPS,
            Verdict::Ignore => VERDICT_IGNORE,
        };
        let heads = (want.head_rx, want.head_tx);
        let ((rx, tx), (head_rx, head_tx, before)) = (connection.skips(), connection.asked);
        // A reused connection is worth one policy update even if it only asks for the defaults.
        let settled = verdict == VERDICT_TRACE && before == VERDICT_NONE && connection.talk.awake().is_used_again();
        // The socket of an encrypted connection needs little, from the first text on: until then it was timed, or ignored.
        let decrypted = connection.plain.is_some()
            && connection.talk.side().is_some()
            && before != VERDICT_TRACE
            && verdict != VERDICT_IGNORE;
        let changed = settled
            || decrypted
            || (matches!(verdict, VERDICT_IGNORE | VERDICT_ROUND_TRIPS) && before != verdict)
            || want.rx_skip > rx
            || want.tx_skip > tx
            || (heads != (head_rx, head_tx) && heads != (0, 0));
        if changed {
            connection.asked = (heads.0, heads.1, verdict);
            connection.set_skips((want.rx_skip, want.tx_skip));
            let ask = CapturePolicy {
                rx_skip: want.rx_skip,
                tx_skip: want.tx_skip,
                head_rx: heads.0,
                head_tx: heads.1,
                verdict,
                role: match connection.talk.side() {
                    Some(Side::Client) => ROLE_ACTIVE,
                    Some(Side::Server) => ROLE_PASSIVE,
                    None => ROLE_UNKNOWN,
                },
                frames: want.frames.into(),
                text: if connection.no_text { TEXT_UNWANTED } else { 0 },
            };
            let expects = verdict == VERDICT_ROUND_TRIPS
                && connection.before_text.is_some()
                && self.encryption.has_text(connection.tgid);
            let side = connection.talk.side();
            let by_loop = self.world.threads.get(&connection.tgid).is_some_and(|thread| thread.lap.is_some());
            let ask = match &connection.plain {
                Some(_) => CapturePolicy { role: ask.role, ..Plaintext::policy(side, want, by_loop) },
                None if expects => CapturePolicy { role: ask.role, ..Plaintext::policy(None, want, by_loop) },
                None => ask,
            };
            self.policies.push((cookie, ask));
        }
    }
}
