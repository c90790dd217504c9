//! `[profiles]`, and which requests are slow.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::sampling::SamplingFile;
use super::{ConfigError, Source};
use crate::profiles::SlowRequests;
use crate::profiles::hotspots::CodeOwners;

/// Most prefixes of a list, and bytes of each: every frame is compared with all of them.
const PREFIXES: usize = 64;
const PREFIX: usize = 256;
/// Most directories with debug files.
const DIRECTORIES: usize = 8;
/// Longest `slow_after`.
const AFTER: Duration = Duration::from_secs(3600);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ProfilesFile {
    application: Vec<Spanned<String>>,
    third_party: Vec<Spanned<String>>,
    lines: bool,
    debug_dirs: Option<Vec<Spanned<String>>>,
}

/// What is read of the debug information of compiled programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebugInfo {
    /// Whether functions are shown with the line that runs.
    pub lines: bool,
    /// Directories with separate debug files; empty: where distributions install them.
    pub directories: Vec<PathBuf>,
}

/// What is read of debug information.
pub(super) fn debug_info(source: &Source<'_>, file: &ProfilesFile) -> Result<DebugInfo, ConfigError> {
    let mut info = DebugInfo { lines: file.lines, ..DebugInfo::default() };
    for (nth, directory) in file.debug_dirs.iter().flatten().enumerate() {
        let path = PathBuf::from(directory.get_ref());
        if nth >= DIRECTORIES || !path.is_absolute() {
            return Err(source.wrong(&directory.span(), format!("expected absolute paths, {DIRECTORIES} at most")));
        }
        info.directories.push(path);
    }
    Ok(info)
}

/// Whose code functions are.
pub(super) fn owners(source: &Source<'_>, file: ProfilesFile) -> Result<CodeOwners, ConfigError> {
    let check = |prefixes: Vec<Spanned<String>>| {
        if let Some(last) = prefixes.get(PREFIXES) {
            return Err(source.wrong(&last.span(), format!("expected {PREFIXES} prefixes at most")));
        }
        let prefix = |prefix: Spanned<String>| {
            let span = prefix.span();
            let text = prefix.into_inner();
            if text.is_empty() || text.len() > PREFIX {
                return Err(
                    source.wrong(&span, format!("expected the beginning of a path or name, {PREFIX} bytes at most"))
                );
            }
            Ok(text)
        };
        prefixes.into_iter().map(prefix).collect::<Result<Vec<_>, _>>()
    };
    Ok(CodeOwners { application: check(file.application)?, third_party: check(file.third_party)? })
}

/// When a request counts as slow.
pub(super) fn slow_requests(source: &Source<'_>, file: &SamplingFile) -> Result<SlowRequests, ConfigError> {
    let mut slow = SlowRequests::default();
    if let Some(factor) = &file.slow_factor {
        slow.factor = *factor.get_ref();
        if slow.factor != 0.0 && !(1.0..=1000.0).contains(&slow.factor) {
            return Err(source.wrong(&factor.span(), "expected a factor from 1 to 1000, or 0"));
        }
    }
    if let Some(after) = file.slow_after.as_ref().filter(|after| !after.get_ref().is_empty()) {
        let time = crate::quantity::duration(after.get_ref()).ok().filter(|time| *time <= AFTER);
        let expected = || source.wrong(&after.span(), "expected a time of at most 1h, such as \"500ms\"");
        slow.after = Some(time.ok_or_else(expected)?);
    }
    Ok(slow)
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    #[test]
    fn prefixes_and_thresholds_are_checked() {
        let text = "[sampling]\nslow_factor = 3\nslow_after = \"250ms\"\n[profiles]\napplication = [\"/srv/\"]\nthird_party = [\"tokio::\"]\n";
        let config = Config::parse("t.toml", text).unwrap();
        assert_eq!(config.slow_requests, SlowRequests { factor: 3.0, after: Some(Duration::from_millis(250)) });
        let owners = CodeOwners { application: vec!["/srv/".into()], third_party: vec!["tokio::".into()] };
        assert_eq!(config.code_owners, owners);
        let text = "[profiles]\nlines = true\ndebug_dirs = [\"/srv/debug\"]\n";
        let info = DebugInfo { lines: true, directories: vec!["/srv/debug".into()] };
        assert_eq!(Config::parse("t.toml", text).unwrap().debug_info, info);
        let off = Config::parse("t.toml", "[sampling]\nslow_factor = 0\nslow_after = \"\"\n").unwrap();
        assert!(off.slow_requests.is_off());
        let many = format!("[profiles]\napplication = [{}]\n", "\"a\",".repeat(65));
        for (text, why) in [
            ("[sampling]\nslow_factor = 0.5\n", "expected a factor from 1 to 1000, or 0"),
            ("[sampling]\nslow_factor = nan\n", "expected a factor"),
            ("[sampling]\nslow_after = \"2h\"\n", "expected a time of at most 1h"),
            ("[profiles]\napplication = [\"\"]\n", "expected the beginning of a path or name"),
            ("[profiles]\ndebug_dirs = [\"debug\"]\n", "expected absolute paths, 8 at most"),
            (&*many, "expected 64 prefixes at most"),
        ] {
            let error = Config::parse("t.toml", text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
