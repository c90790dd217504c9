//! Text inside TLS.

mod tls;
mod tls_libraries;
mod tls_memory;
mod tls_node;
mod tls_roots;
mod tls_servers;
mod tls_under_load;
