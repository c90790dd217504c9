//! `tracer mcp` on standard input and output, asked by messages written here.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::agent::binary;
use crate::wait;

const PATIENCE: Duration = Duration::from_secs(30);
/// Longest answer, bytes of JSON.
const ANSWER: usize = 32 << 10;

/// A running `tracer mcp`.
#[derive(Debug)]
pub struct Asked {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    id: u64,
}

impl Asked {
    /// Starts it for the agent at an address.
    pub fn start(agent: SocketAddr) -> Self {
        let mut command = Command::new(binary());
        command.args(["mcp", "--url", &format!("http://{agent}")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("tracer mcp");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("its output"));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| send.send(line))
        });
        Self { child, input, lines, id: 0 }
    }

    /// Sends a line.
    pub fn send(&mut self, bytes: &[u8]) {
        self.input.as_mut().expect("its input").write_all(&[bytes, b"\n"].concat()).expect("it reads");
    }

    /// The next message.
    pub fn receive(&self) -> Value {
        let line = self.lines.recv_timeout(PATIENCE).expect("an answer");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// The answer to a request.
    pub fn request(&mut self, method: &str, params: Value) -> Value {
        self.id += 1;
        let mut message = json!({ "jsonrpc": "2.0", "id": self.id, "method": method });
        message["params"] = params;
        self.send(message.to_string().as_bytes());
        let answer = self.receive();
        assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(self.id)), "{answer}");
        answer
    }

    /// What a tool answers.
    pub fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.request("tools/call", params(tool, arguments));
        let result = &answer["result"];
        let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert!(result["isError"] == false && text.len() <= ANSWER, "{answer}");
        let read: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(read, result["structuredContent"]);
        read
    }

    /// Why a tool refuses.
    pub fn refusal(&mut self, tool: &str, arguments: Value) -> String {
        let answer = self.request("tools/call", params(tool, arguments));
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        answer["result"]["content"][0]["text"].as_str().expect("words").to_owned()
    }

    /// Closes its input; it ends, and has said nothing elsewhere.
    pub fn end(mut self) {
        drop(self.input.take());
        let status = wait("tracer mcp to end with its input", PATIENCE, || self.child.try_wait().expect("a child"));
        let mut said = String::new();
        self.child.stderr.take().expect("its errors").read_to_string(&mut said).expect("text");
        assert!(status.success() && said.is_empty(), "{status}: {said}");
        assert!(self.lines.recv().is_err(), "it said more than was asked");
    }
}

/// The parameters of a call.
fn params(tool: &str, arguments: Value) -> Value {
    let mut params = json!({ "name": tool });
    params["arguments"] = arguments;
    params
}
