//! `[[service]]`: rules that name services.

use serde::Deserialize;
use toml::Spanned;
use tracer_host::services::{NamingRule, NamingRules};

use super::{ConfigError, Source};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServiceFile {
    name: Spanned<String>,
    exe: Option<String>,
    cmdline: Option<String>,
    cgroup: Option<String>,
}

/// The rules, in the order of the file.
pub(super) fn check(source: &Source<'_>, services: Vec<ServiceFile>) -> Result<NamingRules, ConfigError> {
    let mut rules = Vec::new();
    for service in services {
        if service.name.get_ref().trim().is_empty() {
            return Err(source.wrong(&service.name.span(), "expected a service name that is not empty"));
        }
        if service.exe.is_none() && service.cmdline.is_none() && service.cgroup.is_none() {
            let what = "a [[service]] needs at least one of exe, cmdline, cgroup: without, it would fit every process";
            return Err(source.wrong(&service.name.span(), what));
        }
        rules.push(NamingRule {
            name: service.name.into_inner(),
            exe: service.exe,
            cmdline: service.cmdline,
            cgroup: service.cgroup,
        });
    }
    Ok(rules)
}
