//! xdp-trafficgen as a sender.

use std::process::{Child, Command, Stdio};

use trawl_sys::{Error, Result};

use super::{GenerateBench, PORTS, Sender};
use trawl_lab::Pair;

const TRAFFICGEN: &str = "xdp-trafficgen";

/// Whether it is installed; `None` where it is, else what to say.
pub(super) fn missing() -> Option<String> {
    let found = Command::new(TRAFFICGEN)
        .arg("help")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    found.is_err().then(|| {
        format!("{TRAFFICGEN} is not installed (apt-get install xdp-tools): it is left out")
    })
}

/// xdp-trafficgen while it runs.
pub(super) struct Theirs(Child);

impl Theirs {
    pub fn start(sender: Sender, pair: &Pair, plan: &GenerateBench) -> Result<Self> {
        let namespace = format!("--net=/run/netns/{}", pair.a.name);
        let cpu = plan.cpu.to_string();
        let mac = pair.b.mac.map(|byte| format!("{byte:02x}")).join(":");
        let mut command = Command::new("nsenter");
        command
            .args([
                &namespace, "taskset", "-c", &cpu, TRAFFICGEN, "udp", "-m", &mac,
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if sender == Sender::TrafficgenPorts {
            command.args(["-d", &PORTS.to_string()]);
        }
        command.arg(&pair.a.interface);
        let child = command.spawn();
        child
            .map(Self)
            .map_err(|e| Error::os(format!("cannot start {TRAFFICGEN}"), e))
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
