//! Agents that follow a file or a NATS server, and fleets of them.

mod demo;
mod health;
mod incident;
mod init;
mod log;
mod many;
mod near;
mod newer;
mod operators;
mod slow;
mod start;
mod view;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use trawl_tests::generator::generate;
use trawl_tests::witness::nothing_attached;
use trawl_tests::{Lab, Running, args, binary, fleet_or_skip, frames, tools_or_skip, trawl, wait_until};

use rustix::process::{Pid, Signal, kill_process};

use crate::serve::get;

/// The tests' own NKeys: seed and public key.
const ALPHA: [&str; 2] = [
    "SUAN2GQQA5IYTSDLTRGLAZT6MWI2S4RPJZNWKSWX5PD2PVOA6XYBYTXIAQ",
    "UAO3HXW4KW6FNA2PUH4IS4FRNIZYAR7KGMWJO4T6EPXG4X5G72FLVGDQ",
];
const BETA: [&str; 2] = [
    "SUAJR3MP2YW3SEGSDE22LXKSNQX62PFLUTDXSPNZ6TH2MQPC7WHVCONKTE",
    "UCTK4SSUZ7RTEN7A23YESLL6DZYV7AK6JP2B6CP3QELA2MP6RVYVKHRY",
];
const OPERATOR: [&str; 2] = [
    "SUAJKMEJTCJYWWL7FTZWJYBZY7FJW7ZAHCRDAZT4YEM3RZKUZXJ4MGXSM4",
    "UDU7M76S5NQVSIU7JJ4U6A4UXERIUUSQ3ZSNRJRCDGJWKA4GAQWUCSS5",
];

const PASSWORD: &str = "not-to-be-printed";
/// The key in agent/operator.creds.
const OPERATOR_BY_CREDENTIALS: &str = "UBVI5A7GAF2WKRS5EQC7GTLUIUANXW6FH2IMUGVUWTMAOQZUWAXMU2MX";

pub fn report(path: &str) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap_or_default()).unwrap_or_default()
}

pub fn phases(report: &Value) -> Vec<&str> {
    let captures = report["captures"].as_array();
    captures.into_iter().flatten().filter_map(|capture| capture["phase"].as_str()).collect()
}

pub fn children(process: u32) -> Vec<u32> {
    let path = format!("/proc/{process}/task/{process}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Returns a desired state with captures of these names, at the receiver.
pub fn state(lab: &Lab, names: &[&str], more: &str) -> String {
    let capture = |name: &&str| {
        format!(
            "[[capture]]\nname = \"{name}\"\ninterfaces = [\"{}\"]\ntaps = [\"packet\"]\nstore = \"file://{}\"\n{more}\n",
            lab.receiver(),
            lab.file("store")
        )
    };
    names.iter().map(capture).collect()
}

pub fn agent(lab: &Lab, more: &[&str]) -> Running {
    let (spool, memory, report) = (lab.file("spool"), lab.file("memory"), lab.file("report"));
    let base = ["fleet", "agent", "--spool", &spool, "--memory", &memory];
    let base = [&base[..], &["--report", &report], more].concat();
    Running::start(&base, "following")
}

/// `trawl serve` runs for the agent, and ends with it.
#[test]
fn agent_serves_metrics() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("agent.toml");
    fs::write(&file, "").expect("a file");
    let agent = agent(&lab, &["--state", &file, "--metrics", "127.0.0.1:0", "--verdicts", "--slow"]);
    agent.wait_said("serving http://");
    let said = agent.said();
    let address = said.split_once("http://").expect("an address").1;
    let address = address.split('/').next().expect("an address").to_owned();
    for metric in ["trawl_drops_missed_total ", "trawl_connection_measures_lost_total "] {
        wait_until(metric, || get(&address, "/metrics", "localhost").contains(metric));
    }
    agent.kill();
    wait_until("nothing listens any more", || TcpStream::connect(&address).is_err());
}

#[test]
fn agent_follows_its_file() {
    let Some(lab) = Lab::open() else { return };
    let (file, path) = (lab.file("agent.toml"), lab.file("report"));
    fs::write(&file, state(&lab, &["one"], "index = true")).expect("a file");
    let agent = agent(&lab, &["--state", &file]);
    wait_until("it runs", || phases(&report(&path)) == ["running"]);
    lab.send(&[frames::silent(64)], 100);
    wait_until("it counts", || report(&path)["captures"][0]["account"]["recorded"] == 100);
    // The counts do not depend on the files for `trawl serve`.
    let captures = children(agent.id());
    let published = captures.iter().map(|pid| format!("/run/trawl/captures/{pid}"));
    assert!(published.filter(|path| fs::remove_file(path).is_ok()).count() > 0);
    lab.send(&[frames::silent(64)], 50);
    wait_until("it counts on", || report(&path)["captures"][0]["account"]["recorded"] == 150);
    // An unreadable file changes nothing.
    fs::write(&file, "[[capture").expect("a file");
    wait_until("it says so", || report(&path)["error"].is_string());
    assert_eq!(phases(&report(&path)), ["running"]);
    // A capture with a limit ends on its own, and is not started again.
    fs::write(&file, state(&lab, &["one"], "packets = 10")).expect("a file");
    wait_until("it is finished", || {
        lab.send(&[frames::silent(64)], 50);
        phases(&report(&path)) == ["finished"]
    });
    fs::write(&file, "").expect("a file");
    wait_until("the capture is gone", || phases(&report(&path)).is_empty());
    assert_eq!(agent.stop().status.code(), Some(0));
    nothing_attached(&lab.pair.b);
    let url = format!("file://{}", lab.file("store"));
    let listing = trawl(&["store", "verify", &url]);
    assert!(listing.status.success(), "{listing:?}");
    // The first capture indexed its chunks, the second did not.
    let indexed = trawl(&["store", "index", "--json", &url]);
    let indexed: Value = serde_json::from_slice(&indexed.stdout).expect("JSON");
    assert!(indexed["there"].as_u64() > Some(0), "{indexed}");
    assert!(indexed["files"].as_u64() > Some(0), "{indexed}");
}

#[test]
fn policy_bounds_the_desired_captures() {
    let Some(lab) = Lab::open() else { return };
    let (file, path, policy) = (lab.file("agent.toml"), lab.file("report"), lab.file("policy"));
    fs::write(&file, state(&lab, &["one", "two"], "snaplen = 100")).expect("a file");
    fs::write(&policy, "max_captures = 1\nmax_snaplen = 64").expect("a file");
    let agent = agent(&lab, &["--state", &file, "--policy", &policy]);
    wait_until("both are refused", || phases(&report(&path)) == ["refused", "refused"]);
    let captures = report(&path)["captures"].clone();
    assert_eq!(captures[0]["refused"]["kind"], "snaplen");
    assert_eq!(captures[1]["refused"]["kind"], "too_many");
    fs::write(&file, state(&lab, &["one", "two"], "snaplen = 64")).expect("a file");
    wait_until("one runs", || phases(&report(&path)) == ["running", "refused"]);
    let both = "snaplen = 64\nindex = true";
    fs::write(&policy, "index = false").expect("a file");
    assert_eq!(agent.stop().status.code(), Some(0));
    fs::write(&file, state(&lab, &["one"], both)).expect("a file");
    let agent = self::agent(&lab, &["--state", &file, "--policy", &policy]);
    wait_until("indexing is refused", || report(&path)["captures"][0]["refused"]["kind"] == "index");
    assert_eq!(agent.stop().status.code(), Some(0));
    let nats = ["fleet", "agent", "--nats", "nats://127.0.0.1:1"];
    assert_eq!(trawl(&nats).status.code(), Some(2), "no policy");
}

#[test]
fn killed_agent_leaves_nothing_and_its_captures_do_not_double() {
    let Some(lab) = Lab::open() else { return };
    let (file, path) = (lab.file("agent.toml"), lab.file("report"));
    fs::write(&file, state(&lab, &["one"], "")).expect("a file");
    let first = agent(&lab, &["--state", &file]);
    wait_until("it runs", || phases(&report(&path)) == ["running"]);
    let before = children(first.id());
    first.kill();
    fs::remove_file(&path).expect("a report");
    let second = agent(&lab, &["--state", &file]);
    wait_until("it runs again", || phases(&report(&path)) == ["running"]);
    let is_alive = |pid: &u32| fs::metadata(format!("/proc/{pid}/exe")).is_ok();
    wait_until("the first ones are over", || !before.iter().any(is_alive));
    let after = children(second.id());
    second.kill();
    let stopped = agent(&lab, &["--state", &lab.file("agent.toml")]);
    assert_eq!(stopped.stop().status.code(), Some(0));
    wait_until("the second ones are over", || !after.iter().any(is_alive));
    nothing_attached(&lab.pair.b);
}

/// A NATS server with a key for each host, which must also present a certificate.
struct Nats {
    server: Option<Child>,
    /// The program with its arguments.
    command: Vec<String>,
    directory: String,
    url: String,
}

/// Starts one kind of server.
type Up = fn(&Lab) -> Option<Nats>;

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}

fn openssl(directory: &str, arguments: &str) {
    let done = Command::new("openssl").current_dir(directory).args(arguments.split(' ')).stderr(Stdio::null()).status();
    assert!(done.expect("openssl").success(), "{arguments}");
}

/// Returns the accounts in docs/internals/agents.md, with the tests' keys.
fn documented_accounts() -> String {
    let text = include_str!("../../../docs/internals/agents.md");
    let start = text.find("accounts {").expect("the example");
    let end = text[start..].find("```").expect("its end");
    text[start..start + end]
        .replace("nkey: OPERATOR", &format!("nkey: {}", OPERATOR[1]))
        .replace("nkey: ALPHA", &format!("nkey: {}", ALPHA[1]))
        .replace("nkey: BETA", &format!("nkey: {}", BETA[1]))
}

impl Nats {
    fn is_there() -> bool {
        fleet_or_skip() && tools_or_skip(&["nats-server", "openssl"])
    }

    /// Starts a server without TLS, whose users log in with credentials.
    fn with_accounts(lab: &Lab) -> Option<Self> {
        if !Self::is_there() {
            return None;
        }
        let directory = lab.file("nats");
        fs::create_dir_all(&directory).expect("a directory");
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("an address");
        let accounts = include_str!("agent/accounts.conf");
        let text = format!("listen: \"{address}\"\njetstream {{ store_dir: \"{directory}/js\" }}\n{accounts}");
        for (name, text) in [
            ("nats.conf", text.as_str()),
            ("alpha", include_str!("agent/alpha.creds")),
            ("operator", include_str!("agent/operator.creds")),
        ] {
            fs::write(format!("{directory}/{name}"), text).expect("a file");
        }
        drop(free);
        Some(Self::started(directory, format!("nats://{address}")))
    }

    /// Starts a server without TLS, where hosts log in with their names and a password.
    fn with_passwords(lab: &Lab, accounts: &str) -> Option<Self> {
        if !Self::is_there() {
            return None;
        }
        let directory = lab.file("nats");
        fs::create_dir_all(&directory).expect("a directory");
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("an address");
        let text = format!("listen: \"{address}\"\njetstream {{ store_dir: \"{directory}/js\" }}\n{accounts}");
        fs::write(format!("{directory}/nats.conf"), text).expect("a file");
        fs::write(format!("{directory}/operator"), OPERATOR[0]).expect("a file");
        drop(free);
        Some(Self::started(directory, format!("nats://{address}")))
    }

    /// Starts nats-server with certificates and keys.
    fn up(lab: &Lab) -> Option<Self> {
        let directory = Self::certified(lab)?;
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("an address");
        let text = format!(
            "listen: \"{address}\"\njetstream {{ store_dir: \"{directory}/js\" }}\ntls {{ cert_file: \"{directory}/server.pem\", key_file: \"{directory}/server.key\", ca_file: \"{directory}/ca.pem\", verify: true }}\n{}",
            documented_accounts(),
        );
        fs::write(format!("{directory}/nats.conf"), text).expect("a file");
        drop(free);
        Some(Self::started(directory, format!("tls://{address}")))
    }

    /// Starts trawl's own bus with certificates and keys.
    fn embedded(lab: &Lab) -> Option<Self> {
        let directory = Self::certified(lab)?;
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("an address");
        let hosts = format!("alpha = {:?}\nbeta = {:?}", ALPHA[1], BETA[1]);
        let users = format!("operators = [{:?}]\n[hosts]\n{hosts}\n", OPERATOR[1]);
        fs::write(format!("{directory}/users.toml"), users).expect("a file");
        drop(free);
        let trawl = binary::path().display().to_string();
        let command = args!(
            "{trawl} fleet bus --listen {address} --users {directory}/users.toml --dir {directory}/bus --tls-cert {directory}/server.pem --tls-key {directory}/server.key --tls-ca {directory}/ca.pem"
        );
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let mut nats = Self { server: None, command, directory, url: format!("tls://{address}") };
        nats.start();
        Some(nats)
    }

    /// Returns a directory with keys, and with certificates of one authority.
    fn certified(lab: &Lab) -> Option<String> {
        if !Self::is_there() {
            return None;
        }
        let directory = lab.file("nats");
        fs::create_dir_all(&directory).expect("a directory");
        let write = |name: &str, text: &str| {
            fs::write(format!("{directory}/{name}"), text).expect("a file");
        };
        openssl(&directory, "req -x509 -newkey ed25519 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca");
        write("names", "subjectAltName=IP:127.0.0.1\n");
        for name in ["server", "client"] {
            openssl(
                &directory,
                &format!("req -newkey ed25519 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}"),
            );
            openssl(
                &directory,
                &format!(
                    "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.pem -days 2 -extfile names"
                ),
            );
        }
        for (name, key) in [("alpha", ALPHA), ("beta", BETA), ("operator", OPERATOR)] {
            write(name, key[0]);
        }
        Some(directory)
    }

    /// Starts nats-server with the configuration in its directory.
    fn started(directory: String, url: String) -> Self {
        let command = vec!["nats-server".to_owned(), "-c".to_owned(), format!("{directory}/nats.conf")];
        let mut nats = Self { server: None, command, directory, url };
        nats.start();
        nats
    }

    fn start(&mut self) {
        let server =
            Command::new(&self.command[0]).args(&self.command[1..]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.server = Some(server.expect("the server"));
        let address = self.url.split_once("//").map_or("", |(_, address)| address);
        wait_until("the server listens", || TcpStream::connect(address).is_ok());
    }

    fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    fn signal(&self, signal: Signal) {
        let server = self.server.as_ref().expect("it runs");
        kill_process(Pid::from_child(server), signal).expect("it runs");
    }

    /// Returns the arguments to connect as this user: with a key and a certificate, or with credentials.
    fn place(&self, who: &str) -> Vec<String> {
        let at = |name: &str| format!("{}/{name}", self.directory);
        let address = self.url.strip_prefix("nats://");
        if let Some(address) = address.filter(|_| !Path::new(&at("alpha")).exists()) {
            let words = match who {
                "operator" => ["--nats", &self.url, "--nkey", &at(who)].map(str::to_owned).to_vec(),
                host => vec!["--nats".to_owned(), format!("nats://{host}:{PASSWORD}@{address}")],
            };
            return words;
        }
        if address.is_some() {
            let options = [("--nats", self.url.clone()), ("--creds", at(who))];
            return options.map(|(option, value)| [option.to_owned(), value]).concat();
        }
        let options = [
            ("--nats", self.url.clone()),
            ("--nkey", at(who)),
            ("--tls-ca", at("ca.pem")),
            ("--tls-cert", at("client.pem")),
            ("--tls-key", at("client.key")),
        ];
        let words = options.map(|(option, value)| [option.to_owned(), value]);
        words.concat()
    }

    fn fleet(&self, arguments: &[&str]) -> Output {
        let place = self.place("operator");
        let place: Vec<&str> = place.iter().map(String::as_str).collect();
        trawl(&[&["fleet"], arguments, &place[..]].concat())
    }

    fn watch(&self, selector: &str) -> Running {
        let place = self.place("operator");
        let place: Vec<&str> = place.iter().map(String::as_str).collect();
        Running::start(&[&["fleet", "watch", selector, "--json"], &place[..]].concat(), "")
    }

    fn status(&self, selector: &str) -> Value {
        let output = self.fleet(&["status", selector, "--json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
    }

    /// Starts an agent as this host, with the key of another.
    fn agent(&self, lab: &Lab, host: &str, key: &str) -> Running {
        self.agent_within(lab, host, key, "")
    }

    /// Starts an agent with these limits in its policy.
    fn agent_within(&self, lab: &Lab, host: &str, key: &str, limits: &str) -> Running {
        self.agent_by(lab, host, key, &format!("{}\n{limits}\n", Self::operators()))
    }

    /// Returns the rules of a policy that names the operators.
    fn operators() -> String {
        format!("operators = {:?}", [OPERATOR[1], OPERATOR_BY_CREDENTIALS])
    }

    /// Starts an agent with this policy, to which its label is added.
    fn agent_by(&self, lab: &Lab, host: &str, key: &str, rules: &str) -> Running {
        self.agent_with(lab, [host, key], rules, &[])
    }

    /// Starts an agent as this host, with the key of another, with this policy and more options.
    fn agent_with(&self, lab: &Lab, [host, key]: [&str; 2], rules: &str, more: &[&str]) -> Running {
        let (spool, memory, policy) = (
            lab.file(&format!("spool-{host}")),
            lab.file(&format!("memory-{host}")),
            lab.file(&format!("policy-{host}")),
        );
        let text = format!("{rules}[labels]\nrole = \"{host}\"");
        fs::write(&policy, text).expect("a file");
        let place = self.place(key);
        let place: Vec<&str> = place.iter().map(String::as_str).collect();
        let base = ["fleet", "agent", "--host", host, "--spool", &spool];
        let report = lab.file(&format!("report-{host}"));
        let own = ["--memory", &memory, "--policy", &policy, "--report", &report];
        Running::start(&[&base[..], &own, &place[..], more].concat(), "connected to")
    }
}

fn phase_of(status: &Value, host: &str) -> String {
    let hosts = status["hosts"].as_array();
    let host = hosts.into_iter().flatten().find(|one| one["host"] == host);
    let phase = host.map(|one| one["state"]["captures"][0]["phase"].clone());
    phase.map_or(String::new(), |phase| phase.as_str().unwrap_or("none").to_owned())
}

fn recorded(status: &Value, host: &str) -> u64 {
    let hosts = status["hosts"].as_array();
    let host = hosts.into_iter().flatten().find(|one| one["host"] == host);
    let account = host.map(|one| one["state"]["captures"][0]["account"].clone());
    account.map_or(0, |account| account["recorded"].as_u64().unwrap_or(0))
}

/// Parses the output of `fleet watch --json`, which has a line for each change.
fn changes(stdout: &str) -> Vec<Value> {
    let lines = stdout.lines();
    lines.map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Compares the generated packets with the hosts' reports and the stores, across the death of the bus, a partition from
/// it and the death of an agent.
fn fleet_is_started_and_stopped_and_outlives(up: Up) {
    let Some(lab) = Lab::open() else { return };
    let Some(mut nats) = up(&lab) else { return };
    let made = nats.fleet(&["status"]);
    assert!(made.status.success(), "{made:?}");
    let alpha = nats.agent(&lab, "alpha", "alpha");
    let beta = nats.agent(&lab, "beta", "beta");
    let has_reported = |role: &str| {
        let hosts = nats.status(role)["hosts"].as_array().map(Vec::len);
        hosts == Some(1)
    };
    wait_until("both have reported", || has_reported("role=alpha") && has_reported("role=beta"));
    let watch = nats.watch("al*");
    wait_until("the watch shows the hosts", || !watch.shown().is_empty());
    let (receiver, store) = (lab.receiver(), format!("file://{}", lab.file("store")));
    let what = ["-i", &receiver, "--tap", "packet", "--store", &store];
    let started = nats.fleet(&[&["start", "role=alpha", "--index", "udp"], &what[..]].concat());
    assert!(started.status.success(), "{started:?}");
    wait_until("alpha runs", || phase_of(&nats.status("alpha"), "alpha") == "running");
    assert_eq!(phase_of(&nats.status("beta"), "beta"), "none");
    let send = |count: &str| {
        generate(&lab, "udp", &["--dst", "10.77.0.2", "--count", count]);
    };
    send("300");
    // The capture continues without the bus.
    nats.kill();
    alpha.wait_said("captures continue");
    assert_eq!(children(alpha.id()).len(), 1, "the capture");
    send("200");
    nats.start();
    wait_until("the account is reported once the bus is back", || recorded(&nats.status("alpha"), "alpha") == 500);
    // An unresponsive server counts as an unreachable one.
    nats.signal(Signal::STOP);
    send("70");
    let report = lab.file("report-alpha");
    wait_until("the agent has counted them", || self::report(&report)["captures"][0]["account"]["recorded"] == 570);
    nats.signal(Signal::CONT);
    wait_until("the account is reported after the partition", || recorded(&nats.status("alpha"), "alpha") == 570);
    // An agent that restarts also restarts the desired captures.
    alpha.kill();
    fs::remove_file(&report).expect("a report");
    let alpha = nats.agent(&lab, "alpha", "alpha");
    wait_until("it runs again", || phases(&self::report(&report)) == ["running"]);
    send("50");
    // A restarted agent finds a command that was issued while it did not run.
    nats.kill();
    nats.start();
    wait_until("the server takes commands", || nats.fleet(&["stop", "alpha"]).status.success());
    // A server that was killed may have an old state until the agent is connected again.
    wait_until("alpha has stopped", || {
        let status = nats.status("alpha");
        status["hosts"][0]["follows"] == true && phase_of(&status, "alpha") == "none"
    });
    for agent in [alpha, beta] {
        assert_eq!(agent.stop().status.code(), Some(0));
    }
    nothing_attached(&lab.pair.b);
    let listed = trawl(&args!("store ls --json {store} --spool {}", lab.file("spool-alpha")));
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let total = &listed["total"];
    let account = ["recorded", "stored", "spooled", "evicted", "unknown"].map(|name| &total[name]);
    assert_eq!(account, [620, 620, 0, 0, 0], "{listed}");
    let indexed = trawl(&["store", "index", "--json", &store]);
    let indexed: Value = serde_json::from_slice(&indexed.stdout).expect("JSON");
    assert_eq!(indexed["chunks"], 0, "the host indexed all: {indexed}");
    let watched = watch.stop();
    assert_eq!(watched.status.code(), Some(0), "{}", watched.stderr);
    let changes = changes(&watched.stdout);
    let is = |fleet: &Value, phase: &str| phase_of(fleet, "alpha") == phase;
    let of_alpha = |fleet: &Value| fleet["hosts"][0]["host"] == "alpha";
    assert!(changes.iter().all(of_alpha), "{changes:?}");
    assert!(is(&changes[0], "none") && changes.iter().any(|one| is(one, "running")));
    assert!(changes.iter().any(|one| recorded(one, "alpha") == 570));
    assert!(changes.last().is_some_and(|one| is(one, "none")), "{changes:?}");
}

#[test]
fn fleet_is_started_and_stopped_over_nats_and_outlives_it() {
    fleet_is_started_and_stopped_and_outlives(Nats::up);
}

#[test]
fn fleet_is_started_and_stopped_over_the_embedded_bus_and_outlives_it() {
    fleet_is_started_and_stopped_and_outlives(Nats::embedded);
}

/// Users of an operator's account can connect, with their rights in their credentials.
#[test]
fn credentials_open_the_bus() {
    let Some(lab) = Lab::open() else { return };
    let Some(nats) = Nats::with_accounts(&lab) else {
        return;
    };
    let made = nats.fleet(&["status"]);
    assert!(made.status.success(), "{made:?}");
    let alpha = nats.agent(&lab, "alpha", "alpha");
    let (receiver, store) = (lab.receiver(), format!("file://{}", lab.file("store")));
    let what = ["-i", &receiver, "--tap", "packet", "--store", &store];
    let started = nats.fleet(&[&["start", "alpha"], &what[..]].concat());
    assert!(started.status.success(), "{started:?}");
    wait_until("alpha runs", || phase_of(&nats.status("alpha"), "alpha") == "running");
    assert_eq!(alpha.stop().status.code(), Some(0));
    let none = trawl(&["fleet", "status", "--nats", &nats.url]);
    assert_eq!(none.status.code(), Some(1), "{none:?}");
    let said = String::from_utf8_lossy(&none.stderr).to_lowercase();
    assert!(said.contains("authorization"), "{said}");
    let broken = lab.file("broken");
    fs::write(&broken, "no credentials").expect("a file");
    let refused = trawl(&["fleet", "status", "--nats", &nats.url, "--creds", &broken]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("cannot read the credentials"), "{said}");
}

#[test]
fn host_has_no_rights_to_subjects_of_another() {
    for up in [Nats::up, Nats::embedded] {
        refuses_subjects_of_another(up);
    }
}

fn refuses_subjects_of_another(up: Up) {
    let Some(lab) = Lab::open() else { return };
    let Some(nats) = up(&lab) else { return };
    let impostor = nats.agent(&lab, "beta", "alpha");
    impostor.wait_said("Permissions Violation for Subscription to \"trawl.cmd.*.beta\"");
    let question = format!("$JS.API.DIRECT.GET.KV_trawl.{}", desired("beta"));
    impostor.wait_said(&format!("Permissions Violation for Publish to \"{question}\""));
    impostor.signal(Signal::TERM);
    impostor.wait();
    // The server rejects an unknown key as well as a connection without a certificate.
    let key = format!("{}/operator", nats.directory);
    let ca = format!("{}/ca.pem", nats.directory);
    let refused = trawl(&["fleet", "status", "--nats", &nats.url, "--nkey", &key, "--tls-ca", &ca]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
}

/// A connection of an attacker who speaks the protocol by hand.
struct Attacker(BufReader<TcpStream>);

impl Attacker {
    fn as_host(nats: &Nats, host: &str) -> Self {
        let address = nats.url.strip_prefix("nats://").expect("no TLS");
        let stream = TcpStream::connect(address).expect("it listens");
        let mut attacker = Self(BufReader::new(stream));
        let login =
            format!("CONNECT {{\"verbose\":true,\"headers\":true,\"user\":\"{host}\",\"pass\":\"{PASSWORD}\"}}\r\n");
        assert!(attacker.line().starts_with("INFO"));
        assert_eq!(attacker.send(&login), "+OK");
        attacker
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer");
        line.trim_end().to_owned()
    }

    /// Sends a request and returns the server's answer. Answers pings that arrive before it.
    fn send(&mut self, text: &str) -> String {
        self.0.get_mut().write_all(text.as_bytes()).expect("sent");
        loop {
            let line = self.line();
            match line.as_str() {
                "PING" => self.0.get_mut().write_all(b"PONG\r\n").expect("sent"),
                _ => return line,
            }
        }
    }

    fn publish(&mut self, subject: &str, reply: &str, payload: &str) -> String {
        let length = payload.len();
        self.send(&format!("PUB {subject} {reply} {length}\r\n{payload}\r\n"))
    }
}

/// Returns the subject of the operator's desired state of a host.
fn desired(host: &str) -> String {
    format!("$KV.trawl.cmd.{}.{host}", OPERATOR[1])
}

/// Returns the revision of a host's desired state, as shown by `fleet status`.
fn revision_of(nats: &Nats, host: &str) -> u64 {
    let status = nats.status(host);
    status["hosts"][0]["revision"].as_u64().unwrap_or(0)
}

fn start_capture(nats: &Nats, lab: &Lab, host: &str) {
    let (receiver, store) = (lab.receiver(), format!("file://{}", lab.file("store")));
    let what = ["-i", &receiver, "--tap", "packet", "--store", &store];
    let started = nats.fleet(&[&["start", host, "--name", host], &what[..]].concat());
    assert!(started.status.success(), "{started:?}");
    wait_until(&format!("{host} runs"), || phase_of(&nats.status(host), host) == "running");
}

/// A host can neither remove nor forge another's desired state, with its documented rights or in a shared account.
#[test]
fn host_cannot_command_another() {
    let login = |host: &str| format!("user: {host}, password: \"{PASSWORD}\"");
    let documented = documented_accounts()
        .replace(&format!("nkey: {}", ALPHA[1]), &login("alpha"))
        .replace(&format!("nkey: {}", BETA[1]), &login("beta"));
    let user = |host: &str| {
        let rights = format!(
            "publish: [\"$JS.API.DIRECT.GET.KV_trawl.$KV.trawl.cmd.*.{host}\", \"$KV.trawl.state.{host}\"], subscribe: [\"trawl.cmd.*.{host}\", \"_INBOX_{host}.>\"]"
        );
        format!("{{ {}, permissions: {{ {rights} }} }}", login(host))
    };
    let shared =
        format!("authorization {{ users = [ {{ nkey: {} }}, {}, {} ] }}", OPERATOR[1], user("alpha"), user("beta"));
    for accounts in [documented, shared] {
        let Some(lab) = Lab::open() else { return };
        let Some(nats) = Nats::with_passwords(&lab, &accounts) else {
            return;
        };
        assert!(nats.fleet(&["status"]).status.success(), "{accounts}");
        let alpha = nats.agent(&lab, "alpha", "alpha");
        let beta = nats.agent(&lab, "beta", "beta");
        start_capture(&nats, &lab, "alpha");
        start_capture(&nats, &lab, "beta");
        let before = (revision_of(&nats, "alpha"), revision_of(&nats, "beta"));
        let mut attacker = Attacker::as_host(&nats, "alpha");
        let state = "$KV.trawl.state.alpha";
        let header = "NATS/1.0\r\nNats-Rollup: all\r\n\r\n";
        let rollup = format!("HPUB {state} {0} {0}\r\n{header}\r\n", header.len());
        assert_eq!(attacker.send(&rollup), "+OK");
        let question = format!("$JS.API.DIRECT.GET.KV_trawl.{}", desired("alpha"));
        let of_beta = desired("beta");
        for subject in [&question, state] {
            for reply in [&of_beta["$KV.".len()..], &of_beta, "$KV.trawl.state.beta"] {
                assert_eq!(attacker.publish(subject, reply, ""), "+OK");
            }
        }
        let forged = attacker.publish(&of_beta, "", "{}");
        assert!(forged.starts_with("-ERR 'Permissions Violation"), "{forged}");
        // The server's answer precedes the change.
        let stopped = nats.fleet(&["stop", "alpha"]);
        assert!(stopped.status.success(), "{stopped:?}");
        wait_until("alpha ends its capture", || phase_of(&nats.status("alpha"), "alpha") == "none");
        let captures = report(&lab.file("report-beta"))["captures"].clone();
        let names: Vec<&Value> = captures.as_array().expect("a list").iter().map(|one| &one["name"]).collect();
        assert_eq!(names, ["beta"], "{captures}");
        assert!(revision_of(&nats, "alpha") > before.0);
        // A forged entry is replaced by the next change.
        let stopped = nats.fleet(&["stop", "beta"]);
        assert!(stopped.status.success(), "{stopped:?}");
        wait_until("beta ends its capture", || phase_of(&nats.status("beta"), "beta") == "none");
        assert!(revision_of(&nats, "beta") > before.1);
        for agent in [alpha, beta] {
            let ended = agent.stop();
            let said = format!("{ended:?}");
            assert!(!said.contains(PASSWORD), "{said}");
        }
    }
}

/// Write access to the bus is not enough to command a host: the operator's key is required.
#[test]
fn unsigned_and_old_commands_are_ignored() {
    let Some(lab) = Lab::open() else { return };
    let accounts = format!(
        "authorization {{ users = [ {{ nkey: {} }}, {{ user: alpha, password: \"{PASSWORD}\" }} ] }}",
        OPERATOR[1]
    );
    let Some(nats) = Nats::with_passwords(&lab, &accounts) else {
        return;
    };
    assert!(nats.fleet(&["status"]).status.success());
    let alpha = nats.agent(&lab, "alpha", "alpha");
    let mut attacker = Attacker::as_host(&nats, "alpha");
    assert_eq!(attacker.send("SUB trawl.cmd.*.alpha 1\r\n"), "+OK");
    start_capture(&nats, &lab, "alpha");
    let heading = attacker.line();
    assert!(heading.starts_with("HMSG"), "{heading}");
    let signed = std::iter::from_fn(|| Some(attacker.line())).find(|line| line.starts_with('{'));
    let signed = signed.expect("the command");
    let stopped = nats.fleet(&["stop", "alpha"]);
    assert!(stopped.status.success(), "{stopped:?}");
    wait_until("alpha ends its capture", || phase_of(&nats.status("alpha"), "alpha") == "none");
    let command: Value = serde_json::from_str(&signed).expect("JSON");
    let unsigned = command["desired"].as_str().expect("text").to_owned();
    let kept = desired("alpha");
    let sent = &kept["$KV.".len()..];
    for (payload, subject) in [(&unsigned, sent), (&signed, sent), (&signed, &kept), (&unsigned, &kept)] {
        let length = payload.len();
        let text = format!("PUB {subject} {length}\r\n{payload}\r\n");
        attacker.0.get_mut().write_all(text.as_bytes()).expect("sent");
    }
    alpha.wait_said("a desired state is ignored: it is not signed");
    assert_eq!(phase_of(&nats.status("alpha"), "alpha"), "none");
    // A restarted agent does not follow an old command either.
    assert_eq!(alpha.stop().status.code(), Some(0));
    let text = format!("PUB {kept} {}\r\n{signed}\r\n", signed.len());
    attacker.0.get_mut().write_all(text.as_bytes()).expect("sent");
    let again = nats.agent(&lab, "alpha", "alpha");
    start_capture(&nats, &lab, "alpha");
    let captures = report(&lab.file("report-alpha"))["captures"].clone();
    assert_eq!(captures[0]["starts"], 1, "{captures}");
    assert_eq!(again.stop().status.code(), Some(0));
}

/// Policies name the operator by the printed key.
#[test]
fn operator_can_print_the_public_key() {
    let Some(lab) = Lab::open() else { return };
    if !Nats::is_there() {
        return;
    }
    let file = lab.file("operator");
    fs::write(&file, OPERATOR[0]).expect("a file");
    let shown = trawl(&["fleet", "key", "--nkey", &file]);
    assert_eq!(String::from_utf8_lossy(&shown.stdout).trim(), OPERATOR[1]);
    let policy = lab.file("policy");
    fs::write(&policy, "").expect("a file");
    let refused = trawl(&args!("fleet agent --nats nats://a:b@127.0.0.1:1 --policy {policy}"));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("names no operator") && !said.contains("a:b@"), "{said}");
}
