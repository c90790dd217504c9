//! How the eBPF object is built. No other file knows.
//!
//! Two ways work, both from source. Debian ships a compiler with a prebuilt core for `bpfel-unknown-none`, which needs
//! neither a nightly nor `build-std`; everywhere else a rustup nightly builds core itself. Both link with bpf-linker,
//! whose LLVM must be able to read the compiler's bitcode: a trial link checks that instead of guessing from versions.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::packages::{self, Need};
use crate::shell::{self, Root};

const TARGET: &str = "bpfel-unknown-none";
/// Debian's compiler by its full path: a rustup earlier in PATH would pick its own toolchain, which has no core for
/// BPF.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_CARGO: &str = "/usr/bin/cargo";
/// The nightly to install if there is none: one whose LLVM is [`LLVM`], tested with this object.
const NIGHTLY: &str = "nightly-2026-06-15";
const LINKER_VERSION: &str = "0.13.0";
/// The LLVM that bpf-linker is built against; the newest in Debian 12, and what its compiler uses.
const LLVM: &str = "22";

/// A way to build the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// Debian's packages rustc-web, cargo-web, libstd-rust-web-dev-bpf.
    Debian,
    /// A nightly of rustup with rust-src.
    Nightly,
}

/// `cargo xtask build-ebpf`.
#[derive(Args)]
pub(crate) struct Options {
    /// Processor of the machine to be traced; this machine's if omitted.
    #[arg(long, value_parser = ["x86_64", "aarch64"])]
    arch: Option<String>,
}

/// A usable compiler.
#[derive(Debug)]
enum Compiler {
    Debian,
    /// The toolchain's name in rustup.
    Nightly(String),
}

/// Builds the object; for this machine's processor puts it where `tracer-user/crates/kernel/build.rs` looks.
pub(crate) fn run(way: Option<Way>, options: &Options) -> Result<()> {
    ready(way)?;
    match options.arch.as_deref() {
        Some(arch) if arch != env::consts::ARCH => {
            let object = compile(way, arch)?;
            shell::print(format!("{} (for {arch}; not embedded here)", object.display()));
        }
        _ => shell::print(install(way)?.display()),
    }
    Ok(())
}

/// Makes sure the object can be built: installs what is missing, reports what it uses and why.
pub(crate) fn ready(way: Option<Way>) -> Result<()> {
    let (compiler, why) = match present(way) {
        Some(found) => found,
        None => obtain(way)?,
    };
    let linker = match linker(&compiler) {
        Some(linker) => linker,
        None => obtain_linker(&compiler)?,
    };
    shell::progress(format!("eBPF toolchain: {} with {}, because {why}", compiler.name(), linker.display()));
    Ok(())
}

/// Builds the object for this machine and puts it at `target/ebpf/tracer.bpf.o`.
pub(crate) fn install(way: Option<Way>) -> Result<PathBuf> {
    let built = compile(way, env::consts::ARCH)?;
    let dir = shell::target_dir()?.join("ebpf");
    let object = dir.join("tracer.bpf.o");
    let bytes = fs::read(&built).with_context(|| format!("cannot read the object just built, {}", built.display()))?;
    // An unchanged file keeps its date, so that cargo does not build `tracer` again.
    if fs::read(&object).is_ok_and(|old| old == bytes) {
        return Ok(object);
    }
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    fs::write(&object, bytes).with_context(|| format!("cannot write {}", object.display()))?;
    Ok(object)
}

/// Compiles the object for a traced machine's processor; needs [`ready`].
pub(crate) fn compile(way: Option<Way>, arch: &str) -> Result<PathBuf> {
    let dir = cargo(way, arch, "build")?.join(TARGET).join("release");
    let (whole, object) = (dir.join("tracer"), dir.join("tracer.bpf.o"));
    let bytes = fs::read(&whole).with_context(|| format!("cannot read the object just built, {}", whole.display()))?;
    let bytes = without_dwarf(&bytes).with_context(|| format!("{} is no object to embed", whole.display()))?;
    fs::write(&object, bytes).with_context(|| format!("cannot write {}", object.display()))?;
    Ok(object)
}

/// The object without DWARF, of which bpf-linker has made the BTF: two thirds of its bytes, which the agent would carry and copy at
/// each start.
fn without_dwarf(object: &[u8]) -> Result<Vec<u8>> {
    let mut builder = object::build::elf::Builder::read(object)?;
    for section in &mut builder.sections {
        section.delete = [b".debug".as_slice(), b".rel.debug"].iter().any(|name| section.name.starts_with(name));
    }
    builder.delete_orphans();
    // LLVM keeps the names of sections with those of symbols.
    let names = builder.sections.add();
    names.name = b".shstrtab".as_slice().into();
    names.sh_type = object::elf::SHT_STRTAB;
    names.sh_addralign = 1;
    names.data = object::build::elf::SectionData::SectionString;
    let mut bytes = Vec::new();
    builder.write(&mut bytes)?;
    Ok(bytes)
}

/// Checks that the programs compile for a traced machine's processor, which takes a fifth of the time; needs [`ready`].
pub(crate) fn check(way: Option<Way>, arch: &str) -> Result<()> {
    cargo(way, arch, "check").map(drop)
}

/// Runs this command of cargo on the programs; returns its directory.
fn cargo(way: Option<Way>, arch: &str, does: &str) -> Result<PathBuf> {
    let remedy = "run `cargo xtask setup`";
    let (compiler, _) = present(way).with_context(|| format!("no compiler for eBPF is installed; {remedy}"))?;
    let linker = linker(&compiler).with_context(|| {
        format!("no bpf-linker that can read what {} writes is installed; {remedy}", compiler.name())
    })?;
    let crate_dir = shell::root().join("tracer-ebpf");
    // One directory per compiler and processor: switching back and forth rebuilds nothing.
    let target = shell::target_dir()?.join("ebpf-build").join(format!("{}-{arch}", compiler.slug()));
    // By bpf-linker's default LLVM leaves each `memset` and `memcpy` to a function that moves byte by byte: five instructions a byte.
    let flags = format!(
        "-C linker={} -C link-arg=--btf -C link-arg=--disable-expand-memcpy-in-order -C debuginfo=2 \
         --cfg bpf_target_arch=\"{arch}\"",
        linker.to_str().filter(|path| !path.contains(' ')).context("the path of bpf-linker must not contain spaces")?
    );
    shell::progress(format!("eBPF object for {arch}: cargo {does} ({})", compiler.name()));
    let mut command = compiler.cargo();
    command.current_dir(&crate_dir).args([does, "--locked", "--release", "--target", TARGET]);
    if matches!(compiler, Compiler::Nightly(_)) {
        command.args(["-Z", "build-std=core"]);
    }
    command.arg("--target-dir").arg(&target).env("RUSTFLAGS", flags);
    shell::run(&mut command, "the compiler's own words are above")?;
    Ok(target)
}

impl Compiler {
    fn name(&self) -> String {
        match self {
            Self::Debian => {
                let version = shell::ask(DEBIAN_RUSTC, &["--version"]).unwrap_or_default();
                format!("Debian's {}", version.trim())
            }
            Self::Nightly(toolchain) => format!("rustup's {toolchain} with rust-src"),
        }
    }

    fn slug(&self) -> &str {
        match self {
            Self::Debian => "debian",
            Self::Nightly(toolchain) => toolchain,
        }
    }

    fn cargo(&self) -> Command {
        self.program(DEBIAN_CARGO, "cargo")
    }

    fn program(&self, debian: &str, name: &str) -> Command {
        let mut command = match self {
            Self::Debian => {
                let mut command = Command::new(debian);
                // aya-ebpf uses BPF assembly, which stable compilers gate.
                command.env("RUSTC", DEBIAN_RUSTC).env("RUSTC_BOOTSTRAP", "1");
                command
            }
            Self::Nightly(toolchain) => {
                let mut command = Command::new("rustup");
                command.args(["run", toolchain, name]).env_remove("RUSTC");
                command
            }
        };
        // The outer cargo's settings are for this machine, not for BPF.
        for name in ["CARGO", "RUSTUP_TOOLCHAIN", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET", "RUSTC_WRAPPER"] {
            command.env_remove(name);
        }
        shell::forget_package(&mut command);
        command
    }
}

/// An installed compiler, and why it was chosen.
fn present(way: Option<Way>) -> Option<(Compiler, String)> {
    let wanted = |candidate| way.is_none_or(|w| w == candidate);
    let asked = |reason: &str| if way.is_some() { "you asked for it".to_owned() } else { reason.to_owned() };
    if wanted(Way::Debian) && debian_has_core() {
        return Some((Compiler::Debian, asked("it is installed with a core for BPF")));
    }
    if wanted(Way::Nightly) {
        let toolchain = [NIGHTLY, "nightly"].into_iter().find(|toolchain| has_rust_src(toolchain))?;
        return Some((Compiler::Nightly(toolchain.into()), asked("it is installed, and Debian's compiler is not")));
    }
    None
}

fn debian_has_core() -> bool {
    if !Path::new(DEBIAN_CARGO).exists() {
        return false;
    }
    let Some(dir) = shell::ask(DEBIAN_RUSTC, &["--print", "target-libdir", "--target", TARGET]) else { return false };
    fs::read_dir(dir.trim())
        .is_ok_and(|files| files.flatten().any(|f| f.file_name().to_string_lossy().starts_with("libcore-")))
}

fn has_rust_src(toolchain: &str) -> bool {
    // With automatic installation on, rustup would fetch a toolchain only because we asked about it.
    let Some(installed) = shell::ask("rustup", &["toolchain", "list"]) else { return false };
    let named = |line: &str| line.strip_prefix(toolchain).is_some_and(|rest| rest.starts_with('-'));
    // `nightly` must not match `nightly-2026-…`.
    let dated =
        |line: &str| line.strip_prefix("nightly-").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if !installed.lines().any(|line| named(line) && (toolchain != "nightly" || !dated(line))) {
        return false;
    }
    shell::ask("rustup", &["run", toolchain, "rustc", "--print", "sysroot"])
        .is_some_and(|root| Path::new(root.trim()).join("lib/rustlib/src/rust/library/core").is_dir())
}

/// Installs a compiler, in the way that can work here.
fn obtain(way: Option<Way>) -> Result<(Compiler, String)> {
    let debian = match way {
        Some(Way::Nightly) => Err("you asked for the other".to_owned()),
        _ => debian_possible(),
    };
    let refused = match debian {
        Ok(()) => {
            shell::progress("eBPF compiler: installing Debian's packages, because this distribution has them");
            packages::install(&[Need::DebianEbpf])?;
            let found = present(Some(Way::Debian));
            let (compiler, _) = found.context("Debian's packages are installed, yet hold no core for BPF")?;
            return Ok((compiler, "this distribution has it, with a core for BPF".into()));
        }
        Err(reason) => reason,
    };
    if way == Some(Way::Debian) {
        bail!("Debian's eBPF compiler cannot be used: {refused}. Leave out `--toolchain debian`");
    }
    if shell::find("rustup").is_none() {
        bail!(
            "no compiler for eBPF: Debian's packages cannot be used ({refused}), and there is no rustup. Install rustup \
             (https://rustup.rs), then run `rustup toolchain install {NIGHTLY} --profile minimal --component rust-src`"
        );
    }
    shell::progress(format!("eBPF compiler: installing {NIGHTLY} by rustup, because Debian's packages: {refused}"));
    let mut command = Command::new("rustup");
    command.args(["toolchain", "install", NIGHTLY, "--profile", "minimal", "--component", "rust-src"]);
    command.arg("--no-self-update");
    shell::run(&mut command, "check the network, or run that command by hand")?;
    let found = present(Some(Way::Nightly));
    let (compiler, _) = found.with_context(|| format!("{NIGHTLY} was installed, yet has no rust-src"))?;
    Ok((compiler, format!("Debian's packages cannot be used: {refused}")))
}

/// Whether Debian's packages can be installed beside the present ones; if not, why.
fn debian_possible() -> Result<(), String> {
    if !packages::has_apt() {
        return Err("there is no apt".into());
    }
    // They all own /usr/bin/rustc, so one would have to be removed.
    if let Some(other) = ["rustc", "cargo", "rustup"].into_iter().find(|name| packages::is_installed(name)) {
        return Err(format!("they conflict with the installed package {other}"));
    }
    if packages::available(Need::DebianEbpf) {
        return Ok(());
    }
    // Images come without package lists; only fresh lists can rule the packages out.
    let fresh = Root::obtain("refresh the package lists").and_then(packages::update);
    if let Err(error) = fresh {
        return Err(format!("{error:#}"));
    }
    if packages::available(Need::DebianEbpf) {
        return Ok(());
    }
    let lacking: Vec<_> = packages::missing(&[Need::DebianEbpf]).iter().map(|p| p.name).collect();
    Err(format!("this distribution does not have all of {}", lacking.join(" ")))
}

/// An installed bpf-linker that can read what the compiler writes.
fn linker(compiler: &Compiler) -> Option<PathBuf> {
    let own = own_linker().ok();
    let users = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cargo")));
    let candidates = [own, shell::find("bpf-linker"), users.map(|home| home.join("bin/bpf-linker"))];
    candidates.into_iter().flatten().find(|path| path.is_file() && links(compiler, path).is_ok())
}

/// Where we install bpf-linker: in the target directory, so that it affects nothing else.
fn own_linker() -> Result<PathBuf> {
    Ok(shell::target_dir()?.join("tools/bin/bpf-linker"))
}

/// Tries the linker on the compiler's bitcode: an older LLVM cannot read a newer one's.
fn links(compiler: &Compiler, linker: &Path) -> Result<()> {
    const PROBE: &str = "#![no_std]\n#[unsafe(no_mangle)]\npub extern \"C\" fn probe() -> u64 { 7 }\n";
    let dir = tempfile::tempdir().context("cannot create a temporary directory")?;
    let (source, bitcode, object) = (dir.path().join("p.rs"), dir.path().join("p.bc"), dir.path().join("p.o"));
    fs::write(&source, PROBE).context("cannot write a temporary file")?;
    // For this machine's target, whose core every compiler has: the trial tests only the file format.
    let mut rustc = compiler.program(DEBIAN_RUSTC, "rustc");
    rustc.args(["--crate-type", "lib", "--edition", "2024", "--emit", "llvm-bc", "-C", "panic=abort", "-o"]);
    shell::output(rustc.arg(&bitcode).arg(&source))?;
    let mut link = Command::new(linker);
    link.args(["--target", TARGET, "--btf", "-o"]).arg(&object).arg(&bitcode).stderr(Stdio::null());
    shell::output(&mut link).map(drop)
}

/// Installs bpf-linker: from source if the distribution has its LLVM, else the project's release.
fn obtain_linker(compiler: &Compiler) -> Result<PathBuf> {
    let own = own_linker()?;
    let root = own.parent().and_then(Path::parent).context("no directory for tools")?.to_path_buf();
    let prefix = format!("/usr/lib/llvm-{LLVM}");
    let mut refused = String::new();
    if !Path::new(&prefix).join("bin/llvm-config").exists() && packages::has_apt() {
        match packages::install_named(&[&format!("llvm-{LLVM}-dev"), "libzstd-dev", "g++"]) {
            Ok(()) => {}
            Err(error) => refused = format!("{error:#}"),
        }
    }
    if Path::new(&prefix).join("bin/llvm-config").exists() {
        shell::progress(format!(
            "installing bpf-linker {LINKER_VERSION} from source against LLVM {LLVM} (about a minute)"
        ));
        let mut command = shell::cargo();
        // Unoptimised: what takes time in a link is LLVM, which is not compiled here.
        command.args(["install", "--locked", "--force", "--debug", "--no-default-features", "--features"]);
        command.arg(format!("llvm-{LLVM}")).arg("--root").arg(&root).arg(format!("bpf-linker@{LINKER_VERSION}"));
        command.env("LLVM_PREFIX", &prefix).current_dir("/");
        shell::run(&mut command, "cargo's own words are above")?;
    } else {
        shell::progress(format!(
            "no LLVM {LLVM} here; fetching bpf-linker {LINKER_VERSION} as its project publishes it"
        ));
        fetch_linker(&root).with_context(|| {
            format!(
                "bpf-linker can be neither built (no {prefix}; {refused}) nor fetched. By hand: put a bpf-linker \
                 {LINKER_VERSION} in PATH, see https://github.com/aya-rs/bpf-linker"
            )
        })?;
    }
    links(compiler, &own).with_context(|| {
        format!("the bpf-linker just installed cannot read what {} writes; try `--toolchain nightly`", compiler.name())
    })?;
    Ok(own)
}

fn fetch_linker(root: &Path) -> Result<()> {
    let bin = root.join("bin");
    fs::create_dir_all(&bin).with_context(|| format!("cannot create {}", bin.display()))?;
    let name = format!("bpf-linker-{}-unknown-linux-musl.tar.zst", env::consts::ARCH);
    let address = format!("https://github.com/aya-rs/bpf-linker/releases/download/v{LINKER_VERSION}/{name}");
    let archive = root.join(&name);
    let mut curl = Command::new("curl");
    curl.args(["--fail", "--location", "--proto", "=https", "--retry", "3", "--silent", "--show-error", "-o"]);
    shell::run(curl.arg(&archive).arg(&address), "check the network; curl must be installed")?;
    let mut tar = Command::new("tar");
    tar.args(["--zstd", "-xpf"]).arg(&archive).arg("-C").arg(&bin);
    shell::run(&mut tar, "tar needs the program zstd")
}
