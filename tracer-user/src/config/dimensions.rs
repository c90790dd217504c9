//! `[[dimension]]`: by what hotspots and flame graphs can be divided.

use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;
use tracer_model::DIMENSIONS_MAX;
use tracer_model::dimensions::{Dimension, ValueSource};

use super::{ConfigError, Source};

/// Values with names of their own: by default, and at most.
const VALUES: usize = 50;
const VALUES_MOST: i64 = 1000;
/// Longest name, and furthest segment of a path.
const NAME: usize = 64;
const SEGMENT: usize = 16;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DimensionFile {
    name: Spanned<String>,
    from: Spanned<String>,
    values: Option<Spanned<i64>>,
}

/// Checks all of them.
pub(super) fn check(source: &Source<'_>, all: &[DimensionFile]) -> Result<Arc<[Dimension]>, ConfigError> {
    let mut checked: Vec<Dimension> = Vec::new();
    for DimensionFile { name, from, values } in all {
        let text = name.get_ref().trim();
        if checked.len() >= DIMENSIONS_MAX {
            return Err(source.wrong(&name.span(), format!("expected {DIMENSIONS_MAX} dimensions at most")));
        }
        if text.is_empty() || text.len() > NAME || text.chars().any(char::is_control) {
            return Err(source.wrong(&name.span(), format!("expected a name of 1 to {NAME} bytes, such as \"tenant\"")));
        }
        if checked.iter().any(|known| *known.name == *text) {
            return Err(source.wrong(&name.span(), "another dimension has this name"));
        }
        let expected = "expected \"header:NAME\", \"host\" or \"path:N\", the Nth segment of the path from 1";
        let from = origin(from.get_ref()).ok_or_else(|| source.wrong(&from.span(), expected))?;
        let most = values.as_ref().map(|values| source.number(values, 1..VALUES_MOST + 1)).transpose()?;
        checked.push(Dimension { name: text.into(), from, most: most.unwrap_or(VALUES) });
    }
    Ok(checked.into())
}

fn origin(text: &str) -> Option<ValueSource> {
    match text.split_once(':') {
        None if text == "host" => Some(ValueSource::Host),
        Some(("header", name)) => super::class_rules::header_name(name).map(ValueSource::Header),
        Some(("path", nth)) => nth.parse().ok().filter(|nth| (1..=SEGMENT).contains(nth)).map(ValueSource::Segment),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    #[test]
    fn dimensions_are_checked() {
        let text = "[[dimension]]\nname = \"tenant\"\nfrom = \"header:X-Tenant\"\nvalues = 7\n\
                    [[dimension]]\nname = \"area\"\nfrom = \"path:2\"\n";
        let config = Config::parse("t.toml", text).unwrap();
        let tenant = Dimension { name: "tenant".into(), from: ValueSource::Header("x-tenant".into()), most: 7 };
        let area = Dimension { name: "area".into(), from: ValueSource::Segment(2), most: VALUES };
        assert_eq!(*config.dimensions, [tenant, area]);
        assert_eq!(config.header_names(), [Box::from("x-tenant")]);
        assert!(!config.wants_host());
        assert!(Config::parse("t.toml", "[[dimension]]\nname = \"h\"\nfrom = \"host\"\n").unwrap().wants_host());
        let many = "[[dimension]]\nname = \"NAME\"\nfrom = \"host\"\n";
        let many: String = (0..5).map(|n| many.replace("NAME", &n.to_string())).collect();
        for (text, why) in [
            ("[[dimension]]\nname = \"\"\nfrom = \"host\"\n", "t.toml:2:8: expected a name"),
            ("[[dimension]]\nname = \"a\"\nfrom = \"cookie:x\"\n", "t.toml:3:8: expected \"header:NAME\""),
            ("[[dimension]]\nname = \"a\"\nfrom = \"header:a b\"\n", "t.toml:3:8: expected"),
            ("[[dimension]]\nname = \"a\"\nfrom = \"path:0\"\n", "t.toml:3:8: expected"),
            ("[[dimension]]\nname = \"a\"\nfrom = \"host\"\nvalues = 0\n", "t.toml:4:10: 0 is out of range"),
            (
                &*format!(
                    "{}{}",
                    &text[..text.find("values").unwrap()],
                    "[[dimension]]\nname = \"tenant\"\nfrom = \"host\"\n"
                ),
                "another dimension",
            ),
            (&*many, "expected 4 dimensions at most"),
        ] {
            let error = Config::parse("t.toml", text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
