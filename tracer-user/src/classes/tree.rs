//! Paths of one method as a tree, in which positions with too many different values become one.
//!
//! A position is collapsed when it has had more than `learn_after` literal children: `/shop/{param}/view`. Children
//! that carry a large share of the position's requests are words of the application and stay; the others go.

use std::collections::HashMap;

/// Most nodes of one tree; then new literals count as values at once.
pub(super) const NODES: usize = 4096;

/// One position.
#[derive(Debug, Default)]
struct Node {
    children: HashMap<Box<str>, Node>,
    /// Requests that passed.
    hits: u64,
    /// Literals that are not followed any more share one child.
    collapsed: bool,
}

/// The tree.
#[derive(Debug, Default)]
pub struct Tree {
    root: Node,
    nodes: usize,
}

/// Where a path went.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// `/users/{id}`.
    pub route: String,
    /// A position was collapsed on the way: earlier answers are out of date.
    pub collapsed: bool,
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

    /// Follows `path`, growing the tree while it has fewer than `most` positions.
    pub fn insert(&mut self, path: &str, learn_after: usize, most: usize) -> Found {
        if path == "*" {
            return Found { route: "*".into(), collapsed: false };
        }
        if !path.starts_with('/') && !path.is_empty() {
            return Found { route: "{authority}".into(), collapsed: false };
        }
        let segments = super::template::segments(path);
        let (keys, collapsed) = self.follow(&segments, learn_after, most);
        let mut route = String::new();
        for key in &keys {
            route.push('/');
            route.push_str(key);
        }
        if route.is_empty() {
            route.push('/');
        }
        Found { route, collapsed }
    }

    /// Follows segments, in which plain values are placeholders, as [`Tree::insert`] does; gives what stands for each, and
    /// whether a position was collapsed on the way.
    pub fn follow(&mut self, segments: &[String], learn_after: usize, most: usize) -> (Vec<String>, bool) {
        let mut keys = Vec::with_capacity(segments.len());
        let mut collapsed = false;
        let mut nodes = self.nodes;
        let mut node = &mut self.root;
        node.hits += 1;
        for segment in segments {
            let is_value = segment.starts_with('{');
            let known = node.children.contains_key(segment.as_str());
            let literals = node.children.keys().filter(|key| !key.starts_with('{')).count();
            if !known && !is_value && !node.collapsed && literals >= learn_after {
                nodes -= node.collapse();
                collapsed = true;
            }
            let full = nodes >= most.min(NODES);
            let key: &str = if !known && !is_value && (node.collapsed || full) { PARAM } else { segment };
            if !node.children.contains_key(key) {
                nodes += 1;
            }
            keys.push(key.to_owned());
            node = node.children.entry(key.into()).or_default();
            node.hits += 1;
        }
        self.nodes = nodes;
        (keys, collapsed)
    }
}

impl Node {
    /// Keeps the literals that matter: a share of at least a tenth of the requests and more than a handful. Gives the
    /// number of positions that went.
    fn collapse(&mut self) -> usize {
        let threshold = (self.hits / 10).max(8);
        let mut gone = 0;
        self.children.retain(|key, child| {
            let keep = key.starts_with('{') || child.hits >= threshold;
            gone += if keep { 0 } else { child.count() };
            keep
        });
        self.collapsed = true;
        gone
    }

    /// Positions from here on down. Paths are cut at a depth, so this is not deep.
    fn count(&self) -> usize {
        1 + self.children.values().map(Self::count).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_in_use_stay_when_values_go() {
        let mut tree = Tree::default();
        for i in 0..200u32 {
            tree.insert("/api/orders", 10, NODES);
            tree.insert(
                &format!("/api/{}", char::from(b'a' + (i % 26) as u8).to_string().repeat(2 + i as usize / 26)),
                10,
                NODES,
            );
        }
        assert_eq!(tree.insert("/api/orders", 10, NODES).route, "/api/orders");
        assert_eq!(tree.insert("/api/zzz", 10, NODES).route, "/api/{param}");
    }

    #[test]
    fn positions_are_counted_and_bounded() {
        let mut tree = Tree::default();
        let letter = |n: u32| char::from(b'a' + (n % 26) as u8);
        let path = |i| format!("/{0}{0}/x{1}{2}/{1}/{2}{2}", letter(i), letter(i / 26), letter(i / 676));
        for i in 0..3000 {
            tree.insert(&path(i), 20, NODES);
            assert_eq!(tree.len(), tree.root.count() - 1);
        }
        // Beyond the bound a value takes its place among values, and no literal does.
        let mut tree = Tree::default();
        for i in 0..3000 {
            tree.insert(&path(i), 1_000_000, 100);
        }
        let most = tree.len();
        assert!((100..250).contains(&most), "{most}");
        for i in 3000..9000 {
            tree.insert(&path(i), 1_000_000, 100);
        }
        assert_eq!(tree.len(), most);
    }

    #[test]
    fn special_targets() {
        let mut tree = Tree::default();
        for (path, route) in [("*", "*"), ("h:443", "{authority}"), ("", "/"), ("/", "/"), ("/a/", "/a")] {
            assert_eq!(tree.insert(path, 10, NODES).route, route);
        }
    }
}
