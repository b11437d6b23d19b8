//! Tests of the machine, one for each rule.

use super::*;
use crate::agent::desired::Desired;
use crate::agent::report::IncidentPhase;
use crate::agent::states::End as CaptureEnd;

fn capture(name: &str) -> Capture {
    Capture {
        name: name.to_owned(),
        interfaces: vec!["eth0".to_owned()],
        store: "file:///s".to_owned(),
        ..Capture::default()
    }
}

fn desired(captures: &[Capture]) -> State {
    Desired { captures: captures.to_vec(), ..Desired::default() }.into()
}

fn at(seconds: u64) -> Now {
    Now { monotonic: seconds * SECOND, wall: (1_000_000 + seconds) * SECOND }
}

struct Host {
    machine: Machine,
    now: u64,
    revision: u64,
}

impl Host {
    fn new(policy: &str, memory: Vec<Memory>) -> Self {
        Self::begin(policy, true, memory)
    }

    /// Returns a host on a bus.
    fn on_bus(policy: &str, memory: Vec<Memory>) -> Self {
        Self::begin(policy, false, memory)
    }

    fn begin(policy: &str, is_file: bool, memory: Vec<Memory>) -> Self {
        let policy = Policy::parse(policy).unwrap();
        let mut host = Self { machine: Machine::new(policy, is_file, memory, Vec::new()), now: 0, revision: 0 };
        assert_eq!(host.step(Event::Tick), [Action::Push]);
        host.step(Event::Pushed { all: true });
        host
    }

    fn step(&mut self, event: Event) -> Vec<Action> {
        self.machine.step(at(self.now), event)
    }

    fn desire(&mut self, captures: &[Capture]) -> Vec<Action> {
        self.revision += 1;
        self.step(Event::Desired { sender: None, revision: self.revision, state: desired(captures) })
    }

    /// Follows an operator's state, whose captures are requested now.
    fn order(&mut self, operator: &str, captures: &[Capture], ends: &[(&str, &str, u64)]) -> Vec<Action> {
        self.revision += 1;
        let request = |capture: &Capture| Request { requested: self.revision, capture: capture.clone() };
        let end = |(operator, capture, requested): &(&str, &str, u64)| CaptureEnd {
            operator: (*operator).to_owned(),
            capture: (*capture).to_owned(),
            requested: *requested,
        };
        let state = State {
            captures: captures.iter().map(request).collect(),
            ends: ends.iter().map(end).collect(),
            ..State::default()
        };
        self.step(Event::Desired { sender: Some(operator.to_owned()), revision: self.revision, state })
    }

    /// Returns a line for each capture: the operator, the name, and the phase or the reason of the refusal.
    fn captures(&self) -> Vec<String> {
        let report = self.machine.report("h", "0", at(self.now));
        let line = |one: &CaptureReport| {
            let state = one.refused.as_ref().map_or(format!("{:?}", one.phase), ToString::to_string);
            format!("{} {} {state}", one.operator.as_deref().unwrap_or("-"), one.capture.name)
        };
        report.captures.iter().map(line).collect()
    }

    fn end(&mut self, run: u64, end: End) -> Vec<Action> {
        let counts = Counts { recorded: 10, ..Counts::default() };
        self.step(Event::Ended { run, end, counts })
    }

    fn phases(&self) -> Vec<Phase> {
        let report = self.machine.report("h", "0", at(self.now));
        report.captures.iter().map(|one| one.phase).collect()
    }
}

fn start(run: u64, capture: &Capture) -> Action {
    Action::Start { run, capture: Box::new(capture.clone()), kept: Kept::First }
}

fn start_again(run: u64, capture: &Capture) -> Action {
    Action::Start { run, capture: Box::new(capture.clone()), kept: Kept::Again }
}

fn stop(run: u64) -> Action {
    Action::Stop { run, force: false }
}

#[test]
fn desired_captures_run_once() {
    let mut host = Host::new("", Vec::new());
    let a = capture("a");
    assert_eq!(host.desire(std::slice::from_ref(&a)), [start(1, &a)]);
    assert_eq!(host.desire(std::slice::from_ref(&a)), []);
    assert_eq!(host.phases(), [Phase::Starting]);
    host.step(Event::Ready { run: 1 });
    assert_eq!(host.phases(), [Phase::Running]);
    assert_eq!(host.desire(&[]), [stop(1)]);
    assert_eq!(host.phases(), [Phase::Stopping]);
    assert_eq!(host.end(1, End::Well), []);
    assert_eq!(host.phases(), []);
}

#[test]
fn older_revision_changes_nothing() {
    let mut host = Host::new("", Vec::new());
    let a = capture("a");
    host.desire(std::slice::from_ref(&a));
    host.desire(&[]);
    let echo = Event::Desired { sender: None, revision: 1, state: desired(&[a]) };
    assert_eq!(host.step(echo), []);
    assert_eq!(host.phases(), [Phase::Stopping]);
}

#[test]
fn changed_capture_starts_after_the_old_one_has_ended() {
    let mut host = Host::new("", Vec::new());
    let old = capture("a");
    let new = Capture { filter: "tcp".to_owned(), ..capture("a") };
    host.desire(&[old]);
    assert_eq!(host.desire(std::slice::from_ref(&new)), [stop(1)]);
    assert_eq!(host.end(1, End::Well), [start(2, &new)]);
    // The new capture's counts exclude the old one's packets.
    let report = host.machine.report("h", "0", at(0));
    assert_eq!(report.captures[0].account.recorded, 0);
}

#[test]
fn failures_back_off_by_doubling() {
    let mut host = Host::new("", Vec::new());
    let a = capture("a");
    host.desire(std::slice::from_ref(&a));
    let mut waits = Vec::new();
    for run in 1..10 {
        host.end(run, End::Failed("no such interface".to_owned()));
        assert_eq!(host.phases(), [Phase::Waiting]);
        let failed = host.now;
        while !host.step(Event::Tick).contains(&start_again(run + 1, &a)) {
            host.now += 1;
        }
        waits.push(host.now - failed);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
}

#[test]
fn error_is_over_once_the_capture_runs_again() {
    let mut host = Host::new("", Vec::new());
    host.desire(&[capture("a")]);
    host.end(1, End::Failed("no such interface".to_owned()));
    let error = |host: &Host| host.machine.report("h", "0", at(host.now)).captures[0].error.clone();
    host.now += 1;
    host.step(Event::Tick);
    assert_eq!(error(&host).as_deref(), Some("no such interface"), "it only starts");
    host.step(Event::Ready { run: 2 });
    assert_eq!(error(&host), None);
}

#[test]
fn bounds_count_over_all_starts() {
    let mut host = Host::new("", Vec::new());
    let a = Capture { duration_seconds: Some(100), packets: Some(25), size_bytes: Some(5000), ..capture("a") };
    host.desire(std::slice::from_ref(&a));
    host.now = 30;
    host.end(1, End::Failed("killed".to_owned()));
    host.now = 40;
    let actions = host.step(Event::Tick);
    let rest = Capture { duration_seconds: Some(60), packets: Some(15), size_bytes: Some(5000), ..capture("a") };
    assert!(actions.contains(&start_again(2, &rest)), "{actions:?}");
    // An agent that restarts later continues with these counts.
    let mut memory = host.machine.memory();
    let mut again = Host::new("", memory.clone());
    again.now = 90;
    let desired = again.desire(std::slice::from_ref(&a));
    let Some(Action::Start { capture, .. }) = desired.first() else {
        panic!("{desired:?}");
    };
    assert_eq!(capture.duration_seconds, Some(10));
    // A clock that is set changes nothing; only after a new start of the host it shows the time that has passed.
    memory[0].begun_wall = Some(0);
    let mut late = Host::new("", memory.clone());
    assert_eq!(late.desire(std::slice::from_ref(&a)).len(), 1);
    memory[0].adopt(at(0));
    let mut late = Host::new("", memory);
    assert_eq!(late.desire(std::slice::from_ref(&a)), []);
    assert_eq!(late.phases(), [Phase::Finished]);
}

/// A capture of 100 s that fails after 40 s has 60 s left, wherever the wall clock was set to.
#[test]
fn wall_clock_does_not_bound_captures() {
    for step in [-3600_i64, 0, 3600] {
        let mut host = Host::new("", Vec::new());
        let a = Capture { duration_seconds: Some(100), ..capture("a") };
        host.desire(std::slice::from_ref(&a));
        let mut now = at(40);
        now.wall = now.wall.saturating_add_signed(step * SECOND as i64);
        let failed = Event::Ended { run: 1, end: End::Failed("killed".to_owned()), counts: Counts::default() };
        host.machine.step(now, failed);
        now.monotonic += SECOND;
        let actions = host.machine.step(now, Event::Tick);
        let rest = Capture { duration_seconds: Some(59), ..a };
        assert!(actions.contains(&start_again(2, &rest)), "{actions:?}");
    }
}

#[test]
fn capture_at_its_bounds_is_finished_until_it_changes() {
    let mut host = Host::new("", Vec::new());
    let mut a = capture("a");
    a.packets = Some(10);
    host.desire(std::slice::from_ref(&a));
    assert_eq!(host.end(1, End::Well), []);
    assert_eq!(host.desire(std::slice::from_ref(&a)), []);
    assert_eq!(host.phases(), [Phase::Finished]);
    a.packets = Some(20);
    assert_eq!(host.desire(std::slice::from_ref(&a)), [start(2, &a)]);
}

#[test]
fn capture_held_by_another_process_is_retried_soon() {
    let mut host = Host::new("", Vec::new());
    let a = capture("a");
    host.desire(std::slice::from_ref(&a));
    let nothing = Counts::default();
    let held = Event::Ended { run: 1, end: End::Held, counts: nothing };
    assert_eq!(host.step(held), []);
    host.now = 1;
    assert_eq!(host.step(Event::Tick), [start(2, &a)]);
    let report = host.machine.report("h", "0", at(0));
    assert_eq!((report.captures[0].starts, report.captures[0].failures), (1, 0));
}

#[test]
fn capture_that_does_not_end_is_killed_once() {
    let mut host = Host::new("", Vec::new());
    host.desire(&[capture("a")]);
    assert_eq!(host.step(Event::Shutdown), [stop(1)]);
    host.now = 59;
    assert_eq!(host.step(Event::Tick), []);
    host.now = 60;
    let force = Action::Stop { run: 1, force: true };
    assert_eq!(host.step(Event::Tick), [force]);
    assert_eq!(host.step(Event::Tick), []);
    assert!(!host.machine.is_over());
    host.end(1, End::Failed("killed".to_owned()));
    assert!(host.machine.is_over());
}

#[test]
fn refused_captures_never_start_and_running_ones_stop() {
    let mut host = Host::new("interfaces = [\"eth*\"]", Vec::new());
    let mut a = capture("a");
    host.desire(std::slice::from_ref(&a));
    a.interfaces.push("lo".to_owned());
    assert_eq!(host.desire(std::slice::from_ref(&a)), [stop(1)]);
    assert_eq!(host.end(1, End::Well), []);
    assert_eq!(host.phases(), [Phase::Refused]);
    let report = host.machine.report("h", "0", at(0));
    assert!(report.captures[0].refused.is_some());
}

#[test]
fn finished_captures_leave_room_for_others() {
    let mut host = Host::new("max_captures = 1", Vec::new());
    let a = Capture { packets: Some(10), ..capture("a") };
    let b = capture("b");
    host.desire(&[a.clone(), b.clone()]);
    assert_eq!(host.phases(), [Phase::Starting, Phase::Refused]);
    assert_eq!(host.end(1, End::Well), [start(2, &b)]);
    assert_eq!(host.phases(), [Phase::Finished, Phase::Starting]);
    // A third one has no room, and neither has one of the finished when it changes.
    let changed = Capture { packets: Some(20), ..a.clone() };
    assert_eq!(host.desire(&[b.clone(), changed, capture("c")]), []);
    let expected = [Phase::Refused, Phase::Starting, Phase::Refused];
    assert_eq!(host.phases(), expected);
    // An agent that restarts remembers which are finished.
    host.desire(&[a.clone(), b.clone()]);
    let mut memory = host.machine.memory();
    memory.retain(|one| one.capture.name == "a");
    memory[0].counts.recorded = 10;
    let mut again = Host::new("max_captures = 1", memory);
    assert_eq!(again.desire(&[a, b.clone()]), [start(1, &b)]);
}

/// The agent sleeps until the next tick that changes something.
#[test]
fn ticks_are_due_for_starts_ends_and_pushes() {
    let mut host = Host::new("", Vec::new());
    let due = |host: &Host| host.machine.due(at(host.now)).map(|due| due / SECOND);
    host.desire(&[capture("a")]);
    assert_eq!(due(&host), None);
    host.now = 10;
    host.end(1, End::Failed("no".to_owned()));
    assert_eq!(due(&host), Some(11));
    host.now = 11;
    assert_eq!(host.step(Event::Tick).len(), 1);
    host.now = 30;
    host.step(Event::Pushed { all: false });
    assert_eq!(due(&host), Some(60));
    assert_eq!(host.step(Event::Shutdown), [stop(2)]);
    assert_eq!(due(&host), Some(90));
}

/// Packets after a silence are an event if they came within a second: the capture does not report that time passed.
#[test]
fn silence_before_an_event_does_not_lower_its_rate() {
    let mut host = Host::new("", Vec::new());
    host.desire(&[Capture { event_rate: Some(100), ..capture("a") }]);
    let count = |host: &mut Host, recorded, over_ns| {
        let counts = Counts { recorded, ..Counts::default() };
        host.step(Event::Counted { run: 1, counts, over_ns });
        host.machine.report("h", "0", at(0)).captures[0].event.map(|event| event.packets_per_second)
    };
    host.now = 3600;
    assert_eq!(count(&mut host, 99, SECOND), None);
    assert_eq!(count(&mut host, 199 + 50, 2 * SECOND), None);
    assert_eq!(count(&mut host, 249 + 100, SECOND / 2), Some(100));
}

#[test]
fn unreadable_state_keeps_the_previous_one() {
    let mut host = Host::new("", Vec::new());
    host.desire(&[capture("a")]);
    let why = "no TOML".to_owned();
    assert_eq!(host.step(Event::Unreadable { sender: None, revision: 2, why }), []);
    let report = host.machine.report("h", "0", at(0));
    assert_eq!(report.error.as_deref(), Some("no TOML"));
    assert_eq!((report.revision, report.captures.len()), (1, 1));
}

#[test]
fn commands_are_the_changes_of_a_desired_state() {
    let mut host = Host::new("filter = \"udp\"\ntaps = [\"auto\"]", Vec::new());
    let asked = |host: &Host, captures: &[Capture]| {
        let commands = host.machine.commands(&None, &desired(captures));
        commands.iter().map(|(command, _)| command.to_string()).collect::<Vec<_>>().join(", ")
    };
    let (one, two) = (capture("one"), capture("two"));
    assert_eq!(asked(&host, &[one.clone(), two.clone()]), "start one, start two");
    host.desire(&[one.clone(), two.clone()]);
    // The policy's filter is no change.
    assert_eq!(asked(&host, &[two.clone(), one.clone()]), "");
    let changed = Capture { taps: vec!["xdp".to_owned()], ..one.clone() };
    assert_eq!(asked(&host, std::slice::from_ref(&changed)), "change one, stop two");
    host.desire(&[changed]);
    let refused = host.machine.refuses(&None, &Command::Change { capture: "one".to_owned() });
    assert_eq!(refused.as_deref(), Some("policy: tap xdp"));
    // An agent that begins again remembers its captures.
    let again = Host::new("filter = \"udp\"", host.machine.memory());
    assert_eq!(asked(&again, &[]), "stop one, stop two");
    let incidents = vec![Incident { id: "slow".to_owned(), ..Incident::default() }];
    let state = State { incidents, ..State::default() };
    let mut fresh = Host::new("", Vec::new());
    assert_eq!(fresh.machine.commands(&None, &state)[0].0.to_string(), "trigger slow");
    fresh.step(Event::Desired { sender: None, revision: 1, state: state.clone() });
    assert!(fresh.machine.commands(&None, &state).is_empty());
}

const OPERATORS: &str = "operators = [\"UA\", \"UB\"]\n\
    [[operator]]\nkey = \"UC\"\nname = \"on-call\"\nroles = [\"start\"]\ncaptures = [\"oncall-*\"]\n";

#[test]
fn operators_add_captures_and_none_ends_anothers() {
    let mut host = Host::on_bus(OPERATORS, Vec::new());
    let (dns, web) = (capture("dns"), capture("web"));
    assert_eq!(host.order("UB", std::slice::from_ref(&dns), &[]), [start(1, &dns)]);
    assert_eq!(host.order("UA", &[dns.clone(), web.clone()], &[]), [start(2, &web)]);
    let taken = "UA dns policy: one capture of each name, and the operator UB has this one";
    assert_eq!(host.captures(), ["UB dns Starting", "UA web Starting", taken]);
    // The name is free once its operator lets go of it, and the other's capture starts when the first has ended.
    assert_eq!(host.order("UB", &[], &[]), [stop(1)]);
    assert_eq!(host.end(1, End::Well), [start(3, &dns)]);
    assert_eq!(host.captures(), ["UA dns Starting", "UA web Starting"]);
    assert_eq!(host.machine.report("h", "0", at(0)).captures[0].account.recorded, 0, "of UB's capture");
}

#[test]
fn operator_ends_anothers_capture_until_it_is_requested_again() {
    let mut host = Host::on_bus(OPERATORS, Vec::new());
    let (dns, recorder) = (capture("oncall-dns"), capture("recorder"));
    host.order("UA", &[dns.clone(), recorder.clone()], &[]);
    let ends = [("UA", "oncall-dns", 1), ("UA", "recorder", 1)];
    // The names that the third operator may end are limited.
    let commands = |host: &Host, ends: &[(&str, &str, u64)]| {
        let end = |(operator, capture, requested): &(&str, &str, u64)| CaptureEnd {
            operator: (*operator).to_owned(),
            capture: (*capture).to_owned(),
            requested: *requested,
        };
        let state = State { ends: ends.iter().map(end).collect(), ..State::default() };
        let commands = host.machine.commands(&Some("UC".to_owned()), &state).into_iter();
        commands.map(|(command, refused)| format!("{command}: {}", refused.unwrap_or_default())).collect::<Vec<_>>()
    };
    let refused = "policy: the operator on-call may only start or end captures named oncall-*";
    assert_eq!(commands(&host, &ends), ["end oncall-dns of UA: ", &*format!("end recorder of UA: {refused}")]);
    assert_eq!(host.order("UC", &[], &ends), [stop(1)]);
    assert_eq!(commands(&host, &ends), [""; 0]);
    assert_eq!(host.end(1, End::Well), []);
    assert_eq!(host.captures(), ["UA recorder Starting"]);
    // Another change of its operator does not bring it back, and a new request does.
    let state = State {
        captures: vec![
            Request { requested: 1, capture: dns.clone() },
            Request { requested: 1, capture: recorder },
            Request { requested: 9, capture: capture("web") },
        ],
        ..State::default()
    };
    let actions = host.step(Event::Desired { sender: Some("UA".to_owned()), revision: 9, state: state.clone() });
    assert_eq!(actions, [start(3, &capture("web"))]);
    let mut again = state;
    again.captures[0].requested = 10;
    let actions = host.step(Event::Desired { sender: Some("UA".to_owned()), revision: 10, state: again });
    assert_eq!(actions, [start(4, &dns)]);
}

#[test]
fn operators_without_a_right_are_refused() {
    let mut host = Host::on_bus(OPERATORS, Vec::new());
    assert_eq!(host.order("UC", &[capture("recorder"), capture("oncall-1")], &[]), [start(1, &capture("oncall-1"))]);
    let refused = "policy: the operator on-call may only start or end captures named oncall-*";
    assert_eq!(host.captures(), ["UC oncall-1 Starting", &*format!("UC recorder {refused}")]);
    let command = Command::Start { capture: "recorder".to_owned() };
    assert_eq!(host.machine.refuses(&Some("UC".to_owned()), &command).as_deref(), Some(refused));
    assert_eq!(host.machine.refuses(&Some("UA".to_owned()), &command), None);
    let state =
        State { incidents: vec![Incident { id: "slow".to_owned(), ..Incident::default() }], ..State::default() };
    let no_trigger = Some("policy: the operator on-call may not trigger incidents".to_owned());
    let sender = Some("UC".to_owned());
    let commands = host.machine.commands(&sender, &state);
    assert_eq!(commands.last().map(|(_, refused)| refused), Some(&no_trigger));
    assert_eq!(host.step(Event::Desired { sender, revision: 5, state: state.clone() }), [stop(1)]);
    let report = host.machine.report("h", "0", at(0));
    assert_eq!((report.incidents[0].phase, &report.incidents[0].error), (IncidentPhase::Failed, &no_trigger));
    // A refused capture takes no name.
    assert_eq!(host.order("UA", &[capture("recorder")], &[]), [start(2, &capture("recorder"))]);
}

/// A host with room for two captures keeps the first ones, whatever the operators' keys.
#[test]
fn captures_that_came_first_keep_their_room() {
    let policy = format!("max_captures = 2\n{OPERATORS}");
    let mut host = Host::on_bus(&policy, Vec::new());
    let captures = ["x", "y", "a"].map(capture);
    host.order("UB", &captures[..2], &[]);
    assert_eq!(host.order("UA", &captures[2..], &[]), []);
    let full = "UA a policy: at most 2 captures";
    assert_eq!(host.captures(), [full, "UB x Starting", "UB y Starting"]);
    // An agent that begins again knows the order, and starts nothing for an operator of whom it has not heard.
    let mut again = Host::on_bus(&policy, host.machine.memory());
    host.revision = 0;
    assert_eq!(again.order("UA", &captures[2..], &[]), [start(1, &captures[2])]);
    assert_eq!(
        again.order("UB", &captures[..2], &[]),
        [stop(1), start_again(2, &captures[0]), start_again(3, &captures[1])]
    );
}

/// The captures of an operator of whom the agent has not heard are neither started nor forgotten.
#[test]
fn names_and_counts_wait_for_their_operator() {
    let mut before = Host::on_bus(OPERATORS, Vec::new());
    before.order("UB", &[Capture { packets: Some(25), ..capture("dns") }], &[]);
    before.end(1, End::Failed("killed".to_owned()));
    for (returns, expected) in [
        (true, "UA dns policy: one capture of each name, and the operator UB has this one"),
        (false, "UA dns Starting"),
    ] {
        let mut host = Host::on_bus(OPERATORS, before.machine.memory());
        assert_eq!(host.order("UA", &[capture("dns")], &[]), []);
        let rest = Capture { packets: Some(15), ..capture("dns") };
        if returns {
            let asked = Capture { packets: Some(25), ..capture("dns") };
            assert_eq!(host.order("UB", &[asked], &[]), [start_again(1, &rest)]);
        } else {
            let actions = host.step(Event::Nothing { operator: "UB".to_owned() });
            assert_eq!(actions, [start(1, &capture("dns"))]);
        }
        assert!(host.captures().contains(&expected.to_owned()), "{:?}", host.captures());
    }
}
