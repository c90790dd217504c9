//! Protocols by id: what a connection speaks is found once, and compared as a number from then on.

use std::fmt;

/// Which semantic conventions describe the requests of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conventions {
    /// HTTP: a method, a path, a status.
    Http,
    /// Remote procedure calls: a method, a status.
    Rpc,
    /// Databases: an operation, a kind of failure.
    Database,
    /// Messaging: an operation, a destination, a kind of failure.
    Messaging,
    /// None: named like HTTP requests, and counted as work only.
    Session,
    /// Name resolution: a question, a kind of failure.
    Names,
    /// Code: a function that the configuration declares.
    Function,
    /// None: round trips on a connection whose protocol is not decoded.
    RoundTrips,
}

/// Declares [`ProtocolId`]. A line a protocol: its name and the conventions that describe its requests.
macro_rules! protocols {
    ($($(#[$doc:meta])* $id:ident = $name:literal, $conventions:ident;)+) => {
        /// A protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ProtocolId {
            $($(#[$doc])* $id,)+
        }

        impl ProtocolId {
            /// Every protocol.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$id),+];

            /// Lower case; also the configuration key and the label in metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$id => $name,)+
                }
            }

            /// Which semantic conventions describe its requests.
            pub const fn conventions(self) -> Conventions {
                match self {
                    $(Self::$id => Conventions::$conventions,)+
                }
            }

            /// The protocol with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$id),)+
                    _ => None,
                }
            }
        }
    };
}

protocols! {
    /// HTTP/1.1 and HTTP/2.
    Http = "http", Http;
    /// gRPC, on HTTP/2.
    Grpc = "grpc", Rpc;
    /// FastCGI.
    FastCgi = "fastcgi", Http;
    /// uwsgi.
    Uwsgi = "uwsgi", Http;
    /// SCGI.
    Scgi = "scgi", Http;
    /// WebSocket.
    WebSocket = "websocket", Session;
    /// Redis (RESP).
    Redis = "redis", Database;
    /// PostgreSQL.
    PostgreSql = "postgresql", Database;
    /// MySQL.
    MySql = "mysql", Database;
    /// MariaDB.
    MariaDb = "mariadb", Database;
    /// memcached.
    Memcached = "memcached", Database;
    /// MongoDB.
    MongoDb = "mongodb", Database;
    /// Cassandra (CQL).
    Cassandra = "cassandra", Database;
    /// NATS.
    Nats = "nats", Messaging;
    /// STOMP.
    Stomp = "stomp", Messaging;
    /// MQTT.
    Mqtt = "mqtt", Messaging;
    /// AMQP 0-9-1.
    Amqp = "amqp", Messaging;
    /// Kafka.
    Kafka = "kafka", Messaging;
    /// Jobs that workers take from a queue.
    Job = "job", Messaging;
    /// DNS.
    Dns = "dns", Names;
    /// TLS whose text is not seen: round trips.
    Tls = "tls", RoundTrips;
    /// SSH: round trips.
    Ssh = "ssh", RoundTrips;
    /// SMTP: round trips.
    Smtp = "smtp", RoundTrips;
    /// LDAP: round trips.
    Ldap = "ldap", RoundTrips;
    /// Not recognised: round trips.
    Unknown = "unknown", RoundTrips;
    /// Declared transactions: functions that the configuration names.
    Declared = "declared", Function;
}

impl fmt::Display for ProtocolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl serde::Serialize for ProtocolId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_finds_its_protocol() {
        for id in ProtocolId::ALL {
            assert_eq!(ProtocolId::from_name(id.name()), Some(id));
        }
        assert_eq!(ProtocolId::from_name("no such"), None);
    }
}
