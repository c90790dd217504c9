//! The resource of a span or a profile: the process that served it, its container and its host.

use tracer_host::container_names::ContainerNames;
use tracer_host::instance::Instance;
use tracer_model::text::printable;

use super::proto::{KeyValue, Resource, Value};

/// A process as a resource: an instance of `service`. `more` are configured attributes, which do not override detected ones.
pub(super) fn process_resource(
    process: &Instance,
    service: &str,
    host: &HostFacts,
    names: Option<&ContainerNames>,
    more: &[(String, String)],
) -> Resource {
    let mut attributes = vec![KeyValue::text("service.name", service)];
    attributes.extend(process_attributes(process, host, names));
    for (key, value) in more {
        if attributes.iter().all(|known| known.key != *key) {
            attributes.push(KeyValue::text(key, value));
        }
    }
    Resource { attributes }
}

/// A process's attributes beside its service's name. `service.instance.id` is the same for the life of the process, and no
/// other process of any host has it.
fn process_attributes(process: &Instance, host: &HostFacts, names: Option<&ContainerNames>) -> Vec<KeyValue> {
    let mut all = vec![
        KeyValue::text("service.instance.id", format!("{}/{}@{}", host.id(), process.pid, process.start_time)),
        KeyValue::of("process.pid", Value::Int(i64::from(process.pid))),
    ];
    all.extend(host.attributes());
    if let Some(name) = process.exe.rsplit('/').next().filter(|name| !name.is_empty()) {
        all.push(KeyValue::text("process.executable.name", printable(name)));
        all.push(KeyValue::text("process.executable.path", printable(&process.exe)));
    }
    if let Some(container) = &process.container {
        all.push(KeyValue::text("container.id", &*container.id));
        if !container.runtime.is_empty() {
            all.push(KeyValue::text("container.runtime.name", container.runtime));
        }
        if let Some(uid) = &container.pod_uid {
            all.push(KeyValue::text("k8s.pod.uid", &**uid));
        }
    }
    if let Some(names) = names {
        // In a pod the name is that within the pod.
        let in_pod = !names.pod.is_empty();
        for (key, value) in [
            (if in_pod { "k8s.container.name" } else { "container.name" }, &names.name),
            ("container.image.name", &names.image),
            ("k8s.pod.name", &names.pod),
            ("k8s.namespace.name", &names.namespace),
        ] {
            if !value.is_empty() {
                all.push(KeyValue::text(key, printable(value)));
            }
        }
    }
    all
}

/// The processor's name in the conventions.
fn host_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// What is known of this host.
#[derive(Clone, Debug)]
pub(super) struct HostFacts {
    pub(super) name: String,
    /// `/etc/machine-id`, if it has one.
    pub(super) machine: Option<String>,
}

impl HostFacts {
    pub(super) fn read(name: &str) -> Self {
        let machine = std::fs::read_to_string("/etc/machine-id").ok();
        let machine = machine.map(|id| id.trim().to_owned());
        Self {
            name: name.to_owned(),
            machine: machine.filter(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())),
        }
    }

    /// What every resource of this host has.
    pub(super) fn attributes(&self) -> Vec<KeyValue> {
        let mut all = vec![
            KeyValue::text("host.name", &*self.name),
            KeyValue::text("os.type", "linux"),
            KeyValue::text("host.arch", host_arch()),
            // The agent saw it: there is no SDK in the process, and its language says nothing about the service.
            KeyValue::text("telemetry.sdk.name", "tracer"),
            KeyValue::text("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
        ];
        if let Some(id) = &self.machine {
            all.push(KeyValue::text("host.id", &**id));
        }
        all
    }

    /// What distinguishes this host from others: its name alone where it has no id.
    pub(super) fn id(&self) -> &str {
        self.machine.as_deref().unwrap_or(&self.name)
    }
}
