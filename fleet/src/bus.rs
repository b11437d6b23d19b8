//! NATS for agents and operators. The client is in a thread of its own, which receives requests and sends news.

pub mod agent;
mod ask;
mod connection;
pub mod fleet;
pub mod log;

pub use ask::{Answers, Asker};
pub use connection::{ASK, COMMAND, Config, DESIRED, DESIRED_STREAM, LOG, STATE, check_name, is_key, shown};

use std::future::Future;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use trawl_sys::events::Wake;
use trawl_sys::{Error, Result};

/// Name of operators on the bus.
pub const OPERATOR: &str = "operator";

/// Events of the connection, and messages.
#[derive(Debug)]
pub enum News<T> {
    Connected,
    Disconnected,
    /// The server refused a request, for lack of a permission for example.
    Refused(String),
    Message(T),
    /// No more news follow.
    Ended(String),
}

/// Sends news, and wakes the thread that waits for them.
pub struct Reporter<T> {
    sender: mpsc::Sender<News<T>>,
    wake: Wake,
}

impl<T> Clone for Reporter<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), wake: self.wake.clone() }
    }
}

impl<T> Reporter<T> {
    fn send(&self, news: News<T>) {
        // At the end, the receiver may be gone.
        let _ = self.sender.send(news);
        self.wake.ring();
    }
}

/// A connection: requests to it, and news from it.
pub struct Bus<R, T> {
    requests: UnboundedSender<R>,
    pub news: Receiver<News<T>>,
    thread: JoinHandle<()>,
}

impl<R: Send + 'static, T: Send + 'static> Bus<R, T> {
    fn start<F: Future<Output = std::result::Result<(), String>>>(
        wake: &Wake,
        run: impl FnOnce(UnboundedReceiver<R>, Reporter<T>) -> F + Send + 'static,
    ) -> Result<Self> {
        let fail = |e| Error::os("cannot start the client of NATS", e);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(fail)?;
        let (requests, received) = unbounded_channel();
        let (sender, news) = mpsc::channel();
        let reporter = Reporter { sender, wake: wake.clone() };
        let thread = thread::Builder::new().name("bus".into()).spawn(move || {
            if let Err(why) = runtime.block_on(run(received, reporter.clone())) {
                reporter.send(News::Ended(why));
            }
        });
        Ok(Self { requests, news, thread: thread.map_err(fail)? })
    }

    pub fn send(&self, request: R) {
        // A connection that has ended has reported that already.
        let _ = self.requests.send(request);
    }

    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Closes the connection, with some time to send what is queued.
    pub fn end(self) {
        drop(self.requests);
        let until = Instant::now() + Duration::from_secs(1);
        while !self.thread.is_finished() && Instant::now() < until {
            thread::park_timeout(Duration::from_millis(5));
        }
    }
}
