//! The embedded bus: a small server of NATS with exactly the subjects, streams and rights that trawl's agents and
//! operators need, to try a fleet or to run a small one. `Hub` decides; this module has the connections.

mod api;
mod hub;
mod protocol;
mod stream;
mod users;

pub use users::Users;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::rustls::ServerConfig;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{interval, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use trawl_front::terminal;
use trawl_sys::{Error, Result};

use hub::Hub;

/// Time limit for a client's TLS and credentials, and for writing to it.
const GREETING: Duration = Duration::from_secs(5);
const WRITING: Duration = Duration::from_secs(30);
/// Time without a byte after which a client is asked for one, and after which it is disconnected.
const SILENCE: Duration = Duration::from_secs(30);
/// Maximum number of TLS handshakes at a time: when all clients return at once, the first ones succeed within their time
/// limit, instead of none.
const HANDSHAKES: usize = 8;
/// Interval of heartbeats to consumers; clients expect one in ten seconds.
const HEARTBEAT: Duration = Duration::from_secs(4);
/// Interval at which the hosts' states and logs are written to their files.
const SAVE_EVERY: Duration = Duration::from_secs(5);
/// Time in which further changes of desired states are saved together with the first.
const MOMENT: Duration = Duration::from_millis(10);
/// Time without new connections after a failure, for lack of file descriptors for example.
const REST: Duration = Duration::from_millis(100);

/// Everything that the connections share.
struct Shared {
    hub: Mutex<Hub>,
    tls: Option<TlsAcceptor>,
    handshakes: Semaphore,
    /// Wakes the task that saves desired states.
    changed: Notify,
    /// Ends the server because of this error.
    failed: Box<dyn Fn(Error) + Send + Sync>,
}

/// A running bus, which ends when it is dropped.
pub struct Server {
    _runtime: Runtime,
    shared: Arc<Shared>,
    pub address: SocketAddr,
}

/// The options of a bus.
pub struct Config {
    pub listen: SocketAddr,
    pub users: Users,
    pub tls: Option<ServerConfig>,
    /// Directory that keeps the states.
    pub directory: Option<PathBuf>,
}

impl Server {
    /// Starts a bus; `failed` is called if it can no longer keep the states.
    pub fn start(config: Config, failed: impl Fn(Error) + Send + Sync + 'static) -> Result<Self> {
        let what = || format!("cannot listen on {}", config.listen);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(|e| Error::os("cannot start the bus", e))?;
        let listener = runtime.block_on(TcpListener::bind(config.listen)).map_err(|e| Error::os(what(), e))?;
        let address = listener.local_addr().map_err(|e| Error::os(what(), e))?;
        let shared = Arc::new(Shared {
            hub: Mutex::new(Hub::open(config.users, config.directory)?),
            tls: config.tls.map(|tls| Arc::new(tls).into()),
            handshakes: Semaphore::new(HANDSHAKES),
            changed: Notify::new(),
            failed: Box::new(failed),
        });
        runtime.spawn(accept(listener, Arc::clone(&shared)));
        runtime.spawn(beat(Arc::clone(&shared)));
        runtime.spawn(save_desired(Arc::clone(&shared)));
        runtime.spawn(save_of_hosts(Arc::clone(&shared)));
        Ok(Self { _runtime: runtime, shared, address })
    }

    /// Saves everything, and ends.
    pub fn end(self) -> Result<()> {
        let mut hub = self.shared.hub.lock();
        hub.save_desired()?;
        hub.save_of_hosts()
    }
}

/// Serves each connection. A failure, such as the lack of free descriptors, is said once until connections succeed again.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut is_failing = false;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                is_failing = false;
                let _ = stream.set_nodelay(true);
                tokio::spawn(serve(stream, Arc::clone(&shared)));
            }
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    terminal::say(&format!("cannot accept connections: {error}; waiting for ones that end"));
                }
                sleep(REST).await;
            }
        }
    }
}

async fn beat(shared: Arc<Shared>) {
    let mut due = interval(HEARTBEAT / 4);
    loop {
        due.tick().await;
        shared.hub.lock().beat(Instant::now(), HEARTBEAT);
    }
}

/// Saves changed desired states. An operator changes many hosts at once: one write saves all changes of a moment.
async fn save_desired(shared: Arc<Shared>) {
    loop {
        shared.changed.notified().await;
        sleep(MOMENT).await;
        let saved = shared.hub.lock().save_desired();
        saved.unwrap_or_else(|error| (shared.failed)(error));
    }
}

async fn save_of_hosts(shared: Arc<Shared>) {
    let mut due = interval(SAVE_EVERY);
    loop {
        due.tick().await;
        let saved = shared.hub.lock().save_of_hosts();
        saved.unwrap_or_else(|error| (shared.failed)(error));
    }
}

/// Serves a client until its connection ends.
async fn serve(mut stream: TcpStream, shared: Arc<Shared>) {
    let wake = Arc::new(Notify::new());
    let (id, info) = shared.hub.lock().join(Arc::clone(&wake), shared.tls.is_some());
    let connection = Connection { id, wake, shared: &shared };
    // Its end is the client's affair.
    let _ = match &shared.tls {
        None => connection.run(stream, info.as_bytes()).await,
        Some(tls) => {
            let turn = shared.handshakes.acquire().await;
            let secured = timeout(GREETING, async {
                stream.write_all(info.as_bytes()).await?;
                tls.accept(stream).await
            });
            let secured = secured.await;
            drop(turn);
            match secured {
                Ok(Ok(stream)) => connection.run(stream, b"").await,
                _ => Ok(()),
            }
        }
    };
    shared.hub.lock().leave(id);
}

struct Connection<'a> {
    id: u64,
    wake: Arc<Notify>,
    shared: &'a Shared,
}

impl Connection<'_> {
    /// Passes bytes between the client and the hub. While the client does not read, nothing is read from it.
    async fn run(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin, greeting: &[u8]) -> io::Result<()> {
        write(&mut stream, greeting).await?;
        let mut bytes = Vec::new();
        let mut heard = Instant::now();
        let mut is_asked = false;
        loop {
            let is_known = self.shared.hub.lock().knows(self.id);
            let patience = if is_known { SILENCE } else { GREETING };
            tokio::select! {
                read = stream.read_buf(&mut bytes) => {
                    if read? == 0 {
                        return Ok(());
                    }
                    if is_known {
                        (heard, is_asked) = (Instant::now(), false);
                    }
                    if let Err(text) = self.receive(&mut bytes) {
                        return write(&mut stream, format!("-ERR '{text}'\r\n").as_bytes()).await;
                    }
                }
                () = self.wake.notified() => {
                    let (queue, is_over) = self.shared.hub.lock().take(self.id);
                    write(&mut stream, &queue).await?;
                    if is_over {
                        return Ok(());
                    }
                }
                () = sleep_until((heard + patience).into()) => {
                    if is_asked || !is_known {
                        return write(&mut stream, b"-ERR 'Stale Connection'\r\n").await;
                    }
                    write(&mut stream, b"PING\r\n").await?;
                    (heard, is_asked) = (Instant::now(), true);
                }
            }
        }
    }

    /// Carries out the operations that have arrived.
    fn receive(&self, bytes: &mut Vec<u8>) -> std::result::Result<(), &'static str> {
        let mut hub = self.shared.hub.lock();
        let length = hub.receive(self.id, bytes)?;
        bytes.drain(..length);
        if hub.is_unsaved() {
            self.shared.changed.notify_one();
        }
        Ok(())
    }
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    let written = timeout(WRITING, async {
        stream.write_all(bytes).await?;
        stream.flush().await
    });
    written.await?
}
