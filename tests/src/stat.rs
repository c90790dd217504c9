//! The system's own figures: CPU from `/proc/stat`, connections from `/proc/net/snmp`.

/// CPU seconds of the whole host since it started.
#[derive(Clone, Copy, Debug)]
pub struct HostCpuSource {
    /// user, nice, system, irq, softirq: what was used here.
    pub busy: f64,
    /// steal: what another machine on the same host got while a CPU here had something to run.
    pub stolen: f64,
    /// idle, iowait.
    pub idle: f64,
}

impl HostCpuSource {
    /// The figures now.
    pub fn now() -> Self {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_else(|error| panic!("/proc/stat: {error}"));
        Self::parse(&text)
    }

    fn parse(text: &str) -> Self {
        // SAFETY: takes a constant.
        let hertz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        let line = text.lines().next().unwrap_or_default();
        let ticks: Vec<f64> = line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
        let at = |index: usize| ticks.get(index).copied().unwrap_or_default() / hertz;
        // user nice system idle iowait irq softirq steal; guest time is part of user.
        Self { busy: at(0) + at(1) + at(2) + at(5) + at(6), stolen: at(7), idle: at(3) + at(4) }
    }

    /// Usage since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self { busy: self.busy - before.busy, stolen: self.stolen - before.stolen, idle: self.idle - before.idle }
    }
}

/// TCP connections opened in this network namespace since it exists.
pub fn connections_opened() -> u64 {
    let text = std::fs::read_to_string("/proc/net/snmp").unwrap_or_else(|error| panic!("/proc/net/snmp: {error}"));
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut fields = names.split_whitespace().zip(values.split_whitespace());
    let value = fields.find(|(name, _)| *name == "ActiveOpens").and_then(|(_, value)| value.parse().ok());
    value.unwrap_or_else(|| panic!("/proc/net/snmp: no ActiveOpens:\n{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_counted() {
        let before = connections_opened();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let _stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(connections_opened() > before);
    }

    #[test]
    fn guests_are_not_counted_twice_and_what_was_stolen_was_not_used() {
        let cpu = HostCpuSource::parse("cpu  100 100 100 1000 50 1 2 3 70 0\ncpu0 1\n");
        assert!(
            (cpu.busy - 3.03).abs() < 1e-9 && (cpu.stolen - 0.03).abs() < 1e-9 && (cpu.idle - 10.5).abs() < 1e-9,
            "{cpu:?}"
        );
    }
}
