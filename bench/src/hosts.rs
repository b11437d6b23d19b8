//! Two hosts: captures on one, traffic from the other, both reached by ssh and run by the same binary.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use trawl_sys::process::ssh::{Ssh, word};
use trawl_sys::{Error, Result, files::text_file};

use crate::outcome::{Measured, Outcome, Stop};
use crate::process::Peer;
use crate::recorder::{Fate, Recorder, Setting};
use crate::scratch::MARK;
use crate::traffic::Traffic;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hosts {
    pub sender: Host,
    pub receiver: Host,
    #[serde(skip)]
    local: PathBuf,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Destination in ssh's form: USER@HOST.
    pub ssh: String,
    /// Further options of ssh.
    #[serde(default)]
    pub options: Vec<String>,
    /// Interface of the measured link; not the one that ssh uses.
    pub interface: String,
    /// Address of the host; frames are sent to the receiver's.
    #[serde(default)]
    pub address: String,
    /// Directory for the binary, and for captures during the measurement.
    #[serde(default = "directory")]
    pub directory: String,
    /// Private directory inside `directory`.
    #[serde(skip)]
    room: String,
}

fn directory() -> String {
    "/var/tmp".to_owned()
}

impl Host {
    fn connection(&self) -> Ssh {
        Ssh {
            program: std::iter::once("ssh".to_owned()).chain(self.options.clone()).collect(),
            destination: self.ssh.clone(),
        }
    }

    fn ssh(&self, script: &str) -> Command {
        let mut ssh = self.connection().script(script);
        ssh.env(MARK, std::process::id().to_string());
        ssh
    }

    fn run(&self, script: &str) -> Result<String> {
        self.connection().run(script)
    }

    fn trawl(&self) -> String {
        format!("{}/trawl", self.room)
    }

    /// Makes the directory for the binary and the captures. In a directory such as /var/tmp, any user could plant a
    /// program that would be run as root. So an existing directory must belong to this user, and only they may write to
    /// it.
    fn make_room(&mut self) -> Result<()> {
        let directory = word(&self.directory);
        self.room = self.run(&format!(
            "room={directory}/trawl-bench-$(id -u); mkdir -m 700 \"$room\" 2>/dev/null; \
             if [ -d \"$room\" ] && [ ! -L \"$room\" ] && [ -O \"$room\" ] && [ \"$(stat -c %a \"$room\")\" = 700 ]; \
             then echo \"$room\"; else echo \"$room cannot be created as a directory that only this user can write to\" >&2; exit 1; fi"
        ))?;
        Ok(())
    }

    fn counter(&self, name: &str) -> Result<u64> {
        let path = format!("/sys/class/net/{}/statistics/{name}", self.interface);
        let text = self.run(&format!("cat {}", word(&path)))?;
        text.parse().map_err(|e| Error::failed(format!("{path} of {}", self.ssh), e))
    }
}

impl Hosts {
    /// Reads the file, and copies the binary to the hosts that lack it.
    pub fn open(file: &Path, local: &Path) -> Result<Self> {
        let what = || format!("--hosts {}", file.display());
        let text = text_file::read(file)?;
        let mut hosts: Self = toml::from_str(&text).map_err(|e| Error::usage(what(), e.to_string()))?;
        if hosts.receiver.address.is_empty() {
            return Err(Error::usage(what(), "[receiver] has no address: frames are sent to it"));
        }
        hosts.local = local.to_owned();
        for host in [&mut hosts.sender, &mut hosts.receiver] {
            host.make_room()?;
            host.connection().provide(local, &host.trawl())?;
        }
        Ok(hosts)
    }

    /// Captures one burst of traffic.
    pub fn capture(&self, recorder: Recorder, setting: &Setting, traffic: &Traffic) -> Outcome {
        let receiver = &self.receiver;
        let (trawl, interface) = (word(&receiver.trawl()), word(&receiver.interface));
        let file = format!("{}/trawl-bench-{}-capture", receiver.room, std::process::id());
        let path = word(&file);
        let filter = setting.filter.as_deref().map(word).unwrap_or_default();
        let (command, ready) = match (recorder, recorder.tap()) {
            (Recorder::TrawlTraced, _) => return Err(unsupported(recorder)),
            (_, Some(tap)) => {
                (format!("{trawl} capture --tap {tap} -Q in -i {interface} -w {path} {filter}"), "capturing on")
            }
            (Recorder::Tcpdump, _) => (format!("tcpdump -n -Z root -i {interface} -w {path} {filter}"), "listening on"),
            (Recorder::Dumpcap, _) => (format!("dumpcap -q -P -i {interface} -w {path}"), "File:"),
            _ => return Err(unsupported(recorder)),
        };
        let verdict = match recorder {
            Recorder::TrawlHook(Fate::Drop) => Some("drop"),
            Recorder::TrawlHook(Fate::Pass) => Some("pass"),
            _ => None,
        };
        let _loaded = match verdict {
            Some(verdict) => {
                receiver.run(&format!("{trawl} xdp load {interface} {verdict} --tappable"))?;
                Some(Undo(receiver, format!("{trawl} xdp unload {interface}")))
            }
            None => None,
        };
        let _file = Undo(receiver, format!("rm -f {path}"));
        // The shell prints its process id, which the command keeps, so that it can be interrupted.
        let mut ssh = receiver.ssh(&format!("echo pid $$ 1>&2; exec {command}"));
        let peer = Peer::start(recorder.name(), &mut ssh, 0, "pid ")?;
        let process = peer.last_number();
        let peer = peer.wait_for(ready)?;
        let before = self.sender.counter("tx_packets")?;
        let arguments = traffic.arguments(&self.sender.interface, &receiver.address);
        let arguments: Vec<String> = arguments.iter().map(|one| word(one)).collect();
        let said = self.sender.run(&format!("{} {}", word(&self.sender.trawl()), arguments.join(" ")))?;
        let said: serde_json::Value =
            serde_json::from_str(&said).map_err(|e| Error::failed("the sender printed no JSON", e))?;
        let sent = self.sender.counter("tx_packets")? - before;
        let seconds = said["seconds"].as_f64().unwrap_or(0.0);
        // The kernel hands over partly filled blocks after a second.
        std::thread::sleep(std::time::Duration::from_millis(1500));
        receiver.run(&format!("kill -INT {process}"))?;
        let account = peer.read_to_end()?;
        let mac = receiver.run(&format!("cat {}", word(&format!("/sys/class/net/{}/address", receiver.interface))))?;
        let to_it = word(&format!("ether dst {mac}"));
        // The JSON has the number of each packet: only the count of matches crosses the network.
        let count = r#"sed 's/.*"count":\([0-9]*\).*/\1/'"#;
        let counted = receiver.run(&format!("{trawl} filter {to_it} --read {path} --json | {count}"))?;
        let recorded: u64 = counted.parse().map_err(|e| Error::failed("the file was not counted", e))?;
        let measured = Measured { sent: Some(sent), claim: recorder.claim(&account), seconds, ..Measured::default() };
        Ok(measured.recorded(recorded, setting, traffic))
    }
}

fn unsupported(recorder: Recorder) -> Stop {
    Stop::NotHere(format!("{} cannot run on other hosts", recorder.name()))
}

/// A command that undoes a change on its host when dropped.
struct Undo<'a>(&'a Host, String);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Err(why) = self.0.run(&self.1) {
            let _ = writeln!(std::io::stderr(), "trawl: {why}");
        }
    }
}
