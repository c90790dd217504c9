//! What the classifier is asked of a span.

use std::sync::Arc;

use tracer_model::{ClassId, Names};
use tracer_transactions::classes::{Classifier, Facts};
use tracer_transactions::open_span::OpenSpan;

/// Classifies an open span, if its end cannot change the class.
pub(super) fn classify_early(classifier: &mut Classifier, names: &mut Names, live: &OpenSpan) -> Option<ClassId> {
    classifier.known(names, &Facts::of_open(live, None))
}

/// The provisional class name of an unclassified span.
pub(super) fn provisional(classifier: &mut Classifier, names: &mut Names, live: &OpenSpan) -> Arc<str> {
    classifier.provisional(names, &Facts::of_open(live, live.status))
}

/// Classifies a finished span and applies the service class of the matching rule.
pub(super) fn classify_late(classifier: &mut Classifier, names: &mut Names, live: &mut OpenSpan) -> ClassId {
    let class = classifier.classify(names, &Facts::of_open(live, live.status));
    if let Some(service_class) = classifier.service_class(class) {
        live.set_service_class(service_class);
    }
    class
}
