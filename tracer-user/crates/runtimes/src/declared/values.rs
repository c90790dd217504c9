//! Values of a declared call: who it is for, and what is measured of it. They come from arguments and global variables at
//! its beginning or from result registers at its end.
//!
//! Total: registers and texts are whatever the program has there.

use std::fmt;
use std::sync::Arc;

use tracer_common::event::{DECLARED_REGISTERS, DECLARED_TEXT, DeclaredValues, TEXT_NONE};
use tracer_common::runtime::declared as cookie;
use tracer_model::DeclaredValue;
use tracer_model::text;

use super::{Declared, FailSource};

/// Most metrics of a declared transaction, as in ARM.
pub const METRICS: usize = 7;

/// Type of a number in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueType {
    /// `int`: 32 bits in C and 64 in Go.
    Int,
    /// Signed, of so many bits.
    Signed(u32),
    /// Unsigned, of so many bits.
    Unsigned(u32),
}

impl ValueType {
    /// A type by its name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "int" => Self::Int,
            "bool" | "u8" => Self::Unsigned(8),
            "i8" => Self::Signed(8),
            "i16" => Self::Signed(16),
            "u16" => Self::Unsigned(16),
            "i32" => Self::Signed(32),
            "u32" => Self::Unsigned(32),
            "i64" => Self::Signed(64),
            "u64" => Self::Unsigned(64),
            _ => return None,
        })
    }

    /// The number in a register. `wide`: an `int` has 64 bits, in Go and where a USDT probe says its arguments' types.
    pub(super) fn read(self, register: u64, wide: bool) -> i128 {
        let (signed, bits) = match self {
            Self::Int => (true, if wide { 64 } else { 32 }),
            Self::Signed(bits) => (true, bits),
            Self::Unsigned(bits) => (false, bits),
        };
        let shift = 64 - bits;
        let left = register << shift;
        if signed { i128::from((left as i64) >> shift) } else { i128::from(left >> shift) }
    }
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In an argument register, from 1, when the call begins.
    Argument(u8),
    /// In a global variable, when the call begins; in this register of the record, from 1.
    Global(u8),
    /// In the result register when it ends.
    Return,
}

/// What it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Number(ValueType),
    /// A pointer to text. `pair`: its length is in the next register, also in C; in Go it always is.
    Text {
        pair: bool,
    },
}

/// Where a value is, and what it is: `arg1`, `arg2:string`, `return:i64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueSource {
    source: Source,
    form: Form,
    text: Box<str>,
}

impl fmt::Display for ValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl ValueSource {
    /// Parses `argN[:TYPE]`, `global:NAME[:TYPE]` or `return[:TYPE]`; `is_text`: without a type it is text.
    pub fn parse(text: &str, is_text: bool) -> Result<Self, String> {
        let expected = || {
            format!(
                "'{text}' is no value: expected \"arg1\" to \"arg{DECLARED_REGISTERS}\", \"return\" or \"global:NAME\", with a type \
                 such as \"arg2:string\" (types: int, bool, i8 to i64, u8 to u64, string, str)"
            )
        };
        let global = text.trim().strip_prefix("global:");
        let (source, kind) = match global.unwrap_or(text.trim()).rsplit_once(':') {
            // `shop::COUNT` has no type.
            Some((source, kind)) if !source.ends_with(':') => (source.trim(), Some(kind.trim())),
            _ => (global.unwrap_or(text.trim()), None),
        };
        if global.is_some() && (source.is_empty() || kind == Some("str")) {
            return Err(expected());
        }
        let source = match source.strip_prefix("arg") {
            _ if global.is_some() => Source::Global(1),
            Some(number) => {
                let number: u8 = number.parse().map_err(|_| expected())?;
                if !(1..=DECLARED_REGISTERS as u8).contains(&number) {
                    return Err(expected());
                }
                Source::Argument(number)
            }
            None if source == "return" => Source::Return,
            None => return Err(expected()),
        };
        let form = match kind {
            None if is_text => Form::Text { pair: false },
            None => Form::Number(ValueType::Int),
            Some("string") => Form::Text { pair: false },
            Some("str") => Form::Text { pair: true },
            Some(other) => Form::Number(ValueType::parse(other).ok_or_else(expected)?),
        };
        Ok(Self { source, form, text: text.trim().into() })
    }

    /// Whether it is text.
    pub fn is_text(&self) -> bool {
        matches!(self.form, Form::Text { .. })
    }

    /// Where it is.
    pub fn source(&self) -> Source {
        self.source
    }

    /// The global variable that has it.
    pub fn global(&self) -> Option<&str> {
        let name = self.text.strip_prefix("global:")?;
        Some(name.rsplit_once(':').filter(|(name, _)| !name.ends_with(':')).map_or(name, |(name, _)| name).trim())
    }

    /// Bits of the number, and whether it is signed; `wide` as in [`ValueType::read`]. Of text those of its pointer.
    pub(super) fn bits_in_memory(&self, wide: bool) -> (u32, bool) {
        match self.form {
            Form::Number(ValueType::Int) => (if wide { 64 } else { 32 }, true),
            Form::Number(ValueType::Signed(bits)) => (bits, true),
            Form::Number(ValueType::Unsigned(bits)) => (bits, false),
            Form::Text { .. } => (64, false),
        }
    }

    /// Argument registers that it needs.
    pub fn registers(&self) -> u8 {
        match (self.source, self.form) {
            (Source::Return | Source::Global(_), _) => 0,
            (Source::Argument(number), Form::Text { pair: true }) => number + 1,
            (Source::Argument(number), _) => number,
        }
    }

    /// The value in what was captured of a call; `None`: it could not be read. Text is the first or second that is captured.
    fn read(&self, captured: &Captured<'_>, second: bool) -> Option<DeclaredValue> {
        let values = if self.source == Source::Return { captured.exit } else { captured.entry };
        match (self.form, self.source) {
            (Form::Number(of), Source::Return) => Some(DeclaredValue::Number(of.read(captured.result, captured.wide))),
            (Form::Number(of), Source::Argument(number) | Source::Global(number)) => {
                let register = *values?.registers.get(usize::from(number) - 1)?;
                Some(DeclaredValue::Number(of.read(register, captured.wide)))
            }
            (Form::Text { .. }, _) => {
                let values = values?;
                let (len, words) =
                    if second { (values.second_len, values.second) } else { (values.first_len, values.first) };
                let mut bytes = [0; DECLARED_TEXT];
                for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
                    to.copy_from_slice(&word.to_ne_bytes());
                }
                let text = bytes.get(..usize::try_from(len).ok()?)?;
                Some(DeclaredValue::Text(readable(text).into()))
            }
        }
    }

    /// What the kernel side is to capture of it at one end of a call: bits of the probe's cookie.
    fn bits(&self, end: bool, second: bool) -> u64 {
        if end != (self.source == Source::Return) {
            return 0;
        }
        let Form::Text { pair } = self.form else {
            // The return value is part of every record.
            return if end { 0 } else { cookie::VALUES };
        };
        let number = match self.source {
            Source::Argument(number) | Source::Global(number) => u64::from(number),
            Source::Return => 1,
        };
        let (shift, of_pair) =
            if second { (cookie::SECOND, cookie::SECOND_PAIR) } else { (cookie::FIRST, cookie::FIRST_PAIR) };
        cookie::VALUES | (number & cookie::REGISTER) << shift | if pair { of_pair } else { 0 }
    }
}

/// Text without a character that was cut at its end, and with invisible ones written out.
fn readable(bytes: &[u8]) -> String {
    let whole = match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => bytes.get(..error.valid_up_to()).unwrap_or_default(),
        _ => bytes,
    };
    text::printable(&String::from_utf8_lossy(whole)).into_owned()
}

/// What was captured of a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Captured<'a> {
    /// When it began.
    pub entry: Option<&'a DeclaredValues>,
    /// When it ended.
    pub exit: Option<&'a DeclaredValues>,
    /// The result register.
    pub result: u64,
    /// An `int` of it has 64 bits.
    pub wide: bool,
}

/// What a metric is, in ARM's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Amounts that add up.
    Counter,
    /// A level that goes up and down.
    Gauge,
    /// A number that names something.
    Id,
    /// Text.
    Text,
}

impl MetricKind {
    /// By its name in the configuration.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Counter, Self::Gauge, Self::Id, Self::Text].into_iter().find(|kind| kind.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Id => "id",
            Self::Text => "string",
        }
    }
}

/// A metric of a declared transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name.
    pub name: Arc<str>,
    /// What it is.
    pub kind: MetricKind,
    /// Where its value is.
    pub value: ValueSource,
}

impl Declared {
    /// Gives every global variable a register of the record that no argument is in; the error: there are too many values.
    pub fn number_globals(&mut self) -> Result<(), String> {
        let of_fail = match self.fail.map(|fail| fail.source()) {
            Some(FailSource::Begin(number)) => number,
            _ => 0,
        };
        let arguments = self.values().map(ValueSource::registers).fold(of_fail, u8::max);
        // Behind a text that is in the last one there would be no register for its length.
        let mut next = DECLARED_REGISTERS as u8 - 1;
        let values = self.user.iter_mut().chain(self.metrics.iter_mut().map(|metric| &mut metric.value));
        for value in values {
            if let Source::Global(number) = &mut value.source {
                if next <= arguments {
                    return Err("at most 8 arguments and global variables can be read of a call".into());
                }
                *number = next;
                next -= 1;
            }
        }
        Ok(())
    }

    /// Bits of the cookie of the probes at the beginning or at the end of a call: what is captured there.
    pub fn capture(&self, end: bool) -> u64 {
        let fail = match self.fail.map(|fail| fail.source()) {
            Some(FailSource::Begin(_)) if !end => cookie::VALUES,
            Some(FailSource::End(_)) if end => cookie::VALUES,
            // The return value is part of every record.
            _ => 0,
        };
        let user = self.user.as_ref().map_or(fail, |user| fail | user.bits(end, false));
        self.metrics.iter().fold(user, |bits, metric| bits | metric.value.bits(end, true))
    }

    /// Whether a call failed; `None`: what says so could not be read.
    pub fn failed(&self, captured: &Captured<'_>) -> Option<bool> {
        self.fail.map_or(Some(false), |fail| fail.is_true(captured))
    }

    /// The user of a call; the error: it could not be read.
    pub fn user_of(&self, captured: &Captured<'_>) -> Result<Option<Arc<str>>, UnreadValue> {
        let Some(user) = &self.user else { return Ok(None) };
        match user.read(captured, false) {
            Some(DeclaredValue::Text(text)) => Ok(Some(text)),
            Some(DeclaredValue::Number(number)) => Ok(Some(number.to_string().into())),
            None => Err(UnreadValue),
        }
    }

    /// The values of its metrics, in their order; `None`: it could not be read.
    pub fn values_of(&self, captured: &Captured<'_>) -> Vec<Option<DeclaredValue>> {
        self.metrics.iter().map(|metric| metric.value.read(captured, true)).collect()
    }
}

/// A value that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreadValue;

const _: () = assert!(TEXT_NONE as usize > DECLARED_TEXT);

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> (u32, [u64; 8]) {
        let mut bytes = [0u8; DECLARED_TEXT];
        bytes[..value.len()].copy_from_slice(value.as_bytes());
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap());
        }
        (value.len() as u32, words)
    }

    #[test]
    fn values_are_read_as_their_type_says() {
        let (first_len, first) = text("ann\u{7f}");
        let (second_len, second) = text("x");
        let entry =
            DeclaredValues { registers: [0xffff_ffff, 2, 3, 4, 5, 6, 7, 8, 9], first_len, second_len, first, second };
        let captured = Captured { entry: Some(&entry), exit: None, result: u64::MAX, wide: false };
        let read = |value: &str, second| ValueSource::parse(value, false).unwrap().read(&captured, second);
        assert_eq!(read("arg1", false), Some(DeclaredValue::Number(-1)));
        assert_eq!(read("arg1:u32", false), Some(DeclaredValue::Number(0xffff_ffff)));
        assert_eq!(read("return:u64", false), Some(DeclaredValue::Number(i128::from(u64::MAX))));
        assert_eq!(read("arg9:i64", false), Some(DeclaredValue::Number(9)));
        assert_eq!(read("arg2:string", false), Some(DeclaredValue::Text("ann\\u{7f}".into())));
        assert_eq!(read("arg2:string", true), Some(DeclaredValue::Text("x".into())));
        assert_eq!(read("return:string", true), None, "nothing was captured");
        for bad in [
            "",
            "arg",
            "arg0",
            "arg10",
            "arg-1",
            "arg1:",
            "arg1:float",
            "global:",
            "global:x:str",
            "result",
            "arg1:string:x",
        ] {
            assert!(ValueSource::parse(bad, false).unwrap_err().contains("expected"), "{bad}");
        }
    }

    #[test]
    fn never_panics_on_arbitrary_values() {
        for len in [0, 1, 63, 64, 65, 1 << 20, TEXT_NONE, TEXT_NONE - 1] {
            for word in [0, u64::MAX, 0x8080_8080_8080_8080, 0xe2e2_e2e2_e2e2_e2e2] {
                let values = DeclaredValues {
                    registers: [word; DECLARED_REGISTERS],
                    first_len: len,
                    second_len: len,
                    first: [word; 8],
                    second: [word; 8],
                };
                let captured = Captured { entry: Some(&values), exit: Some(&values), result: word, wide: true };
                for value in ["arg1:string", "return:str", "arg9:u8", "return:i8"] {
                    let value = ValueSource::parse(value, false).unwrap();
                    let read = value.read(&captured, true);
                    assert_eq!(read.is_none(), value.is_text() && len > 64, "{value} {len}");
                }
            }
        }
        assert_eq!(readable("aé".as_bytes().split_at(2).0), "a", "a character that was cut");
    }

    #[test]
    fn global_variables_have_registers_of_their_own() {
        let value = |text| ValueSource::parse(text, false).unwrap();
        for (text, name, bits) in [
            ("global:count", "count", (32, true)),
            ("global:shop::COUNT", "shop::COUNT", (32, true)),
            ("global:shop::COUNT:u64", "shop::COUNT", (64, false)),
            ("global:main.name:string", "main.name", (64, false)),
        ] {
            assert_eq!((value(text).global(), value(text).bits_in_memory(false)), (Some(name), bits), "{text}");
        }
        assert_eq!(value("arg1:u8").global(), None);
        let metric = |value| Metric { name: "m".into(), kind: MetricKind::Id, value };
        let mut declared = Declared {
            name: "a".into(),
            program: "/x".into(),
            target: super::super::Target::Function("f".into()),
            fail: None,
            user: Some(value("global:who:string")),
            metrics: ["arg6", "global:a"].map(|text| metric(value(text))).to_vec(),
            max_rate: None,
            place: "t:1".into(),
        };
        assert_eq!(declared.number_globals(), Ok(()));
        let sources: Vec<Source> = declared.values().map(ValueSource::source).collect();
        assert_eq!(sources, [Source::Global(8), Source::Argument(6), Source::Global(7)]);
        assert_eq!(declared.capture(false), cookie::VALUES | 8 << cookie::FIRST);
        declared.fail = Some(super::super::Predicate::parse("end.arg9 != 0").unwrap());
        assert_eq!((declared.number_globals(), declared.capture(true)), (Ok(()), cookie::VALUES));
        declared.fail = Some(super::super::Predicate::parse("arg7 != 0").unwrap());
        assert!(declared.number_globals().is_err(), "arg7 and a global variable in one register");
        declared.fail = None;
        declared.metrics.push(metric(value("global:c")));
        assert!(declared.number_globals().unwrap_err().starts_with("at most 8"));
    }

    #[test]
    fn only_what_is_wanted_is_captured() {
        let value = |text| ValueSource::parse(text, false).unwrap();
        let bits = |text, end, second| value(text).bits(end, second);
        assert_eq!(bits("return", true, false) | bits("return", false, false), 0);
        assert_eq!(bits("arg3", false, true), cookie::VALUES);
        assert_eq!(bits("arg3", true, true), 0);
        assert_eq!(bits("arg2:string", false, false), cookie::VALUES | 2 << cookie::FIRST);
        assert_eq!(bits("return:str", true, true), cookie::VALUES | 1 << cookie::SECOND | cookie::SECOND_PAIR);
        assert_eq!((value("arg6:str").registers(), value("arg6:string").registers()), (7, 6));
    }
}
