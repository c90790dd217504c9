//! Times of the week at which a rule applies, such as `mon-fri 08:00-18:00`.

/// Minutes of a day, and of a week.
const DAY: u16 = 24 * 60;
const WEEK: u16 = 7 * DAY;
/// Names of days; a week begins with the first.
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// Hours of some days. An end before the beginning is on the next day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeeklyHours {
    /// A bit for each day on which they begin; the first is Monday's.
    days: u8,
    /// Minutes of the day.
    from: u16,
    /// Behind the last one.
    to: u16,
}

fn day(text: &str) -> Option<usize> {
    DAYS.iter().position(|name| text.eq_ignore_ascii_case(name))
}

/// One day, or days from one to another, also over the end of the week: `fri-mon`.
fn days(text: &str) -> Option<u8> {
    let (from, to) = match text.split_once('-') {
        Some((from, to)) => (day(from)?, day(to)?),
        None => (day(text)?, day(text)?),
    };
    let count = (to + 7 - from) % 7;
    Some((0..=count).fold(0, |bits, n| bits | 1 << ((from + n) % 7)))
}

/// `HH:MM`, up to `24:00`.
fn minute(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str, most: u16| {
        let is_plain = (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|number| is_plain && *number <= most)
    };
    let minute = 60 * number(hours, 24)? + number(minutes, 59).filter(|_| minutes.len() == 2)?;
    (minute <= DAY).then_some(minute)
}

impl WeeklyHours {
    /// Reads days (`mon-fri`, `sat,sun`), hours (`22:00-06:00`), or both; the error says what was expected.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        const EXPECTED: &str =
            "expected days, hours or both, such as \"mon-fri 08:00-18:00\", \"sat,sun\" or \"22:00-06:00\"";
        let (mut all, mut range) = (None, None);
        for word in text.split_whitespace() {
            if word.contains(':') {
                let (from, to) = word.split_once('-').ok_or(EXPECTED)?;
                let parsed = (minute(from).ok_or(EXPECTED)?, minute(to).ok_or(EXPECTED)?);
                if range.replace(parsed).is_some() {
                    return Err(EXPECTED);
                }
            } else {
                let parsed = word.split(',').try_fold(0, |bits, part| Some(bits | days(part)?)).ok_or(EXPECTED)?;
                if range.is_some() || all.replace(parsed).is_some() {
                    return Err(EXPECTED);
                }
            }
        }
        if all.is_none() && range.is_none() {
            return Err(EXPECTED);
        }
        let (from, to) = range.unwrap_or((0, DAY));
        if from == to || from == DAY || to == 0 {
            return Err("these hours are empty; a whole day is 00:00-24:00, and midnight as an end is 24:00");
        }
        Ok(Self { days: all.unwrap_or(0x7f), from, to })
    }

    /// Whether a minute of the week, from Monday 00:00, is among them.
    pub fn contain(self, minute: u16) -> bool {
        let (day, minute) = (minute % WEEK / DAY, minute % DAY);
        let begins = |day: u16| self.days & 1 << (day % 7) != 0;
        if self.from < self.to {
            return begins(day) && (self.from..self.to).contains(&minute);
        }
        (begins(day) && minute >= self.from) || (begins(day + 6) && minute < self.to)
    }

    /// Whether every minute of `other` is one of these.
    pub fn cover(self, other: Self) -> bool {
        (0..WEEK).all(|minute| !other.contain(minute) || self.contain(minute))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(day: u16, hour: u16, minute: u16) -> u16 {
        day * DAY + hour * 60 + minute
    }

    #[test]
    fn hours_are_read() {
        for (text, inside, outside) in [
            ("mon-fri 08:00-18:00", vec![at(0, 8, 0), at(4, 17, 59)], vec![at(0, 7, 59), at(0, 18, 0), at(5, 12, 0)]),
            ("sat,sun", vec![at(5, 0, 0), at(6, 23, 59)], vec![at(4, 23, 59), at(0, 0, 0)]),
            ("22:00-06:00", vec![at(2, 22, 0), at(2, 5, 59)], vec![at(2, 6, 0), at(2, 21, 59)]),
            // It begins on Sunday and ends on Monday.
            ("sun 23:00-1:00", vec![at(6, 23, 0), at(0, 0, 59)], vec![at(6, 0, 30), at(0, 23, 30)]),
            ("Fri-Mon 00:00-24:00", vec![at(4, 0, 0), at(0, 23, 59)], vec![at(1, 0, 0), at(3, 23, 59)]),
        ] {
            let hours = WeeklyHours::parse(text).unwrap();
            assert!(inside.iter().all(|minute| hours.contain(*minute)), "{text}");
            assert!(!outside.iter().any(|minute| hours.contain(*minute)), "{text}");
        }
        for text in [
            "",
            "noon",
            "8-18",
            "08:00",
            "08:00-08:00",
            "08:60-09:00",
            "25:00-26:00",
            "24:30-01:00",
            "08:00-18:00 mon",
            "mon tue",
            "mon-",
            "08:00-18:00-20:00",
            "+8:00-9:00",
            "08:00-00:00",
            "8:0-9:0",
            "24:00-06:00",
        ] {
            assert!(WeeklyHours::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn some_hours_cover_others() {
        let hours = |text| WeeklyHours::parse(text).unwrap();
        assert!(hours("00:00-24:00").cover(hours("mon 22:00-06:00")));
        assert!(hours("mon-tue").cover(hours("mon 22:00-06:00")));
        assert!(!hours("mon").cover(hours("mon 22:00-06:00")));
    }
}
