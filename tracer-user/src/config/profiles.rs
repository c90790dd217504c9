//! `[profiles]`, and which requests are slow.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;
use tracer_kernel::trace_contexts::TraceContextMode;
use tracer_results::profiles::SlowRequests;
use tracer_results::profiles::hotspots::CodeOwners;

use super::sampling::SamplingFile;
use super::{ConfigError, Source};
use crate::debuginfod;

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
    debuginfod: Vec<Spanned<String>>,
    debuginfod_environment: bool,
    debuginfod_cache: Option<Spanned<String>>,
    debuginfod_max_size: Option<Spanned<String>>,
    debuginfod_max_age: Option<Spanned<String>>,
    publish_trace_context: bool,
    bpffs: Option<Spanned<String>>,
}

/// The BPF file system.
const BPFFS: &str = "/sys/fs/bpf";

/// Whether other programs are shown which request a thread holds, and where.
fn trace_contexts(source: &Source<'_>, file: &ProfilesFile) -> Result<TraceContextMode, ConfigError> {
    let path = file.bpffs.as_ref().map_or(BPFFS, |path| path.get_ref());
    match &file.bpffs {
        Some(bpffs) if !path.starts_with('/') => Err(source.wrong(&bpffs.span(), "expected an absolute path")),
        _ if file.publish_trace_context => Ok(TraceContextMode::On(path.into())),
        _ => Ok(TraceContextMode::Off),
    }
}

/// How stacks are shown, and to whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profiles {
    /// Whose code functions are.
    pub code_owners: CodeOwners,
    /// What is read of debug information.
    pub debug_info: DebugInfo,
    /// Whether other programs are shown which request a thread holds.
    pub trace_contexts: TraceContextMode,
}

impl ProfilesFile {
    /// Checks the section.
    pub(super) fn check(self, source: &Source<'_>) -> Result<Profiles, ConfigError> {
        let trace_contexts = trace_contexts(source, &self)?;
        let debug_info = debug_info(source, &self)?;
        Ok(Profiles { trace_contexts, debug_info, code_owners: owners(source, self)? })
    }
}

/// What is read of the debug information of compiled programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebugInfo {
    /// Whether functions are shown with the line that runs.
    pub lines: bool,
    /// Directories with separate debug files; empty: where distributions install them.
    pub directories: Vec<PathBuf>,
    /// Where those come from that are in none of them.
    pub debuginfod: Option<debuginfod::Settings>,
}

/// Most debuginfod servers.
const SERVERS: usize = 8;
/// Where their files go.
const CACHE: &str = "/var/cache/tracer/debuginfod";
const CACHE_SIZE: u64 = 1 << 30;
const CACHE_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Servers of debug files; `environment` is the value of `DEBUGINFOD_URLS`, of which those count that can be used.
fn debuginfod(
    source: &Source<'_>,
    file: &ProfilesFile,
    environment: Option<String>,
) -> Result<Option<debuginfod::Settings>, ConfigError> {
    let server = |text: &str| {
        let uri = text.parse::<hyper::Uri>().ok()?;
        let is_fine =
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty());
        is_fine.then_some(uri)
    };
    let mut servers = Vec::new();
    for text in &file.debuginfod {
        let expected =
            || source.wrong(&text.span(), format!("expected http:// or https:// addresses, {SERVERS} at most"));
        servers.push(server(text.get_ref()).filter(|_| servers.len() < SERVERS).ok_or_else(expected)?);
    }
    if file.debuginfod_environment {
        servers.extend(environment.unwrap_or_default().split_whitespace().filter_map(server));
        servers.truncate(SERVERS);
    }
    let mut settings = debuginfod::Settings { servers, cache: CACHE.into(), max_size: CACHE_SIZE, max_age: CACHE_AGE };
    if let Some(cache) = source.absolute(file.debuginfod_cache.clone())? {
        settings.cache = cache;
    }
    if let Some(size) = &file.debuginfod_max_size {
        settings.max_size = source.size(size)?;
    }
    if let Some(age) = &file.debuginfod_max_age {
        settings.max_age = source.time(age, Duration::from_secs(60)..=Duration::from_secs(366 * 24 * 3600))?;
    }
    Ok((!settings.servers.is_empty()).then_some(settings))
}

/// What is read of debug information.
fn debug_info(source: &Source<'_>, file: &ProfilesFile) -> Result<DebugInfo, ConfigError> {
    let mut info = DebugInfo { lines: file.lines, ..DebugInfo::default() };
    for (nth, directory) in file.debug_dirs.iter().flatten().enumerate() {
        let path = PathBuf::from(directory.get_ref());
        if nth >= DIRECTORIES || !path.is_absolute() {
            return Err(source.wrong(&directory.span(), format!("expected absolute paths, {DIRECTORIES} at most")));
        }
        info.directories.push(path);
    }
    info.debuginfod = debuginfod(source, file, std::env::var("DEBUGINFOD_URLS").ok())?;
    Ok(info)
}

/// Whose code functions are.
fn owners(source: &Source<'_>, file: ProfilesFile) -> Result<CodeOwners, ConfigError> {
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
        let time = tracer_model::quantity::duration(after.get_ref()).ok().filter(|time| *time <= AFTER);
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
    fn servers_of_the_environment_count_where_they_are_wanted() {
        let source = Source { path: "t.toml", text: "" };
        let given = || Some("https://a.example not-one http://b:8002".to_owned());
        let mut file = ProfilesFile::default();
        assert_eq!(debuginfod(&source, &file, given()).unwrap(), None);
        file.debuginfod_environment = true;
        let servers = debuginfod(&source, &file, given()).unwrap().unwrap().servers;
        assert_eq!(servers.iter().filter_map(hyper::Uri::host).collect::<Vec<_>>(), ["a.example", "b"]);
        assert_eq!(debuginfod(&source, &file, None).unwrap(), None);
    }

    #[test]
    fn prefixes_and_thresholds_are_checked() {
        let text = "[sampling]\nslow_factor = 3\nslow_after = \"250ms\"\n[profiles]\napplication = [\"/srv/\"]\nthird_party = [\"tokio::\"]\n";
        let config = Config::parse("t.toml", text).unwrap();
        assert_eq!(
            config.sampling.slow_requests,
            SlowRequests { factor: 3.0, after: Some(Duration::from_millis(250)) }
        );
        let owners = CodeOwners { application: vec!["/srv/".into()], third_party: vec!["tokio::".into()] };
        assert_eq!(config.profiles.code_owners, owners);
        let text = "[profiles]\nlines = true\ndebug_dirs = [\"/srv/debug\"]\n";
        let info = DebugInfo { lines: true, directories: vec!["/srv/debug".into()], debuginfod: None };
        assert_eq!(Config::parse("t.toml", text).unwrap().profiles.debug_info, info);
        let text = "[profiles]\ndebuginfod = [\"https://debug.example/\"]\ndebuginfod_max_size = \"10M\"\n";
        let info = Config::parse("t.toml", text).unwrap().profiles.debug_info.debuginfod.unwrap();
        assert_eq!((info.servers[0].host(), info.max_size, info.max_age), (Some("debug.example"), 10 << 20, CACHE_AGE));
        assert_eq!(info.cache, PathBuf::from(CACHE));
        let text = "[profiles]\npublish_trace_context = true\n";
        let on = |path: &str| TraceContextMode::On(path.into());
        assert_eq!(Config::parse("t.toml", text).unwrap().profiles.trace_contexts, on("/sys/fs/bpf"));
        let text = format!("{text}bpffs = \"/run/bpf\"\n");
        assert_eq!(Config::parse("t.toml", &text).unwrap().profiles.trace_contexts, on("/run/bpf"));
        let text = "[profiles]\nbpffs = \"/run/bpf\"\n";
        assert_eq!(Config::parse("t.toml", text).unwrap().profiles.trace_contexts, TraceContextMode::Off);
        let off = Config::parse("t.toml", "[sampling]\nslow_factor = 0\nslow_after = \"\"\n").unwrap();
        assert!(off.sampling.slow_requests.is_off());
        let many = format!("[profiles]\napplication = [{}]\n", "\"a\",".repeat(65));
        for (text, why) in [
            ("[sampling]\nslow_factor = 0.5\n", "expected a factor from 1 to 1000, or 0"),
            ("[sampling]\nslow_factor = nan\n", "expected a factor"),
            ("[sampling]\nslow_after = \"2h\"\n", "expected a time of at most 1h"),
            ("[profiles]\napplication = [\"\"]\n", "expected the beginning of a path or name"),
            ("[profiles]\ndebug_dirs = [\"debug\"]\n", "expected absolute paths, 8 at most"),
            ("[profiles]\ndebuginfod = [\"debug.example\"]\n", "expected http:// or https:// addresses"),
            ("[profiles]\ndebuginfod_max_age = \"1s\"\n", "expected a time from 60s"),
            ("[profiles]\nbpffs = \"bpf\"\n", "expected an absolute path"),
            (&*many, "expected 64 prefixes at most"),
        ] {
            let error = Config::parse("t.toml", text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
