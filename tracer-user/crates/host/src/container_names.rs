//! Names of containers from the state files of their engines: what a cgroup's path does not tell.
//!
//! Only files of the engines are read, which root alone writes, a bounded part of each. Reading may wait for a disk, so no
//! thread that traces may do it.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::container::Container;

/// Most bytes read of a state file.
const FILE: u64 = 1 << 20;
/// Most bytes read of Podman's list of all containers.
const LIST: u64 = 8 << 20;
/// Containers whose names are remembered; all are forgotten beyond it, and read again.
const NAMES: usize = 4_096;
/// Limit for reading the names of one container: a disk that hangs must stop no export and no answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest name, bytes.
const NAME: usize = 256;

/// What an engine calls a container. Empty: it does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerNames {
    /// The container: in Kubernetes its name within the pod.
    pub name: String,
    /// Name of its image.
    pub image: String,
    /// Name of the pod.
    pub pod: String,
    /// Namespace of the pod.
    pub namespace: String,
}

impl ContainerNames {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Reads the names of a container from the state files below `root`, which is `/` except in tests; `None` if no engine
/// knows it.
pub fn read(root: &Path, container: &Container) -> Option<ContainerNames> {
    let id = &container.id;
    let json = |path: &str, most| serde_json::from_slice::<Value>(&bytes(&root.join(path), most)?).ok();
    let task = |namespace: &str| format!("run/containerd/io.containerd.runtime.v2.task/{namespace}/{id}/config.json");
    let bundle = |base: &str| format!("{base}/containers/storage/overlay-containers/{id}/userdata/config.json");
    let docker =
        || json(&format!("var/lib/docker/containers/{id}/config.v2.json"), FILE).map(|state| of_docker(&state));
    let runtime = || {
        let paths = [task("k8s.io"), task("default"), bundle("run"), bundle("var/lib")];
        paths.iter().filter_map(|path| json(path, FILE)).map(|state| of_bundle(&state)).find(|names| !names.is_empty())
    };
    let podman = || of_podman(&json("var/lib/containers/storage/overlay-containers/containers.json", LIST)?, id);
    docker().filter(|names| !names.is_empty()).or_else(runtime).or_else(podman)
}

/// A regular file's first bytes: whole, or not at all.
fn bytes(path: &Path, most: u64) -> Option<Vec<u8>> {
    let file = File::open(path).ok()?;
    let about = file.metadata().ok()?;
    if !about.is_file() || about.len() > most {
        return None;
    }
    let mut out = Vec::new();
    file.take(most).read_to_end(&mut out).ok()?;
    Some(out)
}

fn bounded(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    let end = (0..=text.len().min(NAME)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.get(..end).unwrap_or_default().to_owned()
}

/// The first of these members that is a text.
fn first(of: &Value, keys: &[&str]) -> String {
    keys.iter().map(|key| bounded(&of[*key])).find(|text| !text.is_empty()).unwrap_or_default()
}

/// Docker's `config.v2.json`.
fn of_docker(state: &Value) -> ContainerNames {
    let labels = &state["Config"]["Labels"];
    let in_pod = first(labels, &["io.kubernetes.container.name"]);
    let name = bounded(&state["Name"]).trim_start_matches('/').to_owned();
    ContainerNames {
        name: if in_pod.is_empty() { name } else { in_pod },
        image: bounded(&state["Config"]["Image"]),
        pod: first(labels, &["io.kubernetes.pod.name"]),
        namespace: first(labels, &["io.kubernetes.pod.namespace"]),
    }
}

/// The annotations of an OCI bundle, as containerd's CRI, CRI-O and nerdctl write them.
fn of_bundle(state: &Value) -> ContainerNames {
    let notes = &state["annotations"];
    ContainerNames {
        name: first(notes, &["io.kubernetes.cri.container-name", "io.kubernetes.container.name", "nerdctl/name"]),
        image: first(notes, &["io.kubernetes.cri.image-name", "io.kubernetes.cri-o.ImageName", "nerdctl/image-name"]),
        pod: first(notes, &["io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"]),
        namespace: first(notes, &["io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"]),
    }
}

/// Podman's list of containers.
fn of_podman(list: &Value, id: &str) -> Option<ContainerNames> {
    let container = list.as_array()?.iter().find(|container| container["id"] == id)?;
    // A document in a text.
    let about: Value = serde_json::from_str(container["metadata"].as_str().unwrap_or_default()).unwrap_or_default();
    let name = bounded(&container["names"][0]);
    let name = if name.is_empty() { bounded(&about["name"]) } else { name };
    let names = ContainerNames { name, image: bounded(&about["image-name"]), ..ContainerNames::default() };
    Some(names).filter(|names| !names.is_empty())
}

/// Names of containers, read once each.
#[derive(Debug, Default)]
pub struct NamesCache(HashMap<String, Option<ContainerNames>>);

impl NamesCache {
    /// Reads the names of those containers that are new, on a thread that may wait for a disk.
    pub async fn learn(&mut self, containers: impl Iterator<Item = Arc<Container>>) {
        for container in containers {
            if self.0.contains_key(&container.id) {
                continue;
            }
            if self.0.len() >= NAMES {
                self.0.clear();
            }
            let id = container.id.clone();
            let read = tokio::task::spawn_blocking(move || read(Path::new("/"), &container));
            let names = tokio::time::timeout(PATIENCE, read).await.ok().and_then(Result::ok).flatten();
            self.0.insert(id, names);
        }
    }

    /// The names of a container, if its engine records them.
    pub fn get(&self, container: &Container) -> Option<&ContainerNames> {
        self.0.get(&container.id)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f1c5d0a9be84c27a1d2e3f405162738495a6b7c8d9e0f1a2b3c4d5e6f708192";

    fn container() -> Container {
        Container { id: ID.into(), runtime: "", pod_uid: None }
    }

    #[track_caller]
    fn names_of(path: &str, content: &str) -> Option<[String; 4]> {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(path.replace("ID", ID));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content.replace("ID", ID)).unwrap();
        read(root.path(), &container()).map(|names| [names.name, names.image, names.pod, names.namespace])
    }

    #[test]
    fn state_files_of_engines() {
        for (path, content, expected) in [
            (
                "var/lib/docker/containers/ID/config.v2.json",
                r#"{"ID":"ID","Name":"/web","Config":{"Image":"nginx:1.25","Labels":{"a":"b"}}}"#,
                ["web", "nginx:1.25", "", ""],
            ),
            (
                "var/lib/docker/containers/ID/config.v2.json",
                r#"{"Name":"/k8s_app_shop-1","Config":{"Image":"sha256:1","Labels":{"io.kubernetes.container.name":"app","io.kubernetes.pod.name":"shop-1","io.kubernetes.pod.namespace":"prod"}}}"#,
                ["app", "sha256:1", "shop-1", "prod"],
            ),
            (
                "run/containerd/io.containerd.runtime.v2.task/k8s.io/ID/config.json",
                r#"{"ociVersion":"1.1.0","annotations":{"io.kubernetes.cri.container-name":"app","io.kubernetes.cri.container-type":"container","io.kubernetes.cri.image-name":"docker.io/library/shop:2","io.kubernetes.cri.sandbox-name":"shop-7d4b9c-x2x","io.kubernetes.cri.sandbox-namespace":"prod"}}"#,
                ["app", "docker.io/library/shop:2", "shop-7d4b9c-x2x", "prod"],
            ),
            (
                "run/containerd/io.containerd.runtime.v2.task/default/ID/config.json",
                r#"{"annotations":{"nerdctl/name":"cache","nerdctl/namespace":"default"}}"#,
                ["cache", "", "", ""],
            ),
            (
                "run/containers/storage/overlay-containers/ID/userdata/config.json",
                r#"{"annotations":{"io.kubernetes.container.name":"app","io.kubernetes.pod.name":"shop-0","io.kubernetes.pod.namespace":"test","io.kubernetes.cri-o.ImageName":"quay.io/shop:3"}}"#,
                ["app", "quay.io/shop:3", "shop-0", "test"],
            ),
            (
                "var/lib/containers/storage/overlay-containers/containers.json",
                r#"[{"id":"x"},{"id":"ID","names":["db"],"metadata":"{\"image-name\":\"docker.io/library/postgres:16\",\"name\":\"db\"}"}]"#,
                ["db", "docker.io/library/postgres:16", "", ""],
            ),
        ] {
            assert_eq!(names_of(path, content), Some(expected.map(str::to_owned)), "{path}");
        }
    }

    #[test]
    fn what_is_no_state_names_nothing() {
        for content in ["", "{", "[]", "[1]", "null", r#"{"annotations":3}"#, r#"[{"id":"ID","names":{}}]"#] {
            for path in [
                "var/lib/docker/containers/ID/config.v2.json",
                "run/containers/storage/overlay-containers/ID/userdata/config.json",
                "var/lib/containers/storage/overlay-containers/containers.json",
            ] {
                assert_eq!(names_of(path, content), None, "{path}: {content}");
            }
        }
        assert_eq!(names_of("elsewhere", "{}"), None);
    }

    #[test]
    fn long_names_are_cut_and_long_files_are_not_read() {
        let long = "ä".repeat(1000);
        let content = format!(r#"{{"Name":"/{long}"}}"#);
        let [name, ..] = names_of("var/lib/docker/containers/ID/config.v2.json", &content).unwrap();
        assert!(name.len() <= NAME && name.len() > NAME - 3, "{}", name.len());
        let content = format!(r#"{{"Name":"/a"{}}}"#, " ".repeat(FILE as usize));
        assert_eq!(names_of("var/lib/docker/containers/ID/config.v2.json", &content), None);
    }
}
