//! The bundled programs: loaded, counted and unloaded by the binary.

use serde_json::Value;

use crate::trawl;
use crate::wait::wait_until;

/// Runs trawl, which has to succeed.
#[track_caller]
pub fn done(arguments: &[&str]) -> String {
    let output = trawl(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {said}", arguments.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned() + &said
}

/// Runs trawl, which has to refuse with this exit status; returns its message.
#[track_caller]
pub fn refused(arguments: &[&str], status: i32) -> String {
    let output = trawl(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{}: {said}", arguments.join(" "));
    said
}

/// Counters of a program.
#[derive(Clone, Debug)]
pub struct Counts(Value);

impl Counts {
    /// Reads the counters of the bundled program on an interface.
    #[track_caller]
    pub fn of(place: &str) -> Self {
        Self::read(&["xdp", "stats", place, "--json"])
    }

    /// Reads the counters of a router's port.
    #[track_caller]
    pub fn of_port(place: &str) -> Self {
        Self::read(&["route", "stats", place, "--json"])
    }

    #[track_caller]
    fn read(arguments: &[&str]) -> Self {
        let output = trawl(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}: {said}", arguments.join(" "));
        let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        Self(all["interfaces"][0].clone())
    }

    /// Waits until this many packets were counted, and returns the counters: more would be a bug.
    #[track_caller]
    pub fn wait(read: impl Fn() -> Self, packets: u64) -> Self {
        let mut last = read();
        wait_until(&format!("{packets} packets are counted"), || {
            last = read();
            last.packets() >= packets
        });
        assert_eq!(last.packets(), packets, "{last:?}");
        last
    }

    pub fn packets(&self) -> u64 {
        self.0["packets"].as_u64().expect("a number")
    }

    pub fn bytes(&self) -> u64 {
        self.0["bytes"].as_u64().expect("a number")
    }

    /// Returns the packets under an outcome, on this or another CPU; 0 for an unknown outcome.
    pub fn outcome(&self, name: &str) -> u64 {
        self.one(name).map_or(0, |one| one["packets"].as_u64().expect("a number"))
    }

    pub fn outcome_bytes(&self, name: &str) -> u64 {
        self.one(name).map_or(0, |one| one["bytes"].as_u64().expect("a number"))
    }

    fn one(&self, name: &str) -> Option<&Value> {
        let lists = [&self.0["outcomes"], &self.0["far"]];
        lists.into_iter().filter_map(Value::as_array).flatten().find(|one| one["text"] == name)
    }

    /// Returns the packets that were sent to another CPU and have not arrived.
    pub fn not_there(&self) -> u64 {
        self.0["not_there"].as_u64().unwrap_or(0)
    }

    /// Returns the names of the outcomes with packets.
    pub fn names(&self) -> Vec<String> {
        let outcomes = self.0["outcomes"].as_array().expect("a list");
        let name = |one: &Value| one["text"].as_str().expect("a text").to_owned();
        outcomes.iter().map(name).collect()
    }
}
