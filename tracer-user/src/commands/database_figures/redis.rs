//! Redis' own figures: `INFO`.

use std::io;

use tracer_results::subsystems::DatabaseSystem;
use tracer_results::subsystems::own_figures::{self, OwnFigures};

use super::connection::{Connection, REPLY};

pub(super) fn ask(connection: &mut Connection, user: Option<&str>, password: Option<&str>) -> io::Result<OwnFigures> {
    if let Some(password) = password {
        let words: Vec<&str> = ["AUTH"].into_iter().chain(user).chain([password]).collect();
        command(connection, &words)?;
    }
    let mut info = String::new();
    for section in ["server", "cpu", "commandstats"] {
        info += &command(connection, &["INFO", section])?;
    }
    own_figures::redis(&info).ok_or_else(unexpected)
}

/// Sends a command; its reply, which is a line or a text.
fn command(connection: &mut Connection, words: &[&str]) -> io::Result<String> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    connection.send(&bytes)?;
    let line = line(connection)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match line.split_first() {
        Some((b'+', rest)) => Ok(text(rest)),
        // The first word only: the rest may repeat what was sent.
        Some((b'-', rest)) => {
            let word = text(rest).split(' ').next().map(|word| tracer_model::text::printable(word).into_owned());
            Err(io::Error::other(format!("it refuses {}: {}", words[0], word.unwrap_or_default())))
        }
        Some((b'$', rest)) => {
            let length: usize = text(rest).parse().map_err(|_| unexpected())?;
            if length > REPLY {
                return Err(unexpected());
            }
            let mut bytes = connection.take(length + 2)?;
            bytes.truncate(length);
            Ok(text(&bytes))
        }
        _ => Err(unexpected()),
    }
}

/// A line without its end.
fn line(connection: &mut Connection) -> io::Result<Vec<u8>> {
    loop {
        if let Some(end) = connection.received.windows(2).position(|two| two == b"\r\n") {
            let line = connection.take(end + 2)?;
            return Ok(line.get(..end).unwrap_or_default().to_vec());
        }
        if connection.received.len() > REPLY {
            return Err(unexpected());
        }
        connection.fill()?;
    }
}

fn unexpected() -> io::Error {
    super::unexpected(DatabaseSystem::Redis)
}

#[cfg(test)]
mod tests {
    use super::super::ask;
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use tracer_results::subsystems::login::{Address, ServerLogin};

    /// Answers each command of one connection with the next of `replies`; returns the words it received.
    fn server(replies: Vec<Vec<u8>>) -> (ServerLogin, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            let mut words = Vec::new();
            for reply in replies {
                let mut line = String::new();
                if stream.read_line(&mut line).unwrap_or(0) == 0 {
                    break;
                }
                let count: usize = line[1..].trim().parse().unwrap();
                for _ in 0..count {
                    let mut lines = [String::new(), String::new()];
                    for line in &mut lines {
                        stream.read_line(line).unwrap();
                    }
                    words.push(lines[1].trim().to_owned());
                }
                stream.get_mut().write_all(&reply).unwrap();
            }
            words
        });
        let system = DatabaseSystem::Redis;
        (ServerLogin { system, address, user: None, database: None, password_file: None }, thread)
    }

    fn text(text: &str) -> Vec<u8> {
        format!("${}\r\n{text}\r\n", text.len()).into_bytes()
    }

    #[test]
    fn a_server_is_asked_after_a_login() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        std::fs::write(&path, "planted\n").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let cpu = text("used_cpu_sys:1.5\r\nused_cpu_user:0.5\r\n");
        let (login, thread) =
            server(vec![b"+OK\r\n".to_vec(), text("process_id:7\r\n"), cpu, text("cmdstat_get:calls=1,usec=9\r\n")]);
        let login = ServerLogin { user: Some("tracer".into()), password_file: Some(path), ..login };
        let figures = ask(&login).unwrap();
        assert_eq!((figures.pid, figures.cpu, figures.commands.len()), (7, Some(2_000_000_000), 1));
        let words = thread.join().unwrap().join(" ");
        assert_eq!(words, "AUTH tracer planted INFO server INFO cpu INFO commandstats");
    }

    #[test]
    fn what_is_no_redis_is_refused_and_nothing_is_repeated() {
        for (reply, expected) in [
            (b"-NOAUTH planted secret\r\n".to_vec(), "it refuses INFO: NOAUTH"),
            (b"HTTP/1.1 400\r\n".to_vec(), "does not answer as Redis"),
            (b"$99999999999\r\n".to_vec(), "does not answer as Redis"),
            (b"$-1\r\n".to_vec(), "does not answer as Redis"),
            (vec![b'x'; REPLY + 10], "does not answer as Redis"),
            (b"$5\r\nab".to_vec(), "closed the connection"),
        ] {
            let (login, thread) = server(vec![reply]);
            let error = ask(&login).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("planted"), "{error}");
            thread.join().unwrap();
        }
    }
}
