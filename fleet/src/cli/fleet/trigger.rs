//! `trawl fleet trigger`: stores the packets that many hosts keep of a window of time, as one incident.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use trawl_front::{exit_code, json, terminal};
use trawl_sys::events::{self, Signals, Wake};
use trawl_sys::{Error, Result, clock, text_file, units};
use trawl_view::text;

use super::operator::Operator;
use super::{Change, LOOK, ServerArgs};
use crate::agent::{Desired, Incident, IncidentPhase, Selector};

/// Stores the last packets of many hosts as one incident, which trawl store query --incident shows
///
/// The captures of the hosts keep their packets with --packets-at host. Each host protects the packets of the time from
/// removal at once, and then stores them. Fails if a host does not answer within 10 s, or keeps no packets. With --on-event
/// or --listen, the command goes on and waits for events.
#[derive(Debug, clap::Args)]
pub struct Trigger {
    /// Hosts to select, as for fleet start
    #[arg(value_name = "SELECTOR")]
    selector: String,
    /// Time before the event whose packets are stored
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::duration)]
    last: Duration,
    /// Time after the event whose packets are stored, too
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    next: Option<Duration>,
    /// Name of the incident [default: the date and time]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["on_event", "listen"])]
    id: Option<String>,
    /// Description of the event, for those who read the incident
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["on_event", "listen"])]
    why: Option<String>,
    /// Wait until the packets are stored, at most this time
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "60s", value_parser = units::duration)]
    wait: Option<Duration>,
    /// Wait for events of these hosts (--event-rate of fleet start), and trigger an incident at each [default: all hosts]
    #[arg(long, value_name = "SELECTOR", num_args = 0..=1, require_equals = true, default_missing_value = "*")]
    on_event: Option<String>,
    /// Wait for POST requests at this address, and trigger an incident at each; the first line of a request is the reason
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// File with the token of these requests: Authorization: Bearer TOKEN
    #[arg(long, value_name = "FILE", requires = "listen")]
    token: Option<PathBuf>,
    /// Least time between two incidents: events in it belong to the first
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::duration)]
    pause: Duration,
    #[command(flatten)]
    server: ServerArgs,
}

/// Hosts that store the list of all hosts: one suffices, and a message to each of thousands would be long with it.
const TOLD: usize = 16;

/// The outcome of an incident.
#[derive(Serialize)]
struct Triggered<'a> {
    incident: &'a str,
    why: &'a str,
    from_ns: u64,
    to_ns: u64,
    hosts: &'a [Change],
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

pub fn run(args: &Trigger) -> Result<ExitCode> {
    let wake = Wake::new()?;
    let wanted = Selector::parse(&args.selector)?;
    if args.on_event.is_none() && args.listen.is_none() {
        let mut operator = args.server.open(&wake)?;
        let all = args.trigger(
            &mut operator,
            &wanted,
            args.why.as_deref().unwrap_or_default(),
        )?;
        operator.end();
        return Ok(exit_code(all));
    }
    let signals = Signals::watch()?;
    let requests = args.listen(&wake)?;
    let mut operator = args.server.open(&wake)?;
    let watched = args.on_event.as_deref().map(Selector::parse).transpose()?;
    let mut seen = HashMap::new();
    // Events from before are over.
    watched.iter().for_each(|hosts| {
        new_event(&operator, hosts, &mut seen);
    });
    terminal::say("waiting for events");
    let mut last: Option<Instant> = None;
    loop {
        wake.hush();
        operator.listen()?;
        let event = watched
            .as_ref()
            .and_then(|hosts| new_event(&operator, hosts, &mut seen));
        let requested = requests.iter().flat_map(Receiver::try_iter).last();
        let is_due = last.is_none_or(|last| last.elapsed() >= args.pause);
        if let Some(why) = event.or(requested).filter(|_| is_due) {
            last = Some(Instant::now());
            args.trigger(&mut operator, &wanted, &why)?;
        }
        events::wait(&[signals.as_fd(), wake.as_fd()], LOOK)?;
        if signals.next().is_some_and(|signal| signal.ends()) {
            break;
        }
    }
    operator.end();
    Ok(ExitCode::SUCCESS)
}

/// Returns a description of an event that was not seen before, if there is one.
fn new_event(
    operator: &Operator,
    hosts: &Selector,
    seen: &mut HashMap<(String, String), u64>,
) -> Option<String> {
    let mut news = None;
    for (host, capture, event) in operator.events(hosts) {
        let last = seen.insert((host.clone(), capture.clone()), event.time_ns);
        if last != Some(event.time_ns) {
            let rate = event.packets_per_second;
            news = Some(format!(
                "{host}: '{capture}' recorded {rate} packets a second"
            ));
        }
    }
    news
}

impl Trigger {
    /// Triggers an incident, and shows its outcome; returns whether all hosts take part.
    fn trigger(&self, operator: &mut Operator, wanted: &Selector, why: &str) -> Result<bool> {
        let now = clock::wall();
        let after = nanoseconds(self.next.unwrap_or_default());
        let fleet = operator.fleet(wanted).hosts;
        let heard = fleet
            .iter()
            .filter(|host| !host.silent && host.state.is_some());
        let told: HashSet<String> = heard.take(TOLD).map(|host| host.host.clone()).collect();
        let hosts: Vec<String> = fleet.into_iter().map(|host| host.host).collect();
        if hosts.is_empty() {
            let what = format!("no host matches '{}'", self.selector);
            let why = "no agent with such a name or label has reported";
            return Err(Error::failed(what, why).fix("trawl fleet status"));
        }
        let id = self.id.clone();
        let incident = Incident {
            id: id.unwrap_or_else(|| clock::strftime("%Y%m%d-%H%M%S")),
            from_ns: now.saturating_sub(nanoseconds(self.last)),
            to_ns: now.saturating_add(after),
            why: why.to_owned(),
            hosts: Vec::new(),
        };
        // A state that no agent could read is refused here.
        let alone = Desired {
            incidents: vec![incident.clone()],
            ..Desired::default()
        };
        alone.check_form()?;
        let changed = operator.change(&hosts, &|host, desired| {
            let incidents = &mut desired.incidents;
            incidents.retain(|one| one.id != incident.id);
            incidents.push(Incident {
                hosts: match told.contains(host) {
                    true => hosts.clone(),
                    false => Vec::new(),
                },
                ..incident.clone()
            });
            let surplus = incidents.len().saturating_sub(Desired::INCIDENTS);
            incidents.drain(..surplus);
        })?;
        let changes = changed
            .into_iter()
            .map(|(host, put)| Change::new(host, put));
        let mut changes: Vec<Change> = changes.collect();
        operator.await_incident(&mut changes, &incident, self.wait)?;
        let all = changes.iter().all(|one| one.error.is_none());
        let triggered = Triggered {
            incident: &incident.id,
            why,
            from_ns: incident.from_ns,
            to_ns: incident.to_ns,
            hosts: &changes,
        };
        match self.server.json {
            true => json::print(&triggered)?,
            false => show(&triggered)?,
        }
        Ok(all)
    }

    /// Starts to listen for requests.
    fn listen(&self, wake: &Wake) -> Result<Option<Receiver<String>>> {
        let Some(address) = self.listen else {
            return Ok(None);
        };
        let what = format!("cannot listen at {address}");
        let token = self.token.as_deref().map(text_file::read).transpose()?;
        let token = token.map(|text| text.trim().to_owned());
        if token.as_deref().is_some_and(str::is_empty) {
            return Err(Error::usage(what, "the file of the token is empty"));
        }
        if token.is_none() && !address.ip().is_loopback() {
            let why = "anyone who reaches the address could trigger incidents";
            return Err(Error::usage(what, why).fix("name a file with a token: --token FILE"));
        }
        let listener = TcpListener::bind(address).map_err(|e| Error::os(what.clone(), e))?;
        let address = listener.local_addr().map_err(|e| Error::os(what, e))?;
        let (sender, requests) = mpsc::channel();
        let wake = wake.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if let Some(why) = request(stream, token.as_deref()) {
                    let _ = sender.send(why);
                    wake.ring();
                }
            }
        });
        terminal::say(&format!("listening at http://{address}/"));
        Ok(Some(requests))
    }
}

fn show(triggered: &Triggered<'_>) -> Result<()> {
    let because = match triggered.why {
        "" => String::new(),
        why => format!(" ({why})"),
    };
    let mut out = format!("incident {}{because}\n", triggered.incident);
    for host in triggered.hosts {
        match (&host.error, &host.incident) {
            (Some(why), _) => terminal::say(&format!("{}: {why}", host.host)),
            (None, Some(incident)) => {
                let packets = text::count(incident.frozen.packets, "packet");
                let chunks = text::count(incident.frozen.chunks, "chunk");
                let phase = match incident.phase {
                    IncidentPhase::Stored => "stored",
                    _ => "frozen",
                };
                out += &format!("{}: {packets} in {chunks} {phase}\n", host.host);
            }
            (None, None) => {}
        }
    }
    terminal::write_out(&out)
}

/// Largest request, and time to send it.
const MOST: usize = 16 << 10;
const PATIENCE: Duration = Duration::from_secs(2);
/// Characters of a request that become the reason.
const REASON: usize = 200;

/// Answers a request; returns the reason if it may trigger an incident.
fn request(mut stream: TcpStream, token: Option<&str>) -> Option<String> {
    let until = Instant::now() + PATIENCE;
    let mut text = Vec::new();
    let (mut head, mut length) = (None, 0);
    while head.is_none_or(|head: usize| text.len() < head + length) && text.len() < MOST {
        let left = until.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left)).ok()?;
        let mut piece = [0; 1024];
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(count) => text.extend_from_slice(&piece[..count]),
        }
        if head.is_none()
            && let Some(at) = text.windows(4).position(|four| four == b"\r\n\r\n")
        {
            head = Some(at + 4);
            length = header(&text[..at], "content-length").and_then(|text| text.parse().ok())?;
        }
    }
    let (head, body) = text.split_at_checked(head?)?;
    let given = header(head, "authorization").unwrap_or_default();
    let is_allowed = token.is_none_or(|token| given == format!("Bearer {token}"));
    let status = match head.starts_with(b"POST ") {
        false => "405 Method Not Allowed\r\nAllow: POST",
        true if !is_allowed => "401 Unauthorized",
        true => "202 Accepted",
    };
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let _ = stream.write_all(answer.as_bytes());
    let body = String::from_utf8_lossy(body);
    let line = body.lines().next().unwrap_or_default();
    let plain = line.chars().filter(|letter| !text::steers(*letter));
    let reason: String = plain.take(REASON).collect();
    status.starts_with("202").then(|| match reason.is_empty() {
        true => "a request".to_owned(),
        false => reason,
    })
}

/// Returns a header's value.
fn header(head: &[u8], name: &str) -> Option<String> {
    let head = String::from_utf8_lossy(head);
    let mut headers = head.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = headers.find(|(one, _)| one.trim().eq_ignore_ascii_case(name))?;
    Some(value.trim().to_owned())
}
