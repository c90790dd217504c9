//! Styles and scripts of the console: files of `assets/`, inside the program. `assets/vendor/` holds libraries that `cargo
//! xtask vendor` copied there, with their licences.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::Problem;
use super::params::Named;

const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

macro_rules! assets {
    ($($name:literal $kind:ident,)*) => {
        /// Name below `/assets/`, media type, content.
        pub(super) const ASSETS: &[(&str, &str, &[u8])] =
            &[$(($name, $kind, include_bytes!(concat!("assets/", $name)))),*];
    };
}

assets! {
    "console.css" CSS,
    "activity.js" SCRIPT,
    "charts.js" SCRIPT,
    "class_page.js" SCRIPT,
    "compare_page.js" SCRIPT,
    "console.js" SCRIPT,
    "data.js" SCRIPT,
    "dom.js" SCRIPT,
    "finding_page.js" SCRIPT,
    "findings.js" SCRIPT,
    "flame_graph.js" SCRIPT,
    "format.js" SCRIPT,
    "health_page.js" SCRIPT,
    "heatmap.js" SCRIPT,
    "home_page.js" SCRIPT,
    "neighbours.js" SCRIPT,
    "running_page.js" SCRIPT,
    "service_map.js" SCRIPT,
    "service_page.js" SCRIPT,
    "table.js" SCRIPT,
    "call_sites.js" SCRIPT,
    "tiers.js" SCRIPT,
    "transaction_page.js" SCRIPT,
    "transactions_page.js" SCRIPT,
    "workloads_page.js" SCRIPT,
    "vendor/dagre/dagre.min.js" SCRIPT,
    "vendor/dagre/LICENSE" TEXT,
    "vendor/uplot/uPlot.iife.min.js" SCRIPT,
    "vendor/uplot/uPlot.min.css" CSS,
    "vendor/uplot/LICENSE" TEXT,
}

/// A file of the table. Browsers ask each time whether it has changed: after an update of the agent old and new scripts
/// must not meet.
pub(super) async fn asset(Named(name): Named, headers: HeaderMap) -> Result<Response, Problem> {
    let found = ASSETS.iter().find(|(known, ..)| *known == name);
    let (_, kind, bytes) = *found.ok_or_else(|| Problem::missing("no such file of the console"))?;
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    // Weak: the same content is also sent compressed (RFC 9110 §8.8.3).
    let tag = format!("W/\"{:016x}\"", hasher.finish());
    let cached = [(header::ETAG, tag.clone()), (header::CACHE_CONTROL, "no-cache".to_owned())];
    if headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return Ok((StatusCode::NOT_MODIFIED, cached).into_response());
    }
    Ok((cached, [(header::CONTENT_TYPE, kind)], bytes).into_response())
}
