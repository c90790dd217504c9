//! Paths of one method as a tree, in which positions with too many different values become one.
//!
//! A position is collapsed when it has had more than `learn_after` literal children: `/shop/{param}/view`. Children
//! that carry a large share of the position's requests are words of the application and stay; the others go.

use std::collections::HashMap;

/// Most nodes of one tree; then new literals count as values at once.
const NODES: usize = 4096;

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
    /// Follows `path`, growing the tree.
    pub fn insert(&mut self, path: &str, learn_after: usize) -> Found {
        if path == "*" {
            return Found { route: "*".into(), collapsed: false };
        }
        if !path.starts_with('/') && !path.is_empty() {
            return Found { route: "{authority}".into(), collapsed: false };
        }
        let segments = super::template::segments(path);
        let mut route = String::new();
        let mut collapsed = false;
        let mut nodes = self.nodes;
        let mut node = &mut self.root;
        node.hits += 1;
        for segment in &segments {
            let is_value = segment.starts_with('{');
            let known = node.children.contains_key(segment.as_str());
            let literals = node.children.keys().filter(|key| !key.starts_with('{')).count();
            if !known && !is_value && !node.collapsed && literals >= learn_after {
                node.collapse();
                collapsed = true;
            }
            let full = nodes >= NODES;
            let key: &str = if !known && !is_value && (node.collapsed || full) { PARAM } else { segment };
            if !node.children.contains_key(key) {
                nodes += 1;
            }
            route.push('/');
            route.push_str(key);
            node = node.children.entry(key.into()).or_default();
            node.hits += 1;
        }
        self.nodes = nodes;
        if route.is_empty() {
            route.push('/');
        }
        Found { route, collapsed }
    }
}

impl Node {
    /// Keeps the literals that matter: a share of at least a tenth of the requests and more than a handful.
    fn collapse(&mut self) {
        let threshold = (self.hits / 10).max(8);
        self.children.retain(|key, child| key.starts_with('{') || child.hits >= threshold);
        self.collapsed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_in_use_stay_when_values_go() {
        let mut tree = Tree::default();
        for i in 0..200u32 {
            tree.insert("/api/orders", 10);
            tree.insert(
                &format!("/api/{}", char::from(b'a' + (i % 26) as u8).to_string().repeat(2 + i as usize / 26)),
                10,
            );
        }
        assert_eq!(tree.insert("/api/orders", 10).route, "/api/orders");
        assert_eq!(tree.insert("/api/zzz", 10).route, "/api/{param}");
    }

    #[test]
    fn special_targets() {
        let mut tree = Tree::default();
        for (path, route) in [("*", "*"), ("h:443", "{authority}"), ("", "/"), ("/", "/"), ("/a/", "/a")] {
            assert_eq!(tree.insert(path, 10).route, route);
        }
    }
}
