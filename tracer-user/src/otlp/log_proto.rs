//! The OTLP messages that only logs need (opentelemetry-proto 1.5: `collector/logs/v1`, `logs/v1`), with their field numbers.
//! Fields that this agent never writes are omitted.

use prost::Message;

use super::proto::{AnyValue, KeyValue, Resource, Scope};

/// `SeverityNumber`: information.
pub(super) const INFO: i32 = 9;
/// `SeverityNumber`: a warning.
pub(super) const WARN: i32 = 13;

/// `ExportLogsServiceRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Request {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_logs: Vec<ResourceLogs>,
}

/// Records of one resource.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceLogs {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_logs: Vec<ScopeLogs>,
    #[prost(string, tag = "3")]
    pub(super) schema_url: String,
}

/// Records of one instrumentation scope: this agent.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeLogs {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) log_records: Vec<LogRecord>,
}

/// One record.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LogRecord {
    #[prost(fixed64, tag = "1")]
    pub(super) time_unix_nano: u64,
    #[prost(int32, tag = "2")]
    pub(super) severity_number: i32,
    #[prost(string, tag = "3")]
    pub(super) severity_text: String,
    #[prost(message, optional, tag = "5")]
    pub(super) body: Option<AnyValue>,
    #[prost(message, repeated, tag = "6")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "11")]
    pub(super) observed_time_unix_nano: u64,
    #[prost(string, tag = "12")]
    pub(super) event_name: String,
}
