//! Calls to a container runtime: gRPC over its socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::net::UnixStream;
use trawl_sys::{Error, Result};

use super::message::{self, Sandbox};

const PATIENCE: Duration = Duration::from_secs(10);
/// No list of pods and no status is as long.
const LONGEST_ANSWER: usize = 64 << 20;

#[derive(Debug)]
pub struct Runtime {
    socket: PathBuf,
    calls: tokio::runtime::Runtime,
}

impl Runtime {
    pub fn open(socket: &Path) -> Result<Self> {
        let calls = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::os("cannot ask the container runtime", error))?;
        Ok(Self {
            socket: socket.to_owned(),
            calls,
        })
    }

    pub fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        Ok(message::sandboxes(&self.call("ListPodSandbox", &[])?))
    }

    /// What the runtime tells of a sandbox, as JSON.
    pub fn info(&self, id: &str) -> Result<String> {
        let status = self.call("PodSandboxStatus", &message::status_request(id))?;
        message::info(&status).ok_or_else(|| self.failed("its status has no info"))
    }

    fn failed(&self, why: impl std::fmt::Display) -> Error {
        let what = format!(
            "cannot ask the container runtime at {}",
            self.socket.display()
        );
        Error::failed(what, why).fix("name its socket: --cri-socket PATH")
    }

    fn call(&self, method: &str, request: &[u8]) -> Result<Vec<u8>> {
        let answer = self.calls.block_on(async {
            let calling = call(&self.socket, method, request);
            tokio::time::timeout(PATIENCE, calling).await
        });
        match answer {
            Ok(answer) => answer.map_err(|why| self.failed(why)),
            Err(_) => Err(self.failed("it does not answer")),
        }
    }
}

async fn call(socket: &Path, method: &str, message: &[u8]) -> std::result::Result<Vec<u8>, String> {
    let words = |error: &dyn std::error::Error| error.to_string();
    let stream = UnixStream::connect(socket).await.map_err(|e| words(&e))?;
    let (mut client, connection) = h2::client::Builder::new()
        .initial_window_size(1 << 20)
        .handshake::<_, Bytes>(stream)
        .await
        .map_err(|e| words(&e))?;
    let connection = tokio::spawn(connection);
    let request = http::Request::post(format!(
        "http://localhost/runtime.v1.RuntimeService/{method}"
    ))
    .header("content-type", "application/grpc")
    .header("te", "trailers")
    .body(())
    .map_err(|e| words(&e))?;
    let (response, mut body) = client.send_request(request, false).map_err(|e| words(&e))?;
    // Not compressed, and its length.
    let mut framed = vec![0];
    framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
    framed.extend_from_slice(message);
    body.send_data(framed.into(), true).map_err(|e| words(&e))?;
    let response = response.await.map_err(|e| words(&e))?;
    let status = |headers: &http::HeaderMap| {
        let field = |name: &str| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            value.map(str::to_owned)
        };
        field("grpc-status").map(|code| (code, field("grpc-message").unwrap_or_default()))
    };
    if response.status() != http::StatusCode::OK {
        return Err(format!("it answers with HTTP {}", response.status()));
    }
    let mut outcome = status(response.headers());
    let mut incoming = response.into_body();
    let mut answer = Vec::new();
    while let Some(data) = incoming.data().await {
        let data = data.map_err(|e| words(&e))?;
        let _ = incoming.flow_control().release_capacity(data.len());
        answer.extend_from_slice(&data);
        if answer.len() > LONGEST_ANSWER {
            return Err("its answer is too long".to_owned());
        }
    }
    if let Some(trailers) = incoming.trailers().await.map_err(|e| words(&e))? {
        outcome = status(&trailers).or(outcome);
    }
    connection.abort();
    match outcome {
        Some((code, _)) if code == "0" => {}
        Some((code, why)) => return Err(format!("{method}: {why} (gRPC status {code})")),
        None => return Err(format!("{method}: the answer has no gRPC status")),
    }
    let mut bytes = answer.as_slice();
    if bytes.len() < 5 || bytes.get_u8() != 0 {
        return Err(format!("{method}: the answer is not understood"));
    }
    let length = bytes.get_u32() as usize;
    let message = bytes
        .get(..length)
        .ok_or(format!("{method}: the answer is cut short"))?;
    Ok(message.to_vec())
}
