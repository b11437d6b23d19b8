//! `trawl-bus`, the NATS client: a process without rights over packets, started by agents and by `trawl fleet`. It gets the
//! contents of key files over a pipe, so that it may run as a user who can read none of them.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde::Serialize;
use serde::de::DeserializeOwned;
use trawl_sys::events::Wake;
use trawl_sys::privilege::User;
use trawl_sys::{Error, Result, create, process};

const PROGRAM: &str = "trawl-bus";
/// User that it runs as, if root starts it.
const USER: &str = "nobody";
const ROOT: u32 = 0;

/// The connection to NATS and its credentials.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "NATS")]
pub(crate) struct BusArgs {
    /// The private NKey: a file with its seed
    #[arg(long, value_name = "FILE", conflicts_with = "creds")]
    nkey: Option<PathBuf>,
    /// Credentials: a file with a JWT and its seed
    #[arg(long, value_name = "FILE")]
    creds: Option<PathBuf>,
    /// The certificate of this side, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// CA certificate of the server, in PEM; without it the connection does not use TLS
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
}

#[derive(Serialize)]
struct Config<'a> {
    url: &'a str,
    name: &'a str,
    operators: &'a [String],
    nkey: Option<String>,
    credentials: Option<String>,
    tls_certificate: Option<String>,
    tls_key: Option<String>,
    tls_ca: Option<String>,
}

pub(crate) struct Bus<News> {
    child: Child,
    input: Option<ChildStdin>,
    pub news: Receiver<News>,
}

fn contents(path: Option<&Path>) -> Result<Option<String>> {
    let read = |path: &Path| {
        std::fs::read_to_string(path)
            .map_err(|e| Error::os(format!("cannot read {}", path.display()), e))
    };
    path.map(read).transpose()
}

/// Returns a server's address without the password that it may contain.
pub(crate) fn shown(url: &str) -> String {
    match url
        .split_once("://")
        .map(|(scheme, rest)| (scheme, rest.rsplit_once('@')))
    {
        Some((scheme, Some((_, address)))) => format!("{scheme}://{address}"),
        _ => url.to_owned(),
    }
}

/// Checks a host name, which becomes a part of subjects.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_right = name.chars().all(is_plain) && name.split('.').all(|part| !part.is_empty());
    match is_right {
        true => Ok(()),
        false => Err(Error::usage(
            format!("cannot use '{name}' as a host's name on the bus"),
            "letters, digits, '-', '_' and '.' between them are possible",
        )
        .fix("--host NAME")),
    }
}

impl<News: DeserializeOwned + Send + 'static> Bus<News> {
    pub fn start(
        mode: &str,
        url: &str,
        name: &str,
        operators: &[String],
        args: &BusArgs,
        wake: Option<&Wake>,
    ) -> Result<Self> {
        check_name(name)?;
        if url.starts_with("tls://") && args.tls_ca.is_none() {
            let what = format!("cannot reach {}", shown(url));
            return Err(
                Error::usage(what, "TLS requires the server's authority").fix("--tls-ca FILE")
            );
        }
        let config = Config {
            url,
            name,
            operators,
            nkey: contents(args.nkey.as_deref())?,
            credentials: contents(args.creds.as_deref())?,
            tls_certificate: contents(args.tls_cert.as_deref())?,
            tls_key: contents(args.tls_key.as_deref())?,
            tls_ca: contents(args.tls_ca.as_deref())?,
        };
        let program = process::companion(PROGRAM)?.unwrap_or_else(|| PROGRAM.into());
        let mut command = Command::new(&program);
        command
            .arg(mode)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        process::with_signals(&mut command);
        process::ends_with_parent(&mut command);
        let user = User::find(USER).ok();
        let user = user.filter(|_| create::own_user() == ROOT);
        if let Some((user, group)) = user.as_ref().map(User::ids) {
            command.uid(user).gid(group);
        }
        let mut spawned = command.spawn();
        // In a directory of root's own, which no other user can use.
        if matches!(&spawned, Err(e) if e.kind() == io::ErrorKind::PermissionDenied) {
            command.uid(ROOT).gid(ROOT);
            spawned = command.spawn();
        }
        let mut child = spawned.map_err(|e| {
            let missing = e.kind() == io::ErrorKind::NotFound;
            let error = Error::os(format!("cannot run {}", program.display()), e);
            match missing {
                true => error.fix("build it with make build-bus"),
                false => error,
            }
        })?;
        let (sender, news) = channel();
        if let Some(out) = child.stdout.take() {
            let wake = wake.cloned();
            std::thread::spawn(move || {
                let lines = BufReader::new(out).lines();
                for line in lines.map_while(io::Result::ok) {
                    let Ok(one) = serde_json::from_str(&line) else {
                        continue;
                    };
                    if sender.send(one).is_err() {
                        return;
                    }
                    wake.iter().for_each(Wake::ring);
                }
            });
        }
        let mut bus = Self {
            input: child.stdin.take(),
            child,
            news,
        };
        bus.send(&config)?;
        Ok(bus)
    }

    pub fn send(&mut self, value: &impl Serialize) -> Result<()> {
        let what = "cannot speak to trawl-bus";
        let mut line = serde_json::to_vec(value).map_err(|e| Error::failed(what, e))?;
        line.push(b'\n');
        match &mut self.input {
            Some(input) => input.write_all(&line).map_err(|e| Error::os(what, e)),
            None => Err(Error::failed(what, "it has ended")),
        }
    }

    pub fn is_over(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl<News> Bus<News> {
    /// Gives the process time to send its queue, then ends it.
    pub fn end(mut self) {
        self.input = None;
        let until = std::time::Instant::now() + std::time::Duration::from_secs(1);
        while matches!(self.child.try_wait(), Ok(None)) && std::time::Instant::now() < until {
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
    }
}

impl<News> Drop for Bus<News> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
