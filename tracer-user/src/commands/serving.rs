//! The agent's HTTP server: on threads of its own, which reach the pipeline's by two bounded queues.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tracer_host::guard::status::Status;
use tracer_http::token::Token;
use tracer_http::{ControlCommand, Job, Shared};
use tracer_results::metrics::Exposition;

use super::Failure;
use super::agent_tables::Gauges;

/// Jobs that wait for the pipeline at most, and changes.
const JOBS: usize = 256;
const COMMANDS: usize = 16;

/// The address is taken; nothing is answered yet.
pub(super) struct Listener {
    pub(super) runtime: Runtime,
    pub(super) address: SocketAddr,
    listener: TcpListener,
    console: Arc<tracer_http::Console>,
    jobs: (mpsc::Sender<Job>, mpsc::Receiver<Job>),
    commands: (mpsc::Sender<ControlCommand>, mpsc::Receiver<ControlCommand>),
}

impl Listener {
    /// Takes the address, and starts the threads.
    pub(super) fn bind(address: SocketAddr) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("tracer-http")
            .enable_all()
            .build()
            .map_err(|error| Failure::Running(format!("no threads for serving: {error}")))?;
        let listener = runtime.block_on(TcpListener::bind(address)).map_err(|error| {
            Failure::Running(format!("cannot listen on {address}: {error}; choose another with --listen"))
        })?;
        Ok(Self {
            address: listener.local_addr().unwrap_or(address),
            runtime,
            listener,
            console: Arc::default(),
            jobs: mpsc::channel(JOBS),
            commands: mpsc::channel(COMMANDS),
        })
    }

    /// How full its queues are.
    pub(super) fn gauges(&self) -> Gauges {
        Gauges::new(Arc::clone(&self.console), self.jobs.0.clone())
    }

    /// Begins to answer, `places` connections at a time.
    pub(super) fn serve(self, metrics: Exposition, token: Option<Token>, status: Arc<Status>, places: usize) -> Server {
        let Self { runtime, address, listener, console, jobs: (jobs, job_queue), commands: (commands, changes) } = self;
        let shared = Shared { jobs, commands, metrics, listen: address, token, status, console };
        let (end, ended) = oneshot::channel::<()>();
        let task = runtime.spawn(tracer_http::serve(listener, shared, places, async move {
            let _ = ended.await;
        }));
        Server { runtime, task, end: Some(end), jobs: job_queue, commands: changes }
    }
}

/// The server, as the pipeline's thread sees it.
pub(super) struct Server {
    runtime: Runtime,
    task: JoinHandle<()>,
    /// Until the address is given up.
    end: Option<oneshot::Sender<()>>,
    /// Questions to the pipeline.
    pub(super) jobs: mpsc::Receiver<Job>,
    /// Changes that were asked for.
    pub(super) commands: mpsc::Receiver<ControlCommand>,
}

impl Server {
    /// Takes no new connection: the address is free at once.
    pub(super) fn stop(&mut self) {
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
    }

    /// Waits until open requests are answered, and then for `others`, until `deadline`; ends the threads.
    pub(super) fn finish(self, deadline: Instant, others: impl Future<Output = ()>) {
        self.runtime.block_on(async {
            let _ = tokio::time::timeout_at(deadline.into(), self.task).await;
            others.await;
        });
        self.runtime.shutdown_background();
    }
}
