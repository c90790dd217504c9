//! Methods (AMQP 0-9-1 and RabbitMQ's extensions), and reply codes for closed channels and connections.

use super::fields::FieldReader;
use crate::messaging::{GET, SUBSCRIBE, UNSUBSCRIBE};

/// Sender of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Client,
    Server,
    Either,
}

/// One method.
#[derive(Debug)]
pub(super) struct Method {
    pub(super) class: u16,
    pub(super) id: u16,
    pub(super) name: &'static str,
    pub(super) role: Role,
    pub(super) has_reply: bool,
    pub(super) is_reply: bool,
}

/// Arguments of a method with a reply.
#[derive(Debug, Default)]
pub(super) struct Asks<'a> {
    /// Queue or exchange.
    pub(super) name: &'a [u8],
    /// No reply is wanted.
    pub(super) nowait: bool,
    /// A consumer: its name, and whether it uses automatic acknowledgement.
    pub(super) tag: &'a [u8],
    pub(super) silent: bool,
}

const fn asks(class: u16, id: u16, name: &'static str) -> Method {
    Method { class, id, name, role: Role::Client, has_reply: true, is_reply: false }
}

const fn reply(class: u16, id: u16, name: &'static str) -> Method {
    Method { class, id, name, role: Role::Server, has_reply: false, is_reply: true }
}

const fn plain(class: u16, id: u16, name: &'static str, role: Role) -> Method {
    Method { class, id, name, role, has_reply: false, is_reply: false }
}

/// All methods.
const METHODS: &[Method] = &[
    plain(10, 10, "connection.start", Role::Server),
    plain(10, 11, "connection.start-ok", Role::Client),
    plain(10, 20, "connection.secure", Role::Server),
    plain(10, 21, "connection.secure-ok", Role::Client),
    plain(10, 30, "connection.tune", Role::Server),
    plain(10, 31, "connection.tune-ok", Role::Client),
    plain(10, 40, "connection.open", Role::Client),
    plain(10, 41, "connection.open-ok", Role::Server),
    plain(10, 50, "connection.close", Role::Either),
    plain(10, 51, "connection.close-ok", Role::Either),
    plain(10, 60, "connection.blocked", Role::Server),
    plain(10, 61, "connection.unblocked", Role::Server),
    plain(10, 70, "connection.update-secret", Role::Client),
    plain(10, 71, "connection.update-secret-ok", Role::Server),
    asks(20, 10, "channel.open"),
    reply(20, 11, "channel.open-ok"),
    plain(20, 20, "channel.flow", Role::Either),
    plain(20, 21, "channel.flow-ok", Role::Either),
    Method { role: Role::Either, ..asks(20, 40, "channel.close") },
    Method { role: Role::Either, ..reply(20, 41, "channel.close-ok") },
    asks(40, 10, "exchange.declare"),
    reply(40, 11, "exchange.declare-ok"),
    asks(40, 20, "exchange.delete"),
    reply(40, 21, "exchange.delete-ok"),
    asks(40, 30, "exchange.bind"),
    reply(40, 31, "exchange.bind-ok"),
    asks(40, 40, "exchange.unbind"),
    reply(40, 51, "exchange.unbind-ok"),
    asks(50, 10, "queue.declare"),
    reply(50, 11, "queue.declare-ok"),
    asks(50, 20, "queue.bind"),
    reply(50, 21, "queue.bind-ok"),
    asks(50, 30, "queue.purge"),
    reply(50, 31, "queue.purge-ok"),
    asks(50, 40, "queue.delete"),
    reply(50, 41, "queue.delete-ok"),
    asks(50, 50, "queue.unbind"),
    reply(50, 51, "queue.unbind-ok"),
    asks(60, 10, "basic.qos"),
    reply(60, 11, "basic.qos-ok"),
    asks(60, 20, "basic.consume"),
    reply(60, 21, "basic.consume-ok"),
    Method { role: Role::Either, ..asks(60, 30, "basic.cancel") },
    Method { role: Role::Either, ..reply(60, 31, "basic.cancel-ok") },
    plain(60, 40, "basic.publish", Role::Client),
    plain(60, 50, "basic.return", Role::Server),
    plain(60, 60, "basic.deliver", Role::Server),
    asks(60, 70, "basic.get"),
    reply(60, 71, "basic.get-ok"),
    reply(60, 72, "basic.get-empty"),
    plain(60, 80, "basic.ack", Role::Either),
    plain(60, 90, "basic.reject", Role::Client),
    plain(60, 100, "basic.recover-async", Role::Client),
    asks(60, 110, "basic.recover"),
    reply(60, 111, "basic.recover-ok"),
    plain(60, 120, "basic.nack", Role::Either),
    asks(85, 10, "confirm.select"),
    reply(85, 11, "confirm.select-ok"),
    asks(90, 10, "tx.select"),
    reply(90, 11, "tx.select-ok"),
    asks(90, 20, "tx.commit"),
    reply(90, 21, "tx.commit-ok"),
    asks(90, 30, "tx.rollback"),
    reply(90, 31, "tx.rollback-ok"),
];

/// The method with these numbers.
pub(super) fn find(class: u16, id: u16) -> Option<&'static Method> {
    METHODS.iter().find(|method| method.class == class && method.id == id)
}

impl Method {
    /// Whether a message follows it.
    pub(super) fn carries(&self) -> bool {
        self.class == 60 && matches!(self.id, 40 | 50 | 60 | 71)
    }

    /// Name of its operation: that of other messaging protocols if they have the same.
    pub(super) fn operation(&self) -> &'static str {
        match self.name {
            "basic.get" => GET,
            "basic.consume" => SUBSCRIBE,
            "basic.cancel" => UNSUBSCRIBE,
            name => name,
        }
    }

    /// Reads its arguments.
    pub(super) fn asks<'a>(&self, fields: &mut FieldReader<'a>) -> Asks<'a> {
        let mut asks = Asks::default();
        let mut skipped = 0;
        let mut bit = 0;
        match (self.class, self.id) {
            (40 | 50, _) | (60, 20 | 70) => {
                fields.short();
                asks.name = fields.text().unwrap_or_default();
                (skipped, bit) = match (self.class, self.id) {
                    (40, 10) => (1, 4),
                    (40, 20) => (0, 1),
                    (40, _) | (50, 20) => (2, 0),
                    (50, 10) => (0, 4),
                    (50, 40) => (0, 2),
                    (60, 20) => {
                        asks.tag = fields.text().unwrap_or_default();
                        (0, 3)
                    }
                    (50, 30) => (0, 0),
                    // Unbinding and getting always have a reply.
                    _ => return asks,
                };
            }
            (60, 30) => {
                fields.text();
            }
            (85, 10) => {}
            _ => return asks,
        }
        for _ in 0..skipped {
            fields.text();
        }
        let bits = fields.byte().unwrap_or(0);
        asks.nowait = bits >> bit & 1 != 0;
        asks.silent = bits & 2 != 0;
        asks
    }
}

/// The name of a reply code.
pub(super) fn failure(code: u16) -> &'static str {
    match code {
        // An operator closed it, or a client that was finished.
        200 => "CLOSED",
        311 => "CONTENT_TOO_LARGE",
        312 => "NO_ROUTE",
        313 => "NO_CONSUMERS",
        320 => "CONNECTION_FORCED",
        402 => "INVALID_PATH",
        403 => "ACCESS_REFUSED",
        404 => "NOT_FOUND",
        405 => "RESOURCE_LOCKED",
        406 => "PRECONDITION_FAILED",
        501 => "FRAME_ERROR",
        502 => "SYNTAX_ERROR",
        503 => "COMMAND_INVALID",
        504 => "CHANNEL_ERROR",
        505 => "UNEXPECTED_FRAME",
        506 => "RESOURCE_ERROR",
        530 => "NOT_ALLOWED",
        540 => "NOT_IMPLEMENTED",
        541 => "INTERNAL_ERROR",
        _ => "_OTHER",
    }
}
