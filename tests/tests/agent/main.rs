//! The agent itself: its life cycle, limits, rights and pages.

mod console;
mod containers;
mod doctor;
mod hindsight;
mod kubernetes;
mod lifecycle;
mod limits;
mod mcp;
mod monitoring;
mod network_priority;
mod privileges;
mod reload;
mod saved;
mod secrets;
mod series;
mod service_classes;
mod service_manager;
mod top;
