//! The configuration that the agent runs with: the file, and the command line's options over it.

use tracer_host::process;

use super::Failure;
use crate::cli::AgentOptions;
use crate::config::{Config, ConfigError, Sections};

/// Reads the configuration, if there is a file, and puts the options in the place of what it says.
pub(super) fn configure(options: &AgentOptions) -> Result<(Config, Sections), Failure> {
    let (mut config, sections) = match &options.config {
        Some(path) => Config::load_sections(path).or_else(|error| match error {
            // Without what all hosts share, this one is still traced.
            ConfigError::Policies(_) => {
                eprintln!("tracer: {error}; starting without them");
                Config::load_with(path, None)
            }
            error => Err(error),
        })?,
        None => (Config::default(), Sections::default()),
    };
    if let Some(listen) = options.listen {
        config.agent.listen = listen;
    }
    if let Some(libraries) = &options.tls {
        config.tls = libraries.clone();
    }
    if let Some(file) = &options.token_file {
        config.agent.token_file = Some(file.clone());
    }
    if let Some(listen) = options.relay {
        config.relay.listen = Some(listen);
    }
    if !options.relay_peer.is_empty() {
        config.relay.peers.clone_from(&options.relay_peer);
    }
    let relay = &mut config.relay;
    if options.relay_nats.is_some() {
        relay.nats.clone_from(&options.relay_nats);
    }
    for (given, file) in [
        (&options.relay_key, &mut relay.key_file),
        (&options.relay_cert, &mut relay.cert_file),
        (&options.relay_cert_key, &mut relay.cert_key_file),
        (&options.relay_ca, &mut relay.ca_file),
    ] {
        if given.is_some() {
            file.clone_from(given);
        }
    }
    config.enforcement.mode = options.enforce;
    config.agent.own_netns |= options.own_netns;
    config.relay.tcp_option |= options.inband_tcp_option;
    if !options.inband_header.is_empty() {
        config.relay.headers.clone_from(&options.inband_header);
    }
    if let Some(dir) = &options.save_transactions {
        config.transactions.save = Some(dir.clone());
    }
    if options.history.is_some() {
        config.history.place.clone_from(&options.history);
    }
    if let Some(memory) = options.max_memory {
        config.limits.ceilings.memory = memory;
    }
    if let Some(cpu) = options.max_cpu {
        config.limits.ceilings.cpu = cpu;
    }
    if let Some(nice) = options.nice {
        config.priority.nice = nice;
    }
    if let Some(hertz) = options.hertz {
        config.sampling.hertz = hertz;
    }
    if let Some(detail) = options.detail {
        config.sampling.detail = detail;
    }
    if let Some(budget) = options.overhead_budget {
        config.sampling.overhead_budget = budget;
    }
    let narrow = &options.narrow;
    if !narrow.service.is_empty() {
        config.agent.only_services.clone_from(&narrow.service);
    }
    if !narrow.pid.is_empty() {
        config.agent.only_pids.clone_from(&narrow.pid);
    }
    if !narrow.port.is_empty() {
        config.agent.only_ports.clone_from(&narrow.port);
    }
    for pid in &config.agent.only_pids {
        process::check(*pid).map_err(Failure::Usage)?;
    }
    Ok((config, sections))
}
