//! First bytes of what hosts speak, against every protocol's detection: none claims another's connection, complete or
//! cut.

use super::{Detected, PROTOCOLS, ProtocolId};

/// Protocol, case and first bytes; an empty name for unknown protocols.
const FIRST: &[(&str, &str, &[u8])] = &[
    ("http", "GET", b"GET /a/b?c=d HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("http", "HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"),
    ("http", "a reply", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ("redis", "SET", b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n"),
    ("redis", "a push", b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n"),
    ("fastcgi", "a beginning", b"\x01\x01\0\x01\0\x08\0\0\0\x01\x01\0\0\0\0\0\x01\x04\0\x01\0\0\0\0"),
    ("fastcgi", "output", b"\x01\x06\0\x01\0\x1b\x05\0Content-type: text/html\r\n\r\n\0\0\0\0\0"),
    ("memcached", "set", b"set key 0 60 5\r\nhello\r\n"),
    ("memcached", "values", b"VALUE key 0 5\r\nhello\r\nEND\r\n"),
    ("memcached", "binary get", b"\x80\0\0\x03\0\0\0\0\0\0\0\x03\0\0\0\x07\0\0\0\0\0\0\0\0key"),
    ("memcached", "binary miss", b"\x81\0\0\0\0\0\0\x01\0\0\0\x09\0\0\0\x07\0\0\0\0\0\0\0\0Not found"),
    (
        "tls",
        "TLS",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\x5b\x1c\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff",
    ),
    ("tls", "TLS data", b"\x17\x03\x03\0\x20\x01\x01\0\x01\0\x08\0\0\0\x01\x01\0\0\0\0\0\x01\x04\0\x01\0\0\0\0"),
    ("", "SSL 2", b"\x80\x2e\x01\x03\x01\0\x15\0\0\0\x10\x01\0\x80\x03\0\x80\x07\0\xc0\x06\0\x40\0"),
    ("ssh", "SSH", b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"),
    ("smtp", "SMTP server", b"220 mail.example.org ESMTP Postfix\r\n"),
    ("smtp", "SMTP client", b"EHLO client.example.org\r\n"),
    ("", "FTP server", b"220 ftp.example.org FTP server ready\r\n"),
    ("", "POP3 server", b"+OK POP3 ready\r\n"),
    ("", "IMAP server", b"* OK [CAPABILITY IMAP4rev1] ready\r\n"),
    ("", "IMAP client", b"a1 LOGIN user password\r\n"),
    ("", "FTP client", b"USER anonymous\r\n"),
    ("ldap", "LDAP bind", b"\x30\x0c\x02\x01\x01\x60\x07\x02\x01\x03\x04\0\x80\0"),
    ("postgresql", "PostgreSQL startup", b"\0\0\0\x21\0\x03\0\0user\0postgres\0database\0d\0\0"),
    ("postgresql", "PostgreSQL query", b"Q\0\0\0\x0dSELECT 1\0"),
    ("mysql", "MySQL greeting", b"\x4a\0\0\0\x0a8.0.36\0\x0b\0\0\0abcdefgh\0\xff\xf7\x08\x02\0\xff\x81\x15\0\0\0\0\0\0\0\0\0\0abcdefghijkl\0mysql_native_password\0"),
    ("mysql", "MySQL query", b"\x09\0\0\0\x03SELECT 1"),
    ("mongodb", "MongoDB OP_MSG", b"\x24\0\0\0\x01\0\0\0\0\0\0\0\xdd\x07\0\0\0\0\0\0\0\x0f\0\0\0\x10ping\0\x01\0\0\0\0"),
    ("cassandra", "Cassandra STARTUP", b"\x04\0\0\x01\x01\0\0\0\x16\0\x01\0\x0bCQL_VERSION\0\x053.0.0"),
    ("kafka", "Kafka ApiVersions", b"\0\0\0\x18\0\x12\0\0\0\0\0\x01\0\x0eclient-library"),
    ("kafka", "Kafka Metadata", b"\0\0\0\x14\0\x03\0\0\0\0\0\x01\0\x06client\0\0\0\0"),
    ("kafka", "Kafka Produce", b"\0\0\0\x2c\0\0\0\x02\0\0\0\x07\0\x06client\0\x01\0\0\x75\x30\0\0\0\x01\0\x06orders\0\0\0\x01\0\0\0\0\0\0\0\0"),
    ("amqp", "AMQP", b"AMQP\0\0\x09\x01"),
    ("nats", "NATS server", b"INFO {\"server_id\":\"x\",\"version\":\"2.9\"} \r\n"),
    ("nats", "NATS client", b"CONNECT {\"verbose\":false}\r\n"),
    ("nats", "a publication", b"PUB orders.new _INBOX.x.1 5\r\nhello\r\n"),
    ("nats", "a delivery", b"HMSG orders.new 9 12 17\r\nNATS/1.0\r\n\r\nhello\r\n"),
    ("mqtt", "MQTT", b"\x10\x10\0\x04MQTT\x04\x02\0\x3c\0\x04test"),
    ("stomp", "STOMP", b"STOMP\naccept-version:1.2\nhost:h\n\n\0"),
    ("stomp", "a message to a client", b"MESSAGE\nsubscription:0\nmessage-id:7\ndestination:/q/a\n\nhello\0"),
    ("dns", "DNS over TCP", b"\0\x1d\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x01\0\x01"),
    ("uwsgi", "uwsgi", b"\0\x1b\0\0\x0e\0REQUEST_METHOD\x03\0GET\x04\0PATH\x02\0/a"),
    ("scgi", "SCGI", b"70:CONTENT_LENGTH\x000\0SCGI\x001\0REQUEST_METHOD\0GET\0REQUEST_URI\0/a\0,"),
    ("", "Sun RPC", b"\x80\0\0\x28\x12\x34\x56\x78\0\0\0\0\0\0\0\x02\0\x01\x86\xa0\0\0\0\x02"),
    ("", "X11", b"l\0\x0b\0\0\0\0\0\0\0\0\0"),
    ("", "ZooKeeper", b"\0\0\0\x2d\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x75\x30\0\0\0\0\0\0\0\0\0\0\0\x10"),
    ("", "text", b"hello there, this is a line\r\n"),
    ("", "zeros", b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
];

#[test]
fn no_protocol_takes_anothers_connection() {
    let mut wrong = Vec::new();
    let takes = |protocol: &dyn super::Protocol, bytes: &[u8]| {
        matches!(protocol.detect(bytes), Detected::Request | Detected::Reply | Detected::Either)
    };
    for (name, what, bytes) in FIRST {
        for end in 1..=bytes.len() {
            for protocol in PROTOCOLS.iter().filter(|protocol| protocol.name() != *name) {
                if takes(*protocol, bytes.get(..end).unwrap_or_default()) {
                    wrong.push(format!("{} took {end} bytes of {what}", protocol.name()));
                }
            }
        }
        let whole = PROTOCOLS.iter().find(|protocol| takes(**protocol, bytes)).map_or("", |protocol| protocol.name());
        if whole != *name {
            wrong.push(format!("{what} is {name:?}, not {whole:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_id_is_detected() {
    for id in ProtocolId::ALL {
        // gRPC is found in HTTP/2, declared transactions have no connection.
        let expected = !matches!(id, ProtocolId::Grpc | ProtocolId::Job | ProtocolId::Declared);
        assert_eq!(PROTOCOLS.iter().any(|protocol| protocol.id() == id), expected, "{id}");
    }
}
