//! Names: the domain that somebody registered, which is what a question is about.

/// Whether labels hold nothing but what host and service names are made of.
pub(super) fn is_plain(labels: &[u8]) -> bool {
    each(labels).all(|label| label.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')))
}

/// Whether `bytes` can be the front of a plain name.
pub(super) fn could_go_on(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while let Some((&label, after)) = rest.split_first() {
        let label = usize::from(label);
        let there = after.get(..label).unwrap_or(after);
        if label == 0 || label > 63 || !is_plain_label(there) {
            // A name that ends is looked at elsewhere: what follows it was cut.
            return label == 0;
        }
        rest = after.get(label..).unwrap_or_default();
    }
    bytes.len() < 255
}

fn is_plain_label(label: &[u8]) -> bool {
    label.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// The labels of a name that is whole.
fn each(mut labels: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (&len, rest) = labels.split_first().filter(|(len, _)| **len > 0)?;
        let (label, after) = rest.split_at_checked(usize::from(len))?;
        labels = after;
        Some(label)
    })
}

/// The registrable domain of a name by the list of public suffixes, in lower case; the name itself where it is none
/// below a suffix; empty where it has bytes that are not shown.
pub(super) fn domain(labels: &[u8]) -> String {
    if !is_plain(labels) {
        return String::new();
    }
    let mut name = String::with_capacity(labels.len());
    for label in each(labels) {
        if !name.is_empty() {
            name.push('.');
        }
        name.extend(label.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
    }
    if name.is_empty() {
        return ".".into();
    }
    // Addresses turned into names.
    for reverse in ["in-addr.arpa", "ip6.arpa"] {
        if name.ends_with(reverse) {
            return reverse.into();
        }
    }
    match psl::domain_str(&name) {
        Some(domain) => domain.to_owned(),
        None => name,
    }
}
