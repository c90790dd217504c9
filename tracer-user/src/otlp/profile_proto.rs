//! The OTLP messages that only profiles need (opentelemetry-proto 1.11: `collector/profiles/v1development`,
//! `profiles/v1development`), with their field numbers. Fields that this agent never writes are omitted.
//!
//! Numbers of fields changed up to 1.9 (October 2025): older collectors read something else.

use prost::Message;

use super::proto::{AnyValue, Resource, Scope};

/// `ExportProfilesServiceRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Request {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_profiles: Vec<ResourceProfiles>,
    #[prost(message, optional, tag = "2")]
    pub(super) dictionary: Option<Dictionary>,
}

/// `ProfilesDictionary`: what the messages of a request refer to, by index. The first entry of each table is the empty one.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Dictionary {
    #[prost(message, repeated, tag = "1")]
    pub(super) mapping_table: Vec<Mapping>,
    #[prost(message, repeated, tag = "2")]
    pub(super) location_table: Vec<Location>,
    #[prost(message, repeated, tag = "3")]
    pub(super) function_table: Vec<Function>,
    #[prost(message, repeated, tag = "4")]
    pub(super) link_table: Vec<Link>,
    #[prost(string, repeated, tag = "5")]
    pub(super) string_table: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub(super) attribute_table: Vec<Attribute>,
    #[prost(message, repeated, tag = "7")]
    pub(super) stack_table: Vec<Stack>,
}

/// Profiles of one resource.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceProfiles {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_profiles: Vec<ScopeProfiles>,
    #[prost(string, tag = "3")]
    pub(super) schema_url: String,
}

/// Profiles of one instrumentation scope: this agent.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeProfiles {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) profiles: Vec<Profile>,
}

/// Samples of one kind.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Profile {
    #[prost(message, optional, tag = "1")]
    pub(super) sample_type: Option<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(super) samples: Vec<Sample>,
    #[prost(fixed64, tag = "3")]
    pub(super) time_unix_nano: u64,
    #[prost(uint64, tag = "4")]
    pub(super) duration_nano: u64,
    #[prost(message, optional, tag = "5")]
    pub(super) period_type: Option<ValueType>,
    #[prost(int64, tag = "6")]
    pub(super) period: i64,
    #[prost(bytes = "vec", tag = "7")]
    pub(super) profile_id: Vec<u8>,
}

/// What values are, and their unit.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct ValueType {
    #[prost(int32, tag = "1")]
    pub(super) type_strindex: i32,
    #[prost(int32, tag = "2")]
    pub(super) unit_strindex: i32,
}

/// All of one stack with the same attributes.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Sample {
    #[prost(int32, tag = "1")]
    pub(super) stack_index: i32,
    #[prost(int32, repeated, tag = "2")]
    pub(super) attribute_indices: Vec<i32>,
    /// One: their sum.
    #[prost(int64, repeated, tag = "4")]
    pub(super) values: Vec<i64>,
}

/// A mapped file. No addresses are exported.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct Mapping {
    #[prost(int32, tag = "4")]
    pub(super) filename_strindex: i32,
}

/// A stack, innermost frame first.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Stack {
    #[prost(int32, repeated, tag = "1")]
    pub(super) location_indices: Vec<i32>,
}

/// A frame.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Location {
    #[prost(int32, tag = "1")]
    pub(super) mapping_index: i32,
    #[prost(message, repeated, tag = "3")]
    pub(super) lines: Vec<Line>,
    #[prost(int32, repeated, tag = "4")]
    pub(super) attribute_indices: Vec<i32>,
}

/// A place in a function.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct Line {
    #[prost(int32, tag = "1")]
    pub(super) function_index: i32,
    #[prost(int64, tag = "2")]
    pub(super) line: i64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub(super) struct Function {
    #[prost(int32, tag = "1")]
    pub(super) name_strindex: i32,
    #[prost(int32, tag = "3")]
    pub(super) filename_strindex: i32,
    #[prost(int64, tag = "4")]
    pub(super) start_line: i64,
}

/// `KeyValueAndUnit`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Attribute {
    #[prost(int32, tag = "1")]
    pub(super) key_strindex: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

/// A span that samples belong to; only the empty one is written.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Link {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) span_id: Vec<u8>,
}
