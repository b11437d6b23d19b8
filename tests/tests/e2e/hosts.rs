//! `trawl bench run --hosts` (issue 15): sender and receiver over ssh, in two namespaces with an ssh server each.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use trawl_tests::{root_or_skip, skip, trawl, wait_until};

use crate::bench::{Directory, results};

const NETWORK: &str = r#"
[[node]]
name = "m"
[[node]]
name = "a"
[[node]]
name = "b"
[[link]]
ends = ["m:to-a", "a:ssh"]
[[link]]
ends = ["m:to-b", "b:ssh"]
[[link]]
ends = ["a:data", "b:data"]
"#;

struct Setup {
    lab: String,
    servers: Vec<Child>,
}

impl Drop for Setup {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
        trawl(&["lab", "down", &self.lab]);
    }
}

fn keygen(path: &Path) {
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(path)
        .status()
        .expect("ssh-keygen");
    assert!(made.success());
}

#[test]
fn a_capture_on_one_host_of_traffic_from_another_is_counted_there() {
    if !root_or_skip() {
        return;
    }
    if !Path::new("/usr/sbin/sshd").exists() {
        return skip("there is no ssh server (apt-get install openssh-server)");
    }
    let directory = Directory::new("hosts");
    let at = |name: &str| directory.0.join(name);
    let text = |name: &str| at(name).to_str().expect("UTF-8").to_owned();
    std::fs::write(at("network.toml"), NETWORK).expect("it can be written");
    let mut setup = Setup {
        lab: format!("th{}", std::process::id()),
        servers: Vec::new(),
    };
    let up = trawl(&["lab", "up", &setup.lab, "--file", &text("network.toml")]);
    assert_eq!(
        up.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&up.stderr)
    );
    keygen(&at("key"));
    keygen(&at("host"));
    std::fs::create_dir_all("/run/sshd").expect("the server wants it");
    for node in ["a", "b"] {
        let mut server = Command::new("ip");
        server.args([
            "netns",
            "exec",
            &format!("trawl-{}-{node}", setup.lab),
            "/usr/sbin/sshd",
            "-D",
            "-e",
            "-f",
            "/dev/null",
        ]);
        for option in [
            format!("HostKey={}", text("host")),
            format!("AuthorizedKeysFile={}", text("key.pub")),
            "StrictModes=no".to_owned(),
            "PermitRootLogin=yes".to_owned(),
            "PidFile=none".to_owned(),
        ] {
            server.args(["-o", &option]);
        }
        setup
            .servers
            .push(server.stderr(Stdio::null()).spawn().expect("sshd"));
    }
    let listens = |address: &str| {
        let script = format!("exec 3<>/dev/tcp/{address}/22");
        trawl(&["lab", "exec", &setup.lab, "m", "bash", "-c", &script])
            .status
            .success()
    };
    wait_until("the ssh servers listen", || {
        listens("10.77.1.2") && listens("10.77.2.2")
    });
    let host = |role: &str, address: &str, data: &str| {
        let directory = at(role);
        std::fs::create_dir(&directory).expect("it can be made");
        format!(
            "[{role}]\nssh = \"root@{address}\"\ninterface = \"data\"\naddress = \"{data}\"\ndirectory = \"{}\"\n\
             options = [\"-i\", \"{}\", \"-o\", \"StrictHostKeyChecking=no\", \"-o\", \"UserKnownHostsFile=/dev/null\", \"-o\", \"LogLevel=ERROR\"]\n",
            directory.display(),
            text("key")
        )
    };
    let hosts =
        host("sender", "10.77.1.2", "10.77.3.1") + &host("receiver", "10.77.2.2", "10.77.3.2");
    std::fs::write(at("hosts.toml"), hosts).expect("it can be written");
    let output = trawl(&[
        "lab",
        "exec",
        &setup.lab,
        "m",
        trawl_tests::binary::path().to_str().expect("UTF-8"),
        "bench",
        "run",
        "capture-bandwidth",
        "--hosts",
        &text("hosts.toml"),
        "--repeat",
        "1",
        "--set",
        "series=trawl hook, drop",
        "--set",
        "rates=2",
        "--set",
        "seconds=0.1",
        "-o",
        &text("out"),
    ]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // A comma separates series, so the one with a comma is none: it is refused before any host is asked.
    assert_eq!(output.status.code(), Some(2), "{said}");
    let output = trawl(&[
        "lab",
        "exec",
        &setup.lab,
        "m",
        trawl_tests::binary::path().to_str().expect("UTF-8"),
        "bench",
        "run",
        "capture-bandwidth",
        "--hosts",
        &text("hosts.toml"),
        "--repeat",
        "1",
        "--set",
        "series=trawl xdp,trawl tc,tcpdump,xdpdump",
        "--set",
        "rates=2",
        "--set",
        "seconds=0.1",
        "-o",
        &text("out"),
    ]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report = results(&at("out"));
    let experiment = &report["experiments"][0];
    let runs = experiment["runs"].as_array().expect("runs");
    for series in ["trawl xdp", "trawl tc"] {
        let run = runs
            .iter()
            .find(|run| run["series"] == series)
            .unwrap_or_else(|| panic!("{series}: {experiment}"));
        assert!(
            run["sent"].as_u64().is_some_and(|sent| sent >= 390),
            "{run}"
        );
        assert_eq!(run["recorded"], run["claim"]["recorded"], "{run}");
        assert!(
            run["values"]["recorded_percent"]
                .as_f64()
                .is_some_and(|share| share > 95.0),
            "{run}"
        );
    }
    assert!(
        experiment["failures"]
            .to_string()
            .contains("not run on other hosts"),
        "{experiment}"
    );
    // The binary was copied to both, and no capture is left.
    for role in ["sender", "receiver"] {
        let names: Vec<String> = std::fs::read_dir(at(role))
            .expect("it is there")
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        assert_eq!(names, ["trawl-bench-binary"], "{role}");
    }
}
