//! MariaDB's and MySQL's own figures: sessions and statements of users, and statements by kind, by `performance_schema`.
//!
//! The protocol: <https://dev.mysql.com/doc/dev/mysql-server/latest/PAGE_PROTOCOL.html>,
//! <https://mariadb.com/kb/en/clientserver-protocol/>.

use std::io;

use bytes::{Buf, BytesMut};
use ring::digest::{self, SHA1_FOR_LEGACY_USE_ONLY as SHA1, SHA256};
use tracer_host::process;
use tracer_results::subsystems::DatabaseSystem;
use tracer_results::subsystems::login::ServerLogin;
use tracer_results::subsystems::own_figures::{OwnCommand, OwnFigures};

use super::connection::{Connection, REPLY};
use super::{ROWS, unexpected};

/// `CLIENT_LONG_PASSWORD | CLIENT_PROTOCOL_41 | CLIENT_SECURE_CONNECTION | CLIENT_PLUGIN_AUTH`.
const CAPABILITIES: u32 = 0x1 | 0x200 | 0x8000 | 0x8_0000;
/// `utf8mb4_general_ci`.
const CHARACTERS: u8 = 45;
const COM_QUERY: u8 = 3;
/// First bytes of the server's packets.
const OK: u8 = 0x00;
const MORE: u8 = 0x01;
const EOF: u8 = 0xfe;
const ERROR: u8 = 0xff;
/// What follows [`MORE`] of `caching_sha2_password`: the password is right, or is wanted as it is.
const RIGHT: u8 = 3;
const IN_FULL: u8 = 4;
/// A column that is null.
const NULL: u8 = 0xfb;
/// Packets of a login: enough for a switch to another plugin and its questions.
const STEPS: usize = 8;

/// The process whose thread this is: threads have numbers of the same kind.
const THREAD: &str = "SELECT THREAD_OS_ID FROM performance_schema.threads WHERE PROCESSLIST_ID = CONNECTION_ID()";
const SESSIONS: &str = "SELECT PROCESSLIST_USER, COUNT(*) FROM performance_schema.threads WHERE TYPE = 'FOREGROUND' \
    AND PROCESSLIST_USER IS NOT NULL AND PROCESSLIST_ID <> CONNECTION_ID() GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 200";
const USERS: &str = "SELECT USER, SUM(COUNT_STAR), SUM(SUM_TIMER_WAIT) \
    FROM performance_schema.events_statements_summary_by_user_by_event_name WHERE USER IS NOT NULL \
    AND EVENT_NAME LIKE 'statement/sql/%' GROUP BY 1 HAVING SUM(COUNT_STAR) > 0 ORDER BY 3 DESC, 1 LIMIT 200";
const STATEMENTS: &str = "SELECT EVENT_NAME, COUNT_STAR, SUM_TIMER_WAIT \
    FROM performance_schema.events_statements_summary_global_by_event_name \
    WHERE EVENT_NAME LIKE 'statement/sql/%' AND COUNT_STAR > 0 ORDER BY 3 DESC, 1 LIMIT 200";
/// Times are in picoseconds.
const PICOSECONDS: u64 = 1_000;

pub(super) fn ask(connection: &mut Connection, login: &ServerLogin, password: Option<&str>) -> io::Result<OwnFigures> {
    log_in(connection, login.user.as_deref().unwrap_or_default(), password.unwrap_or_default())?;
    let on = rows(connection, "SELECT @@performance_schema")?;
    if on.first().and_then(|row| row.first()?.as_deref()) != Some("1") {
        return Err(io::Error::other("its performance_schema is off: start it with performance_schema=ON"));
    }
    let thread = rows(connection, THREAD)?;
    let thread = thread.first().and_then(|row| row.first()?.as_ref()?.parse().ok());
    let pid = connection.peer().or_else(|| process::of_thread(thread?)).unwrap_or(0);
    let mut figures = OwnFigures::new(DatabaseSystem::MariaDb, pid);
    for row in rows(connection, SESSIONS)? {
        let [Some(user), Some(count)] = &row[..] else { continue };
        if let Some(of) = figures.user(user, "") {
            of.sessions = count.parse().unwrap_or(0);
        }
    }
    for row in rows(connection, USERS)? {
        let [Some(user), Some(calls), Some(time)] = &row[..] else { continue };
        if let Some(of) = figures.user(user, "") {
            (of.statements, of.time) = (calls.parse().ok(), time.parse().ok().map(|time: u64| time / PICOSECONDS));
        }
    }
    for row in rows(connection, STATEMENTS)? {
        let [Some(name), Some(calls), Some(time)] = &row[..] else { continue };
        let (Ok(calls), Ok(time)) = (calls.parse(), time.parse::<u64>()) else { continue };
        figures.commands.push(OwnCommand::new(&kind(name), calls, time / PICOSECONDS));
    }
    figures.rank_commands();
    Ok(figures)
}

/// `statement/sql/create_table`: `CREATE TABLE`.
fn kind(name: &str) -> String {
    name.rsplit('/').next().unwrap_or(name).replace('_', " ")
}

fn log_in(connection: &mut Connection, user: &str, password: &str) -> io::Result<()> {
    let (mut number, mut greeting) = packet(connection)?;
    if greeting.first() == Some(&ERROR) {
        return Err(refusal("the login", &greeting));
    }
    let (mut plugin, mut salt) = greeted(&mut greeting).ok_or_else(odd)?;
    let mut out = BytesMut::new();
    out.extend_from_slice(&CAPABILITIES.to_le_bytes());
    out.extend_from_slice(&(REPLY as u32).to_le_bytes());
    out.extend_from_slice(&[CHARACTERS]);
    out.extend_from_slice(&[0; 23]);
    out.extend_from_slice(user.as_bytes());
    let proof = prove(&plugin, password, &salt);
    out.extend_from_slice(&[0, proof.len() as u8]);
    out.extend_from_slice(&proof);
    out.extend_from_slice(plugin.as_bytes());
    out.extend_from_slice(&[0]);
    send(connection, number.wrapping_add(1), &out)?;
    for _ in 0..STEPS {
        let mut answer;
        (number, answer) = packet(connection)?;
        match (answer.first().copied(), answer.get(1).copied()) {
            (Some(OK), _) => return Ok(()),
            (Some(ERROR), _) => return Err(refusal("the login", &answer)),
            // Another plugin than the greeting named: that of the user.
            (Some(EOF), _) => {
                answer.advance(1);
                plugin = text(&mut answer).ok_or_else(odd)?;
                salt = answer[..].split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
                if !is_known(&plugin) {
                    let plugin = tracer_model::text::printable(&plugin);
                    return Err(io::Error::other(format!(
                        "its user logs in by {plugin}, which the agent does not know"
                    )));
                }
                send(connection, number.wrapping_add(1), &prove(&plugin, password, &salt))?;
            }
            (Some(MORE), Some(RIGHT)) => {}
            (Some(MORE), Some(IN_FULL)) if connection.is_unix() => {
                let whole = [password.as_bytes(), &[0]].concat();
                send(connection, number.wrapping_add(1), &whole)?;
            }
            (Some(MORE), Some(IN_FULL)) => {
                return Err(io::Error::other("it wants the password in full: give the address of its UNIX socket"));
            }
            _ => return Err(odd()),
        }
    }
    Err(odd())
}

/// The plugin and the salt of a greeting.
fn greeted(greeting: &mut BytesMut) -> Option<(String, Vec<u8>)> {
    if greeting.first() != Some(&10) {
        return None;
    }
    greeting.advance(1);
    text(greeting)?;
    // Thread id; the salt's first part and a zero; capabilities, characters, status, capabilities, the salt's length, reserved.
    let salt = greeting.get(4..12)?.to_vec();
    let length = usize::from(*greeting.get(20)?).saturating_sub(9);
    let rest = greeting.get(31..)?;
    let more = rest.get(..length.max(12).min(rest.len()))?;
    let salt = [salt, more.to_vec()].concat();
    let mut after = BytesMut::from(rest.get(length.saturating_add(1).max(13)..).unwrap_or_default());
    let plugin = text(&mut after).unwrap_or_default();
    Some((if is_known(&plugin) { plugin } else { "mysql_native_password".to_owned() }, salt))
}

/// A text that ends with a zero, or with the packet.
fn text(bytes: &mut BytesMut) -> Option<String> {
    if bytes.is_empty() {
        return None;
    }
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes.split_to(end)).into_owned();
    bytes.advance(bytes.len().min(1));
    Some(text)
}

fn is_known(plugin: &str) -> bool {
    matches!(plugin, "mysql_native_password" | "caching_sha2_password" | "unix_socket" | "auth_socket")
}

/// What shows a server that knows the password, or its hash, that the client does: of a user that the kernel vouches for, nothing.
fn prove(plugin: &str, password: &str, salt: &[u8]) -> Vec<u8> {
    let hash = |algorithm, parts: &[&[u8]]| digest::digest(algorithm, &parts.concat());
    let xor = |one: &[u8], other: &[u8]| one.iter().zip(other).map(|(one, other)| one ^ other).collect();
    match plugin {
        _ if password.is_empty() => Vec::new(),
        "mysql_native_password" => {
            let once = hash(&SHA1, &[password.as_bytes()]);
            let twice = hash(&SHA1, &[once.as_ref()]);
            xor(once.as_ref(), hash(&SHA1, &[salt, twice.as_ref()]).as_ref())
        }
        "caching_sha2_password" => {
            let once = hash(&SHA256, &[password.as_bytes()]);
            let twice = hash(&SHA256, &[once.as_ref()]);
            xor(once.as_ref(), hash(&SHA256, &[twice.as_ref(), salt]).as_ref())
        }
        _ => Vec::new(),
    }
}

/// The rows of an answer, each column as text; `None`: null.
fn rows(connection: &mut Connection, query: &str) -> io::Result<Vec<Vec<Option<String>>>> {
    send(connection, 0, &[&[COM_QUERY], query.as_bytes()].concat())?;
    let (_, head) = packet(connection)?;
    let columns = match head.first() {
        Some(&ERROR) => return Err(refusal("a question", &head)),
        Some(&columns @ 1..=16) => usize::from(columns),
        _ => return Err(odd()),
    };
    // Their descriptions, and the end of these.
    for _ in 0..=columns {
        packet(connection)?;
    }
    let mut rows = Vec::new();
    loop {
        let (_, mut row) = packet(connection)?;
        match row.first() {
            Some(&EOF) if row.len() < 9 => return Ok(rows),
            Some(&ERROR) => return Err(refusal("a question", &row)),
            _ if rows.len() < ROWS => {
                rows.push((0..columns).map(|_| column(&mut row)).collect::<io::Result<_>>()?);
            }
            _ => {}
        }
    }
}

/// The next column of a row: its length before it, in one byte or in three.
fn column(row: &mut BytesMut) -> io::Result<Option<String>> {
    let length = match row.try_get_u8().map_err(|_| odd())? {
        NULL => return Ok(None),
        0xfc => usize::from(row.try_get_u16_le().map_err(|_| odd())?),
        length @ ..=0xfa => usize::from(length),
        _ => return Err(odd()),
    };
    if row.len() < length {
        return Err(odd());
    }
    Ok(Some(String::from_utf8_lossy(&row.split_to(length)).into_owned()))
}

fn send(connection: &mut Connection, number: u8, payload: &[u8]) -> io::Result<()> {
    let [a, b, c, _] = (payload.len() as u32).to_le_bytes();
    connection.send(&[&[a, b, c, number], payload].concat())
}

/// The next packet and its number.
fn packet(connection: &mut Connection) -> io::Result<(u8, BytesMut)> {
    let head = connection.take(4)?;
    let &[a, b, c, number] = &head[..] else { return Err(odd()) };
    let length = u32::from_le_bytes([a, b, c, 0]) as usize;
    if length > REPLY || length == 0 {
        return Err(odd());
    }
    Ok((number, connection.take(length)?))
}

/// By the number of the error only: its text may repeat names. <https://mariadb.com/kb/en/mariadb-error-code-reference/>
fn refusal(what: &str, packet: &[u8]) -> io::Error {
    let number = packet.get(1..3).map_or(0, |number| u16::from_le_bytes([number[0], number[1]]));
    let why = match number {
        1045 | 1698 => " (wrong user or password)",
        1040 => " (too many connections)",
        1129 | 1130 => " (this host may not connect)",
        1142 | 1143 => " (its user may not: GRANT SELECT ON performance_schema.* TO it)",
        1251 => " (its user logs in by a plugin that the agent does not know)",
        _ => "",
    };
    io::Error::other(format!("it refuses {what}: error {number}{why}"))
}

fn odd() -> io::Error {
    unexpected(DatabaseSystem::MariaDb)
}

#[cfg(test)]
mod tests {
    use super::super::connection::tests::{answered, login};
    use super::*;
    use proptest::prelude::*;

    fn with(number: u8, payload: &[u8]) -> Vec<u8> {
        let [a, b, c, _] = (payload.len() as u32).to_le_bytes();
        [&[a, b, c, number], payload].concat()
    }

    /// As MariaDB 10.11 greets: salt `12345678` and `abcdefghijkl`.
    fn greeting(plugin: &str) -> Vec<u8> {
        let head = b"\x0a5.5.5-10.11.14-MariaDB\0\x07\x00\x00\x0012345678\x00\xfe\xf7\x2d\x02\0\xff\x81\x15";
        with(0, &[&head[..], &[0; 10], b"abcdefghijkl\0", plugin.as_bytes(), &[0]].concat())
    }

    fn answer(columns: u8, rows: &[&[&str]]) -> Vec<u8> {
        let mut out = with(1, &[columns]);
        for _ in 0..columns {
            out.extend(with(2, b"def"));
        }
        out.extend(with(3, b"\xfe\0\0\x02\0"));
        for row in rows {
            let columns = row.iter().flat_map(|text| [&[text.len() as u8], text.as_bytes()].concat());
            out.extend(with(4, &columns.collect::<Vec<u8>>()));
        }
        out.extend(with(5, b"\xfe\0\0\x02\0"));
        out
    }

    fn asked(answers: &[u8]) -> io::Result<OwnFigures> {
        ask(&mut answered(answers), &login(DatabaseSystem::MariaDb), Some("planted"))
    }

    /// A login, and the first answers.
    fn begun() -> Vec<u8> {
        [
            greeting("mysql_native_password"),
            with(2, &[OK, 0, 0, 2, 0, 0, 0]),
            answer(1, &[&["1"]]),
            answer(1, &[&["4242"]]),
            answer(2, &[&["alice", "2"]]),
        ]
        .concat()
    }

    #[test]
    fn sessions_users_and_statements_are_read() {
        let all = [
            begun(),
            answer(3, &[&["alice", "7", "5000000"], &["bob", "1", "3000"]]),
            answer(3, &[&["statement/sql/create_table", "1", "9000"], &["statement/sql/select", "7", "80000"]]),
        ]
        .concat();
        let figures = asked(&all).unwrap();
        let users: Vec<_> =
            figures.users.iter().map(|one| (&*one.user, one.sessions, one.statements, one.time)).collect();
        assert_eq!(users, [("alice", 2, Some(7), Some(5_000)), ("bob", 0, Some(1), Some(3))]);
        let commands: Vec<_> = figures.commands.iter().map(|one| (&*one.name, one.calls, one.time)).collect();
        assert_eq!(commands, [("SELECT", 7, 80), ("CREATE TABLE", 1, 9)]);
        assert_eq!(figures.cpu, None);
    }

    #[test]
    fn greetings_carry_the_plugin_and_the_whole_salt() {
        for plugin in ["mysql_native_password", "caching_sha2_password"] {
            let mut greeting = BytesMut::from(&greeting(plugin)[4..]);
            assert_eq!(greeted(&mut greeting), Some((plugin.to_owned(), b"12345678abcdefghijkl".to_vec())));
        }
        let whole = greeting("mysql_native_password");
        for end in 4..whole.len() {
            let _ = greeted(&mut BytesMut::from(&whole[4..end]));
        }
    }

    #[test]
    fn refusals_name_the_error_and_repeat_nothing() {
        let greeted = greeting("mysql_native_password");
        let ready = [greeted.clone(), with(2, &[OK, 0, 0, 2, 0, 0, 0])].concat();
        for (answers, expected) in [
            (
                [&greeted[..], &with(2, b"\xff\x15\x04#28000planted")].concat(),
                "refuses the login: error 1045 (wrong user",
            ),
            (with(0, b"\xff\x6a\x04planted"), "refuses the login: error 1130"),
            ([&greeted[..], &with(2, b"\xfedialog\0planted\0")].concat(), "logs in by dialog, which"),
            ([&ready[..], &answer(1, &[&["0"]])].concat(), "performance_schema is off"),
            (
                [&ready[..], &with(1, b"\xff\x76\x04#42000planted")].concat(),
                "refuses a question: error 1142 (its user may not",
            ),
            (b"HTTP/1.1 400 planted\r\n".to_vec(), "does not answer as MariaDB"),
            (ready, "closed the connection"),
        ] {
            let error = asked(&answers).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("planted"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn never_panics_on_arbitrary_answers(tail in proptest::collection::vec(any::<u8>(), 0..200), keep in 0usize..400) {
            let all = begun();
            let _ = asked(&[&all[..keep.min(all.len())], &tail].concat());
        }
    }
}
