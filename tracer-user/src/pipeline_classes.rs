//! What the classifier is told of a unit.

use crate::classes::{Classifier, Facts};
use crate::model::{ClassId, Names, Side};
use crate::transactions::live::Live;

/// The class of a unit; without its status where that is not known yet.
pub(super) fn classify(classifier: &mut Classifier, names: &mut Names, live: &Live, status: Option<u16>) -> ClassId {
    let facts = Facts {
        service: live.service,
        protocol: live.protocol,
        side: live.side,
        method: &live.request.method,
        path: &live.request.path,
        host: live.request.host.as_deref(),
        headers: &live.request.headers,
        port: if live.side == Side::Server { live.local_port } else { live.peer_port },
        status,
    };
    classifier.classify(names, &facts)
}

/// The class of a unit that is over, and the service class which that one's rule says.
pub(super) fn classify_late(classifier: &mut Classifier, names: &mut Names, live: &mut Live) -> ClassId {
    let class = classify(classifier, names, live, live.status);
    if let Some(service_class) = classifier.service_class(class) {
        live.set_service_class(service_class);
    }
    class
}
