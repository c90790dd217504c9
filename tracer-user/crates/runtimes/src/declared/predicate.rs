//! When a declared call failed: a comparison of its return value, or of an argument of a USDT probe.

use tracer_common::event::{DECLARED_REGISTERS, DeclaredValues};

use super::values::{Captured, ValueType};

/// How a return value compares with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailSource {
    /// The return value.
    Return,
    /// An argument, from 1, of the probe that begins it.
    Begin(u8),
    /// An argument, from 1, of the probe that ends it.
    End(u8),
}

/// A comparison with a number: `return != 0`, `return:i64 < 0`, `end.arg2 != 0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predicate {
    source: FailSource,
    value: ValueType,
    comparison: Comparison,
    number: i128,
}

impl Predicate {
    /// Parses `SOURCE[:TYPE] OPERATOR NUMBER`, where the source is `return`, `argN` or `end.argN`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "'{text}' is no condition: expected `return OPERATOR NUMBER`, such as \"return != 0\" or \
                 \"return:i64 < 0\" (types: int, bool, i8 to i64, u8 to u64); of USDT probes \"arg1\" to \
                 \"arg{DECLARED_REGISTERS}\", or \"end.arg1\" of the probe that ends it"
            )
        };
        let at = text.find(['=', '!', '<', '>']).ok_or_else(expected)?;
        let (given, rest) = text.split_at(at);
        let (source, value) = match given.trim().split_once(':') {
            Some((source, kind)) => (source.trim(), ValueType::parse(kind.trim()).ok_or_else(expected)?),
            None => (given.trim(), ValueType::Int),
        };
        let argument = |number: &str| {
            let number = number.parse().ok().filter(|number| (1..=DECLARED_REGISTERS as u8).contains(number));
            number.ok_or_else(expected)
        };
        let source = match (source.strip_prefix("arg"), source.strip_prefix("end.arg")) {
            (Some(number), _) => FailSource::Begin(argument(number)?),
            (_, Some(number)) => FailSource::End(argument(number)?),
            _ if source == "return" => FailSource::Return,
            _ => return Err(expected()),
        };
        let operators = [
            ("==", Comparison::Equal),
            ("!=", Comparison::NotEqual),
            ("<=", Comparison::LessOrEqual),
            (">=", Comparison::GreaterOrEqual),
            ("<", Comparison::Less),
            (">", Comparison::Greater),
        ];
        let found = operators.into_iter().find_map(|(sign, one)| Some((one, rest.strip_prefix(sign)?)));
        let (comparison, number) = found.ok_or_else(expected)?;
        let number = number.trim();
        let parsed = match number.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).map(i128::from).ok(),
            None => number.parse::<i64>().map(i128::from).or_else(|_| number.parse::<u64>().map(i128::from)).ok(),
        };
        Ok(Self { source, value, comparison, number: parsed.ok_or_else(expected)? })
    }

    /// What it compares.
    pub fn source(&self) -> FailSource {
        self.source
    }

    /// Whether it is true of a call; `None`: its value could not be read.
    pub fn is_true(&self, captured: &Captured<'_>) -> Option<bool> {
        let argument =
            |values: Option<&DeclaredValues>, number: u8| values?.registers.get(usize::from(number) - 1).copied();
        let register = match self.source {
            FailSource::Return => captured.result,
            FailSource::Begin(number) => argument(captured.entry, number)?,
            FailSource::End(number) => argument(captured.exit, number)?,
        };
        Some(self.fits(self.value.read(register, captured.wide)))
    }

    fn fits(&self, value: i128) -> bool {
        match self.comparison {
            Comparison::Equal => value == self.number,
            Comparison::NotEqual => value != self.number,
            Comparison::Less => value < self.number,
            Comparison::LessOrEqual => value <= self.number,
            Comparison::Greater => value > self.number,
            Comparison::GreaterOrEqual => value >= self.number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_compare_as_their_type_says() {
        let minus_one = 0xffff_ffffu64;
        for (text, register, go, truth) in [
            ("return != 0", 0, false, false),
            ("return != 0", 1, false, true),
            // The upper half of the register is undefined for an `int` of C.
            ("return != 0", 1 << 32, false, false),
            ("return < 0", minus_one, false, true),
            ("return < 0", minus_one, true, false),
            ("return:i64<0", u64::MAX, false, true),
            ("return:u32 >= 0xffffffff", minus_one, false, true),
            ("return:bool == 0", 0x100, false, true),
            ("return <= -2", minus_one - 1, false, true),
            ("return:u64 > 18446744073709551614", u64::MAX, true, true),
        ] {
            let captured = Captured { result: register, wide: go, ..Captured::default() };
            assert_eq!(Predicate::parse(text).unwrap().is_true(&captured), Some(truth), "{text} of {register:#x}");
        }
        for text in [
            "",
            "return",
            "return 0",
            "return = 0",
            "errno == 2",
            "return:f64 < 0",
            "return < zero",
            "arg0 == 1",
            "arg10 == 1",
            "end.arg == 1",
            "end.return == 1",
        ] {
            assert!(Predicate::parse(text).unwrap_err().contains("expected `return"), "{text}");
        }
    }

    #[test]
    fn arguments_of_probes_are_compared() {
        let values = |registers| DeclaredValues { registers, ..DeclaredValues::default() };
        let (entry, exit) = (values([1, 2, 3, 4, 5, 6, 7, 8, 9]), values([u64::MAX, 0, 0, 0, 0, 0, 0, 0, 0]));
        let captured = Captured { entry: Some(&entry), exit: Some(&exit), result: 0, wide: true };
        for (text, truth) in [
            ("arg9 == 9", true),
            ("arg1 != 1", false),
            ("end.arg1 < 0", true),
            ("end.arg1:u8 == 255", true),
            ("return != 0", false),
        ] {
            assert_eq!(Predicate::parse(text).unwrap().is_true(&captured), Some(truth), "{text}");
        }
        let unread = Captured { exit: None, ..captured };
        assert_eq!(Predicate::parse("end.arg1 < 0").unwrap().is_true(&unread), None);
    }
}
