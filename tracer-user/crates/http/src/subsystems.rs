//! `/api/v1/subsystems`: the CPU of databases by component, user, session and class.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use tracer_model::{ClassId, Names};
use tracer_results::subsystems::own_figures::OwnUser;
use tracer_results::subsystems::{BookView, SelfReport, SessionView, UserView};

use super::params::Params;
use super::{App, PipelineView, Problem};

/// Most classes of a user, and sessions of an instance, in one answer.
const CLASSES: usize = 100;
const SESSIONS: usize = 500;

fn class(names: &Names, (id, cpu): &(ClassId, f64)) -> Option<Value> {
    Some(json!({ "request_class": &*names.class(*id)?.name, "cpu_s": cpu }))
}

fn user(names: &Names, user: &UserView) -> Value {
    let classes: Vec<Value> = user.classes.iter().take(CLASSES).filter_map(|one| class(names, one)).collect();
    json!({
        "user": user.user, "database": user.database, "cpu_s": user.cpu_s, "requests_cpu_s": user.requests_s,
        "connection_cpu_s": user.connection_s, "workers_cpu_s": user.workers_s, "sessions": user.sessions,
        "sessions_ended": user.ended, "classes": classes,
    })
}

fn session(session: &SessionView) -> Value {
    let SessionView { pid, user, database, cpu_s, requests_s } = session;
    json!({ "pid": pid, "user": user, "database": database, "cpu_s": cpu_s, "requests_cpu_s": requests_s })
}

fn own(own: &SelfReport) -> Value {
    let command =
        |(name, calls, time_s): &(String, u64, f64)| json!({ "command": name, "calls": calls, "time_s": time_s });
    let commands: Vec<Value> = own.commands.iter().map(command).collect();
    let user = |OwnUser { user, database, sessions, statements, time }: &OwnUser| {
        json!({
            "user": user, "database": database, "sessions": sessions, "statements": statements,
            "time_s": time.map(|time| time as f64 / 1e9),
        })
    };
    let users: Vec<Value> = own.users.iter().map(user).collect();
    json!({ "cpu_s": own.cpu_s, "book_cpu_s": own.book_cpu_s, "commands": commands, "users": users })
}

fn subsystem(names: &Names, book: &BookView) -> Value {
    let components: Vec<Value> =
        book.components.iter().map(|one| json!({ "component": one.name, "cpu_s": one.cpu_s })).collect();
    // The first two are there before anybody comes.
    let known = book.users.iter().filter(|user| user.cpu_s > 0.0 || user.sessions + user.ended > 0);
    let users: Vec<Value> = known.map(|one| user(names, one)).collect();
    let sessions: Vec<Value> = book.sessions.iter().take(SESSIONS).map(session).collect();
    json!({
        "system": book.system, "service_name": &*book.service_name, "instance": book.instance,
        "pid": if book.pid == 0 { Value::Null } else { json!(book.pid) },
        "processes": book.processes, "cpu_s": book.cpu_s, "proc_cpu_s": book.proc_cpu_s,
        "checked_cpu_s": book.checked_cpu_s, "capture_ratio": book.capture_ratio, "components": components,
        "own": book.own.as_ref().map(own), "users": users, "sessions": sessions, "sessions_total": book.sessions.len(),
    })
}

fn all(view: &PipelineView<'_>) -> Value {
    let views = view.subsystems.views();
    // One whose book was merged with that of an earlier run is empty.
    let known = views.iter().filter(|book| book.pid != 0 || book.cpu_s > 0.0);
    let rows: Vec<Value> = known.map(|book| subsystem(view.names, book)).collect();
    json!({ "subsystems": rows })
}

pub(super) async fn list(State(app): State<Arc<App>>, params: Params) -> Result<Json<Value>, Problem> {
    params.only(&[])?;
    Ok(Json(app.shared.ask(all).await?))
}
