//! `tracer mcp`: the Model Context Protocol on standard input and output, answered by a running agent's HTTP API.
//!
//! A message is a line. The thread that reads lines answers what it can itself; questions to the agent go to a few workers, so that a
//! slow one holds up no other. While all of them are busy nothing is read: the client waits, and nothing piles up.

use std::io::{BufRead, IsTerminal, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tracer_mcp::rpc::{INVALID_REQUEST, RpcError};
use tracer_mcp::{self as mcp, MESSAGE, Question, Step};

use super::Failure;
use super::api_client::{Client, PATIENCE, PATIENCE_SYMBOLS};

/// Questions to the agent at the same time.
const WORKERS: usize = 4;

/// Answers until the client closes the input.
pub fn serve(url: &str) -> Result<(), Failure> {
    let client = Client::new(url).map_err(Failure::Usage)?;
    let input = std::io::stdin();
    if input.is_terminal() {
        eprintln!("tracer: this speaks the Model Context Protocol and is for programs: docs/mcp.md (Ctrl-D ends it)");
    }
    let ask = |question: &Question| {
        let patience = if question.is_slow() { PATIENCE_SYMBOLS } else { PATIENCE };
        match client.ask(question.path(), patience) {
            Ok((status, body)) => question.answer(status, &body),
            Err(why) => question.failed(&why),
        }
    };
    answer(input.lock(), std::io::stdout(), ask).map_err(|error| Failure::Running(format!("standard input: {error}")))
}

/// Reads messages from `input` until it ends, and writes answers to `output`; `ask` answers questions to the agent.
fn answer(
    mut input: impl BufRead,
    output: impl Write + Send,
    ask: impl Fn(&Question) -> Value + Sync,
) -> std::io::Result<()> {
    let output = Output { to: Mutex::new(output), waiting: Mutex::default() };
    // Without a queue: who reads hands a question to a worker that is free.
    let (questions, queue) = sync_channel::<Box<Question>>(0);
    let queue = Mutex::new(queue);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(question) = next(&queue) {
                    let answer = ask(&question);
                    // One that was cancelled is not answered.
                    if output.forget(question.id()) {
                        output.write(&answer);
                    }
                }
            });
        }
        let read = take_all(&mut input, &output, &questions);
        // The workers end when they have answered what was asked.
        drop(questions);
        read
    })
}

/// Takes messages until the input ends.
fn take_all<W: Write>(
    input: &mut impl BufRead,
    output: &Output<W>,
    questions: &SyncSender<Box<Question>>,
) -> std::io::Result<()> {
    let mut line = Vec::new();
    loop {
        let step = match read_line(input, &mut line, MESSAGE)? {
            Line::End => return Ok(()),
            Line::TooLong => {
                let what = format!("a message has {MESSAGE} bytes at most");
                Err(RpcError::new(Value::Null, INVALID_REQUEST, what))
            }
            Line::Whole if line.trim_ascii().is_empty() => continue,
            Line::Whole => mcp::receive(&line),
        };
        match step {
            Ok(Step::Done(None)) => {}
            Ok(Step::Done(Some(answer))) => output.write(&answer),
            Ok(Step::Ask(question)) => {
                output.waiting().push(question.id().clone());
                // The workers are there as long as the sender.
                let _ = questions.send(question);
            }
            Ok(Step::Cancel(id)) => {
                output.forget(&id);
            }
            Err(error) => output.write(&error.to_json()),
        }
    }
}

/// The next question; `None`: there will be none.
fn next(queue: &Mutex<Receiver<Box<Question>>>) -> Option<Box<Question>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

/// Where answers go.
struct Output<W> {
    to: Mutex<W>,
    /// Ids of the requests that wait for the agent.
    waiting: Mutex<Vec<Value>>,
}

impl<W: Write> Output<W> {
    /// Writes an answer as a line. A client that does not read any more has closed the input too, or will.
    fn write(&self, answer: &Value) {
        let line = format!("{answer}\n");
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = to.write_all(line.as_bytes()).and_then(|()| to.flush());
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Value>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the request was waiting; from now on it is not.
    fn forget(&self, id: &Value) -> bool {
        let mut waiting = self.waiting();
        let found = waiting.iter().position(|one| one == id);
        found.map(|at| waiting.swap_remove(at)).is_some()
    }
}

/// What was read.
#[derive(Debug, PartialEq)]
enum Line {
    /// A line, without its end.
    Whole,
    /// More than is kept of one; the rest of it was skipped.
    TooLong,
    /// The end of the input.
    End,
}

/// Reads a line of at most `most` bytes into `line`. One that the input's end cuts off counts.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>, most: usize) -> std::io::Result<Line> {
    line.clear();
    let (mut any, mut too_long) = (false, false);
    loop {
        let bytes = match input.fill_buf() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let done = bytes.is_empty();
        any |= !done;
        let end = memchr::memchr(b'\n', bytes);
        let part = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
        too_long |= line.len() + part.len() > most;
        if !too_long {
            line.extend_from_slice(part);
        }
        let used = part.len() + usize::from(end.is_some());
        input.consume(used);
        if done || end.is_some() {
            return Ok(match (any, too_long) {
                (false, _) => Line::End,
                (true, true) => Line::TooLong,
                (true, false) => Line::Whole,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    /// What is written, in parts.
    struct Written(Sender<Vec<u8>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(|_| std::io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The answers to `input` from an agent that answers `{}` at once.
    fn answers(input: &[u8]) -> Vec<Value> {
        let mut out = Vec::new();
        answer(BufReader::with_capacity(7, input), &mut out, |question| question.answer(200, b"{}")).unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines().map(|line| serde_json::from_str(line).expect("a message a line")).collect()
    }

    fn call(id: u64) -> String {
        format!(
            "{}\n",
            json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "agent_health" } })
        )
    }

    #[test]
    fn every_request_is_answered_however_bad_the_lines_between_are() {
        let mut input = b"\n  \r\nnonsense\n{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n".to_vec();
        input.extend(vec![b'x'; 1 << 20]);
        input.extend(b"\n[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]\n\xff\xfe\n");
        input.extend(call(5).bytes());
        // The last line has no end.
        input.extend(br#"{"jsonrpc":"2.0","id":6,"method":"ping"}"#);
        let found = answers(&input);
        let codes: Vec<i64> = found.iter().filter_map(|answer| answer["error"]["code"].as_i64()).collect();
        assert_eq!(codes, [-32700, -32600, -32600, -32700]);
        let mut ids: Vec<u64> = found.iter().filter_map(|answer| answer["id"].as_u64()).collect();
        ids.sort_unstable();
        assert_eq!(ids, [5, 6]);
    }

    #[test]
    fn a_flood_of_questions_is_answered() {
        let input: String = (0..500).map(call).collect();
        let mut ids: Vec<u64> = answers(input.as_bytes()).iter().filter_map(|answer| answer["id"].as_u64()).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..500).collect::<Vec<u64>>());
    }

    /// Input that comes in parts, from another thread.
    struct Parts(Receiver<String>, Vec<u8>);

    impl Read for Parts {
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
            if self.1.is_empty() {
                self.1 = self.0.recv().unwrap_or_default().into_bytes();
            }
            let some = self.1.len().min(to.len());
            to[..some].copy_from_slice(&self.1[..some]);
            self.1.drain(..some);
            Ok(some)
        }
    }

    #[test]
    fn a_slow_question_holds_up_no_other_and_can_be_cancelled() {
        let (send, input) = channel();
        let (written, read) = channel();
        let (release, released) = channel::<()>();
        let released = Mutex::new(released);
        let serving = std::thread::spawn(move || {
            answer(BufReader::new(Parts(input, Vec::new())), Written(written), |question| {
                // The agent is asked, and takes its time.
                released.lock().unwrap().recv().unwrap();
                question.answer(200, b"{}")
            })
        });
        let next = || -> Value {
            serde_json::from_slice(&read.recv_timeout(Duration::from_secs(20)).expect("an answer")).expect("JSON")
        };
        send.send(call(1) + &call(2)).unwrap();
        send.send("{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"ping\"}\n".into()).unwrap();
        assert_eq!(next()["id"], 3);
        let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } });
        send.send(format!("{cancel}\n{{\"jsonrpc\":\"2.0\",\"id\":4,\"method\":\"ping\"}}\n")).unwrap();
        assert_eq!(next()["id"], 4);
        release.send(()).unwrap();
        release.send(()).unwrap();
        assert_eq!(next()["id"], 2);
        drop(send);
        serving.join().unwrap().unwrap();
        assert!(read.recv().is_err(), "what was cancelled was answered");
    }

    #[test]
    fn lines_have_a_limit() {
        let mut input = BufReader::with_capacity(3, &b"abcd\nabcde\n\nxyz"[..]);
        let mut line = Vec::new();
        let mut read = || (read_line(&mut input, &mut line, 4).unwrap(), line.clone());
        assert_eq!(read(), (Line::Whole, b"abcd".to_vec()));
        assert_eq!(read().0, Line::TooLong);
        assert_eq!(read(), (Line::Whole, Vec::new()));
        assert_eq!(read(), (Line::Whole, b"xyz".to_vec()));
        assert_eq!(read().0, Line::End);
    }
}
