//! Protocols other than HTTP, against their servers' own accounts.

mod amqp;
mod cassandra;
mod dns;
mod fastcgi;
mod gateways;
mod haproxy;
mod jobs;
mod kafka;
mod mariadb;
mod mariadb_digests;
mod memcached;
mod mongodb;
mod mqtt;
mod nats;
mod postgresql;
mod postgresql_notify;
mod postgresql_portals;
mod redis;
mod round_trips;
mod stomp;
