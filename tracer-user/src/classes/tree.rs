//! Paths of one method as a tree that collapses positions with too many different values.
//!
//! A position collapses when it has had more than `learn_after` literal children: `/shop/{param}/view`. Children
//! requested far more often than the others are words of the application and stay; the others are removed.
//!
//! Until then, a literal may still be a value. It is shown as `{param}` until it has repeated: `REPEATS` times if it
//! looks like a word, else `REPEATS_UNLIKELY` times. A plain word at the top (`/health`) is shown at once.

use std::collections::HashMap;

use super::tokens;

/// Maximum nodes of one tree; beyond it, new literals count as values at once.
pub(super) const NODES: usize = 4096;
/// Requests answered by a route after which a plain word is shown; below, any other literal.
pub(super) const REPEATS: u64 = 3;
/// See `REPEATS`.
const REPEATS_UNLIKELY: u64 = 10;
/// A literal of at most this length contains no secret.
const SHORT: usize = 3;

/// One position.
#[derive(Debug, Default)]
struct Node {
    children: HashMap<Box<str>, Node>,
    /// Requests through this node.
    hits: u64,
    /// Whether a path ended here.
    ends: bool,
    /// Whether new literals share one child.
    collapsed: bool,
}

/// The tree.
#[derive(Debug, Default)]
pub struct Tree {
    root: Node,
    nodes: usize,
}

/// How a tree may grow.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    /// Different values at one position before it collapses.
    pub learn_after: usize,
    /// Maximum positions.
    pub most: usize,
    /// Number of requests that this one represents.
    pub weight: u64,
    /// Whether words are shown at their first request.
    pub shown_at_once: bool,
}

/// The route of a path.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// `/users/{id}`.
    pub route: String,
    /// A position collapsed on the way: earlier results are out of date.
    pub collapsed: bool,
    /// Whether the route is final; otherwise a later request of the path may show one more word.
    pub stable: bool,
}

/// Keys of the segments of a path.
#[derive(Debug)]
pub struct Followed {
    /// A word or a placeholder per segment.
    pub keys: Vec<String>,
    /// See [`Found::collapsed`].
    pub collapsed: bool,
    /// See [`Found::stable`].
    pub stable: bool,
}

impl From<Followed> for Found {
    /// Without its route.
    fn from(Followed { collapsed, stable, .. }: Followed) -> Self {
        Self { route: String::new(), collapsed, stable }
    }
}

/// The child of values.
const PARAM: &str = "{param}";

impl Tree {
    /// Positions in it.
    pub fn len(&self) -> usize {
        self.nodes
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.nodes == 0
    }

    /// Adds the path of a request that a route answered.
    pub fn insert(&mut self, path: &str, growth: Growth) -> Found {
        if let Some(route) = special(path) {
            return Found { route: route.into(), collapsed: false, stable: true };
        }
        let segments = super::template::segments(path);
        let followed = self.follow(&segments, growth);
        Found { route: route(&followed.keys), ..followed.into() }
    }

    /// The route of a path if a route answered requests like it; does not change the tree.
    pub fn find(&self, path: &str) -> Option<Found> {
        if let Some(route) = special(path) {
            return Some(Found { route: route.into(), collapsed: false, stable: true });
        }
        let segments = super::template::segments(path);
        let (mut keys, mut stable) = (Vec::with_capacity(segments.len()), true);
        let mut node = &self.root;
        for (depth, segment) in segments.iter().enumerate() {
            let (key, child) = match node.children.get(segment.as_str()) {
                Some(child) if is_shown(segment, depth, child.hits) => (segment.as_str(), child),
                Some(child) => {
                    stable = false;
                    (PARAM, child)
                }
                None if segment.starts_with('{') => return None,
                None => {
                    // Until the position collapses, this may be a new word.
                    stable &= node.collapsed;
                    let last = depth + 1 == segments.len();
                    (PARAM, node.children.get(PARAM).or_else(|| node.hidden_end(depth).filter(|_| last))?)
                }
            };
            keys.push(key.to_owned());
            node = child;
        }
        node.ends.then(|| Found { route: route(&keys), collapsed: false, stable })
    }

    /// Counts requests of a path with a known, stable route.
    pub fn count(&mut self, path: &str, weight: u64) {
        if special(path).is_some() {
            return;
        }
        let mut node = &mut self.root;
        node.hits += weight;
        for segment in super::template::segments(path) {
            let key = if node.children.contains_key(segment.as_str()) { segment.as_str() } else { PARAM };
            let Some(child) = node.children.get_mut(key) else { return };
            child.hits += weight;
            node = child;
        }
    }

    /// Adds segments (plain values already replaced by placeholders) as [`Tree::insert`] does.
    pub fn follow(&mut self, segments: &[String], growth: Growth) -> Followed {
        let Growth { learn_after, most, weight, shown_at_once } = growth;
        let mut followed = Followed { keys: Vec::with_capacity(segments.len()), collapsed: false, stable: true };
        let mut nodes = self.nodes;
        let mut node = &mut self.root;
        node.hits += weight;
        for (depth, segment) in segments.iter().enumerate() {
            let is_value = segment.starts_with('{');
            let known = node.children.contains_key(segment.as_str());
            let literals = node.children.keys().filter(|key| !key.starts_with('{')).count();
            if !known && !is_value && !node.collapsed && literals >= learn_after {
                nodes -= node.collapse();
                followed.collapsed = true;
            }
            let full = nodes >= most.min(NODES);
            let key: &str = if !known && !is_value && (node.collapsed || full) { PARAM } else { segment };
            if !node.children.contains_key(key) {
                nodes += 1;
            }
            node = node.children.entry(key.into()).or_default();
            node.hits += weight;
            let shown = shown_at_once || key.starts_with('{') || is_shown(key, depth, node.hits);
            followed.stable &= shown;
            followed.keys.push(if shown { key } else { PARAM }.to_owned());
        }
        node.ends = true;
        self.nodes = nodes;
        followed
    }
}

/// The route of an unknown path: shows only the first word, if it is a plain one.
pub fn guess(path: &str) -> String {
    if let Some(route) = special(path) {
        return route.into();
    }
    let segments = super::template::segments(path);
    let shown = |(depth, segment): (usize, &String)| {
        let literal = segment.starts_with('{') || is_shown(segment, depth, 1);
        if literal { segment.clone() } else { PARAM.to_owned() }
    };
    route(&segments.iter().enumerate().map(shown).collect::<Vec<_>>())
}

/// Routes of request targets that are no paths.
fn special(path: &str) -> Option<&'static str> {
    if path == "*" {
        return Some("*");
    }
    (!path.starts_with('/') && !path.is_empty()).then_some("{authority}")
}

fn route(keys: &[String]) -> String {
    if keys.is_empty() {
        return "/".into();
    }
    keys.iter().flat_map(|key| ["/", key]).collect()
}

/// Whether a word at this depth with this many requests is shown.
fn is_shown(word: &str, depth: usize, hits: u64) -> bool {
    if word.starts_with('{') {
        return true;
    }
    let needed = match tokens::is_word(word) {
        true if depth == 0 || word.len() <= SHORT => 1,
        true => REPEATS,
        false => REPEATS_UNLIKELY,
    };
    hits >= needed
}

impl Node {
    /// A word that ends a path and is not shown yet: a sibling counts as the same value.
    fn hidden_end(&self, depth: usize) -> Option<&Self> {
        self.children
            .iter()
            .find(|(word, child)| !is_shown(word, depth, child.hits) && child.ends)
            .map(|(_, child)| child)
    }

    /// Keeps the literals that matter: those with at least eight requests and four times the lower quartile, which
    /// consists of values. Returns the number of positions removed.
    fn collapse(&mut self) -> usize {
        let literals = self.children.iter().filter(|(key, _)| !key.starts_with('{'));
        let mut hits: Vec<u64> = literals.map(|(_, child)| child.hits).collect();
        hits.sort_unstable();
        let usual = hits.get(hits.len() / 4).copied().unwrap_or(0);
        let threshold = (usual * 4).max(8);
        let mut gone = 0;
        self.children.retain(|key, child| {
            let keep = key.starts_with('{') || child.hits >= threshold;
            gone += if keep { 0 } else { child.count() };
            keep
        });
        self.collapsed = true;
        gone
    }

    /// Positions in this subtree. Paths are cut at a maximum depth, which bounds the recursion.
    fn count(&self) -> usize {
        1 + self.children.values().map(Self::count).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth(learn_after: usize, most: usize) -> Growth {
        Growth { learn_after, most, weight: 1, shown_at_once: false }
    }

    #[test]
    fn words_in_use_stay_when_values_go() {
        let mut tree = Tree::default();
        for i in 0..200u32 {
            tree.insert("/api/orders", growth(10, NODES));
            tree.insert(
                &format!("/api/{}", char::from(b'a' + (i % 26) as u8).to_string().repeat(2 + i as usize / 26)),
                growth(10, NODES),
            );
        }
        assert_eq!(tree.insert("/api/orders", growth(10, NODES)).route, "/api/orders");
        assert_eq!(tree.insert("/api/zzz", growth(10, NODES)).route, "/api/{param}");
    }

    #[test]
    fn positions_are_counted_and_bounded() {
        let mut tree = Tree::default();
        let letter = |n: u32| char::from(b'a' + (n % 26) as u8);
        let path = |i| format!("/{0}{0}/x{1}{2}/{1}/{2}{2}", letter(i), letter(i / 26), letter(i / 676));
        for i in 0..3000 {
            tree.insert(&path(i), growth(20, NODES));
            assert_eq!(tree.len(), tree.root.count() - 1);
        }
        // Beyond the bound a value takes its place among values, and no literal does.
        let mut tree = Tree::default();
        for i in 0..3000 {
            tree.insert(&path(i), growth(1_000_000, 100));
        }
        let most = tree.len();
        assert!((100..250).contains(&most), "{most}");
        for i in 3000..9000 {
            tree.insert(&path(i), growth(1_000_000, 100));
        }
        assert_eq!(tree.len(), most);
    }

    #[test]
    fn special_targets() {
        let mut tree = Tree::default();
        for (path, route) in [("*", "*"), ("h:443", "{authority}"), ("", "/"), ("/", "/"), ("/a/", "/a")] {
            assert_eq!(tree.insert(path, growth(10, NODES)).route, route);
        }
    }
}
