//! The files of `trawl fleet init` start a server and agents of two network namespaces, with the rights of their hosts.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use trawl_lab::Station;
use trawl_tests::{Lab, Running, args, binary, fleet_or_skip, split_line, tools_or_skip, trawl, wait_until};

use super::phase_of;

/// Address of the server, in the sender's namespace.
const SERVER: &str = "10.77.0.1";

/// A fleet set up in the lab: alpha is the sender, beta the receiver, which joins later.
struct Fleet {
    lab: Lab,
    directory: String,
}

/// Runs a program in a namespace, where scripts find this trawl.
fn inside(station: &Station, program: &str, arguments: &[&str]) -> Command {
    let own = binary::path().parent().expect("a directory").display();
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &station.name, program]).args(arguments);
    command.env("PATH", format!("{own}:{}", std::env::var("PATH").unwrap_or_default()));
    command
}

impl Fleet {
    fn new(lab: Lab) -> Self {
        let directory = lab.file("new");
        for more in [format!("alpha --server {SERVER}"), "beta".to_owned()] {
            let made = trawl(&args!("fleet init {directory} --hosts {more}"));
            assert!(made.status.success(), "{made:?}");
        }
        Self { lab, directory }
    }

    /// Starts nats-server with the generated configuration, adapted to the paths of the test.
    fn nats_server(&self) -> Running {
        let own = format!("{}/servers/{SERVER}", self.directory);
        let path = format!("{own}/nats-server.conf");
        let text = fs::read_to_string(&path).expect("a configuration");
        let text = text.replace("/etc/nats", &own).replace("/var/lib/nats", &self.lab.file("jetstream"));
        fs::write(&path, text).expect("a file");
        Running::of(inside(&self.lab.pair.a, "nats-server", &["-c", &path]), "Server is ready")
    }

    /// Starts trawl's own bus with the generated users.
    fn bus(&self) -> Running {
        let own = format!("{}/servers/{SERVER}", self.directory);
        let words = args!(
            "fleet bus --users {own}/users.toml --listen 0.0.0.0:4222 --tls-cert {own}/server.pem --tls-key {own}/server-key.pem --tls-ca {own}/ca.pem"
        );
        let trawl = binary::path().display().to_string();
        // As a service starts: each agent needs an open file, and there may be more agents than that.
        let limited = [&["-c", "ulimit -Sn 64; exec \"$0\" \"$@\"", &trawl][..], &words].concat();
        let bus = Running::of(inside(&self.lab.pair.a, "sh", &limited), "serving agents");
        let limits = fs::read_to_string(format!("/proc/{}/limits", bus.id())).expect("a process");
        let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a limit");
        let [soft, hard, ..] = files.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{files}") };
        assert_eq!(soft, hard);
        bus
    }

    /// Starts an agent with the generated options; as another host, if its name differs.
    fn agent(&self, station: &Station, name: &str, files: &str, ready: &str) -> Running {
        let own = format!("{}/hosts/{files}", self.directory);
        let options = fs::read_to_string(format!("{own}/trawl-agent.default")).expect("options");
        let options = options.split_once("TRAWL_AGENT_OPTIONS=").expect("the variable").1;
        let options =
            options.replace("/etc/trawl", &own).replace(&format!("--host {files}"), &format!("--host {name}"));
        let (spool, memory) = (self.lab.file(&format!("spool-{name}")), self.lab.file(&format!("memory-{name}")));
        let base = args!("fleet agent --policy {own}/agent-policy.toml --spool {spool} --memory {memory}");
        let words = [&base[..], &split_line(options.trim().to_owned())].concat();
        let trawl = binary::path().display().to_string();
        Running::of(inside(station, &trawl, &words), ready)
    }

    /// Runs the operator's script.
    fn operate(&self, arguments: &[&str]) -> Output {
        let script = format!("{}/operator/fleet", self.directory);
        inside(&self.lab.pair.a, &script, arguments).stdin(Stdio::null()).output().expect("ip")
    }

    fn status(&self) -> Value {
        let output = self.operate(&["status", "--json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
    }
}

fn generated_files_start_a_fleet(start: fn(&Fleet) -> Running) {
    let Some(lab) = Lab::open() else { return };
    let fleet = Fleet::new(lab);
    let lab = &fleet.lab;
    for more in [format!("gamma --server {SERVER}"), "alpha".to_owned()] {
        let again = trawl(&args!("fleet init {} --hosts {more}", fleet.directory));
        assert_eq!(again.status.code(), Some(1), "{again:?}");
    }
    let server = start(&fleet);
    assert!(fleet.operate(&["status"]).status.success());
    let alpha = fleet.agent(&lab.pair.a, "alpha", "alpha", "connected to");
    let beta = fleet.agent(&lab.pair.b, "beta", "beta", "connected to");
    wait_until("both have reported", || fleet.status()["hosts"].as_array().map(Vec::len) == Some(2));
    let interface = &lab.pair.b.interface;
    let store = lab.file("store");
    let started = fleet.operate(&args!("start * -i {interface} --tap packet --store file://{store} --wait udp port 9"));
    assert!(started.status.success(), "{started:?}");
    let status = fleet.status();
    assert_eq!([phase_of(&status, "alpha"), phase_of(&status, "beta")], ["running", "running"], "{status}");
    // The second of two addresses answers, and the system's authorities vouch for it.
    let own = format!("{}/operator", fleet.directory);
    let words = args!(
        "fleet status --nats tls://{SERVER}:1,tls://{SERVER}:4222 --nkey {own}/operator.nk --tls-cert {own}/operator.pem --tls-key {own}/operator-key.pem"
    );
    let trawl = binary::path().display().to_string();
    let mut by_system = inside(&lab.pair.a, &trawl, &words);
    let shown = by_system.env("SSL_CERT_FILE", format!("{own}/ca.pem")).env("SSL_CERT_DIR", &own).output().expect("ip");
    assert!(shown.status.success(), "{shown:?}");
    assert_eq!(beta.stop().status.code(), Some(0));
    // A host with another's name has no rights to its subjects.
    let impostor = fleet.agent(&lab.pair.b, "beta", "alpha", "");
    impostor.wait_said("Permissions Violation for Subscription to \"trawl.cmd.*.beta\"");
    impostor.wait_said("Permissions Violation for Publish to \"$JS.API.DIRECT.GET.KV_trawl.$KV.trawl.cmd.U");
    drop(impostor);
    assert_eq!(alpha.stop().status.code(), Some(0));
    drop(server);
    assert!(Path::new(&fleet.directory).join("README.md").is_file());
}

#[test]
fn generated_files_start_a_fleet_over_nats() {
    if fleet_or_skip() && tools_or_skip(&["nats-server"]) {
        generated_files_start_a_fleet(Fleet::nats_server);
    }
}

#[test]
fn generated_files_start_a_fleet_over_the_embedded_bus() {
    if fleet_or_skip() {
        generated_files_start_a_fleet(Fleet::bus);
    }
}
