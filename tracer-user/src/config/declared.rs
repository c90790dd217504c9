//! `[[transaction]]`: declared transactions.

use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, Source};
use crate::runtimes::declared::{Declared, Predicate};

/// Most declared transactions.
pub(super) const DECLARED_MAX: usize = 64;
/// Longest names, bytes.
const NAME: usize = 120;
const FUNCTION: usize = 1024;

/// One of them, as in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TransactionFile {
    name: Spanned<String>,
    program: Spanned<String>,
    function: Option<Spanned<String>>,
    fail: Option<Spanned<String>>,
    call: Option<Spanned<toml::Value>>,
    lines: Option<Spanned<toml::Value>>,
    user: Option<Spanned<toml::Value>>,
    metrics: Option<Spanned<toml::Value>>,
}

/// Checks them.
pub(super) fn check(source: &Source<'_>, all: Vec<TransactionFile>) -> Result<Arc<[Declared]>, ConfigError> {
    if let Some(last) = all.get(DECLARED_MAX) {
        return Err(source.wrong(&last.name.span(), format!("at most {DECLARED_MAX} transactions can be declared")));
    }
    let mut checked: Vec<Declared> = Vec::new();
    for file in all {
        let declared = one(source, &file)?;
        if let Some(other) = checked.iter().find(|other| other.name == declared.name) {
            let what = format!("the name '{}' is declared twice: also at {}", declared.name, other.place);
            return Err(source.wrong(&file.name.span(), what));
        }
        let same = |other: &&Declared| other.program == declared.program && other.function == declared.function;
        if let Some(other) = checked.iter().find(same) {
            let what = format!("this function is declared twice: also at {}", other.place);
            return Err(source.wrong(&file.name.span(), what));
        }
        checked.push(declared);
    }
    Ok(checked.into())
}

fn one(source: &Source<'_>, file: &TransactionFile) -> Result<Declared, ConfigError> {
    for (key, value) in [("call", &file.call), ("lines", &file.lines), ("user", &file.user), ("metrics", &file.metrics)]
    {
        if let Some(value) = value {
            let what = format!("`{key}` is not supported yet; declare a whole function with `function`");
            return Err(source.wrong(&value.span(), what));
        }
    }
    let is_text =
        |text: &str, most| !text.trim().is_empty() && text.len() <= most && !text.chars().any(char::is_control);
    if !is_text(file.name.get_ref(), NAME) {
        return Err(source.wrong(&file.name.span(), "expected a name of 1 to 120 bytes"));
    }
    if !file.program.get_ref().starts_with('/') || file.program.get_ref().len() > libc::PATH_MAX as usize {
        let what =
            "expected an absolute path of a program or library, such as \"/opt/shop/bin/shop\" or \"/opt/shop/*\"";
        return Err(source.wrong(&file.program.span(), what));
    }
    let Some(function) = &file.function else {
        return Err(source.wrong(&file.name.span(), "expected `function`, the symbol of the function to declare"));
    };
    if !is_text(function.get_ref(), FUNCTION) {
        return Err(source.wrong(&function.span(), "expected the symbol of a function"));
    }
    let fail = match &file.fail {
        Some(fail) => Some(Predicate::parse(fail.get_ref()).map_err(|what| source.wrong(&fail.span(), what))?),
        None => None,
    };
    Ok(Declared {
        name: Arc::from(file.name.get_ref().trim()),
        program: file.program.get_ref().as_str().into(),
        function: function.get_ref().trim().into(),
        fail,
        place: source.place(&function.span()).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    #[test]
    fn declarations_are_checked() {
        let text = r#"
            [[transaction]]
            name = "sort"
            program = "/opt/bench/kernels"
            function = "sort_run"
            fail = "return != 0"
        "#;
        let config = Config::parse("t.toml", text).unwrap();
        let declared = &config.declared[0];
        assert_eq!((&*declared.name, &*declared.function, &*declared.place), ("sort", "sort_run", "t.toml:5"));
        for (text, expected) in [
            ("name = \"a\"\nprogram = \"x\"\nfunction = \"f\"", "t.toml:3:11: expected an absolute path"),
            ("name = \"a\"\nprogram = \"/x\"", "t.toml:2:8: expected `function`"),
            ("name = \"\"\nprogram = \"/x\"\nfunction = \"f\"", "t.toml:2:8: expected a name"),
            ("name = \"a\"\nprogram = \"/x\"\nfunction = \"\"", "t.toml:4:12: expected the symbol"),
            (
                "name = \"a\"\nprogram = \"/x\"\nfunction = \"f\"\nfail = \"errno\"",
                "t.toml:5:8: 'errno' is no condition",
            ),
            ("name = \"a\"\nprogram = \"/x\"\nlines = {}", "t.toml:4:9: `lines` is not supported yet"),
        ] {
            let error = Config::parse("t.toml", &format!("[[transaction]]\n{text}\n")).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        let one = |n| format!("[[transaction]]\nname = \"{n}\"\nprogram = \"/x\"\nfunction = \"f{n}\"\n");
        let many = (0..65).map(one).collect::<Vec<_>>().concat();
        assert!(Config::parse("t.toml", &many).unwrap_err().to_string().contains("at most 64"));
        let twice = text.repeat(2);
        assert!(Config::parse("t.toml", &twice).unwrap_err().to_string().contains("also at t.toml:5"));
    }
}
