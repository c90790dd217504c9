//! The host's local time, by its time zone.

/// Minutes of a day.
const DAY: u16 = 24 * 60;

/// The minute of the week, from Monday 00:00 of local time, at `seconds` since the epoch. The time zone is that of `TZ`, or
/// of `/etc/localtime`, when it is first used; where there is none, UTC.
pub fn minute_of_week(seconds: i64) -> Option<u16> {
    let mut time = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are valid for the call, which keeps neither; zeroes are a valid `tm`.
    let done = unsafe { libc::localtime_r(&raw const seconds, time.as_mut_ptr()) };
    if done.is_null() {
        return None;
    }
    // SAFETY: the call wrote it.
    let time = unsafe { time.assume_init() };
    // Sunday is 0 there.
    let (day, hour, minute) =
        (u16::try_from(time.tm_wday).ok()?, u16::try_from(time.tm_hour).ok()?, u16::try_from(time.tm_min).ok()?);
    Some((day + 6) % 7 * DAY + hour * 60 + minute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_week_has_all_minutes_in_order() {
        // Wherever this runs: a quarter of an hour later it is a quarter of an hour later, but when clocks change.
        let mut steps = 0;
        for quarter in 0..672 {
            let at = |quarter: i64| minute_of_week(1_750_000_000 + quarter * 900).unwrap();
            steps += u32::from(at(quarter + 1) == (at(quarter) + 15) % (7 * DAY));
        }
        assert!(steps >= 670, "{steps}");
        assert_eq!(minute_of_week(i64::MAX), None);
    }
}
