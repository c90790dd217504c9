//! Arbitrary bytes as files of /proc: those of a process (which controls some of their content) and of the host.
use tracer_host::process::{self, Files};
use tracer_host::{services, stat};
use tracer_results::profiles::jit::Names;

pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = process::user(data);
    let files = Files { stat: data, cgroup: data, exe: data, cwd: data };
    // A well-formed stat gets further.
    let good = [b"7 (".as_slice(), data, b") S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20"].concat();
    for files in [Files { stat: &good, ..files }, files] {
        if let Some(facts) = process::facts(7, &files, data, data) {
            let name = services::service_name(&facts, &Vec::new());
            assert!(!name.is_empty() && name.chars().count() <= 80 && !name.chars().any(char::is_control));
        }
    }
    let _ = stat::parse(&text, 100.0);
    let _ = stat::parse_schedstat(&text);
    let _ = stat::cpuacct_root(&text);
    let names = Names::parse(data, 1 << 20);
    let _ = (names.find(0), names.find(0x1000), names.find(u64::MAX));
}
