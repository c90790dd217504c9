//! `[[class]]`: rules that name request classes.

use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;
use tracer_transactions::classes::rules::{Glob, HeaderMatch, PathPattern, Rule};

use super::{ConfigError, Source};

/// One rule, as in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleFile {
    name: Spanned<String>,
    pub(super) service_class: Option<Spanned<String>>,
    service: Option<String>,
    #[serde(default)]
    method: Vec<String>,
    path: Option<Spanned<String>>,
    host: Option<String>,
    header: Option<Spanned<HeaderFile>>,
    port: Option<u16>,
    #[serde(default)]
    status: Vec<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeaderFile {
    name: String,
    value: String,
}

/// Longest name of a header, bytes.
const HEADER: usize = 256;

/// The name of a header, lower case; `None` if it cannot be one.
pub(super) fn header_name(name: &str) -> Option<Box<str>> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_name = !name.is_empty() && name.len() <= HEADER && name.bytes().all(is_token);
    is_name.then(|| name.to_ascii_lowercase().into())
}

/// Checks a condition on a header.
pub(super) fn header(source: &Source<'_>, header: &Spanned<HeaderFile>) -> Result<HeaderMatch, ConfigError> {
    let HeaderFile { name, value } = header.get_ref();
    let what = "expected the name of a header, such as { name = \"X-Tenant\", value = \"gold*\" }";
    let name = header_name(name).ok_or_else(|| source.wrong(&header.span(), what))?;
    Ok(HeaderMatch { name, value: Glob::new(value) })
}

/// Checks one rule.
pub(super) fn check(source: &Source<'_>, rule: &RuleFile) -> Result<Rule, ConfigError> {
    if rule.name.get_ref().trim().is_empty() || rule.name.get_ref().len() > 120 {
        return Err(source.wrong(&rule.name.span(), "expected a class name of 1 to 120 characters"));
    }
    let path = match &rule.path {
        Some(path) => Some(
            PathPattern::new(path.get_ref())
                .map_err(|expected| source.wrong(&path.span(), format!("bad path pattern: expected {expected}")))?,
        ),
        None => None,
    };
    let status = rule.status.iter().map(|status| {
        range(status.get_ref()).ok_or_else(|| {
            source.wrong(
                &status.span(),
                "expected a status code such as \"404\", a class such as \"5xx\" or a range \"500-503\"",
            )
        })
    });
    let is_name = |text: &str| (1..=64).contains(&text.trim().len()) && !text.chars().any(char::is_control);
    if let Some(class) = rule.service_class.as_ref().filter(|class| !is_name(class.get_ref())) {
        return Err(source.wrong(&class.span(), "expected a service class of 1 to 64 bytes, such as \"gold\""));
    }
    Ok(Rule {
        name: Arc::from(rule.name.get_ref().as_str()),
        service_class: rule.service_class.as_ref().map(|class| Arc::from(class.get_ref().trim())),
        service: rule.service.as_deref().map(Glob::new),
        methods: rule.method.iter().map(|method| method.as_str().into()).collect(),
        path,
        host: rule.host.as_deref().map(Glob::new),
        header: rule.header.as_ref().map(|given| header(source, given)).transpose()?,
        port: rule.port,
        status: status.collect::<Result<_, _>>()?,
    })
}

fn range(text: &str) -> Option<(u16, u16)> {
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
