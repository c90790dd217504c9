//! The facts of a span that the classifier needs.

use std::sync::Arc;

use crate::classes::{Classifier, Facts};
use crate::model::{ClassId, Names, Side};
use crate::transactions::open_span::OpenSpan;

fn facts(live: &OpenSpan, status: Option<u16>) -> Facts<'_> {
    Facts {
        service: live.service,
        protocol: live.protocol,
        side: live.side,
        method: &live.request.method,
        path: &live.request.path,
        host: live.request.host.as_deref(),
        headers: &live.request.headers,
        port: if live.side == Side::Server { live.local_port } else { live.peer_port },
        status,
    }
}

/// Classifies an open span, if its end cannot change the class.
pub(super) fn classify_early(classifier: &mut Classifier, names: &mut Names, live: &OpenSpan) -> Option<ClassId> {
    classifier.known(names, &facts(live, None))
}

/// The provisional class name of an unclassified span.
pub(super) fn provisional(classifier: &mut Classifier, names: &mut Names, live: &OpenSpan) -> Arc<str> {
    classifier.provisional(names, &facts(live, live.status))
}

/// Classifies a finished span and applies the service class of the matching rule.
pub(super) fn classify_late(classifier: &mut Classifier, names: &mut Names, live: &mut OpenSpan) -> ClassId {
    let class = classifier.classify(names, &facts(live, live.status));
    if let Some(service_class) = classifier.service_class(class) {
        live.set_service_class(service_class);
    }
    class
}
