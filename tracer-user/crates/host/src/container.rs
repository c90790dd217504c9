//! Which container a process runs in, by the path of its cgroup. Pure; total: any text.
//!
//! Container engines name the cgroup after the container: Docker, containerd and CRI-O (with Kubernetes or without), Podman,
//! with systemd as manager of cgroups (`docker-ID.scope`) or without (`/docker/ID`), in cgroup v1 and v2. Kubernetes puts the
//! pod's UID above it.

/// Deepest path that is read.
const DEPTH: usize = 64;

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Container {
    /// Its id: 64 hexadecimal digits.
    pub id: String,
    /// The engine, if the path names it: `docker`, `containerd`, `cri-o`, `podman`; else empty.
    pub runtime: &'static str,
    /// UID of its pod in Kubernetes.
    pub pod_uid: Option<String>,
}

/// Beginnings of scopes, and their engines. Longer ones first: a monitor's scope is no container.
const SCOPES: [(&str, &str); 7] = [
    ("cri-containerd-", "containerd"),
    ("crio-", "cri-o"),
    ("libpod-payload-", "podman"),
    ("libpod-", "podman"),
    ("docker-", "docker"),
    ("nerdctl-", "containerd"),
    ("containerd-", "containerd"),
];

/// The innermost container of a cgroup path; `None` on the host itself.
pub fn of_cgroup(path: &str) -> Option<Container> {
    let (mut found, mut pod, mut parent) = (None, None, "");
    for part in path.split('/').take(DEPTH) {
        if let Some(uid) = pod_uid(part) {
            pod = Some(uid);
        }
        if let Some((id, runtime)) = container(part, parent) {
            found = Some((id, runtime, pod.clone()));
        }
        parent = part;
    }
    let (id, runtime, pod_uid) = found?;
    Some(Container { id: id.to_owned(), runtime, pod_uid })
}

/// The container id of one part of a path, and its engine.
fn container<'a>(part: &'a str, parent: &str) -> Option<(&'a str, &'static str)> {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    if is_id(name) {
        let runtime = match parent {
            "docker" => "docker",
            "libpod_parent" => "podman",
            _ => "",
        };
        return Some((name, runtime));
    }
    // containerd's own driver within systemd's slices: `SLICE:cri-containerd:ID`.
    if let Some((_, rest)) = name.split_once(".slice:") {
        let (engine, id) = rest.split_once(':')?;
        let runtime = match engine {
            "cri-containerd" | "containerd" => "containerd",
            "crio" => "cri-o",
            "docker" => "docker",
            _ => "",
        };
        return is_id(id).then_some((id, runtime));
    }
    let (id, runtime) = SCOPES.iter().find_map(|(start, runtime)| Some((name.strip_prefix(start)?, *runtime)))?;
    is_id(id).then_some((id, runtime))
}

fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The UID in `podUID`, `kubepods-besteffort-podUID.slice` (with `_` for `-`), or of a static pod (32 digits).
fn pod_uid(part: &str) -> Option<String> {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    // `SLICE:ENGINE:ID` is a container of that slice's pod.
    let name = name.split_once(".slice:").map_or(name, |(slice, _)| slice);
    let uid = match name.rfind("-pod") {
        Some(at) if name.contains("kubepods") => name.get(at + 4..)?,
        _ => name.strip_prefix("pod")?,
    };
    let uid = uid.replace('_', "-");
    let digits = uid.bytes().filter(u8::is_ascii_hexdigit).count();
    let dashes = uid.bytes().filter(|byte| *byte == b'-').count();
    let right = digits == 32 && digits + dashes == uid.len() && matches!(dashes, 0 | 4);
    right.then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f1c5d0a9be84c27a1d2e3f405162738495a6b7c8d9e0f1a2b3c4d5e6f708192";
    const OTHER: &str = "0000000000000000000000000000000000000000000000000000000000000001";
    const POD: &str = "2b801b7a-5266-4386-864e-45ed71136371";

    /// Paths as engines make them; `ID`, `OTHER`, `POD` and `P_D` (with underscores) stand for the above.
    const FIXTURES: &[(&str, Option<(&str, bool)>)] = &[
        // Docker: cgroupfs, systemd; rootless.
        ("/docker/ID", Some(("docker", false))),
        ("/system.slice/docker-ID.scope", Some(("docker", false))),
        ("/user.slice/user-1000.slice/user@1000.service/user.slice/docker-ID.scope", Some(("docker", false))),
        ("/docker/ID/init.scope", Some(("docker", false))),
        ("/docker/buildx/docker-ID.scope", Some(("docker", false))),
        // Seen from within another cgroup namespace.
        ("/../../system.slice/docker-ID.scope", Some(("docker", false))),
        ("/../../kubepods-burstable-podP_D.slice/cri-containerd-ID.scope", Some(("containerd", true))),
        ("/../../../kubepods-podP_D.slice/crio-ID.scope", Some(("cri-o", true))),
        ("/../../podPOD/ID", Some(("", true))),
        // Another container of the agent's own pod.
        ("/../cri-containerd-ID.scope", Some(("containerd", false))),
        // containerd and CRI-O under Kubernetes: cgroupfs, systemd, and both at once.
        ("/kubepods/burstable/podPOD/ID", Some(("", true))),
        ("/kubepods/podPOD/ID", Some(("", true))),
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podP_D.slice/cri-containerd-ID.scope",
            Some(("containerd", true)),
        ),
        ("/kubepods.slice/kubepods-podP_D.slice/crio-ID.scope", Some(("cri-o", true))),
        (
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podP_D.slice/docker-ID.scope",
            Some(("docker", true)),
        ),
        (
            "/system.slice/containerd.service/kubepods-burstable-podP_D.slice:cri-containerd:ID",
            Some(("containerd", true)),
        ),
        ("/kubepods.slice/kubepods-podP_D.slice/crio-conmon-ID.scope", None),
        // A cluster in containers: the innermost counts.
        (
            "/docker/OTHER/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-podP_D.slice/cri-containerd-ID.scope",
            Some(("containerd", true)),
        ),
        ("/docker/OTHER/kubelet/kubepods/besteffort/podPOD/ID", Some(("", true))),
        // containerd without Kubernetes.
        ("/system.slice/nerdctl-ID.scope", Some(("containerd", false))),
        ("/default/ID", Some(("", false))),
        // Podman: root, rootless, cgroupfs; its monitor is no container.
        ("/machine.slice/libpod-ID.scope/container", Some(("podman", false))),
        ("/machine.slice/libpod-ID.scope", Some(("podman", false))),
        ("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope/container", Some(("podman", false))),
        ("/libpod_parent/libpod-ID", Some(("podman", false))),
        ("/libpod_parent/ID", Some(("podman", false))),
        ("/machine.slice/libpod-conmon-ID.scope", None),
        // Amazon's.
        ("/ecs/0f8a1b2c3d4e5f60718293a4b5c6d7e8/ID", Some(("", false))),
        // No containers.
        ("", None),
        ("/", None),
        ("/system.slice/nginx.service", None),
        ("/user.slice/user-1000.slice/session-3.scope", None),
        ("/system.slice/docker.service", None),
        ("/system.slice/docker-3f1c.scope", None),
        ("/kubepods.slice/kubepods-podP_D.slice", None),
        ("/system.slice/podman-pod-name.service", None),
    ];

    #[test]
    fn paths_of_container_engines() {
        for (path, expected) in FIXTURES {
            let path = path.replace("P_D", &POD.replace('-', "_")).replace("POD", POD);
            let path = path.replace("OTHER", OTHER).replace("ID", ID);
            let expected = expected.map(|(runtime, in_pod)| Container {
                id: ID.to_owned(),
                runtime,
                pod_uid: in_pod.then(|| POD.to_owned()),
            });
            assert_eq!(of_cgroup(&path), expected, "{path}");
        }
    }

    #[test]
    fn a_static_pods_uid_has_no_dashes() {
        let uid = "5dbf4c3a2e1d0f9b8a7c6d5e4f302112";
        let path = format!("/kubepods/burstable/pod{uid}/{ID}");
        assert_eq!(of_cgroup(&path).and_then(|found| found.pod_uid).as_deref(), Some(uid));
    }

    proptest::proptest! {
        #[test]
        fn never_panics_on_arbitrary_input(path in ".{0,300}") {
            let _ = of_cgroup(&path);
        }

        #[test]
        fn never_panics_on_words_of_paths(parts in proptest::collection::vec("(pod|kubepods|-|_|ä|[.]slice|:|libpod-|docker-|[0-9a-f]{64}|/){0,6}", 0..8)) {
            let _ = of_cgroup(&parts.join("/"));
        }
    }
}
