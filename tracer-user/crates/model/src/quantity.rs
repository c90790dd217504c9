//! Spans of time, amounts of memory and shares of CPU as people write them.

use std::str::FromStr;
use std::time::Duration;

/// Reads `250ms`, `30s`, `5m`, `1h`, `7d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let expected = || format!("'{text}' is no time: expected a number and a unit, such as 250ms, 30s, 5m, 1h or 7d");
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(expected)?;
    let (number, span) = text.split_at(at);
    let number: u64 = number.parse().map_err(|_| expected())?;
    let millis = match span {
        "ms" => Some(number),
        "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        "d" => number.checked_mul(86_400_000),
        _ => None,
    };
    millis.map(Duration::from_millis).ok_or_else(expected)
}

/// Least memory the agent may be given, bytes: loading and its two rings take most of it.
pub const MEMORY_LEAST: u64 = 64 << 20;

/// Reads `256M`, `2G`, with or without `iB`; bytes.
pub fn size(text: &str) -> Result<u64, String> {
    let expected = || format!("'{text}' is no amount of memory: expected a number and M or G, such as 256M");
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(expected)?;
    let (number, span) = text.split_at(at);
    let number: u64 = number.parse().map_err(|_| expected())?;
    let shift = match span {
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => return Err(expected()),
    };
    number.checked_mul(1 << shift).filter(|bytes| *bytes <= 1 << 44).ok_or_else(expected)
}

/// Reads what [`size`] does; at least [`MEMORY_LEAST`].
pub fn memory(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    if bytes < MEMORY_LEAST {
        return Err(format!("'{text}' is too little: the agent needs at least {}M", MEMORY_LEAST >> 20));
    }
    Ok(bytes)
}

/// Reads `10%` to `6400%`, of one core; cores' worth.
pub fn cores(text: &str) -> Result<f64, String> {
    let expected = || format!("'{text}' is no share of a core: expected 1% to 6400%, such as 10% (200% = two cores)");
    let percent: f64 = text.strip_suffix('%').and_then(|number| number.parse().ok()).ok_or_else(expected)?;
    if (1.0..=6400.0).contains(&percent) { Ok(percent / 100.0) } else { Err(expected()) }
}

/// Reads `0.01%` to `100%`, of all CPUs together; 0 to 1.
pub fn share(text: &str) -> Result<f64, String> {
    let expected = || format!("'{text}' is no share of the host's CPU: expected 0.01% to 100%, such as 1%");
    let percent: f64 = text.strip_suffix('%').and_then(|number| number.parse().ok()).ok_or_else(expected)?;
    if (0.01..=100.0).contains(&percent) { Ok(percent / 100.0) } else { Err(expected()) }
}

/// How many requests are seen whole of those that the kernel side can count by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Detail {
    /// All of a process with few, and about a thousand a second of one with many whose other ends are elsewhere; all if spans are
    /// written or exported.
    Auto,
    /// This share, 0 to 1.
    Share(f64),
}

impl FromStr for Detail {
    type Err = String;

    /// Reads `auto`, or `0%` to `100%`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let expected = || format!("'{text}' is no share of requests: expected auto, or 0% to 100%, such as 5%");
        let percent: f64 = text.strip_suffix('%').and_then(|number| number.parse().ok()).ok_or_else(expected)?;
        if (0.0..=100.0).contains(&percent) { Ok(Self::Share(percent / 100.0)) } else { Err(expected()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_with_units() {
        for (text, bytes) in [("64M", 64 << 20), ("256MiB", 256 << 20), ("2G", 2 << 30), ("1GiB", 1 << 30)] {
            assert_eq!(memory(text), Ok(bytes));
        }
        for bad in ["", "M", "256", "256k", "-1G", "63M", "0G", "99999999999999999999G", "18446744073709551615G"] {
            assert!(memory(bad).is_err(), "{bad}");
        }
        for (text, share) in [("10%", 0.1), ("1%", 0.01), ("150%", 1.5), ("2.5%", 0.025)] {
            assert_eq!(cores(text), Ok(share));
        }
        for bad in ["", "%", "10", "0%", "-5%", "NaN%", "inf%", "6401%"] {
            assert!(cores(bad).is_err(), "{bad}");
        }
        for (text, part) in [("1%", 0.01), ("0.01%", 0.0001), ("100%", 1.0)] {
            assert_eq!(share(text), Ok(part));
        }
        for bad in ["", "1", "0%", "0.001%", "101%", "NaN%", "-1%"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_with_units() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(7 * 24 * 3600)));
        for bad in ["", "s", "30", "1w", "-1s", "99999999999999999999h", "999999999999d"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
