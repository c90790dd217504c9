//! Names of reason codes (MQTT 5 §2.4; 3.1.1 §3.2.2.3), from a list.

/// The name of a reason code; `None` if it is missing or no failure.
pub(super) fn word(reason: Option<u8>) -> Option<&'static str> {
    Some(match reason? {
        0..0x80 => return None,
        0x80 => "UNSPECIFIED_ERROR",
        0x81 => "MALFORMED_PACKET",
        0x82 => "PROTOCOL_ERROR",
        0x83 => "IMPLEMENTATION_SPECIFIC_ERROR",
        0x84 => "UNSUPPORTED_PROTOCOL_VERSION",
        0x85 => "CLIENT_IDENTIFIER_NOT_VALID",
        0x86 => "BAD_USER_NAME_OR_PASSWORD",
        0x87 => "NOT_AUTHORIZED",
        0x88 => "SERVER_UNAVAILABLE",
        0x89 => "SERVER_BUSY",
        0x8a => "BANNED",
        0x8c => "BAD_AUTHENTICATION_METHOD",
        0x8f => "TOPIC_FILTER_INVALID",
        0x90 => "TOPIC_NAME_INVALID",
        0x91 => "PACKET_IDENTIFIER_IN_USE",
        0x92 => "PACKET_IDENTIFIER_NOT_FOUND",
        0x95 => "PACKET_TOO_LARGE",
        0x97 => "QUOTA_EXCEEDED",
        0x99 => "PAYLOAD_FORMAT_INVALID",
        0x9a => "RETAIN_NOT_SUPPORTED",
        0x9b => "QOS_NOT_SUPPORTED",
        0x9c => "USE_ANOTHER_SERVER",
        0x9d => "SERVER_MOVED",
        0x9e => "SHARED_SUBSCRIPTIONS_NOT_SUPPORTED",
        0x9f => "CONNECTION_RATE_EXCEEDED",
        0xa1 => "SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED",
        0xa2 => "WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED",
        _ => "_OTHER",
    })
}

/// The same for a connection, which versions before 5 number differently.
pub(super) fn connection(reason: Option<u8>, version: Option<u8>) -> Option<&'static str> {
    match reason {
        Some(1..=5) if version != Some(5) => word(match reason {
            Some(1) => Some(0x84),
            Some(2) => Some(0x85),
            Some(3) => Some(0x88),
            Some(4) => Some(0x86),
            _ => Some(0x87),
        }),
        _ => word(reason),
    }
}
