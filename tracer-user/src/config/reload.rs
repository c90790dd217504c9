//! What of a file is taken up while the agent runs, and what needs a restart.

use std::path::Path;

use tracer_host::files;
use tracer_model::dimensions::{Dimension, ValueSource};

use super::policies::{Policies, PoliciesError};
use super::{Config, ConfigError, FILE};

/// Sections that are taken up when the file is read again.
pub(super) const POLICIES: [&str; 3] = ["class", "transaction", "service_class"];

/// The sections of a file, as they stand there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sections(toml::Table);

impl Sections {
    /// Names of the sections that differ from those of `other` and need a restart, in the order of the alphabet.
    pub fn need_restart(&self, other: &Self) -> Vec<String> {
        let mut names: Vec<&String> = self.0.keys().chain(other.0.keys()).collect();
        names.sort_unstable();
        names.dedup();
        let differs = |name: &&String| self.0.get(*name) != other.0.get(*name);
        let all = names.into_iter().filter(|name| !POLICIES.contains(&name.as_str()));
        all.filter(differs).map(|name| format!("[{name}]")).collect()
    }
}

impl Config {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::load_sections(path).map(|(config, _)| config)
    }

    /// Headers whose values rules look at, lower case; those of request classes first.
    pub fn header_names(&self) -> Vec<Box<str>> {
        let mut names = self.classes.header_names();
        let of_dimension = |dimension: &Dimension| match &dimension.from {
            ValueSource::Header(name) => Some(name.clone()),
            ValueSource::Host | ValueSource::Segment(_) => None,
        };
        let of_dimensions: Vec<Box<str>> = self.dimensions.iter().filter_map(of_dimension).collect();
        for name in self.service_classes.header_names().chain(of_dimensions.iter().map(|name| &**name)) {
            if !names.iter().any(|known| **known == *name) {
                names.push(name.into());
            }
        }
        names
    }

    /// Whether a rule looks at the host that requests name.
    pub fn wants_host(&self) -> bool {
        let of_dimension = self.dimensions.iter().any(|dimension| dimension.from == ValueSource::Host);
        of_dimension || self.classes.wants_host() || self.service_classes.wants_host()
    }

    /// Reads and checks a file, with the fleet's policies that were kept last if it asks for them, and says what stands there.
    pub fn load_sections(path: &Path) -> Result<(Self, Sections), ConfigError> {
        let (config, sections) = Self::load_with(path, None)?;
        let policies = config.fleet.as_ref().map(Policies::cached).transpose()?.flatten();
        if policies.is_none() { Ok((config, sections)) } else { Self::load_with(path, policies.as_ref()) }
    }

    /// Reads and checks a file, with these policies.
    pub fn load_with(path: &Path, policies: Option<&Policies>) -> Result<(Self, Sections), ConfigError> {
        let name = path.display().to_string();
        let text = files::read(path, FILE).map_err(|source| ConfigError::Unreadable { path: name.clone(), source })?;
        let mut config = Self::parse(&name, &text)?;
        if let Some(policies) = policies {
            // Each was right by itself.
            config = Self::parse(&name, &policies.after(&text)).map_err(|error| {
                let version = policies.version;
                PoliciesError::Document(format!("version {version} does not fit to this host's own file: {error}"))
            })?;
        }
        // It was parsed just now.
        Ok((config, Sections(text.parse().unwrap_or_default())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_that_need_a_restart_are_named() {
        let sections = |text: &str| Sections(text.parse().unwrap());
        let old = sections("[agent]\nlisten = \"[::1]:1\"\n[limits]\nmax_cpu = \"10%\"\n[[class]]\nname = \"a\"\n");
        assert!(old.need_restart(&old).is_empty());
        let new = sections(
            "[agent]\nlisten = \"[::1]:2\"\n# moved\n[limits]\nmax_cpu = \"10%\"\n[[service]]\nname = \"b\"\n",
        );
        assert_eq!(new.need_restart(&old), ["[agent]", "[service]"]);
    }
}
