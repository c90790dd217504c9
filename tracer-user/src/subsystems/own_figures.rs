//! What servers say of themselves, to stand beside what the agent measured: Redis' `INFO`.

/// Commands of a server that are kept apart.
const COMMANDS: usize = 200;
/// Longest name of a command, characters.
const NAME: usize = 40;

/// A server's own figures, since it started or was asked to begin anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnFigures {
    /// Its process, as it knows itself.
    pub pid: u32,
    /// CPU of the process, nanoseconds.
    pub cpu: u64,
    /// By command, the one with the most time first.
    pub commands: Vec<OwnCommand>,
}

/// Executions of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnCommand {
    /// Upper case; a subcommand follows a blank.
    pub name: String,
    /// How often.
    pub calls: u64,
    /// Time in them, nanoseconds.
    pub time: u64,
}

/// Reads the sections `server`, `cpu` and `commandstats` of Redis' `INFO`; `None` without process or CPU.
pub fn redis(info: &str) -> Option<OwnFigures> {
    let (mut pid, mut user, mut system, mut commands) = (None, None, None, Vec::new());
    for (name, value) in info.lines().filter_map(|line| line.trim_end().split_once(':')) {
        match name {
            "process_id" => pid = value.parse().ok(),
            "used_cpu_user" => user = nanos(value, 1e9),
            "used_cpu_sys" => system = nanos(value, 1e9),
            _ => {
                let Some(name) = name.strip_prefix("cmdstat_") else { continue };
                if let Some(command) = command(name, value) {
                    commands.push(command);
                }
            }
        }
    }
    commands.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.name.cmp(&b.name)));
    commands.truncate(COMMANDS);
    Some(OwnFigures { pid: pid?, cpu: user?.saturating_add(system?), commands })
}

/// `calls=400,usec=812345,usec_per_call=2030.86,…` of the command `name`.
fn command(name: &str, value: &str) -> Option<OwnCommand> {
    let field = |wanted: &str| value.split(',').find_map(|field| field.strip_prefix(wanted)?.strip_prefix('='));
    let name = name.to_ascii_uppercase().replace('|', " ");
    let name = crate::text::printable(&name).chars().take(NAME).collect();
    Some(OwnCommand { name, calls: field("calls")?.parse().ok()?, time: nanos(field("usec")?, 1e3)? })
}

/// A number of units of `each` nanoseconds; `None` unless it is one that time can have.
fn nanos(value: &str, each: f64) -> Option<u64> {
    let value: f64 = value.parse().ok()?;
    (0.0..1e12).contains(&value).then_some((value * each) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn redis_info() {
        let info = "# Server\r\nredis_version:7.0.15\r\nprocess_id:4242\r\n# CPU\r\nused_cpu_sys:0.500000\r\n\
                    used_cpu_user:1.250000\r\nused_cpu_user_main_thread:1.0\r\n# Commandstats\r\n\
                    cmdstat_get:calls=2,usec=10,usec_per_call=5.00,rejected_calls=0,failed_calls=0\r\n\
                    cmdstat_config|get:calls=1,usec=25,usec_per_call=25.00\r\ncmdstat_bad:calls=x\r\n";
        let command = |name: &str, calls, time| OwnCommand { name: name.into(), calls, time };
        let expected = OwnFigures {
            pid: 4242,
            cpu: 1_750_000_000,
            commands: vec![command("CONFIG GET", 1, 25_000), command("GET", 2, 10_000)],
        };
        assert_eq!(redis(info), Some(expected));
        assert_eq!(redis("process_id:1\r\nused_cpu_sys:1\r\n"), None);
        assert_eq!(redis("process_id:1\r\nused_cpu_sys:NaN\r\nused_cpu_user:-1\r\n"), None);
    }

    proptest! {
        #[test]
        fn never_panics_on_arbitrary_input(info in "(.{0,40}:.{0,40}\n){0,8}") {
            let _ = redis(&info);
        }
    }
}
