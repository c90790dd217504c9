//! Paths of one method as a tree that tells the application's words from values, and gives positions of values one child:
//! `/shop/{param}/view`.
//!
//! **Words come back, values keep coming.** A literal is shown as `{param}` until it has repeated: `REPEATS` times if it looks like
//! a word, else `REPEATS_UNLIKELY` times. From twice `learn_after` literals on a position is one of values if most of its newest
//! `learn_after` literals were requested once; those that were requested far more often than the others are words of the application
//! and stay. With four times `learn_after` literals it is full: those that have repeated stay.
//!
//! A plain word at the top (`/health`), and one too short for a secret, is shown at once, but only while few of these words of the
//! tree have not repeated yet: a client that fetches each path once must not get a class for each.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tracer_model::ClassId;

use super::template::Segments;
use super::tokens;

/// Maximum nodes of one tree; beyond it, new literals count as values at once.
pub(super) const NODES: usize = 4096;
/// Requests answered by a route after which a plain word is shown; below, any other literal.
pub(super) const REPEATS: u64 = 3;
/// See `REPEATS`.
const REPEATS_UNLIKELY: u64 = 10;
/// A literal of at most this length contains no secret.
const SHORT: usize = 3;
/// Literals after which a position is judged, in multiples of `learn_after`.
const JUDGED: usize = 2;
/// Literals after which a position is full, in multiples of `learn_after`.
const FULL: usize = 4;

/// One position.
#[derive(Debug, Default)]
struct Node {
    children: FxHashMap<Box<str>, Node>,
    /// Requests through this node.
    hits: u64,
    /// Requests through this node from which on its word is shown.
    shown_from: u64,
    /// Literals that began here.
    literals: usize,
    /// Which of its parent's literals it was.
    order: usize,
    /// Whether a path ended here.
    ends: bool,
    /// Whether new literals share one child.
    collapsed: bool,
    /// The class of the paths that end here, once it is given.
    class: Option<ClassId>,
}

/// The tree.
#[derive(Debug, Default)]
pub struct Tree {
    root: Node,
    nodes: usize,
    /// Words that were shown at once and have not repeated, those that are gone included.
    unproven: usize,
}

/// How a tree may grow.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    /// Different literals at one position from which on it may be one of values.
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

/// The final route of a path.
#[derive(Debug, PartialEq, Eq)]
pub enum FinalRoute {
    /// Its class was given.
    Class(ClassId),
    /// It has none yet.
    New(String),
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
/// [`Node::shown_from`] of a word that is shown at once; a smaller one needs no proof.
const AT_ONCE: u64 = 1;

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
        let route = route(&followed.keys.iter().map(String::as_str).collect());
        Found { route, ..followed.into() }
    }

    /// The route of a path if a route answered requests like it; does not change the tree.
    pub fn find(&self, path: &str) -> Option<Found> {
        if let Some(route) = special(path) {
            return Some(Found { route: route.into(), collapsed: false, stable: true });
        }
        let segments = super::template::segments(path);
        let mut keys = Keys::new();
        let (node, stable) = self.look_up(&segments, &mut keys)?;
        node.ends.then(|| Found { route: route(&keys), collapsed: false, stable })
    }

    /// The route of a path as [`Tree::find`] has it, if it is final. Counts the request then.
    pub fn find_final(&mut self, path: &str) -> Option<FinalRoute> {
        if let Some(route) = special(path) {
            return Some(FinalRoute::New(route.into()));
        }
        let segments = super::template::segments(path);
        let found = {
            let mut keys = Keys::new();
            let (node, _) = self.look_up(&segments, &mut keys).filter(|(node, stable)| node.ends && *stable)?;
            node.class.map_or_else(|| FinalRoute::New(route(&keys)), FinalRoute::Class)
        };
        self.count_segments(&segments, 1);
        Some(found)
    }

    /// A path whose route is final has this class, and all paths of that route have.
    pub fn set_class(&mut self, path: &str, class: ClassId) {
        if special(path).is_some() {
            return;
        }
        let segments = super::template::segments(path);
        let mut node = &mut self.root;
        for segment in &segments {
            let key = if node.children.contains_key(&**segment) { segment } else { PARAM };
            let Some(child) = node.children.get_mut(key).filter(|child| child.is_shown()) else { return };
            node = child;
        }
        if node.ends {
            node.class = Some(class);
        }
    }

    /// The position of a path, and whether its route is final. Adds the route's words to `keys`.
    fn look_up<'a>(&'a self, segments: &'a Segments<'_>, keys: &mut Keys<'a>) -> Option<(&'a Node, bool)> {
        let (mut node, mut stable) = (&self.root, true);
        for (depth, segment) in segments.iter().enumerate() {
            let (key, child) = match node.children.get(&**segment) {
                Some(child) if child.is_shown() => (&**segment, child),
                Some(child) => {
                    stable = false;
                    (PARAM, child)
                }
                None if segment.starts_with('{') => return None,
                None => {
                    // Until the position collapses, this may be a new word.
                    stable &= node.collapsed;
                    let next = segments.get(depth + 1).map(|next| &**next);
                    (PARAM, node.children.get(PARAM).or_else(|| node.hidden_like(next))?)
                }
            };
            keys.push(key);
            node = child;
        }
        Some((node, stable))
    }

    /// Counts requests of a path with a known, stable route.
    pub fn count(&mut self, path: &str, weight: u64) {
        if special(path).is_none() {
            self.count_segments(&super::template::segments(path), weight);
        }
    }

    fn count_segments(&mut self, segments: &Segments<'_>, weight: u64) {
        let mut node = &mut self.root;
        node.hits += weight;
        for segment in segments {
            let key = if node.children.contains_key(&**segment) { segment } else { PARAM };
            let Some(child) = node.children.get_mut(key) else { return };
            self.unproven -= usize::from(child.hit(weight));
            node = child;
        }
    }

    /// Adds segments (plain values already replaced by placeholders) as [`Tree::insert`] does.
    pub fn follow(&mut self, segments: &Segments<'_>, growth: Growth) -> Followed {
        let Growth { learn_after, most, weight, shown_at_once } = growth;
        let mut followed = Followed { keys: Vec::with_capacity(segments.len()), collapsed: false, stable: true };
        let mut node = &mut self.root;
        node.hits += weight;
        for (depth, segment) in segments.iter().enumerate() {
            let is_value = segment.starts_with('{');
            let known = node.children.contains_key(&**segment);
            if !known
                && !is_value
                && !node.collapsed
                && let Some(least) = node.verdict(learn_after)
            {
                self.nodes -= node.collapse(least);
                followed.collapsed = true;
            }
            let full = self.nodes >= most.min(NODES);
            let key: &str = if !known && !is_value && (node.collapsed || full) { PARAM } else { segment };
            if !node.children.contains_key(key) {
                self.nodes += 1;
                let mut child = Node::default();
                if !key.starts_with('{') {
                    node.literals += 1;
                    child.order = node.literals;
                    child.shown_from = match tokens::is_word(key) {
                        _ if shown_at_once && node.literals <= learn_after => 0,
                        true if is_plain(key, depth) && self.unproven < learn_after / 3 => {
                            self.unproven += 1;
                            AT_ONCE
                        }
                        true => REPEATS,
                        false => REPEATS_UNLIKELY,
                    };
                }
                node.children.insert(key.into(), child);
            }
            // It was there, or was inserted.
            let Some(child) = node.children.get_mut(key) else { break };
            self.unproven -= usize::from(child.hit(weight));
            let shown = child.is_shown();
            followed.stable &= shown;
            followed.keys.push(if shown { key } else { PARAM }.to_owned());
            node = child;
        }
        node.ends = true;
        followed
    }
}

/// The route of an unknown path: shows only the first word, if it is a plain one.
pub fn guess(path: &str) -> String {
    if let Some(route) = special(path) {
        return route.into();
    }
    let segments = super::template::segments(path);
    let mut keys = Keys::new();
    for (depth, segment) in segments.iter().enumerate() {
        let literal = segment.starts_with('{') || (tokens::is_word(segment) && is_plain(segment, depth));
        keys.push(if literal { segment } else { PARAM });
    }
    route(&keys)
}

/// Routes of request targets that are no paths.
fn special(path: &str) -> Option<&'static str> {
    if path == "*" {
        return Some("*");
    }
    (!path.starts_with('/') && !path.is_empty()).then_some("{authority}")
}

/// The words of a route.
type Keys<'a> = SmallVec<[&'a str; 8]>;

fn route(keys: &Keys<'_>) -> String {
    if keys.is_empty() {
        return "/".into();
    }
    keys.iter().flat_map(|key| ["/", key]).collect()
}

/// Whether a word at this depth is unlikely to be a value.
fn is_plain(word: &str, depth: usize) -> bool {
    depth == 0 || word.len() <= SHORT
}

impl Node {
    /// Counts requests; whether its word, shown at once, has repeated by that.
    fn hit(&mut self, weight: u64) -> bool {
        let was_unproven = self.is_unproven();
        self.hits += weight;
        was_unproven && !self.is_unproven()
    }

    /// Whether its word is shown at once and has not repeated.
    fn is_unproven(&self) -> bool {
        self.shown_from == AT_ONCE && self.hits < REPEATS
    }

    /// Whether its word is shown; a placeholder always is.
    fn is_shown(&self) -> bool {
        self.hits >= self.shown_from
    }

    /// The first word that is not shown and goes on with `next`, or ends: a sibling that does counts as the same value.
    fn hidden_like(&self, next: Option<&str>) -> Option<&Self> {
        let goes_on = |child: &Self| next.map_or(child.ends, |next| child.children.contains_key(next));
        self.words().filter(|child| !child.is_shown() && goes_on(child)).min_by_key(|child| child.order)
    }

    /// The literals below it.
    fn words(&self) -> impl Iterator<Item = &Self> {
        self.children.iter().filter(|(key, _)| !key.starts_with('{')).map(|(_, child)| child)
    }

    /// If new literals are no words from now on: how often those that stay must have been requested.
    fn verdict(&self, learn_after: usize) -> Option<u64> {
        if self.literals >= learn_after.saturating_mul(FULL) {
            return Some(REPEATS);
        }
        if self.literals < learn_after.saturating_mul(JUDGED) {
            return None;
        }
        let newest = self.words().filter(|child| child.order > self.literals - learn_after);
        let once = newest.filter(|child| child.hits <= 1).count();
        (once * 3 > learn_after * 2).then(|| self.usual() * 4).map(|least| least.max(8))
    }

    /// The lower quartile of the requests of literals: at a position of values, that of values.
    fn usual(&self) -> u64 {
        let mut hits: Vec<u64> = self.words().map(|child| child.hits).collect();
        hits.sort_unstable();
        hits.get(hits.len() / 4).copied().unwrap_or(0)
    }

    /// Keeps the literals with at least so many requests; returns the number of positions removed.
    fn collapse(&mut self, least: u64) -> usize {
        let mut gone = 0;
        self.children.retain(|key, child| {
            let keep = key.starts_with('{') || child.hits >= least;
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
    fn a_final_route_has_its_class_from_then_on() {
        // Two trees that see the same: what `find_final` does is what `find` and `count` do.
        let (mut tree, mut plain) = (Tree::default(), Tree::default());
        let word = |n: u32| char::from(b'a' + (n % 26) as u8).to_string().repeat(3 + n as usize / 26 % 4);
        let (mut classes, mut repeated) = (std::collections::HashMap::new(), 0);
        for n in 0..4_000_u32 {
            let path = match n % 5 {
                0 => format!("/shop/{n}/items"),
                1 => format!("/shop/{}/items/{}", word(n / 5), n % 7),
                2 => "/health".into(),
                3 => "*".into(),
                _ => format!("/{}/x.js", word(n / 11)),
            };
            let expected = plain.find(&path).filter(|found| found.stable);
            if expected.is_some() {
                plain.count(&path, 1);
            }
            match (tree.find_final(&path), expected) {
                (None, None) => {
                    let found = tree.insert(&path, growth(10, NODES));
                    assert_eq!(found, plain.insert(&path, growth(10, NODES)), "{path}");
                }
                (Some(FinalRoute::New(route)), Some(expected)) => {
                    assert_eq!(route, expected.route, "{path}");
                    let class = ClassId(classes.len() as u32);
                    tree.set_class(&path, *classes.entry(route).or_insert(class));
                }
                (Some(FinalRoute::Class(class)), Some(expected)) => {
                    assert_eq!(classes.get(&expected.route), Some(&class), "{path}");
                    repeated += 1;
                }
                (found, expected) => panic!("{path}: {found:?}, and not {expected:?}"),
            }
        }
        assert!(repeated > 1_000, "{repeated}");
    }

    #[test]
    fn special_targets() {
        let mut tree = Tree::default();
        for (path, route) in [("*", "*"), ("h:443", "{authority}"), ("", "/"), ("/", "/"), ("/a/", "/a")] {
            assert_eq!(tree.insert(path, growth(10, NODES)).route, route);
        }
    }
}
