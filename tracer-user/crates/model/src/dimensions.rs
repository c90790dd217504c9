//! Dimensions of requests that the operator declares, such as the tenant: hotspots and flame graphs can be of one value.
//!
//! Values are what requests say, so they are bounded: the first ones of a dimension have names of their own, all others
//! are `[other]`.

use std::collections::HashMap;
use std::sync::Arc;

use crate::text;
use crate::{DIMENSIONS_MAX, DimensionValues};

/// Longest value with a name of its own, bytes.
const VALUE: usize = 64;
/// Numbers of values: that of requests without one, and of those that found no room.
const NONE: u16 = 0;
const OTHER: u16 = 1;
/// How these are shown.
const NAMES: [&str; 2] = ["[none]", "[other]"];

/// Where a request's value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// A header; its name, lower case.
    Header(Box<str>),
    /// The host that the request names.
    Host,
    /// A segment of the path, from 1.
    Segment(usize),
}

/// A declared dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dimension {
    /// Its name.
    pub name: Arc<str>,
    /// Where values are.
    pub from: ValueSource,
    /// Most values with a name of their own.
    pub most: usize,
}

/// What dimensions look at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts<'a> {
    /// Path without query.
    pub path: &'a str,
    /// Host the request names.
    pub host: Option<&'a str>,
    /// Values of headers, by index in `header_names`.
    pub headers: &'a [(u16, Box<str>)],
    /// Names of headers that rules look at, lower case.
    pub header_names: &'a [Box<str>],
}

#[derive(Clone, Debug)]
struct DimensionState {
    dimension: Dimension,
    /// Names of values by number.
    values: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u16>,
    /// Requests by number of the value.
    requests: Vec<u64>,
}

/// Dimensions, and their values so far.
#[derive(Clone, Debug, Default)]
pub struct Dimensions(Vec<DimensionState>);

impl Dimensions {
    /// Without values.
    pub fn new(all: &[Dimension]) -> Self {
        let known = |dimension: &Dimension| DimensionState {
            dimension: dimension.clone(),
            values: NAMES.map(Arc::from).into(),
            numbers: HashMap::new(),
            requests: vec![0; NAMES.len()],
        };
        Self(all.iter().take(DIMENSIONS_MAX).map(known).collect())
    }

    /// Whether none is declared.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The values of a request.
    pub fn of(&mut self, facts: &Facts<'_>) -> DimensionValues {
        let mut values = DimensionValues::default();
        for (known, value) in self.0.iter_mut().zip(&mut values.0) {
            *value = known.dimension.from.value(facts).map_or(NONE, |text| known.number(text));
        }
        values
    }

    /// Counts a request with these values.
    pub fn count(&mut self, values: DimensionValues) {
        for (known, value) in self.0.iter_mut().zip(values.0) {
            if let Some(requests) = known.requests.get_mut(usize::from(value)) {
                *requests += 1;
            }
        }
    }

    /// Names of the dimensions.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.iter().map(|known| &known.dimension.name)
    }

    /// Number of the dimension, if there is one of this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|known| *known.dimension.name == *name)
    }

    /// Number of a value of a dimension, if it was seen.
    pub fn find_value(&self, dimension: usize, value: &str) -> Option<u16> {
        let at = self.0.get(dimension)?.values.iter().position(|known| **known == *value)?;
        u16::try_from(at).ok()
    }

    /// Names of the values of a dimension, and the requests of each.
    pub fn values(&self, dimension: usize) -> impl Iterator<Item = (&Arc<str>, u64)> {
        self.0.get(dimension).into_iter().flat_map(|known| known.values.iter().zip(known.requests.iter().copied()))
    }

    /// Most values of a dimension with a name of their own.
    pub fn most(&self, dimension: usize) -> usize {
        self.0.get(dimension).map_or(0, |known| known.dimension.most)
    }

    /// Values with names of their own, of all dimensions; how many there may be; and requests of others.
    pub fn fill(&self) -> (usize, usize, u64) {
        self.0.iter().fold((0, 0, 0), |(values, most, others), known| {
            let other = known.requests.get(usize::from(OTHER)).copied().unwrap_or_default();
            (values + known.numbers.len(), most + known.dimension.most, others + other)
        })
    }
}

impl DimensionState {
    fn number(&mut self, text: &str) -> u16 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let shown = text::printable(text);
        // Brackets are for what is no value.
        if text.len() > VALUE || self.numbers.len() >= self.dimension.most || NAMES.contains(&&*shown) {
            return OTHER;
        }
        let Ok(number) = u16::try_from(self.values.len()) else { return OTHER };
        self.values.push(Arc::from(&*shown));
        self.requests.push(0);
        self.numbers.insert(text.into(), number);
        number
    }
}

impl ValueSource {
    fn value<'a>(&self, facts: &Facts<'a>) -> Option<&'a str> {
        let text = match self {
            Self::Header(name) => {
                let index = facts.header_names.iter().position(|known| **known == **name)?;
                let (_, value) = facts.headers.iter().find(|(at, _)| usize::from(*at) == index)?;
                value
            }
            Self::Host => facts.host?,
            Self::Segment(nth) => {
                facts.path.split('/').filter(|segment| !segment.is_empty()).nth(nth.checked_sub(1)?)?
            }
        };
        let text = text.trim();
        (!text.is_empty()).then_some(text)
    }
}

/// A request's values where it has some, else those of the request that caused it.
pub fn inherited(own: DimensionValues, above: DimensionValues) -> DimensionValues {
    let mut values = own;
    for (value, above) in values.0.iter_mut().zip(above.0) {
        if *value == NONE {
            *value = above;
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dimension(name: &str, from: ValueSource, most: usize) -> Dimension {
        Dimension { name: name.into(), from, most }
    }

    #[test]
    fn values_are_those_of_requests_and_bounded() {
        let mut all = Dimensions::new(&[
            dimension("tenant", ValueSource::Header("x-tenant".into()), 2),
            dimension("area", ValueSource::Segment(2), 10),
            dimension("host", ValueSource::Host, 10),
        ]);
        let names: [Box<str>; 2] = ["x-other".into(), "x-tenant".into()];
        let mut of = |tenant: Option<&str>, path: &str, host: Option<&str>| {
            let headers: Vec<(u16, Box<str>)> = tenant.map(|value| (1, value.into())).into_iter().collect();
            let values = all.of(&Facts { path, host, headers: &headers, header_names: &names });
            all.count(values);
            let name = |at: usize| all.values(at).nth(usize::from(values.0[at])).unwrap().0.to_string();
            [name(0), name(1), name(2)]
        };
        assert_eq!(of(Some(" gold "), "/a/b/c", Some("h")), ["gold", "b", "h"]);
        assert_eq!(of(None, "/a", None), ["[none]"; 3]);
        assert_eq!(of(Some(""), "//x//y", None), ["[none]", "y", "[none]"]);
        assert_eq!(of(Some("iron"), "/", None)[0], "iron");
        assert_eq!(of(Some("lead"), "/", None)[0], "[other]");
        assert_eq!(of(Some("gold"), "/", None)[0], "gold");
        assert_eq!(of(None, &format!("/a/{}", "x".repeat(65)), None)[1], "[other]");
        assert_eq!(of(None, "/a/[none]", None)[1], "[other]");
        assert_eq!((all.find("area"), all.find("nothing"), all.most(0)), (Some(1), None, 2));
        assert_eq!((all.find_value(0, "iron"), all.find_value(0, "lead")), (Some(3), None));
        let requests: Vec<(String, u64)> = all.values(0).map(|(name, count)| (name.to_string(), count)).collect();
        let expected = [("[none]", 4), ("[other]", 1), ("gold", 2), ("iron", 1)];
        assert_eq!(requests, expected.map(|(name, count)| (name.to_owned(), count)));
        assert_eq!(all.fill().2, 3);
    }

    #[test]
    fn what_a_request_lacks_it_has_from_its_cause() {
        let values = |one: [u16; 2]| DimensionValues([one[0], one[1], 0, 0]);
        assert_eq!(inherited(values([0, 3]), values([5, 6])), values([5, 3]));
    }
}
