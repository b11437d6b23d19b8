//! JSON lines from standard input and to standard output.

use std::io::Write;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin, stdin};

pub struct Input(Lines<BufReader<Stdin>>);

impl Input {
    pub fn new() -> Self {
        Self(BufReader::new(stdin()).lines())
    }

    /// The next line; nothing once the other end is closed.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, String> {
        let line = self.0.next_line().await.map_err(|e| e.to_string())?;
        let parse = |line: String| serde_json::from_str(&line).map_err(|e| e.to_string());
        line.map(parse).transpose()
    }
}

/// Fails when the other end is closed.
pub fn write(value: &impl Serialize) -> Result<(), String> {
    let mut line = serde_json::to_vec(value).map_err(|e| e.to_string())?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)
        .and_then(|()| out.flush())
        .map_err(|e| e.to_string())
}
