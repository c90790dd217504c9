//! Which request caused which call, by each runtime's own words.

mod context;
mod links;
mod pools;
mod recordings;
mod trace_contexts;
mod transactions;
mod transactions_compiled;
mod transactions_grpc;
mod transactions_served;
mod transactions_shapes;
