//! `trawl fleet demo`: a fleet of three hosts in network namespaces, a fault on one of them, and the commands that find it.
//! All commands run as they are shown, in a shell. The warden removes everything, whatever ends the demo.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use trawl_front::terminal;
use trawl_sys::netns::{self, Namespace, run_in};
use trawl_sys::process::warden::{Undo, Warden};
use trawl_sys::process::{self, companion, trawl_binary};
use trawl_sys::{Error, Result};

/// Shows a fleet at work, in network namespaces of its own: finds the host that drops a part of the traffic, and why
///
/// Creates three hosts with agents, an operator and the bus, plants a fault, triggers an incident and shows the answer,
/// with every command. Takes half a minute, requires root and nft, and touches nothing outside of its namespaces and its
/// temporary directory, which are removed at the end.
#[derive(Debug, clap::Args)]
pub struct Demo {
    /// Start a shell on the operator's machine at the end, to try more commands; everything is removed when it ends
    #[arg(long)]
    shell: bool,
}

const HOSTS: [&str; 3] = ["web", "firewall", "db"];
/// The operator's machine, which runs the bus, and its address.
const OFFICE: &str = "office";
const BUS: &str = "10.77.3.1";
const DB_PORT: u16 = 5432;
const NETWORK: &str = r#"[[node]]
name = "firewall"
forward = true
[[node]]
name = "web"
gateway = "firewall"
[[node]]
name = "db"
gateway = "firewall"
[[node]]
name = "office"
gateway = "firewall"
[[link]]
ends = ["web:eth0", "firewall:eth0"]
[[link]]
ends = ["db:eth0", "firewall:eth1"]
[[link]]
ends = ["office:eth0", "firewall:eth2"]
"#;
/// Time limit for all agents to report.
const PATIENCE: Duration = Duration::from_secs(20);
/// Interval at which a state is read again.
const AGAIN: Duration = Duration::from_millis(50);
const WHAT: &str = "cannot show a fleet";

pub fn run(args: &Demo) -> Result<ExitCode> {
    if !process::is_program("nft") {
        return Err(Error::failed(WHAT, "nft is missing, which plants the fault").fix("apt install nftables"));
    }
    let stage = Stage::new()?;
    let mut warden = Warden::default();
    let cleanup = Cleanup { lab: stage.lab.clone(), directory: stage.directory.clone(), trawl: stage.trawl.clone() };
    warden.watch([Box::new(cleanup) as Box<dyn Undo>])?;
    let shown = stage.show(args.shell);
    warden.carry_out();
    shown?;
    say("\nEverything is removed. docs/GUIDE.md describes a fleet of real hosts: trawl fleet init.")?;
    Ok(ExitCode::SUCCESS)
}

/// Removal of the demo's processes, namespaces and files.
#[derive(Debug)]
struct Cleanup {
    lab: String,
    directory: PathBuf,
    trawl: PathBuf,
}

impl Undo for Cleanup {
    fn undo(&self) -> Result<()> {
        end_processes(&self.lab);
        let mut down = Command::new(&self.trawl);
        down.args(["lab", "down", &self.lab]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let down = down.status();
        let removed = fs::remove_dir_all(&self.directory);
        down.and(removed).map_err(|e| Error::os(format!("cannot remove {}", self.directory.display()), e))
    }

    /// Keeps standard output and error open: their readers wait until everything is removed.
    fn descriptors(&self) -> Vec<RawFd> {
        vec![1, 2]
    }

    fn unmounts(&self) -> bool {
        true
    }
}

/// Kills all processes in the namespaces of a lab, and waits until they have ended.
fn end_processes(lab: &str) {
    let namespaces: Vec<(u64, u64)> = netns::list()
        .iter()
        .filter(|name| name.starts_with(&format!("trawl-{lab}-")))
        .filter_map(|name| netns::identity_of(name))
        .collect();
    let is_inside = |process: &u32| Namespace::of_pid(*process).is_ok_and(|one| namespaces.contains(&one.identity()));
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let inside: Vec<u32> = processes().filter(is_inside).collect();
        if inside.is_empty() {
            return;
        }
        for process in inside {
            let _ = process::kill(process);
        }
        thread::sleep(AGAIN);
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn say(text: &str) -> Result<()> {
    terminal::write_out(&format!("{text}\n"))
}

/// The place of the demo: the lab, and a directory for everything else.
struct Stage {
    lab: String,
    directory: PathBuf,
    trawl: PathBuf,
    /// Search path of commands, which finds this trawl first.
    path: OsString,
}

impl Stage {
    fn new() -> Result<Self> {
        let lab = format!("fleet-{}", std::process::id());
        let directory = std::env::temp_dir().join(format!("trawl-{lab}"));
        let trawl = trawl_binary()?;
        let mut path = trawl.parent().unwrap_or(Path::new("/")).as_os_str().to_owned();
        if let Some(others) = std::env::var_os("PATH") {
            path.push(":");
            path.push(others);
        }
        Ok(Self { lab, directory, trawl, path })
    }

    fn show(&self, with_shell: bool) -> Result<()> {
        self.prepare()?;
        self.start_agents()?;
        self.capture_traffic()?;
        self.explain()?;
        if with_shell { self.run_shell() } else { Ok(()) }
    }

    fn prepare(&self) -> Result<()> {
        let made = fs::DirBuilder::new().mode(0o700).create(&self.directory);
        made.and_then(|()| fs::write(self.directory.join("network.toml"), NETWORK))
            .map_err(|e| Error::os(format!("cannot make {}", self.directory.display()), e))?;
        say(
            "Three hosts, each in a network namespace: web queries db, and firewall is between them. The operator and the\n\
             bus are in the office.\n",
        )?;
        let lab = &self.lab;
        self.run(None, &format!("trawl lab up {lab} --file network.toml --json > lab.json && trawl lab show {lab}"))?;
        say("\nOne command makes the keys, certificates, policies and the configuration of a new fleet:\n")?;
        let hosts = HOSTS.join(",");
        self.run(None, &format!("trawl fleet init new --hosts {hosts} --server {BUS} > steps.md && ls new"))
    }

    /// Starts the bus and the agents, and waits until all of them have reported.
    fn start_agents(&self) -> Result<()> {
        say("\nThe bus is a small NATS server in trawl. Each host runs an agent, which connects to it by TLS:\n")?;
        let own = format!("new/servers/{BUS}");
        let typed = format!(
            "trawl fleet bus --listen {BUS}:4222 --users {own}/users.toml --tls-ca {own}/ca.pem \
             --tls-cert {own}/server.pem --tls-key {own}/server-key.pem"
        );
        self.begin(OFFICE, &typed)?;
        for host in HOSTS {
            let own = format!("new/hosts/{host}");
            let typed = format!(
                "trawl fleet agent --host {host} --nats tls://{BUS}:4222 --nkey {own}/agent.nk --tls-ca {own}/ca.pem \
                 --tls-cert {own}/agent.pem --tls-key {own}/agent-key.pem --policy {own}/agent-policy.toml \
                 --spool {host}/spool --memory {host}/memory"
            );
            self.begin(host, &typed)?;
        }
        say("(and the same on firewall and db)")?;
        self.await_hosts()?;
        say(
            "\nThe operator sees them, and starts a capture on all: packets of the database, and drops by the kernel. The\n\
             packets stay on their hosts.\n",
        )?;
        self.run(Some(OFFICE), "new/operator/fleet status")?;
        self.run(
            Some(OFFICE),
            "new/operator/fleet start '*' -i 'eth*' --tap tc,drop --packets-at host --store $TRAWL_STORE --wait tcp port 5432",
        )
    }

    /// Sends small queries, which work, and large ones, which do not after a change of the firewall.
    fn capture_traffic(&self) -> Result<()> {
        serve_database(&Namespace::by_name(&self.namespace("db"))?)?;
        say("\nweb sends small queries to db:\n")?;
        self.run(Some("web"), "trawl gen tcp-conn 10.77.2.1:5432 --bytes 200 --count 20 --rate 20")?;
        say("\nThen somebody changes the firewall, and large queries hang:\n")?;
        self.run(
            Some("firewall"),
            "nft 'table inet filter { chain forward { type filter hook forward priority 0; tcp dport 5432 meta length > 1000 drop; }; }'",
        )?;
        self.run(Some("web"), "trawl gen tcp-conn 10.77.2.1:5432 --bytes 4000 --connections 4 --duration 3s")
    }

    /// Triggers an incident, and shows the answer.
    fn explain(&self) -> Result<()> {
        say("\nThe operator has all hosts store the last 30 seconds:\n")?;
        self.run(
            Some(OFFICE),
            "new/operator/fleet trigger '*' --last 30s --next 1s --id slow --why 'large queries hang' --wait",
        )?;
        if companion("trawl-query")?.is_some() {
            say("\nThe account of the incident shows which host dropped packets, and which one sent them again:\n")?;
            self.run(Some(OFFICE), "trawl store query --incident slow")?;
        }
        say("\nThe packets of a large query: web sent them, firewall received them, db never did.\n")?;
        let typed = "trawl store query --incident slow --filter 'tcp port 5432 and greater 1000' -c 3";
        self.show_command(OFFICE, typed)?;
        let output = self.command(Some(OFFICE), typed, Command::output)?;
        let packets = String::from_utf8_lossy(&output.stdout).into_owned();
        terminal::write_out(&packets)?;
        let (host, reason) = dropped(&packets).ok_or_else(|| {
            Error::failed("cannot find the fault of the demo", "no packet in the store has a reason why it was dropped")
        })?;
        say(&format!("\nThe answer: {host} dropped them, for the reason {reason}."))
    }

    fn run_shell(&self) -> Result<()> {
        say(
            "\nA shell in the office, with the fleet running: new/operator/fleet watch, or trawl store ls. Its end removes\n\
             everything.\n",
        )?;
        let shell = std::env::var("SHELL").unwrap_or_else(|_| "sh".to_owned());
        self.command(Some(OFFICE), &format!("exec {shell}"), Command::status).map(drop)
    }

    fn namespace(&self, node: &str) -> String {
        format!("trawl-{}-{node}", self.lab)
    }

    fn show_command(&self, node: &str, typed: &str) -> Result<()> {
        say(&format!("{node}$ {typed}"))
    }

    /// Shows a command, and runs it on a node of the lab; an error if it fails.
    fn run(&self, node: Option<&str>, typed: &str) -> Result<()> {
        self.show_command(node.unwrap_or(OFFICE), typed)?;
        let status = self.command(node, typed, Command::status)?;
        if status.success() {
            return Ok(());
        }
        Err(Error::failed(WHAT, format!("the command above failed ({status})")))
    }

    /// Starts a command on a node of the lab; shows it, except on the last hosts, whose commands are like the first one's.
    fn begin(&self, node: &str, typed: &str) -> Result<()> {
        if !HOSTS[1..].contains(&node) {
            self.show_command(node, &format!("{typed} &"))?;
        }
        let log = self.directory.join(format!("{node}.log"));
        let log = File::create(&log).map_err(|e| Error::os(format!("cannot write {}", log.display()), e))?;
        self.command(Some(node), &format!("exec {typed}"), |command| command.stderr(log).spawn()).map(drop)
    }

    /// Runs a command by the shell, in the demo's directory.
    fn command<R: Send>(
        &self,
        node: Option<&str>,
        typed: &str,
        run: impl FnOnce(&mut Command) -> io::Result<R> + Send,
    ) -> Result<R> {
        let mut command = Command::new("sh");
        command
            .args(["-c", typed])
            .current_dir(&self.directory)
            .env("PATH", &self.path)
            .env("TRAWL_STORE", format!("file://{}/store", self.directory.display()));
        process::with_signals(&mut command);
        let namespace = node.map(|node| Namespace::by_name(&self.namespace(node))).transpose()?;
        let ran = netns::run_maybe_in(namespace.as_ref(), || run(&mut command))?;
        ran.map_err(|e| Error::os(format!("cannot run '{typed}'"), e))
    }

    /// Waits until all agents have reported.
    fn await_hosts(&self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let read = |command: &mut Command| command.stderr(Stdio::null()).output();
            if count_hosts(&self.command(Some(OFFICE), "new/operator/fleet status --json", read)?) == HOSTS.len() {
                return Ok(());
            }
            thread::sleep(AGAIN);
        }
        let logs = [&[OFFICE], &HOSTS[..]].concat();
        let said = logs.iter().filter_map(|node| fs::read_to_string(self.directory.join(format!("{node}.log"))).ok());
        Err(Error::failed("cannot reach all agents of the demo", said.collect::<String>().trim()))
    }
}

/// Counts the hosts that `fleet status --json` lists.
fn count_hosts(output: &Output) -> usize {
    #[derive(Deserialize)]
    struct Fleet {
        hosts: Vec<serde::de::IgnoredAny>,
    }
    serde_json::from_slice(&output.stdout).map_or(0, |fleet: Fleet| fleet.hosts.len())
}

/// Accepts connections in a namespace and reads them to their end, in threads that end with the demo.
fn serve_database(namespace: &Namespace) -> Result<()> {
    let listener = run_in(namespace, || TcpListener::bind((Ipv4Addr::UNSPECIFIED, DB_PORT)))?;
    let listener = listener.map_err(|e| Error::os("cannot listen in the demo's db", e))?;
    let read = |mut stream: TcpStream| {
        let mut bytes = [0; 4096];
        while stream.read(&mut bytes).is_ok_and(|length| length > 0) {}
    };
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || read(stream));
        }
    });
    Ok(())
}

/// Finds the host and the reason in the line of a dropped packet.
fn dropped(packets: &str) -> Option<(&str, &str)> {
    packets.lines().find_map(|line| {
        let (_, reason) = line.split_once("[drop: ")?;
        let (host, _) = line.split(' ').nth(1)?.split_once(':')?;
        Some((host, reason.split([' ', ',', ']']).next()?))
    })
}

#[cfg(test)]
mod tests {
    use super::dropped;

    #[test]
    fn dropped_packet_is_found_among_others() {
        let lines = "10:28:05.347415 web:eth0 Out IP 10.77.1.1.5 > 10.77.2.1.5432: Flags [P.], length 9 [tc egress]\n\
            10:28:05.347450 firewall:eth0 In  IP 10.77.1.1.5 > 10.77.2.1.5432: Flags [P.] [drop: NETFILTER_DROP at f+0x3e8]\n";
        assert_eq!(dropped(lines), Some(("firewall", "NETFILTER_DROP")));
        assert_eq!(dropped(&lines[..50]), None);
    }
}
