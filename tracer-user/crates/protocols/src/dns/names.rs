//! Domain names: reduces a name to its registrable domain, the subject of a question.

/// Whether the labels contain only characters of host and service names.
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
            // The caller handles complete names; only the bytes after this one were cut.
            return label == 0;
        }
        rest = after.get(label..).unwrap_or_default();
    }
    bytes.len() < 255
}

fn is_plain_label(label: &[u8]) -> bool {
    label.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// The labels of a complete name.
fn each(mut labels: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (&len, rest) = labels.split_first().filter(|(len, _)| **len > 0)?;
        let (label, after) = rest.split_at_checked(usize::from(len))?;
        labels = after;
        Some(label)
    })
}

/// The registrable domain of a name by the public suffix list, in lower case; the name itself if it is not below a
/// suffix; empty if it contains bytes that are not displayed.
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
    // Reverse lookups.
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
