//! Configuration in two stages: `File` mirrors the TOML file, [`Config`] holds the checked settings.

use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;
use tracer_host::services::NamingRules;
use tracer_model::dimensions::Dimension;
use tracer_policies::instrumentation;
use tracer_policies::service_classes::ServiceClasses;
use tracer_policies::tail_sampling::TailSamplingSettings;
use tracer_results::log_lines::LogSettings;
use tracer_runtimes::declared::Declared;
use tracer_runtimes::exceptions::ExceptionSettings;
use tracer_runtimes::tls::Libraries;
use tracer_runtimes::{Extras, WatchWakes};
use tracer_transactions::classes::ClassConfig;

mod agent;
mod class_rules;
mod declared;
mod dimensions;
mod enforcement;
mod exceptions;
mod export;
mod findings;
mod hindsight;
mod history;
mod hosts;
mod instrument;
mod limits;
mod logs;
pub mod policies;
mod profiles;
mod protocols;
mod reload;
mod sampling;
mod service_class;
mod services;
mod source;
mod subsystems;
mod transactions;

pub use agent::Agent;
pub use enforcement::Enforcement;
pub use findings::Analysis;
pub use hindsight::HindsightSettings;
pub use history::History;
pub use hosts::Relay;
pub use limits::{Limits, OOM_SCORE_ADJ, Priority, Watchdog};
pub use profiles::{DebugInfo, Profiles};
pub use protocols::Protocols;
pub use reload::Sections;
pub use sampling::Sampling;
pub use source::ConfigError;
use source::Source;
pub use subsystems::Subsystems;
pub use transactions::Transactions;

/// The TOML file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    agent: agent::AgentFile,
    sampling: sampling::SamplingFile,
    profiles: profiles::ProfilesFile,
    history: history::HistoryFile,
    analysis: findings::AnalysisFile,
    subsystems: subsystems::SubsystemsFile,
    protocols: protocols::ProtocolsFile,
    transactions: transactions::TransactionsFile,
    export: export::ExportFile,
    hindsight: hindsight::HindsightFile,
    runtimes: RuntimesFile,
    tls: TlsFile,
    relay: hosts::RelayFile,
    classes: ClassesFile,
    limits: limits::LimitsFile,
    priority: limits::PriorityFile,
    watchdog: limits::WatchdogFile,
    class: Vec<class_rules::RuleFile>,
    service: Vec<services::ServiceFile>,
    transaction: Vec<declared::TransactionFile>,
    instrument: instrument::InstrumentFile,
    exceptions: exceptions::ExceptionsFile,
    logs: logs::LogsFile,
    service_class: Vec<service_class::ServiceClassFile>,
    fleet: policies::FleetFile,
    enforcement: enforcement::EnforcementFile,
    dimension: Vec<dimensions::DimensionFile>,
}

/// `true`, `false` or `"auto"`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
enum WakersFile {
    Everywhere(bool),
    Word(WakersWord),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WakersWord {
    Auto,
}

/// When wakes are watched, by the file.
fn watch_wakes(file: Option<WakersFile>) -> WatchWakes {
    match file {
        None | Some(WakersFile::Word(WakersWord::Auto)) => WatchWakes::OnDemand,
        Some(WakersFile::Everywhere(true)) => WatchWakes::Always,
        Some(WakersFile::Everywhere(false)) => WatchWakes::Never,
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RuntimesFile {
    tokio_wakers: Option<WakersFile>,
    go_ready: Option<WakersFile>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TlsFile {
    libraries: Option<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ClassesFile {
    max_per_service: Option<Spanned<i64>>,
    learn_after: Option<Spanned<i64>>,
}

/// The checked configuration, in the order of `config/tracer.toml`.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The agent itself: its address, and what it traces.
    pub agent: Agent,
    /// Stack samples, and how much detail requests have.
    pub sampling: Sampling,
    /// Hotspots that are traced as functions without being declared.
    pub instrument: instrumentation::Settings,
    /// Exceptions that end requests.
    pub exceptions: ExceptionSettings,
    /// Log lines beside the requests that they were written for.
    pub logs: LogSettings,
    /// How stacks are shown.
    pub profiles: Profiles,
    /// Books of databases.
    pub subsystems: Subsystems,
    /// Protocols that are recognised by port.
    pub protocols: Protocols,
    /// Finished spans.
    pub transactions: Transactions,
    /// Which transactions are exported.
    pub export: TailSamplingSettings,
    /// Recordings of the last seconds.
    pub hindsight: HindsightSettings,
    /// Windows of cost, and their files.
    pub history: History,
    /// When a change between windows is a finding, and where findings are posted.
    pub analysis: Analysis,
    /// Costly opt-in probes of runtimes.
    pub runtimes: Extras,
    /// TLS libraries whose text is traced.
    pub tls: Libraries,
    /// Exchange of contexts with the agents of other hosts.
    pub relay: Relay,
    /// Request classes.
    pub classes: ClassConfig,
    /// What the agent may take.
    pub limits: Limits,
    /// When it comes before others.
    pub priority: Priority,
    /// Whether service classes are enforced, and with what.
    pub enforcement: Enforcement,
    /// When it is given up.
    pub watchdog: Watchdog,
    /// Policies that all hosts of a fleet take from one place.
    pub fleet: Option<policies::FleetSettings>,
    /// Rules that name services.
    pub services: NamingRules,
    /// Declared dimensions of requests, in the order of the file.
    pub dimensions: Arc<[Dimension]>,
    /// Declared transactions, in the order of the file.
    pub declared: Arc<[Declared]>,
    /// Service classes.
    pub service_classes: Arc<ServiceClasses>,
}

/// Longest configuration file, bytes.
const FILE: u64 = 1 << 20;

impl Config {
    /// Checks `text`; `path` is for messages.
    pub fn parse(path: &str, text: &str) -> Result<Self, ConfigError> {
        let source = Source { path, text };
        let file: File = toml::from_str(text)
            .map_err(|error| source.wrong(&error.span().unwrap_or(0..0), error.message().to_owned()))?;
        let mut config = Self::default();
        file.agent.apply(&source, &mut config.agent)?;
        config.relay = Relay::check(&source, file.relay)?;
        file.protocols.apply(&source, &mut config.protocols)?;
        file.sampling.apply(&source, &mut config.sampling)?;
        config.profiles = file.profiles.check(&source)?;
        file.history.apply(&source, &mut config.history)?;
        config.analysis = file.analysis.check(&source, config.history.window)?;
        config.subsystems = file.subsystems.check(&source)?;
        file.transactions.apply(&source, &mut config.transactions)?;
        file.export.apply(&source, &mut config.export)?;
        file.hindsight.apply(&source, &mut config.hindsight)?;
        let RuntimesFile { tokio_wakers, go_ready } = file.runtimes;
        config.runtimes = Extras { tokio_wakers: watch_wakes(tokio_wakers), go_ready: watch_wakes(go_ready) };
        if let Some(names) = &file.tls.libraries {
            config.tls = Libraries::parse(names.get_ref()).map_err(|what| source.wrong(&names.span(), what))?;
        }
        if let Some(max) = &file.classes.max_per_service {
            config.classes.max_per_service = source.number(max, 10..10_001)?;
        }
        if let Some(learn) = &file.classes.learn_after {
            config.classes.learn_after = source.number(learn, 2..10_001)?;
        }
        file.limits.apply(&source, &mut config.limits)?;
        file.priority.apply(&source, &mut config.priority)?;
        file.watchdog.apply(&source, &mut config.watchdog)?;
        for rule in &file.class {
            config.classes.rules.push(class_rules::check(&source, rule)?);
        }
        config.declared = declared::check(&source, file.transaction)?;
        config.dimensions = dimensions::check(&source, &file.dimension)?;
        config.instrument = file.instrument.check(&source)?;
        config.exceptions = file.exceptions.check(&source)?;
        config.logs = file.logs.check(&source)?;
        config.service_classes = Arc::new(service_class::check(&source, file.service_class, &file.class)?);
        file.fleet.apply(&source, &mut config)?;
        config.services = services::check(&source, file.service)?;
        file.enforcement.apply(&source, &mut config.enforcement)?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The reference shipped with the source is a valid file, and says the defaults.
    #[test]
    fn the_reference_is_valid() {
        let config = Config::parse("tracer.toml", include_str!("../../config/tracer.toml")).unwrap();
        let default = Config::default();
        assert_eq!(config.agent.listen, default.agent.listen);
        assert_eq!(
            (config.sampling.hertz, config.sampling.overhead_budget),
            (default.sampling.hertz, default.sampling.overhead_budget)
        );
        assert_eq!(
            (&config.protocols.timed_ports, &config.protocols.dns_ports),
            (&default.protocols.timed_ports, &default.protocols.dns_ports)
        );
        assert_eq!((&config.transactions, &config.export), (&default.transactions, &default.export));
        assert_eq!((&config.relay, config.agent.own_netns), (&default.relay, default.agent.own_netns));
        assert_eq!(config.tls, default.tls);
        assert_eq!(config.classes.max_per_service, default.classes.max_per_service);
        assert_eq!(config.classes.learn_after, default.classes.learn_after);
        assert_eq!((config.limits.ceilings, config.watchdog.stall), (default.limits.ceilings, default.watchdog.stall));
        assert_eq!(config.limits.max_recording, default.limits.max_recording);
        assert_eq!((config.priority.nice, config.priority.oom_score_adj), (default.priority.nice, Some(OOM_SCORE_ADJ)));
    }

    #[test]
    fn errors_say_where_and_what() {
        for (text, expected) in [
            ("[agent]\nlisten = \"nowhere\"\n", "t.toml:2:10: expected an address"),
            ("[agent]\nlistn = 1\n", "t.toml:2:1: unknown field `listn`"),
            ("[sampling]\nhertz = 100000\n", "t.toml:2:9: 100000 is out of range: expected 0 to 10000"),
            ("[sampling]\nhertz = \"x\"\n", "t.toml:2:9: invalid type"),
            ("[sampling]\npython = \"x\"\n", "t.toml:2:10: expected \"functions\""),
            ("[sampling]\nphp = \"x\"\n", "t.toml:2:7: expected \"functions\""),
            ("[sampling]\njavascript = \"lines\"\n", "t.toml:2:14: expected \"functions\" or \"off\""),
            ("[sampling]\njava = \"functions\"\n", "t.toml:2:8: expected \"methods\" or \"off\""),
            ("[[class]]\nname = \"a\"\npath = \"b\"\n", "t.toml:3:8: bad path pattern: expected"),
            ("[[class]]\nname = \"a\"\nstatus = [\"6x\"]\n", "t.toml:3:11: expected a status"),
            ("[[service]]\nname = \"a\"\n", "t.toml:2:8: a [[service]] needs"),
            ("[protocols]\ndns_ports = [53, 54, 55]\n", "t.toml:2:13: expected ports"),
            ("[protocols]\ntimed_ports = [0]\n", "t.toml:2:15: expected ports"),
            ("[tls]\nlibraries = \"jsse\"\n", "t.toml:2:13: 'jsse' is no choice of TLS libraries"),
            ("[relay]\nlisten = \"here\"\n", "t.toml:2:10: expected an address"),
            ("[relay]\npeers = [\"db1\"]\n", "t.toml:2:10: expected a host and a port"),
            ("[relay]\nnats = \"bus\"\n", "t.toml:2:8: expected a NATS server"),
            ("[relay]\ntranslated = [\"10.0.0.0/33\"]\n", "t.toml:2:15: expected an address or a network"),
            ("[relay]\naddresses = { db1 = [] }\n", "t.toml:2:15: expected an address or a network"),
            ("[relay]\nport = 0\n", "t.toml:2:8: 0 is out of range"),
            ("[transactions]\nhandover = \"61s\"\n", "t.toml:2:12: expected a time"),
            ("[transactions]\nmax_size = \"0M\"\n", "t.toml:2:12: expected at least 1M"),
            ("[transactions]\ngrace = \"1y\"\n", "t.toml:2:9: expected a time"),
            ("[limits]\nmax_memory = \"1k\"\n", "t.toml:2:14: '1k' is no amount of memory: expected"),
            ("[limits]\nmax_memory = \"10M\"\n", "t.toml:2:14: '10M' is too little"),
            ("[limits]\nmax_cpu = \"0%\"\n", "t.toml:2:11: '0%' is no share of a core: expected"),
            ("[watchdog]\nstall = \"1s\"\n", "t.toml:2:9: expected a time from 2s to 3600s"),
            ("[priority]\nnice = 20\n", "t.toml:2:8: 20 is out of range: expected -20 to 19"),
            ("a = [", "t.toml:1:"),
        ] {
            let error = Config::parse("t.toml", text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn rules_are_read() {
        let text = r#"
            [[class]]
            name = "checkout"
            service = "shop*"
            method = ["POST"]
            path = "/checkout/**"
            header = { name = "X-Tenant", value = "a*" }
            status = ["5xx", "404", "200-299"]
        "#;
        let config = Config::parse("t", text).unwrap();
        assert_eq!(config.classes.rules[0].status, [(500, 599), (404, 404), (200, 299)]);
        assert_eq!(config.classes.header_names(), ["x-tenant".into()]);
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "[\\[\\]a-z=\"0-9\n {},.]{0,200}") {
            let _ = Config::parse("t", &text);
        }
    }
}
