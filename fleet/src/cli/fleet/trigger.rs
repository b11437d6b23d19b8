//! `trawl fleet trigger`: stores the packets that many hosts keep of a window of time, as one incident.

mod alarm;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use trawl_front::http::{self, Answer, Request};
use trawl_front::{exit_code, json, terminal};
use trawl_sys::events::{self, Signals, Wake};
use trawl_sys::{Error, Result, clock, files::text_file, units};
use trawl_view::text;

use super::operator::Operator;
use super::{CHECK_EVERY, Change, ServerArgs};
use crate::agent::{HostEvent, Incident, IncidentPhase, Selector, State};

/// Stores the last packets of many hosts as one incident, which trawl store query --incident shows
///
/// The captures of the hosts keep their packets with --packets-at host. Each host protects the packets of the time from
/// removal at once, and then stores them. Fails if a host does not answer within 10 s, or keeps no packets. With
/// --on-event or --listen, the command keeps running and waits for events.
#[derive(Debug, clap::Args)]
pub struct Trigger {
    /// Hosts to select, as for fleet start
    #[arg(value_name = "SELECTOR")]
    selector: String,
    /// Store the packets of this time before the event
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::duration)]
    last: Duration,
    /// Store the packets of this time after the event, too
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
    /// Wait for events of these hosts (--event-rate of fleet start, --slow of fleet agent), and trigger an incident at each
    /// [default: all hosts]
    #[arg(long, value_name = "SELECTOR", num_args = 0..=1, require_equals = true, default_missing_value = "*")]
    on_event: Option<String>,
    /// Wait for POST requests at this address, and trigger an incident at each. The first line of a request is the reason;
    /// of Alertmanager's requests, only those with alerts that fire trigger incidents
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// File with the token of these requests: Authorization: Bearer TOKEN
    #[arg(long, value_name = "FILE", requires = "listen")]
    token: Option<PathBuf>,
    /// Minimum time between two incidents of one host's events, or of one address's requests; events in this time
    /// trigger one incident at its end
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::duration)]
    pause: Duration,
    #[command(flatten)]
    server: ServerArgs,
}

/// Number of hosts that store the list of all hosts: one would suffice, and the list of thousands makes a message long.
const LISTERS: usize = 16;

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
        let event = Event::now(args.why.clone().unwrap_or_default());
        let id = args.id.clone().unwrap_or_else(now_as_id);
        let mut requested = args.request(&mut operator, &wanted, id, &event)?;
        while !args.is_settled(&mut operator, &mut requested) {
            operator.read_until(requested.until)?;
        }
        let all = args.finish(&mut operator, requested)?;
        operator.end();
        return Ok(exit_code(all));
    }
    let signals = Signals::watch()?;
    let requests = args.listen(&wake)?;
    let mut operator = args.server.open(&wake)?;
    let watched = args.on_event.as_deref().map(Selector::parse).transpose()?;
    let mut seen = HashMap::new();
    // Events from before the start do not count: they are only marked as seen.
    watched.iter().for_each(|hosts| {
        new_events(&operator, hosts, &mut seen);
    });
    terminal::say("waiting for events");
    let mut pauses = Pauses::of(args.pause);
    let mut open = Vec::new();
    loop {
        wake.clear();
        operator.listen()?;
        let hosts = watched.iter();
        let of_hosts: Vec<_> = hosts.flat_map(|hosts| new_events(&operator, hosts, &mut seen)).collect();
        of_hosts.into_iter().chain(requests.iter().flat_map(Receiver::try_iter)).for_each(|one| pauses.add(one));
        if let Some(event) = pauses.take_due(Instant::now()) {
            open.extend(args.request_or_say(&mut operator, &wanted, &event)?);
        }
        // A host that does not answer delays neither other incidents nor the end.
        for mut requested in std::mem::take(&mut open) {
            if args.is_settled(&mut operator, &mut requested) {
                args.finish(&mut operator, requested)?;
            } else {
                open.push(requested);
            }
        }
        events::wait(&[signals.as_fd(), wake.as_fd()], CHECK_EVERY)?;
        if signals.next().is_some_and(|signal| signal.ends()) {
            break;
        }
    }
    // Accepted requests are done, too.
    requests.iter().flat_map(Receiver::try_iter).for_each(|one| pauses.add(one));
    if let Some(event) = pauses.waiting() {
        open.extend(args.request_or_say(&mut operator, &wanted, &event)?);
    }
    open.iter_mut().try_for_each(|requested| args.leave(&mut operator, requested))?;
    operator.end();
    Ok(ExitCode::SUCCESS)
}

/// Returns the name of an incident: the time in microseconds, so that each of several commands makes names of its own.
fn now_as_id() -> String {
    let now = clock::wall();
    let below = now % 1_000_000_000 / 1000;
    format!("{}-{below:06}", clock::strftime_at("%Y%m%d-%H%M%S", now))
}

/// An incident that has been requested from its hosts.
struct Requested {
    incident: Incident,
    changes: Vec<Change>,
    since: Instant,
    /// Time until which answers are awaited.
    until: Instant,
}

/// Source of events: a host, or an address that requests come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Source {
    Host(String),
    Address(IpAddr),
}

/// Reasons for an incident, and the time from the first to the last.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Event {
    why: String,
    /// Number of further events.
    more: u64,
    first_ns: u64,
    last_ns: u64,
}

impl Event {
    fn now(why: String) -> Self {
        let now = clock::wall();
        Self { why, more: 0, first_ns: now, last_ns: now }
    }

    /// Adds another event.
    fn add(&mut self, other: &Self) {
        self.more += 1 + other.more;
        self.first_ns = self.first_ns.min(other.first_ns);
        self.last_ns = self.last_ns.max(other.last_ns);
    }

    fn text(&self) -> String {
        match self.more {
            0 => self.why.clone(),
            more => format!("{} (and {})", self.why, text::count(more, "more event")),
        }
    }
}

/// Events that wait, and the sources whose pause has not ended. One source's events neither delay nor hide another's.
#[derive(Debug)]
struct Pauses {
    pause: Duration,
    until: HashMap<Source, Instant>,
    waiting: BTreeMap<Source, Event>,
}

impl Pauses {
    fn of(pause: Duration) -> Self {
        Self { pause, until: HashMap::new(), waiting: BTreeMap::new() }
    }

    fn add(&mut self, (source, event): (Source, Event)) {
        match self.waiting.entry(source) {
            Entry::Vacant(entry) => drop(entry.insert(event)),
            Entry::Occupied(mut entry) => entry.get_mut().add(&event),
        }
    }

    /// Removes and returns, as one, the events of the sources without a pause, whose pauses begin now.
    fn take_due(&mut self, now: Instant) -> Option<Event> {
        self.until.retain(|_, until| *until > now);
        let due = self.waiting.extract_if(.., |source, _| !self.until.contains_key(source));
        let due: Vec<(Source, Event)> = due.collect();
        let (sources, events): (Vec<Source>, Vec<Event>) = due.into_iter().unzip();
        let ends = sources.into_iter().map(|source| (source, now + self.pause));
        self.until.extend(ends);
        merge(events)
    }

    /// Returns the events that wait, as one.
    fn waiting(self) -> Option<Event> {
        merge(self.waiting.into_values().collect())
    }
}

fn merge(events: Vec<Event>) -> Option<Event> {
    events.into_iter().reduce(|mut all, one| {
        all.add(&one);
        all
    })
}

/// Returns the hosts' events that were not seen before, with their descriptions.
fn new_events(
    operator: &Operator,
    hosts: &Selector,
    seen: &mut HashMap<String, Vec<HostEvent>>,
) -> Vec<(Source, Event)> {
    let mut news = Vec::new();
    for (host, events) in operator.events(hosts) {
        let before = seen.insert(host.clone(), events.clone()).unwrap_or_default();
        let new = events.into_iter().filter(|event| !before.contains(event));
        news.extend(new.map(|event| (Source::Host(host.clone()), Event::now(format!("{host}: {}", event.text)))));
    }
    news
}

impl Trigger {
    /// Requests an incident from the hosts.
    fn request(&self, operator: &mut Operator, wanted: &Selector, id: String, event: &Event) -> Result<Requested> {
        let after = nanoseconds(self.next.unwrap_or_default());
        let fleet = operator.fleet(wanted).hosts;
        let heard = fleet.iter().filter(|host| !host.silent && host.state.is_some());
        let listers: HashSet<String> = heard.take(LISTERS).map(|host| host.host.clone()).collect();
        let hosts: Vec<String> = fleet.into_iter().map(|host| host.host).collect();
        if hosts.is_empty() {
            let what = format!("no host matches '{}'", self.selector);
            let why = "no agent with such a name or label has reported";
            return Err(Error::failed(what, why).fix("trawl fleet status"));
        }
        let incident = Incident {
            id,
            from_ns: event.first_ns.saturating_sub(nanoseconds(self.last)),
            to_ns: event.last_ns.saturating_add(after),
            why: event.text(),
            hosts: Vec::new(),
        };
        // The state is checked here, so that none is sent that agents would refuse.
        State { incidents: vec![incident.clone()], ..State::default() }.check_form()?;
        let since = Instant::now();
        let changed = operator.change(&hosts, &|host, draft| {
            draft.trigger(Incident {
                hosts: if listers.contains(host) { hosts.clone() } else { Vec::new() },
                ..incident.clone()
            })
        })?;
        let changes = changed.into_iter().map(|(host, put)| Change::new(host, put));
        let changes = changes.collect();
        let until = Instant::now() + Operator::patience(incident.to_ns, self.wait);
        Ok(Requested { incident, changes, since, until })
    }

    /// Requests an incident for an event. A failure does not end the command, which waits for other events, unless the
    /// connection has ended.
    fn request_or_say(&self, operator: &mut Operator, wanted: &Selector, event: &Event) -> Result<Option<Requested>> {
        match self.request(operator, wanted, now_as_id(), event) {
            Ok(requested) => Ok(Some(requested)),
            Err(error) if operator.is_over() => Err(error),
            Err(error) => {
                terminal::say(&format!("{}: {error}", event.text()));
                Ok(None)
            }
        }
    }

    /// Updates an incident; returns true once all hosts have answered, or the time for it is over.
    fn is_settled(&self, operator: &mut Operator, requested: &mut Requested) -> bool {
        let stored = self.wait.is_some();
        operator.read_parts(&mut requested.changes, &requested.incident.id, stored) || Instant::now() >= requested.until
    }

    /// Shows the outcome of an incident; returns true if all hosts take part.
    fn finish(&self, operator: &mut Operator, mut requested: Requested) -> Result<bool> {
        operator.explain_parts(&mut requested.changes, self.wait.is_some(), requested.since.elapsed());
        self.show(&requested)?;
        Ok(requested.changes.iter().all(|one| one.error.is_none()))
    }

    /// Shows the answers to an incident that have come when the command ends.
    fn leave(&self, operator: &mut Operator, requested: &mut Requested) -> Result<()> {
        operator.read_parts(&mut requested.changes, &requested.incident.id, true);
        let unanswered = requested.changes.iter_mut().filter(|one| one.error.is_none() && one.incident.is_none());
        unanswered.for_each(|one| one.error = Some("the incident is requested, and its answer not awaited".to_owned()));
        self.show(requested)
    }

    fn show(&self, requested: &Requested) -> Result<()> {
        let incident = &requested.incident;
        let triggered = Triggered {
            incident: &incident.id,
            why: &incident.why,
            from_ns: incident.from_ns,
            to_ns: incident.to_ns,
            hosts: &requested.changes,
        };
        if self.server.json { json::print(&triggered) } else { show(&triggered) }
    }

    /// Starts to listen for requests.
    fn listen(&self, wake: &Wake) -> Result<Option<Receiver<(Source, Event)>>> {
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
        let listener = http::listen(address)?;
        let address = listener.local_addr().map_err(|e| Error::os(what, e))?;
        let (sender, requests) = mpsc::channel();
        let wake = wake.clone();
        thread::spawn(move || {
            http::serve(&listener, &|request, _| {
                if let Err(refusal) = check(request, token.as_deref()) {
                    return refusal;
                }
                let Some(why) = alarm::reason(&request.body) else {
                    return Answer::plain("200 OK", "no alert fires: no incident\n");
                };
                let _ = sender.send((Source::Address(request.from), Event::now(why)));
                wake.ring();
                Answer::plain("202 Accepted", "")
            });
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

/// Refuses a request that may not trigger an incident.
fn check(request: &Request, token: Option<&str>) -> std::result::Result<(), Answer> {
    if request.method != "POST" {
        let why = "only POST is answered\n";
        return Err(Answer::plain("405 Method Not Allowed", why));
    }
    if token.is_some_and(|token| !request.has_token(token)) {
        return Err(Answer::plain("401 Unauthorized", "send Authorization: Bearer TOKEN\n"));
    }
    if request.has("origin") {
        return Err(Answer::plain("403 Forbidden", "web pages are not answered\n"));
    }
    // A web page does not know the token, so a request with it may name this host in any way.
    let refusal = if token.is_none() { request.refuse_pages() } else { None };
    refusal.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(why: &str, at: u64) -> Event {
        Event { why: why.to_owned(), more: 0, first_ns: at, last_ns: at }
    }

    #[test]
    fn event_within_the_pause_triggers_at_its_end() {
        let mut pauses = Pauses::of(Duration::from_secs(60));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let alpha = || Source::Host("alpha".to_owned());
        pauses.add((alpha(), event("a false alarm", 1)));
        assert_eq!(pauses.take_due(at(0)).expect("the first").why, "a false alarm");
        pauses.add((alpha(), event("the real one", 10)));
        pauses.add((alpha(), event("another", 20)));
        assert_eq!(pauses.take_due(at(10)), None);
        // Another host, and an address, have pauses of their own.
        pauses.add((Source::Host("beta".to_owned()), event("b", 11)));
        pauses.add((Source::Address([127, 0, 0, 1].into()), event("c", 12)));
        let other = pauses.take_due(at(11)).expect("theirs");
        assert_eq!((other.text().as_str(), other.first_ns), ("b (and 1 more event)", 11));
        assert_eq!(pauses.take_due(at(59)), None);
        let real = pauses.take_due(at(60)).expect("the second");
        assert_eq!(real.text(), "the real one (and 1 more event)");
        assert_eq!((real.first_ns, real.last_ns), (10, 20));
        assert_eq!(pauses.take_due(at(130)), None);
        pauses.add((alpha(), event("later", 130)));
        assert_eq!(pauses.waiting().expect("it waits").why, "later");
    }

    #[test]
    fn incidents_of_the_same_second_have_different_names() {
        let [first, second] = [(); 2].map(|()| {
            std::thread::sleep(Duration::from_micros(10));
            now_as_id()
        });
        assert_ne!(first, second);
        let alone = State { incidents: vec![Incident { id: first, ..Incident::default() }], ..State::default() };
        alone.check_form().expect("a name");
    }
}
