//! What only a call has.

use tracer_model::{Cost, Opening, ServiceId};

use super::on_demand::Blank;
use crate::cause::Cause;
use crate::evidence::Evidence;
use crate::slot::Slot;
use crate::task_table::AnsweredRequest;
use crate::thread::Target;
use crate::wakeup_candidates::WakeupCandidates;

/// What only a call has: what caused it, and who answers it.
#[derive(Debug)]
pub struct ClientSide {
    /// The cause.
    pub cause: Cause,
    /// The request on this host that is this call's other end.
    pub callee: Option<Slot>,
    /// The service of that request.
    pub callee_service: Option<ServiceId>,
    /// How its connection was opened, if it is the first call there.
    pub opening: Option<Box<Opening>>,
    /// Provisional parent, the request answered by the spawning task.
    pub provisional_parent: Option<Box<AnsweredRequest>>,
    /// Another task has since sent on its connection, so its own task does not serve a connection.
    pub passed_on: bool,
    /// HTTP/2: when its reply came, no other thread had made a call on its connection.
    pub sole: bool,
    /// The threads woken after its reply, until it is known which of them took the result.
    pub wakeup_candidates: Option<Box<WakeupCandidates>>,
    /// What its thread had last worked for before it sent the call, and the part of the call's cost from then until the send.
    pub before_send: Option<(Target, Cost)>,
}

impl ClientSide {
    const fn nothing_known() -> Self {
        Self {
            cause: Cause::none(Evidence::NoRequest),
            callee: None,
            callee_service: None,
            opening: None,
            provisional_parent: None,
            passed_on: false,
            sole: false,
            wakeup_candidates: None,
            before_send: None,
        }
    }
}

impl Blank for ClientSide {
    fn new() -> Self {
        Self::nothing_known()
    }

    fn blank() -> &'static Self {
        static BLANK: ClientSide = ClientSide::nothing_known();
        &BLANK
    }
}
