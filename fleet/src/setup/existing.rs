//! Hosts that join a fleet whose files exist: the authority signs their certificates, and each server learns their rights.

use std::collections::HashSet;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nkeys::KeyPair;
use trawl_sys::{Error, Result};

use super::certificates::Authority;
use super::draft::Draft;
use super::{CA, CA_KEY, CONFIGURATION, NewFile, OPERATOR_KEY, OPERATOR_SCRIPT, Plan, README, USERS, User, nats};
use crate::bus::OPERATOR;
use crate::server::Users;
use crate::tls;

/// The fleet of a directory.
pub struct Fleet {
    directory: PathBuf,
    authority: Authority,
    operator: User,
    servers: Vec<String>,
    port: u16,
}

/// The files that hosts add to a fleet or change, and the steps that remain.
pub struct Addition {
    new: Vec<NewFile>,
    changed: Vec<NewFile>,
    pub instructions: String,
}

fn cannot(directory: &Path, why: impl std::fmt::Display) -> Error {
    Error::failed(format!("cannot add hosts to {}", directory.display()), why)
}

impl Fleet {
    /// Reads the files that `trawl fleet init` made.
    pub fn read(directory: &Path, days: u32) -> Result<Self> {
        let directory = fs::canonicalize(directory).map_err(|e| cannot(directory, e))?;
        let read = |path: &str| {
            let text = fs::read_to_string(directory.join(path));
            text.map_err(|e| cannot(&directory, format!("cannot read {path}: {e}")))
        };
        let key = read(CA_KEY).map_err(|error| {
            error.fix(format!(
                "copy the directory authority back from its safe place, for this command: cp -a SAFE/authority {}/",
                directory.display()
            ))
        })?;
        let authority = Authority::of(read(CA)?, key, days)?;
        let seed = KeyPair::from_seed(read(OPERATOR_KEY)?.trim());
        let seed = seed.map_err(|e| cannot(&directory, format!("cannot use {OPERATOR_KEY}: {e}")))?;
        let operator = User { name: OPERATOR.to_owned(), key: seed };
        let addresses = addresses(&read(OPERATOR_SCRIPT)?);
        let why = format!("{OPERATOR_SCRIPT} does not name the servers by --nats tls://SERVER:PORT");
        let (servers, port) = addresses.ok_or_else(|| cannot(&directory, why))?;
        Ok(Self { directory, authority, operator, servers, port })
    }

    /// Makes keys and certificates of further hosts.
    pub fn add(&self, hosts: &[String], days: u32) -> Result<Addition> {
        let plan = Plan { hosts: hosts.to_vec(), servers: self.servers.clone(), port: self.port, replicas: 1, days };
        plan.check()?;
        let users: Vec<User> = hosts.iter().map(|host| User::new(host)).collect();
        let mut new = Vec::new();
        for host in &users {
            let files = plan.of_host(&self.authority, host, &self.operator)?;
            files.iter().filter(|file| file.path.ends_with("agent.pem")).try_for_each(|file| self.verify(file))?;
            new.extend(files);
        }
        let mut changed = Vec::new();
        for server in &self.servers {
            let directory = Path::new("servers").join(server);
            let generated = nats::configuration(&plan, server, &self.operator, &users);
            changed.push(self.changed(&directory.join(CONFIGURATION), &generated, users_of_hosts)?);
            let generated = nats::users(&self.operator, &users);
            let file = self.changed(&directory.join(USERS), &generated, table_of_hosts)?;
            self.check_users(&file, hosts)?;
            changed.push(file);
        }
        let instructions = plan.instructions_for_more();
        let readme = self.text(Path::new(README))?;
        changed.push(self.replaced(Path::new(README), format!("{}\n\n{instructions}", readme.trim_end()))?);
        Ok(Addition { new, changed, instructions })
    }

    /// Checks that the servers will accept a certificate.
    fn verify(&self, file: &NewFile) -> Result<()> {
        let verified = tls::verify(&self.authority.own.certificate, &file.text);
        verified.map_err(|why| {
            let why = format!("{CA} does not accept what {CA_KEY} signs: {why}");
            cannot(&self.directory, why).fix("bring both files of the fleet's own authority back")
        })
    }

    /// Refuses hosts that the fleet has already: they would have two keys.
    fn check_users(&self, file: &NewFile, hosts: &[String]) -> Result<()> {
        let earlier = self.text(&file.path)?;
        let earlier: toml::Table = toml::from_str(&earlier)
            .map_err(|e| cannot(&self.directory, format!("cannot read {}: {e}", file.path.display())))?;
        let known = earlier.get("hosts").and_then(toml::Value::as_table);
        let is_known = |host: &&String| known.is_some_and(|known| known.contains_key(*host));
        if let Some(host) = hosts.iter().find(is_known) {
            let why = format!("{host} belongs to the fleet already");
            return Err(cannot(&self.directory, why).fix("leave it out of --hosts"));
        }
        Users::parse(&file.text).map(drop)
    }

    fn text(&self, path: &Path) -> Result<String> {
        let text = fs::read_to_string(self.directory.join(path));
        text.map_err(|e| cannot(&self.directory, format!("cannot read {}: {e}", path.display())))
    }

    /// Inserts the list of hosts of a generated file into the list of an existing one, whose other lines stay.
    fn changed(&self, path: &Path, generated: &str, list: fn(&str) -> Option<Range<usize>>) -> Result<NewFile> {
        let mut text = self.text(path)?;
        match (list(&text), list(generated)) {
            (Some(known), Some(added)) => text.insert_str(known.end, &generated[added]),
            _ => {
                let why = format!("{} has no list of hosts in the form that trawl writes", path.display());
                return Err(cannot(&self.directory, why));
            }
        }
        self.replaced(path, text)
    }

    /// Returns a file with another text, and its present mode.
    fn replaced(&self, path: &Path, text: String) -> Result<NewFile> {
        let found = fs::metadata(self.directory.join(path));
        let found = found.map_err(|e| cannot(&self.directory, format!("cannot read {}: {e}", path.display())))?;
        Ok(NewFile::new(path, found.permissions().mode() & 0o777, text))
    }

    /// Puts the files into the directory, all at once or not at all.
    pub fn write(&self, addition: &Addition) -> Result<()> {
        let directory = &self.directory;
        if std::env::current_dir().is_ok_and(|current| current.starts_with(directory)) {
            let why = "the current directory is in it, and it is replaced as a whole";
            return Err(cannot(directory, why).fix("change to another directory before"));
        }
        let write = || {
            let draft = Draft::new(directory)?;
            let changed: HashSet<&Path> = addition.changed.iter().map(|file| file.path.as_path()).collect();
            draft.keep(&changed)?;
            addition.new.iter().chain(&addition.changed).try_for_each(|file| draft.write(file))?;
            draft.replace()
        };
        write().map_err(|error| Error::os(format!("cannot add hosts to {}", directory.display()), error))
    }
}

/// Returns the servers and their port in the operator's script.
fn addresses(script: &str) -> Option<(Vec<String>, u16)> {
    let urls = script.split_whitespace().skip_while(|word| *word != "--nats").nth(1)?;
    let address = |url: &str| {
        let (server, port) = url.strip_prefix("tls://")?.rsplit_once(':')?;
        Some((server.trim_matches(['[', ']']).to_owned(), port.parse().ok()?))
    };
    let all: Vec<(String, u16)> = urls.split(',').map(address).collect::<Option<_>>()?;
    let port = all.first()?.1;
    Some((all.into_iter().map(|(server, _)| server).collect(), port))
}

/// Returns the users of the hosts' account in a configuration of nats-server.
fn users_of_hosts(text: &str) -> Option<Range<usize>> {
    let account = text.find("  HOSTS {\n")?;
    let list = "    users: [\n";
    let from = account + text[account..].find(list)? + list.len();
    let end = "\n    ]\n";
    let to = from - 1 + text[from - 1..].find(end)? + 1;
    Some(from..to)
}

/// Returns the table of hosts in a file of users.
fn table_of_hosts(text: &str) -> Option<Range<usize>> {
    let title = "[hosts]\n";
    let from = text.find(title)? + title.len();
    let to = text[from - 1..].find("\n[").map_or(text.len(), |at| from + at);
    (to == from || text[..to].ends_with('\n')).then_some(from..to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_hosts_are_found() {
        let conf =
            "accounts {\n  CONTROL {\n    users: [ x ]\n  }\n  HOSTS {\n    users: [\n      { a }\n    ]\n  }\n}\n";
        assert_eq!(users_of_hosts(conf).map(|range| &conf[range]), Some("      { a }\n"));
        let none = conf.replace("      { a }\n", "");
        assert_eq!(users_of_hosts(&none).map(|range| none[range].to_owned()), Some(String::new()));
        assert_eq!(users_of_hosts("accounts {}"), None);
        for (users, hosts) in [
            ("a = 1\n[hosts]\nb = \"c\"\n", Some("b = \"c\"\n")),
            ("[hosts]\nb = \"c\"\n\n[owners]\n", Some("b = \"c\"\n\n")),
            ("[hosts]\n[owners]\n", Some("")),
            ("[hosts]\n", Some("")),
            ("[hosts]\nb = 1", None),
            ("a = 1\n", None),
        ] {
            assert_eq!(table_of_hosts(users).map(|range| &users[range]), hosts, "{users:?}");
        }
    }

    #[test]
    fn servers_are_read_from_the_script() {
        let script = "#!/bin/sh\nexec trawl fleet \"$@\" --nats tls://one:4223,tls://[2001:db8::1]:4223 --nkey x\n";
        assert_eq!(addresses(script), Some((vec!["one".into(), "2001:db8::1".into()], 4223)));
        assert_eq!(addresses("exec trawl fleet"), None);
        assert_eq!(addresses("--nats nats://one"), None);
    }
}
