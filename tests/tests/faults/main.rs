//! Faults of the host and of the agent's surroundings.

mod faults_clock;
mod faults_connections;
mod faults_disk;
mod faults_outputs;
mod faults_processes;
mod faults_readers;
mod faults_refused;
mod faults_restarts;
mod faults_starved;
