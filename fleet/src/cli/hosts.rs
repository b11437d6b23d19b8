//! Connections to hosts that keep packets: through NATS, where agents answer, or by ssh.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, ExitCode, Stdio};

use trawl_front::exit_code;
use trawl_spool::default_spool;
use trawl_sys::process::ssh::{Ssh, word};
use trawl_sys::{Error, Result, process};
use trawl_view::text;

use super::bus::BusArgs;
use crate::bus::Asker;
use trawl_store::chunks::on_hosts::{self, Hosts};

/// The hosts that packets are fetched from.
#[derive(Debug, clap::Args)]
pub struct HostsArgs {
    /// Fetch packets that stay on their hosts: from their agents through the NATS server at this URL, or by ssh from
    /// the hosts that 'ssh:HOST,HOST' lists by their names in the store
    #[arg(long, value_name = "URL|ssh:HOST,…")]
    hosts: Option<String>,
    /// The ssh program and its options
    #[arg(long, value_name = "COMMAND", default_value = "ssh", requires = "hosts", hide_short_help = true)]
    ssh: String,
    #[command(flatten)]
    bus: BusArgs,
}

impl HostsArgs {
    /// Returns the options as they were typed, for another process of trawl's.
    pub fn typed(&self) -> Vec<OsString> {
        let Self { hosts, ssh, bus } = self;
        let hosts = hosts.iter().flat_map(|hosts| ["--hosts", hosts, "--ssh", ssh]);
        hosts.map(OsString::from).chain(bus.typed()).collect()
    }

    /// Returns the options with which `trawl fleet` reaches the agents; `None` if hosts are not asked through NATS.
    pub fn fleet(&self) -> Option<Vec<OsString>> {
        let url = self.hosts.as_ref().filter(|hosts| hosts.contains("://"))?;
        Some([OsString::from("--nats"), url.into()].into_iter().chain(self.bus.typed()).collect())
    }

    pub fn open(&self) -> Result<Option<Box<dyn Hosts>>> {
        Ok(match self.hosts.as_deref() {
            None => None,
            Some("ssh") => {
                let what = "cannot ask hosts by ssh";
                let why = "anyone who can write to the store chooses the host names in it";
                return Err(Error::usage(what, why).fix("list the hosts to ask: --hosts ssh:HOST,HOST"));
            }
            Some(listed) if listed.starts_with("ssh:") => {
                let names = listed["ssh:".len()..].split(',').map(str::to_owned);
                let listed: BTreeSet<String> = names.collect();
                if let Some(wrong) = listed.iter().find(|name| !is_host(name)) {
                    let what = format!("cannot ask {} by ssh", text::printable(wrong));
                    let why = "the name of a host has letters, digits, '.', '-' and '_'";
                    let error = Error::usage(what, why);
                    return Err(error.fix("set its user and port in ssh's configuration (Host, User, Port)"));
                }
                Some(Box::new(BySsh {
                    program: self.ssh.split_whitespace().map(str::to_owned).collect(),
                    listed,
                    sessions: HashMap::new(),
                }))
            }
            Some(url) if url.contains("://") => {
                let config = self.bus.config(url, "operator")?;
                Some(Box::new(ByBus(Asker::open(&config)?)))
            }
            Some(other) => {
                let what = format!("cannot ask hosts by '{other}'");
                let why = "it is neither 'ssh:HOST' nor the URL of a NATS server";
                return Err(Error::usage(what, why).fix("--hosts nats://SERVER:4222"));
            }
        })
    }
}

struct ByBus(Asker);

impl Hosts for ByBus {
    fn ask(&mut self, host: &str, question: &[u8]) -> std::result::Result<Vec<u8>, String> {
        self.0.ask(host, &String::from_utf8_lossy(question))
    }
}

/// Returns true for a text that is a host's name, and no option, user, port or path.
fn is_host(name: &str) -> bool {
    let is_meant = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    name.starts_with(|first: char| first.is_ascii_alphanumeric()) && name.chars().all(is_meant)
}

/// A session for each host.
struct BySsh {
    program: Vec<String>,
    /// Hosts that may be asked.
    listed: BTreeSet<String>,
    sessions: HashMap<String, Session>,
}

struct Session {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Session {
    fn start(program: &[String], host: &str) -> io::Result<Self> {
        let ssh = Ssh { program: program.to_vec(), destination: host.to_owned() };
        let mut command = ssh.script(&format!("exec {} store answer", word("trawl")));
        process::with_signals(&mut command);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let missing = || io::Error::other("a pipe is missing");
        Ok(Self {
            questions: child.stdin.take().ok_or_else(missing)?,
            answers: BufReader::new(child.stdout.take().ok_or_else(missing)?),
            child,
        })
    }

    /// Writes a question on a line; an answer is a line with its length, and its bytes.
    fn ask(&mut self, question: &[u8]) -> io::Result<Vec<u8>> {
        self.questions.write_all(&[question, b"\n"].concat())?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let length: u64 = line.trim().parse().map_err(io::Error::other)?;
        let mut bytes = Vec::new();
        let most = on_hosts::PIECE + 1;
        self.answers.by_ref().take(length.min(most)).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl Hosts for BySsh {
    fn ask(&mut self, host: &str, question: &[u8]) -> std::result::Result<Vec<u8>, String> {
        if !self.listed.contains(host) {
            return Err("--hosts does not list it".to_owned());
        }
        let failed = |e: io::Error| format!("cannot run trawl on it by ssh: {e}");
        if !self.sessions.contains_key(host) {
            let session = Session::start(&self.program, host).map_err(failed)?;
            self.sessions.insert(host.to_owned(), session);
        }
        let session = self.sessions.get_mut(host);
        let session = session.ok_or("the session is missing")?;
        session.ask(question).map_err(failed)
    }
}

/// Answers questions on standard input for parts of the chunks that stay on this host: the other side of such a session
#[derive(Debug, clap::Args)]
pub struct Answer {
    /// The spool
    #[arg(long, value_name = "DIR", default_value_os_t = default_spool())]
    spool: std::path::PathBuf,
}

pub fn answer(args: &Answer) -> Result<ExitCode> {
    let failed = |e| Error::os("cannot answer", e);
    let mut out = io::stdout().lock();
    for question in io::stdin().lock().split(b'\n') {
        let answer = on_hosts::answer(&args.spool, &question.map_err(failed)?);
        let length = format!("{}\n", answer.len());
        let written = out.write_all(length.as_bytes()).and_then(|()| out.write_all(&answer)).and_then(|()| out.flush());
        written.map_err(failed)?;
    }
    Ok(exit_code(true))
}

#[cfg(test)]
mod tests {
    use super::is_host;

    #[test]
    fn hosts_are_names_only() {
        for name in ["alpha", "web-1.example.com", "a_b", "192.0.2.1"] {
            assert!(is_host(name), "{name}");
        }
        for name in ["", "root@evil", "-oProxyCommand=x", "a:22", "a/b", ".", "a b", "a\n", "é"] {
            assert!(!is_host(name), "{name}");
        }
    }
}
