//! What `tracer top` asks the agent.

use std::time::Instant;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::details::{Details, hottest};
use super::running::{ASKED, Running};
use super::table::{Class, ClassKey, Health, Service, Snapshot};
use crate::commands::api_client::{Client, PATIENCE_SYMBOLS};

#[derive(Deserialize)]
struct Classes {
    classes: Vec<Class>,
}

#[derive(Deserialize)]
struct Services {
    services: Vec<Service>,
}

impl Client {
    /// Everything the table shows.
    pub(super) fn snapshot(&self) -> Result<Snapshot, String> {
        let Classes { classes } = self.json("/api/v1/classes")?;
        let Services { services } = self.json("/api/v1/services")?;
        let health: Health = self.json("/api/v1/health")?;
        Ok(Snapshot { at: Instant::now(), classes, services, health })
    }

    /// The requests that run now, the oldest first.
    pub(super) fn running(&self) -> Result<Running, String> {
        self.json(&format!("/api/v1/running?limit={ASKED}"))
    }

    /// What one class, or a whole service, spends its CPU on.
    pub(super) fn details(&self, class: &ClassKey) -> Result<Details, String> {
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let mut path = format!("/profile.folded?service={}", encode(&class.service_name));
        if !class.is_service() {
            path = format!("{path}&class={}", encode(&class.request_class));
        }
        let folded = String::from_utf8_lossy(&self.get(&path, PATIENCE_SYMBOLS)?).into_owned();
        Ok(hottest(class.clone(), &folded))
    }
}
