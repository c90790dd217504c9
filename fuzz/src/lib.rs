//! Fuzz targets: functions that take any bytes and panic when they find a defect. The unit tests run every target on its
//! seeds and corpus; `cargo xtask fuzz` makes new inputs (`main.rs`).
//!
//! A new target is a file of `targets/` with a `run`, its name in `targets/mod.rs` and in the table below, and seeds in
//! `fuzz/seeds/NAME/`.

mod conversation;
mod process_memory;
#[cfg(test)]
mod replay;
mod targets;

/// [`TARGETS`], and for each a test that runs it on what is in its directories.
macro_rules! targets {
    ($($name:ident,)*) => {
        /// Every target by name.
        pub const TARGETS: &[Target] = &[$((stringify!($name), targets::$name::run),)*];

        #[cfg(test)]
        mod known_inputs {
            $(
                #[test]
                fn $name() {
                    crate::replay::known_inputs(stringify!($name), crate::targets::$name::run);
                }
            )*
        }
    };
}

/// A target's name, and what runs it on one input.
pub type Target = (&'static str, fn(&[u8]));

targets! {
    amqp,
    btf,
    cassandra,
    config,
    decode,
    dns,
    elf,
    engine,
    fastcgi,
    go,
    heads,
    hotspot,
    http1,
    http2,
    kafka,
    memcached,
    mongodb,
    mqtt,
    mysql,
    nats,
    php_code,
    pipeline,
    postgresql,
    proc,
    python_code,
    query,
    record,
    relay,
    scgi,
    sql,
    stomp,
    tokio,
    turns,
    unwind,
    usdt,
    uwsgi,
    v8_code,
    websocket,
}
