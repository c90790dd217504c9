//! `GET /api/v1/dimensions`: declared dimensions, and the values that requests had.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use tracer_results::profiles::Filter;

use super::params::Params;
use super::{App, PipelineView, Problem};

pub(super) async fn list(State(app): State<Arc<App>>, params: Params) -> Result<Json<Value>, Problem> {
    params.only(&[])?;
    let all = app.shared.ask(|view| {
        let all = view.dimensions;
        let row = |(index, name): (usize, &Arc<str>)| {
            let values = all.values(index).map(|(value, requests)| json!({ "value": &**value, "requests": requests }));
            json!({ "name": &**name, "values": values.collect::<Vec<_>>(), "values_max": all.most(index) })
        };
        all.names().enumerate().map(row).collect::<Vec<_>>()
    });
    Ok(Json(json!({ "dimensions": all.await? })))
}

/// The dimension and the value that a query asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DimensionQuery {
    dimension: String,
    value: String,
}

/// Reads `dimension` and `value`; both or none.
pub(super) fn asked(params: &Params) -> Result<Option<DimensionQuery>, Problem> {
    match (params.string("dimension"), params.string("value")) {
        (None, None) => Ok(None),
        (Some(dimension), Some(value)) => Ok(Some(DimensionQuery { dimension, value })),
        (Some(_), None) => Err(Problem::bad("value: expected with dimension; /api/v1/dimensions lists them")),
        (None, Some(_)) => Err(Problem::bad("dimension: expected with value; /api/v1/dimensions lists them")),
    }
}

impl DimensionQuery {
    /// The same dimension with another value.
    pub(super) fn with(&self, value: String) -> Self {
        Self { value, ..self.clone() }
    }

    /// Has `filter` select what was asked for.
    pub(super) fn select(asked: Option<&Self>, view: &PipelineView<'_>, filter: &mut Filter) -> Result<(), Problem> {
        let Some(Self { dimension, value }) = asked else { return Ok(()) };
        let missing =
            |what, name: &str| Problem::missing(format!("no such {what}: '{name}'; /api/v1/dimensions lists them"));
        let index = view.dimensions.find(dimension).ok_or_else(|| missing("dimension", dimension))?;
        let number = view.dimensions.find_value(index, value).ok_or_else(|| missing("value", value))?;
        filter.value = Some((index, number));
        Ok(())
    }
}
