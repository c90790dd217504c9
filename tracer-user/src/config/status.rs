//! Status codes of `[[class]]`: a code, a class (`5xx`) or a range.

/// The first and the last code that a text names.
pub(super) fn range(text: &str) -> Option<(u16, u16)> {
    let code = |text: &str| text.parse::<u16>().ok().filter(|code| (100..1000).contains(code));
    if let Some(class) = text.strip_suffix("xx") {
        let class: u16 = class.parse().ok().filter(|class| (1..=9).contains(class))?;
        return Some((class * 100, class * 100 + 99));
    }
    match text.split_once('-') {
        Some((from, to)) => Some((code(from)?, code(to)?)).filter(|(from, to)| from <= to),
        None => code(text).map(|code| (code, code)),
    }
}
