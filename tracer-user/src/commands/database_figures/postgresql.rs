//! PostgreSQL's own figures: sessions by `pg_stat_activity`, statements and their time by `pg_stat_statements` where that extension
//! is installed in the database of the login.

use std::io;
use std::ops::Range;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::{DataRowBody, ErrorResponseBody, Message};
use postgres_protocol::message::frontend;
use tracer_host::process;
use tracer_results::subsystems::DatabaseSystem;
use tracer_results::subsystems::login::ServerLogin;
use tracer_results::subsystems::own_figures::OwnFigures;

use super::connection::{Connection, REPLY};
use super::{ROWS, unexpected};

/// Database of the login unless another is named.
const DATABASE: &str = "postgres";

/// Others' sessions have a type only for members of `pg_read_all_stats`.
const SESSIONS: &str = "SELECT usename, datname, count(*) FROM pg_catalog.pg_stat_activity \
    WHERE backend_type = 'client backend' AND pid <> pg_catalog.pg_backend_pid() GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT 200";

/// Where the extension is, and whether it tells statements of functions from those of clients (1.9 and later).
const EXTENSION: &str = "SELECT pg_catalog.quote_ident(n.nspname), \
    pg_catalog.string_to_array(e.extversion, '.')::int[] >= '{1,9}' FROM pg_catalog.pg_extension e \
    JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'pg_stat_statements'";

pub(super) fn ask(connection: &mut Connection, login: &ServerLogin, password: Option<&str>) -> io::Result<OwnFigures> {
    log_in(connection, login, password)?;
    // The server's first process is the parent of the session's, of which each has the other's process namespace.
    let session = rows(connection, "SELECT pg_catalog.pg_backend_pid()")?;
    let session = session.first().and_then(|row| row.first()?.as_ref()?.parse().ok());
    let parent = || process::read(session?).map(|process| process.parent);
    let pid = connection.peer().or_else(parent).unwrap_or(0);
    let mut figures = OwnFigures::new(DatabaseSystem::PostgreSql, pid);
    for row in rows(connection, SESSIONS)? {
        let [Some(user), Some(database), Some(count)] = &row[..] else { continue };
        if let Some(of) = figures.user(user, database) {
            of.sessions = count.parse().unwrap_or(0);
        }
    }
    let extension = rows(connection, EXTENSION)?;
    let Some([Some(schema), Some(toplevel)]) = extension.first().map(|row| &row[..]) else { return Ok(figures) };
    for row in rows(connection, &statements(schema, toplevel == "t"))? {
        let [Some(user), Some(database), Some(calls), Some(nanos)] = &row[..] else { continue };
        if let Some(of) = figures.user(user, database) {
            (of.statements, of.time) = (calls.parse().ok(), nanos.parse().ok());
        }
    }
    Ok(figures)
}

/// `schema`: as the server quoted it.
fn statements(schema: &str, toplevel: bool) -> String {
    let clients = if toplevel { "WHERE s.toplevel" } else { "" };
    format!(
        "SELECT r.rolname, d.datname, sum(s.calls)::bigint, (sum(s.total_exec_time) * 1000000)::bigint \
         FROM {schema}.pg_stat_statements s JOIN pg_catalog.pg_roles r ON r.oid = s.userid \
         JOIN pg_catalog.pg_database d ON d.oid = s.dbid {clients} GROUP BY 1, 2 ORDER BY 4 DESC, 1, 2 LIMIT 200"
    )
}

/// Passwords are sent as the server asks for them: the address is one of this host.
fn log_in(connection: &mut Connection, login: &ServerLogin, password: Option<&str>) -> io::Result<()> {
    let user = login.user.as_deref().unwrap_or_default();
    let database = login.database.as_deref().unwrap_or(DATABASE);
    let parameters =
        [("user", user), ("database", database), ("application_name", "tracer"), ("client_encoding", "UTF8")];
    send(connection, |out| frontend::startup_message(parameters, out))?;
    let password =
        || password.ok_or_else(|| io::Error::other("it asks for a password; set `password_file` of this server"));
    let mut scram = None;
    loop {
        match message(connection)? {
            Message::AuthenticationCleartextPassword => {
                let password = password()?;
                send(connection, |out| frontend::password_message(password.as_bytes(), out))?;
            }
            Message::AuthenticationMd5Password(body) => {
                let hash = md5_hash(user.as_bytes(), password()?.as_bytes(), body.salt());
                send(connection, |out| frontend::password_message(hash.as_bytes(), out))?;
            }
            // The server offers one with channel binding only inside TLS.
            Message::AuthenticationSasl(_) if scram.is_none() => {
                let exchange = ScramSha256::new(password()?.as_bytes(), ChannelBinding::unsupported());
                send(connection, |out| frontend::sasl_initial_response(SCRAM_SHA_256, exchange.message(), out))?;
                scram = Some(exchange);
            }
            Message::AuthenticationSaslContinue(body) => {
                let exchange = scram.as_mut().ok_or_else(odd)?;
                exchange.update(body.data()).map_err(|_| odd())?;
                send(connection, |out| frontend::sasl_response(exchange.message(), out))?;
            }
            Message::AuthenticationSaslFinal(body) => {
                scram.as_mut().ok_or_else(odd)?.finish(body.data()).map_err(|_| {
                    io::Error::new(io::ErrorKind::PermissionDenied, "it does not know the password itself")
                })?;
            }
            Message::ReadyForQuery(_) => return Ok(()),
            Message::ErrorResponse(body) => return Err(refusal("the login", &body)),
            Message::AuthenticationOk
            | Message::ParameterStatus(_)
            | Message::BackendKeyData(_)
            | Message::NoticeResponse(_) => {}
            _ => return Err(io::Error::other("it asks for a login by other means than a password")),
        }
    }
}

/// The rows of an answer, each column as text; `None`: null.
fn rows(connection: &mut Connection, query: &str) -> io::Result<Vec<Vec<Option<String>>>> {
    send(connection, |out| frontend::query(query, out))?;
    let mut rows = Vec::new();
    let mut failure = None;
    loop {
        match message(connection)? {
            Message::DataRow(row) if rows.len() < ROWS => rows.push(columns(&row)?),
            Message::ErrorResponse(body) => failure = Some(refusal("a question", &body)),
            Message::ReadyForQuery(_) => return failure.map_or(Ok(rows), Err),
            Message::RowDescription(_)
            | Message::DataRow(_)
            | Message::CommandComplete(_)
            | Message::EmptyQueryResponse
            | Message::NoticeResponse(_)
            | Message::ParameterStatus(_) => {}
            _ => return Err(odd()),
        }
    }
}

fn columns(row: &DataRowBody) -> io::Result<Vec<Option<String>>> {
    let text = |range| row.buffer().get::<Range<usize>>(range).map(|text| String::from_utf8_lossy(text).into_owned());
    row.ranges().map(|range| Ok(range.and_then(text))).collect().map_err(|_| odd())
}

fn send(connection: &mut Connection, write: impl FnOnce(&mut BytesMut) -> io::Result<()>) -> io::Result<()> {
    let mut out = BytesMut::new();
    write(&mut out)?;
    connection.send(&out)
}

/// The next message, unless it is too long.
fn message(connection: &mut Connection) -> io::Result<Message> {
    loop {
        // The library makes room for as much as the header says.
        if let Some([_, length @ ..]) = connection.received.first_chunk::<5>()
            && u32::from_be_bytes(*length) as usize > REPLY
        {
            return Err(odd());
        }
        if let Some(message) = Message::parse(&mut connection.received).map_err(|_| odd())? {
            return Ok(message);
        }
        connection.fill()?;
    }
}

/// By the code of the error only: its text may repeat names. <https://www.postgresql.org/docs/current/errcodes-appendix.html>
fn refusal(what: &str, body: &ErrorResponseBody) -> io::Error {
    let code = body.fields().find(|field| Ok(field.type_() == b'C')).ok().flatten();
    let code = code.map(|field| String::from_utf8_lossy(field.value_bytes()).into_owned()).unwrap_or_default();
    let code: String = code.chars().filter(char::is_ascii_alphanumeric).take(5).collect();
    let why = match &*code {
        "28000" | "28P01" => " (wrong user or password, or pg_hba.conf does not let it in)",
        "3D000" => " (there is no such database)",
        "42501" => " (its role may not: GRANT pg_monitor TO it)",
        "53300" => " (too many connections)",
        "55000" => " (pg_stat_statements is not in shared_preload_libraries)",
        "57P03" => " (it is starting up or shutting down)",
        _ => "",
    };
    io::Error::other(format!("it refuses {what}: error {code}{why}"))
}

fn odd() -> io::Error {
    unexpected(DatabaseSystem::PostgreSql)
}

#[cfg(test)]
mod tests {
    use super::super::connection::tests::{answered, login};
    use super::*;
    use proptest::prelude::*;

    fn with(tag: u8, payload: &[u8]) -> Vec<u8> {
        [&[tag][..], &(payload.len() as u32 + 4).to_be_bytes(), payload].concat()
    }

    fn logged_in() -> Vec<u8> {
        [with(b'R', &[0; 4]), with(b'S', b"server_version\x0015.18\0"), with(b'K', &[0; 8]), with(b'Z', b"I")].concat()
    }

    fn answer(rows: &[&[&str]]) -> Vec<u8> {
        let mut out = with(b'T', &[0, 0]);
        for row in rows {
            let columns = row.iter().flat_map(|text| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat());
            let columns: Vec<u8> = (row.len() as u16).to_be_bytes().into_iter().chain(columns).collect();
            out.extend(with(b'D', &columns));
        }
        [out, with(b'C', b"SELECT\0"), with(b'Z', b"I")].concat()
    }

    fn failure(code: &str) -> Vec<u8> {
        with(b'E', format!("SERROR\0C{code}\0Mplanted text\0\0").as_bytes())
    }

    fn asked(answers: &[u8]) -> io::Result<OwnFigures> {
        ask(&mut answered(answers), &login(DatabaseSystem::PostgreSql), None)
    }

    #[test]
    fn sessions_and_statements_are_read() {
        let sessions = [logged_in(), answer(&[&["7"]]), answer(&[&["alice", "shop", "2"]])].concat();
        let without = asked(&[&sessions[..], &answer(&[])].concat()).unwrap();
        assert_eq!((without.users.len(), without.users[0].statements), (1, None), "no extension");
        let statements = answer(&[&["alice", "shop", "12", "5000"], &["bob", "shop", "1", "7"]]);
        let all = [&sessions[..], &answer(&[&["public", "t"]]), &statements].concat();
        let figures = asked(&all).unwrap();
        let users: Vec<_> =
            figures.users.iter().map(|one| (&*one.user, one.sessions, one.statements, one.time)).collect();
        assert_eq!(users, [("alice", 2, Some(12), Some(5000)), ("bob", 0, Some(1), Some(7))]);
        assert_eq!((figures.cpu, &*figures.users[0].database), (None, "shop"));
    }

    #[test]
    fn refusals_name_the_error_and_repeat_nothing() {
        for (answers, expected) in [
            (failure("28P01"), "refuses the login: error 28P01 (wrong user or password"),
            (with(b'R', b"\0\0\0\x03"), "asks for a password"),
            (with(b'R', b"\0\0\0\x07"), "by other means than a password"),
            (
                [logged_in(), failure("42501"), with(b'Z', b"I")].concat(),
                "refuses a question: error 42501 (its role may not",
            ),
            (b"HTTP/1.1 400 planted\r\n".to_vec(), "does not answer as PostgreSQL"),
            (b"D\xff\xff\xff\xff".to_vec(), "does not answer as PostgreSQL"),
            (logged_in(), "closed the connection"),
        ] {
            let error = asked(&answers).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("planted"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn never_panics_on_arbitrary_answers(
            tail in proptest::collection::vec(any::<u8>(), 0..200),
            tag in prop::sample::select(b"RSKZTDCEN".to_vec()),
            keep in 0usize..400,
        ) {
            let all = [logged_in(), answer(&[&["7"]]), answer(&[&["alice", "shop", "2"]])].concat();
            let all = &all[..keep.min(all.len())];
            let _ = asked(&[all, &tail].concat());
            let _ = asked(&[all, &with(tag, &tail)].concat());
        }
    }
}
