//! What few spans have.

use std::sync::Arc;

use tracer_common::exchange_counts::RequestPrefix;
use tracer_model::{
    Cost, DIMENSIONS_MAX, DimensionValues, Linked, LogLines, ProcessEnd, PropagatedContext, Span, SpanId, StackSample,
    TraceFlags,
};

use super::on_demand::Blank;
use crate::callback_groups::CallbackGroup;
use crate::inband_context::InbandIds;
use crate::jobs::JobTies;
use crate::relayed::Relayed;
use crate::thrown::ThrownException;
use crate::trace_ids::Bound;

/// How a span of an event loop is tied to other spans.
#[derive(Clone, Copy, Debug)]
pub struct GroupMembership {
    /// Its node in the forest of tied spans.
    pub callback_group: CallbackGroup,
    /// Client side: sent in the very callback that read its request.
    pub direct: bool,
    /// Whether every way a callback can end was traced by then.
    pub sure: bool,
}

/// What few spans have: a context that came with them, ties to other hosts, queues and event loops, samples, declared
/// calls.
#[derive(Debug)]
pub struct Rare {
    /// Parent named by a `traceparent` header.
    pub remote_parent: Option<SpanId>,
    /// Trace flags of its transaction, if a carrier gives them; else its id was drawn by an agent.
    pub trace_flags: Option<TraceFlags>,
    /// The rest of its propagated context; see `propagation.rs`.
    pub passed: Option<Arc<PropagatedContext>>,
    /// A rule of this host fixes its service class, whatever its context says.
    pub service_class_fixed: bool,
    /// Its in-band ids.
    pub inband: Option<InbandIds>,
    /// Its relation to another host.
    pub relay: Option<Box<Relayed>>,
    /// The trace id its child spans were reported with.
    pub reported_as: Option<Bound>,
    /// Links from the messages it carries.
    pub linked: Option<Box<Linked>>,
    /// What it has to do with jobs in queues.
    pub job: Option<Box<JobTies>>,
    /// Its ties, if an event loop with distinguishable callbacks ran it.
    pub group_membership: Option<GroupMembership>,
    /// Calls of declared functions in it, which are reported with it.
    pub declared: Vec<Box<Span>>,
    /// Samples that wait for a class.
    pub samples: Vec<StackSample>,
    /// Part of its cost already posted to the class: costs are posted about once a second.
    pub posted: Cost,
    /// Kind of failure, if the reply names one.
    pub failure: Option<&'static str>,
    /// Server side: its own process closed its connection before the whole reply, and was not ending by what was known then.
    pub dropped: bool,
    /// Its process ended before the whole reply.
    pub process_end: Option<ProcessEnd>,
    /// Server side: the last exception that was thrown for it.
    pub exception: Option<Box<ThrownException>>,
    /// Server side: lines that were written to logs for it.
    pub log_lines: Option<Box<LogLines>>,
    /// Server side: what it has of the declared dimensions.
    pub dimensions: DimensionValues,
    /// It was none: the connection's protocol is another one. It is not reported.
    pub withdrawn: bool,
    /// How its request begins, if the kernel side could know its class by that and does not yet.
    pub(super) new_beginning: Option<Box<RequestPrefix>>,
}

impl Rare {
    const fn nothing_known() -> Self {
        Self {
            remote_parent: None,
            trace_flags: None,
            passed: None,
            service_class_fixed: false,
            inband: None,
            relay: None,
            reported_as: None,
            linked: None,
            job: None,
            group_membership: None,
            declared: Vec::new(),
            samples: Vec::new(),
            posted: Cost { cpu: 0, runq: 0, blocked: 0, switches: 0 },
            failure: None,
            dropped: false,
            process_end: None,
            exception: None,
            log_lines: None,
            dimensions: DimensionValues([0; DIMENSIONS_MAX]),
            withdrawn: false,
            new_beginning: None,
        }
    }
}

impl Blank for Rare {
    fn new() -> Self {
        Self::nothing_known()
    }

    fn blank() -> &'static Self {
        static BLANK: Rare = Rare::nothing_known();
        &BLANK
    }
}
