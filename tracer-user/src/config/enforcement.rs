//! `[enforcement]`: with what service classes are enforced.

use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;
use tracer_policies::service_classes::Mode;
use tracer_policies::service_classes::network::PacketPriorities;

use super::{ConfigError, Source};

/// Enforcement of service classes.
#[derive(Clone, Debug)]
pub struct Enforcement {
    /// Whether priorities of service classes are enforced: the command line says it.
    pub mode: Mode,
    /// Directory of the state file of changed priorities.
    pub state_dir: PathBuf,
    /// Priorities of packets of high and of low network priority.
    pub packets: PacketPriorities,
}

impl Default for Enforcement {
    fn default() -> Self {
        Self { mode: Mode::default(), state_dir: state_dir(), packets: PacketPriorities::default() }
    }
}

/// Settings of enforcement, as in the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct EnforcementFile {
    state_dir: Option<Spanned<String>>,
    packets: Option<PacketsFile>,
}

/// Priorities of packets, as in the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PacketsFile {
    high: Option<Spanned<String>>,
    low: Option<Spanned<String>>,
}

impl EnforcementFile {
    /// Puts what is given in the place of defaults.
    pub(super) fn apply(self, source: &Source<'_>, settings: &mut Enforcement) -> Result<(), ConfigError> {
        if let Some(dir) = source.absolute(self.state_dir)? {
            settings.state_dir = dir;
        }
        settings.packets = packets(source, self.packets.as_ref())?;
        Ok(())
    }
}

/// Where the state file is without a setting: the service manager's directory, or one that is gone with the boot, like
/// the priorities.
fn state_dir() -> PathBuf {
    let given = std::env::var_os("STATE_DIRECTORY").filter(|dir| std::path::Path::new(dir).is_absolute());
    given.map_or_else(|| PathBuf::from("/run/tracer"), PathBuf::from)
}

/// Checks the packets' priorities.
fn packets(source: &Source<'_>, file: Option<&PacketsFile>) -> Result<PacketPriorities, ConfigError> {
    let mut all = PacketPriorities::default();
    let Some(file) = file else { return Ok(all) };
    for (given, place) in [(&file.high, &mut all.high), (&file.low, &mut all.low)] {
        let Some(given) = given else { continue };
        *place = PacketPriorities::parse(given.get_ref()).ok_or_else(|| {
            let what = "expected a packet priority from 0 to 15, such as \"6\", or the handle of a class of a queueing \
                        discipline as tc writes it, such as \"1:10\"";
            source.wrong(&given.span(), what)
        })?;
    }
    Ok(all)
}
