//! Spans of time as people write them.

use std::time::Duration;

/// Reads `250ms`, `30s`, `5m`, `1h`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let expected = || format!("'{text}' is no time: expected a number and a unit, such as 250ms, 30s, 5m or 1h");
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(expected)?;
    let (number, unit) = text.split_at(at);
    let number: u64 = number.parse().map_err(|_| expected())?;
    let millis = match unit {
        "ms" => Some(number),
        "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        _ => None,
    };
    millis.map(Duration::from_millis).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for bad in ["", "s", "30", "1d", "-1s", "99999999999999999999h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
