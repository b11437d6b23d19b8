//! The files of a fleet: keys, certificates, the configuration of its NATS servers, and the policy and options of each
//! host's agent. The directory is made or changed as a whole, or not at all.

mod certificates;
mod draft;
mod existing;
mod nats;

use std::path::{Path, PathBuf};

use nkeys::KeyPair;
use trawl_sys::{Error, Result};

use crate::bus::{OPERATOR, check_name};
use certificates::{Authority, Certified};
use draft::Draft;
pub use existing::Fleet;

/// Directories of the files, on hosts and on servers.
const ON_HOSTS: &str = "/etc/trawl";
const ON_SERVERS: &str = "/etc/nats";
/// Files below the directory.
const README: &str = "README.md";
const CA: &str = "authority/ca.pem";
const CA_KEY: &str = "authority/ca-key.pem";
const OPERATOR_KEY: &str = "operator/operator.nk";
const OPERATOR_SCRIPT: &str = "operator/fleet";
/// Files of each server.
const CONFIGURATION: &str = "nats-server.conf";
const USERS: &str = "users.toml";
/// Modes of the files: private keys are for their owner alone.
const PRIVATE: u32 = 0o600;
const PUBLIC: u32 = 0o644;
const PROGRAM: u32 = 0o700;

/// A fleet to set up.
#[derive(Debug)]
pub struct Plan {
    pub hosts: Vec<String>,
    /// Names or addresses of the NATS servers.
    pub servers: Vec<String>,
    pub port: u16,
    /// Copies of each state, on as many servers.
    pub replicas: usize,
    /// Days for which the certificates are valid.
    pub days: u32,
}

/// A file below the new directory.
pub struct NewFile {
    path: PathBuf,
    mode: u32,
    text: String,
}

impl NewFile {
    fn new(path: impl Into<PathBuf>, mode: u32, text: impl Into<String>) -> Self {
        Self { path: path.into(), mode, text: text.into() }
    }
}

/// Someone with an NKey.
struct User {
    name: String,
    key: KeyPair,
}

impl User {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), key: KeyPair::new_user() }
    }

    fn public_key(&self) -> String {
        self.key.public_key()
    }

    fn seed(&self) -> Result<String> {
        let seed = self.key.seed();
        Ok(seed.map_err(|e| Error::failed("cannot make a key", e))? + "\n")
    }
}

impl Plan {
    pub fn check(&self) -> Result<()> {
        let what = "cannot set up a fleet";
        let mut names: Vec<&String> = self.hosts.iter().collect();
        names.sort();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::usage(what, format!("two hosts are called {}", pair[0])));
        }
        if self.hosts.iter().any(|host| host == OPERATOR) {
            return Err(Error::usage(what, format!("no host may be called '{OPERATOR}'")));
        }
        for server in &self.servers {
            let is_right = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':');
            if server.is_empty() || !server.chars().all(is_right) {
                let why = format!("'{server}' is no name or address of a server");
                return Err(Error::usage(what, why).fix("--server nats.example.org"));
            }
        }
        if self.replicas > self.servers.len() {
            let why = format!("{} copies require as many servers", self.replicas);
            return Err(Error::usage(what, why).fix("name each server: --server one,two,three"));
        }
        self.hosts.iter().try_for_each(|host| check_name(host))
    }

    /// Returns the addresses of the servers, as --nats has them.
    pub fn urls(&self) -> String {
        let urls: Vec<String> = self.servers.iter().map(|server| format!("tls://{}", self.address(server))).collect();
        urls.join(",")
    }

    fn address(&self, server: &str) -> String {
        let port = self.port;
        if server.contains(':') { format!("[{server}]:{port}") } else { format!("{server}:{port}") }
    }

    /// Makes keys and certificates, and returns all files.
    pub fn files(&self) -> Result<Vec<NewFile>> {
        self.check()?;
        let authority = Authority::new(self.days)?;
        let operator = User::new(OPERATOR);
        let hosts: Vec<User> = self.hosts.iter().map(|host| User::new(host)).collect();
        let mut files = vec![NewFile::new(README, PUBLIC, self.instructions())];
        let Certified { certificate: ca, key } = &authority.own;
        files.push(NewFile::new(CA, PUBLIC, ca));
        files.push(NewFile::new(CA_KEY, PRIVATE, key));
        files.extend(self.of_operator(&authority, &operator)?);
        for server in &self.servers {
            files.extend(self.of_server(&authority, server, &operator, &hosts)?);
        }
        for host in &hosts {
            files.extend(self.of_host(&authority, host, &operator)?);
        }
        Ok(files)
    }

    fn of_operator(&self, authority: &Authority, operator: &User) -> Result<Vec<NewFile>> {
        let directory = Path::new(OPERATOR);
        let own = authority.sign(OPERATOR, &[])?;
        let replicas = if self.replicas > 1 { format!(" --replicas {}", self.replicas) } else { String::new() };
        let script = format!(
            "#!/bin/sh\n# Runs trawl fleet with the operator's key: fleet status, fleet start '*' -i eth0\n\
             here=$(dirname \"$0\")\n\
             exec trawl fleet \"$@\" --nats {}{replicas} --nkey \"$here/operator.nk\" --tls-ca \"$here/ca.pem\" \
             --tls-cert \"$here/operator.pem\" --tls-key \"$here/operator-key.pem\"\n",
            self.urls()
        );
        Ok(vec![
            NewFile::new(OPERATOR_KEY, PRIVATE, operator.seed()?),
            NewFile::new(directory.join("operator.pem"), PUBLIC, own.certificate),
            NewFile::new(directory.join("operator-key.pem"), PRIVATE, own.key),
            NewFile::new(directory.join("ca.pem"), PUBLIC, &authority.own.certificate),
            NewFile::new(OPERATOR_SCRIPT, PROGRAM, script),
        ])
    }

    fn of_server(&self, authority: &Authority, server: &str, operator: &User, hosts: &[User]) -> Result<Vec<NewFile>> {
        let directory = Path::new("servers").join(server);
        let own = authority.sign(server, &[server.to_owned()])?;
        Ok(vec![
            NewFile::new(directory.join(CONFIGURATION), PUBLIC, nats::configuration(self, server, operator, hosts)),
            NewFile::new(directory.join(USERS), PUBLIC, nats::users(operator, hosts)),
            NewFile::new(directory.join("server.pem"), PUBLIC, own.certificate),
            NewFile::new(directory.join("server-key.pem"), PRIVATE, own.key),
            NewFile::new(directory.join("ca.pem"), PUBLIC, &authority.own.certificate),
        ])
    }

    fn of_host(&self, authority: &Authority, host: &User, operator: &User) -> Result<Vec<NewFile>> {
        let directory = Path::new("hosts").join(&host.name);
        let own = authority.sign(&host.name, &[])?;
        let policy = format!(
            "# Limits of the captures that operators may request: see trawl-fleet-agent(1).\n\
             operators = [\"{}\"]\n# [[operator]] adds operators with fewer rights.\n# interfaces = [\"eth*\"]\n# max_duration_seconds = 86400\n\n[labels]\n",
            operator.public_key()
        );
        let options = format!(
            "# Options of trawl-agent.service.\n\
             TRAWL_AGENT_OPTIONS=--nats {} --host {} --nkey {ON_HOSTS}/agent.nk --tls-ca {ON_HOSTS}/ca.pem \
             --tls-cert {ON_HOSTS}/agent.pem --tls-key {ON_HOSTS}/agent-key.pem\n",
            self.urls(),
            host.name
        );
        Ok(vec![
            NewFile::new(directory.join("agent.nk"), PRIVATE, host.seed()?),
            NewFile::new(directory.join("agent.pem"), PUBLIC, own.certificate),
            NewFile::new(directory.join("agent-key.pem"), PRIVATE, own.key),
            NewFile::new(directory.join("ca.pem"), PUBLIC, &authority.own.certificate),
            NewFile::new(directory.join("agent-policy.toml"), PUBLIC, policy),
            NewFile::new(directory.join("trawl-agent.default"), PUBLIC, options),
        ])
    }

    /// Returns the steps that remain.
    pub fn instructions(&self) -> String {
        let mut text = "# A fleet for trawl\n\n\
             1. Move `authority/` to a safe place: its key makes further certificates.\n\n\
             2. On each NATS server, install nats-server and its files, and start it:\n\n"
            .to_owned();
        for server in &self.servers {
            text += &format!(
                "       ssh root@{server} install -d -m 755 {ON_SERVERS}\n       \
                 scp servers/{server}/* root@{server}:{ON_SERVERS}/\n       \
                 ssh root@{server} 'install -d -o nats -m 700 /var/lib/nats && chown nats {ON_SERVERS}/server-key.pem && \
                 install -o nats -m 600 {ON_SERVERS}/nats-server.conf /etc/nats-server.conf && \
                 systemctl restart nats-server'\n\n"
            );
        }
        text += &format!(
            "   A small fleet needs no nats-server, but trawl alone:\n\n       \
             trawl fleet bus --users {ON_SERVERS}/users.toml --listen 0.0.0.0:{} --dir /var/lib/trawl/bus \
             --tls-cert {ON_SERVERS}/server.pem --tls-key {ON_SERVERS}/server-key.pem --tls-ca {ON_SERVERS}/ca.pem\n\n\
             3. On each host, install trawl and the host's files, review {ON_HOSTS}/agent-policy.toml, and start the \
             agent:\n\n",
            self.port
        );
        text += &self.steps_of_hosts();
        text + "4. Show the hosts, and start a capture:\n\n       operator/fleet status\n       \
                operator/fleet start '*' -i eth0 --duration 10m --wait udp port 53\n"
    }

    /// Returns the steps on each host.
    fn steps_of_hosts(&self) -> String {
        let steps = self.hosts.iter().map(|host| {
            format!(
                "       ssh root@{host} install -d -m 700 {ON_HOSTS}\n       \
                 scp hosts/{host}/* root@{host}:{ON_HOSTS}/\n       \
                 ssh root@{host} 'mv {ON_HOSTS}/trawl-agent.default /etc/default/trawl-agent && \
                 systemctl enable --now trawl-agent'\n\n"
            )
        });
        steps.collect()
    }

    /// Returns the steps that remain after the hosts have joined an existing fleet.
    fn instructions_for_more(&self) -> String {
        let mut text = format!(
            "# Further hosts: {}\n\n\
             1. Move `authority/` to its safe place again.\n\n\
             2. On each NATS server, replace the configuration, which has the new hosts' rights:\n\n",
            self.hosts.join(", ")
        );
        for server in &self.servers {
            text += &format!(
                "       scp servers/{server}/{CONFIGURATION} root@{server}:{ON_SERVERS}/\n       \
                 ssh root@{server} 'install -o nats -m 600 {ON_SERVERS}/{CONFIGURATION} /etc/{CONFIGURATION} && \
                 systemctl reload nats-server'\n\n"
            );
        }
        text += &format!(
            "   For trawl fleet bus, replace {ON_SERVERS}/{USERS} and start it again: agents return by themselves, and \
             their captures continue.\n\n\
             3. On each new host, install trawl and the host's files, review {ON_HOSTS}/agent-policy.toml, and start \
             the agent:\n\n"
        );
        text + &self.steps_of_hosts()
    }
}

/// Writes the files into a new directory, which appears with all of them or not at all.
pub fn write(directory: &Path, files: &[NewFile]) -> Result<()> {
    let write = || {
        let draft = Draft::new(directory)?;
        files.iter().try_for_each(|file| draft.write(file))?;
        draft.create()
    };
    write().map_err(|error| Error::os(format!("cannot make {}", directory.display()), error))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn plan(hosts: &[&str], servers: &[&str], replicas: usize) -> Plan {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect();
        Plan { hosts: names(hosts), servers: names(servers), port: 4222, replicas, days: 30 }
    }

    #[test]
    fn impossible_fleets_are_refused() {
        assert!(plan(&["a", "b.c"], &["one", "192.0.2.1", "2001:db8::1"], 3).check().is_ok());
        for (hosts, servers, replicas) in [
            (&["a", "a"][..], &["one"][..], 1),
            (&["operator"], &["one"], 1),
            (&["a b"], &["one"], 1),
            (&["../a"], &["one"], 1),
            (&["a"], &["one\n"], 1),
            (&["a"], &["../one"], 1),
            (&["a"], &["one"], 2),
        ] {
            assert!(plan(hosts, servers, replicas).check().is_err(), "{hosts:?} {servers:?}");
        }
    }

    #[test]
    fn directory_is_made_as_a_whole_with_private_keys() {
        let directory = std::env::temp_dir().join(format!("trawl-setup-{}", std::process::id()));
        let files = plan(&["a"], &["one", "two"], 2).files().expect("files");
        write(&directory, &files).expect("it is written");
        for file in &files {
            let path = directory.join(&file.path);
            let mode = fs::metadata(&path).expect("a file").permissions().mode() & 0o777;
            let is_key = file.text.contains("PRIVATE KEY") || file.text.starts_with("SU");
            assert_eq!(mode & 0o077 == 0, is_key || file.mode == PROGRAM, "{}", path.display());
        }
        assert!(write(&directory, &files).is_err(), "it exists");
        fs::remove_dir_all(&directory).expect("a directory");
        let same = || NewFile::new("same", PUBLIC, "");
        let twice = [same(), same()];
        assert!(write(&directory, &twice).is_err());
        assert!(!directory.exists());
        let left = fs::read_dir(std::env::temp_dir()).expect("a directory").flatten();
        let name = directory.file_name().expect("a name").to_string_lossy().into_owned();
        assert_eq!(left.filter(|entry| entry.file_name().to_string_lossy().starts_with(&name)).count(), 0);
    }
    /// Returns the files below a directory, with their modes and texts.
    fn contents(directory: &Path) -> BTreeMap<PathBuf, (u32, String)> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(directory).expect("a directory").flatten() {
            let path = entry.path();
            if path.is_dir() {
                found.extend(contents(&path));
            } else {
                let mode = entry.metadata().expect("a file").permissions().mode();
                found.insert(path.clone(), (mode, fs::read_to_string(path).expect("a file")));
            }
        }
        found
    }

    #[test]
    fn hosts_join_a_fleet_and_nothing_else_changes() {
        let directory = std::env::temp_dir().join(format!("trawl-join-{}", std::process::id()));
        write(&directory, &plan(&["a"], &["one", "2001:db8::1"], 2).files().expect("files")).expect("it is written");
        // Changes by hand, and the draft of a killed process.
        let conf = directory.join("servers/one/nats-server.conf");
        let text = fs::read_to_string(&conf).expect("a file").replace("# With", "sync_interval: always\n# With");
        fs::write(&conf, text).expect("a file");
        fs::set_permissions(&conf, fs::Permissions::from_mode(0o640)).expect("a file");
        let mut left = directory.clone().into_os_string();
        left.push(".draft");
        write(&Path::new(&left).join("hosts"), &[NewFile::new("key", PRIVATE, "")]).expect("it is written");
        let before = contents(&directory);
        let join = |hosts: &[&str]| {
            let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
            let fleet = Fleet::read(&directory, 30)?;
            fleet.write(&fleet.add(&hosts, 30)?)
        };
        for wrong in [&["a"][..], &["b", "b"], &["../b"], &["operator"]] {
            assert!(join(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(contents(&directory), before);
        join(&["b", "c.d"]).expect("they join");
        join(&["e"]).expect("it joins");
        assert!(!Path::new(&left).exists());
        let after = contents(&directory);
        for (path, (mode, text)) in &before {
            let (mode_now, now) = &after[path];
            assert_eq!(mode_now, mode, "{}", path.display());
            let is_extended = ["README.md", "nats-server.conf", "users.toml"].iter().any(|name| path.ends_with(name));
            assert_eq!(now != text, is_extended, "{}", path.display());
            let kept: Vec<&str> = now.lines().filter(|line| text.lines().any(|earlier| earlier == *line)).collect();
            assert!(text.lines().all(|line| kept.contains(&line)), "{}", path.display());
        }
        let of = |host: &str| after.keys().filter(|path| path.starts_with(directory.join("hosts").join(host))).count();
        assert_eq!([of("a"), of("b"), of("c.d"), of("e")], [6; 4]);
        for server in ["one", "2001:db8::1"] {
            let own = directory.join("servers").join(server);
            let users = &after[&own.join(USERS)].1;
            let configuration = &after[&own.join(CONFIGURATION)].1;
            for host in ["a", "b", "c.d", "e"] {
                let seed = &after[&directory.join("hosts").join(host).join("agent.nk")].1;
                let key = KeyPair::from_seed(seed.trim()).expect("a seed").public_key();
                assert!(users.contains(&format!("\"{host}\" = \"{key}\"\n")), "{users}");
                assert!(configuration.contains(&format!("nkey: {key}")), "{configuration}");
                assert!(configuration.contains(&format!("\"_INBOX_{host}.*.*\"")), "{configuration}");
            }
        }
        // The key of another authority, and none.
        let another = Authority::new(30).expect("an authority").own.key;
        let key = directory.join(CA_KEY);
        fs::write(&key, another).expect("a file");
        let error = join(&["f"]).expect_err("another authority").to_string();
        assert!(error.contains("does not accept"), "{error}");
        fs::remove_file(&key).expect("a file");
        let error = join(&["f"]).expect_err("no key").to_string();
        assert!(error.contains("authority/ca-key.pem") && error.contains("cp -a"), "{error}");
        fs::remove_dir_all(&directory).expect("a directory");
    }
}
