//! When a declared call failed: a comparison of its return value.

use super::values::ValueType;

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

/// A comparison of the return value with a number: `return != 0`, `return:i64 < 0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predicate {
    value: ValueType,
    comparison: Comparison,
    number: i128,
}

impl Predicate {
    /// Parses `return[:TYPE] OPERATOR NUMBER`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "'{text}' is no condition: expected `return OPERATOR NUMBER`, such as \"return != 0\" or \
                 \"return:i64 < 0\" (types: int, bool, i8 to i64, u8 to u64)"
            )
        };
        let rest = text.trim().strip_prefix("return").ok_or_else(expected)?;
        let at = rest.find(['=', '!', '<', '>']).ok_or_else(expected)?;
        let (given, rest) = rest.split_at(at);
        let value = match given.trim() {
            "" => ValueType::Int,
            given => given.strip_prefix(':').and_then(ValueType::parse).ok_or_else(expected)?,
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
        Ok(Self { value, comparison, number: parsed.ok_or_else(expected)? })
    }

    /// Whether it is true of the value in a result register; `go`: of a Go function.
    pub fn is_true(&self, register: u64, go: bool) -> bool {
        let value = self.value.read(register, go);
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
            assert_eq!(Predicate::parse(text).unwrap().is_true(register, go), truth, "{text} of {register:#x}");
        }
        for text in ["", "return", "return 0", "return = 0", "errno == 2", "return:f64 < 0", "return < zero"] {
            assert!(Predicate::parse(text).unwrap_err().contains("expected `return"), "{text}");
        }
    }
}
