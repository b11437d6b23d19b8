//! The hub with clients whose bytes the tests write and read.

use super::*;

struct Bus {
    hub: Hub,
    operator: KeyPair,
    hosts: Vec<KeyPair>,
}

impl Bus {
    fn open(directory: Option<PathBuf>) -> Self {
        let (operator, hosts) = (KeyPair::new_user(), vec![KeyPair::new_user(), KeyPair::new_user()]);
        let text = format!(
            "operators = [\"{}\"]\n[hosts]\na = \"{}\"\nb = \"{}\"",
            operator.public_key(),
            hosts[0].public_key(),
            hosts[1].public_key()
        );
        let users = Users::parse(&text).expect("users");
        Self { hub: Hub::open(users, directory).expect("a hub"), operator, hosts }
    }

    fn join(&mut self, key: &KeyPair) -> u64 {
        let (id, info) = self.hub.join(Arc::new(Notify::new()), false);
        let info: serde_json::Value = serde_json::from_str(info.trim_start_matches("INFO ")).expect("JSON");
        let nonce = info["nonce"].as_str().expect("a nonce");
        let signature = data_encoding::BASE64URL_NOPAD.encode(&key.sign(nonce.as_bytes()).expect("a signature"));
        let text = format!("CONNECT {}\r\n", json!({ "nkey": key.public_key(), "sig": signature }));
        assert_eq!(self.hub.receive(id, text.as_bytes()), Ok(text.len()));
        id
    }

    /// Returns the subject of the operator's desired state of a host.
    fn desired(&self, host: &str) -> String {
        format!("$KV.trawl.cmd.{}.{host}", self.operator.public_key())
    }

    fn operator(&mut self) -> u64 {
        let key = KeyPair::from_seed(&self.operator.seed().expect("a seed")).expect("a key");
        self.join(&key)
    }

    fn host(&mut self, number: usize) -> u64 {
        let key = KeyPair::from_seed(&self.hosts[number].seed().expect("a seed")).expect("a key");
        self.join(&key)
    }

    fn send(&mut self, id: u64, text: &str) {
        assert_eq!(self.hub.receive(id, text.as_bytes()), Ok(text.len()), "{text}");
    }

    fn publish(&mut self, id: u64, subject: &str, reply: &str, text: &str) {
        self.send(id, &format!("PUB {subject} {reply} {}\r\n{text}\r\n", text.len()));
    }

    fn received(&mut self, id: u64) -> String {
        String::from_utf8(self.hub.take(id).0).expect("text")
    }
}

#[test]
fn strangers_can_do_nothing() {
    let mut bus = Bus::open(None);
    let (id, _) = bus.hub.join(Arc::new(Notify::new()), false);
    for text in ["SUB a 1\r\n", "PUB a 0\r\n\r\n", "CONNECT {}\r\n", "CONNECT x\r\n"] {
        assert_eq!(bus.hub.receive(id, text.as_bytes()), Err(DENIED), "{text}");
    }
    let stranger = format!("CONNECT {}\r\n", json!({ "nkey": bus.operator.public_key(), "sig": "AAAA" }));
    assert_eq!(bus.hub.receive(id, stranger.as_bytes()), Err(DENIED));
    let long = format!("PUB a 9999\r\n{}", "x".repeat(LINE_MOST));
    assert_eq!(bus.hub.receive(id, long.as_bytes()), Err(DENIED));
}

#[test]
fn desired_states_reach_their_host_and_are_compared() {
    let mut bus = Bus::open(None);
    let (operator, host) = (bus.operator(), bus.host(0));
    bus.send(operator, "SUB _INBOX_operator.1.* 1\r\n");
    bus.send(host, "SUB trawl.cmd.*.a 1\r\nSUB _INBOX_a.1.* 2\r\n");
    let desired = bus.desired("a");
    let question = format!("$JS.API.DIRECT.GET.KV_trawl.{desired}");
    bus.publish(host, &question, "_INBOX_a.1.x", "");
    assert!(bus.received(host).contains("404"));
    bus.publish(operator, &desired, "_INBOX_operator.1.x", "new");
    let stored = bus.received(operator);
    assert!(stored.contains("\"stream\":\"KV_trawl\""), "{stored}");
    assert_eq!(bus.received(host), format!("MSG {} 1 3\r\nnew\r\n", &desired["$KV.".len()..]));
    bus.publish(host, &question, "_INBOX_a.1.x", "");
    let answer = bus.received(host);
    assert!(answer.starts_with("HMSG _INBOX_a.1.x 2 ") && answer.ends_with("\r\n\r\nnew\r\n"), "{answer}");
    let header = "NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 0\r\n\r\n";
    let lengths = format!("{0} {0}", header.len());
    bus.send(operator, &format!("HPUB {desired} _INBOX_operator.1.x {lengths}\r\n{header}\r\n"));
    assert!(bus.received(operator).contains("10071"));
    // Another operator's state of the host is neither written by this one nor confused with it.
    bus.publish(operator, "$KV.trawl.cmd.U2.a", "_INBOX_operator.1.x", "forged");
    assert!(bus.received(operator).starts_with("-ERR 'Permissions Violation for Publish"));
    assert!(bus.received(host).is_empty());
}

#[test]
fn host_reaches_no_subject_of_another() {
    let mut bus = Bus::open(None);
    let (a, b, operator) = (bus.host(0), bus.host(1), bus.operator());
    bus.send(b, "SUB trawl.cmd.*.b 1\r\nSUB trawl.ask.b 2\r\nSUB _INBOX_b.1.* 3\r\n");
    bus.send(operator, "SUB _INBOX_operator.1.* 1\r\n");
    for text in ["SUB trawl.cmd.*.b 1\r\n", "SUB > 1\r\n", "SUB _INBOX_operator.1.* 2\r\n"] {
        bus.send(a, text);
        assert!(bus.received(a).starts_with("-ERR 'Permissions Violation for Subscription to"), "{text}");
    }
    for (subject, reply) in [
        ("trawl.cmd.U1.b", ""),
        ("$KV.trawl.cmd.U1.a", ""),
        ("$KV.trawl.cmd.U1.b", ""),
        ("$KV.trawl.state.b", ""),
        ("_INBOX_b.1.x", ""),
        ("_INBOX_operator.1.x", ""),
        ("$KV.trawl.state.a", "trawl.cmd.U1.b"),
        ("$KV.trawl.state.a", "$KV.trawl.cmd.U1.b"),
        ("$JS.API.DIRECT.GET.KV_trawl.$KV.trawl.cmd.U1.a", "_INBOX_b.1.x"),
    ] {
        bus.publish(a, subject, reply, "forged");
        let said = bus.received(a);
        assert!(said.starts_with("-ERR 'Permissions Violation for Publish"), "{subject} {reply}: {said}");
    }
    assert!(bus.received(b).is_empty() && bus.received(operator).is_empty());
    // An answer to an operator's question is allowed, once.
    bus.publish(operator, "trawl.ask.b", "_INBOX_operator.1.x", "?");
    bus.publish(b, "_INBOX_operator.1.x", "", "answer");
    assert!(bus.received(operator).ends_with("answer\r\n"));
    bus.publish(b, "_INBOX_operator.1.x", "", "another");
    assert!(bus.received(operator).is_empty());
    bus.publish(operator, "trawl.ask.a", "_INBOX_operator.1.x", "?");
    assert!(bus.received(operator).contains("NATS/1.0 503"));
}

fn follow(bus: &mut Bus, id: u64) -> String {
    let config = json!({
        "deliver_subject": "_INBOX_operator.1", "deliver_policy": "last_per_subject", "ack_policy": "none",
        "replay_policy": "instant", "filter_subject": "$KV.trawl.state.>",
    });
    let request = json!({ "config": config }).to_string();
    bus.publish(id, "$JS.API.CONSUMER.CREATE.KV_trawl_state", "_INBOX_operator.2.x", &request);
    bus.received(id)
}

#[test]
fn consumer_has_all_last_messages_and_counts_those_to_come() {
    let mut bus = Bus::open(None);
    let (a, b, operator) = (bus.host(0), bus.host(1), bus.operator());
    bus.publish(a, "$KV.trawl.state.a", "", "old");
    bus.publish(b, "$KV.trawl.state.b", "", "one");
    bus.publish(a, "$KV.trawl.state.a", "", "two");
    bus.send(operator, "SUB _INBOX_operator.2.* 1\r\n");
    let created = follow(&mut bus, operator);
    assert!(created.contains("\"num_pending\":2"), "{created}");
    bus.publish(b, "$KV.trawl.state.b", "", "three");
    bus.send(operator, "SUB _INBOX_operator.1 2\r\n");
    let all = bus.received(operator);
    let heads: Vec<(&str, &str)> = all
        .lines()
        .filter_map(|line| line.strip_prefix("MSG ")?.rsplit_once('.'))
        .filter_map(|(start, end)| Some((start.split_once(' ')?.0, end.split_once(' ')?.0)))
        .collect();
    assert_eq!(heads, [("$KV.trawl.state.a", "1"), ("$KV.trawl.state.b", "0")], "{all}");
    assert!(!all.contains("old") && all.contains("two") && all.contains("three"));
    bus.hub.beat(Instant::now(), Duration::ZERO);
    let beat = bus.received(operator);
    assert!(beat.contains("100 Idle Heartbeat") && beat.contains("Nats-Last-Consumer: 2\r\n"), "{beat}");
    // A client that continues after a lost connection names its consumer, and the filter in the subject.
    let config = json!({
        "deliver_subject": "_INBOX_operator.3", "deliver_policy": "by_start_sequence", "opt_start_seq": u64::MAX / 2,
        "replay_policy": "instant", "name": "again_1",
    });
    let request = json!({ "config": config }).to_string();
    bus.send(operator, "SUB _INBOX_operator.3 3\r\n");
    bus.publish(operator, "$JS.API.CONSUMER.DELETE.KV_trawl_state.1", "_INBOX_operator.2.x", "");
    let subject = "$JS.API.CONSUMER.CREATE.KV_trawl_state.again_1.$KV.trawl.state.>";
    bus.publish(operator, subject, "_INBOX_operator.2.x", &request);
    let answers = bus.received(operator);
    assert!(answers.contains("\"success\":true") && answers.contains("\"num_pending\":0"), "{answers}");
    assert_eq!(bus.hub.consumers.len(), 1);
    bus.hub.leave(operator);
    assert!(bus.hub.consumers.is_empty() && bus.hub.take(operator).1);
}

#[test]
fn slow_client_is_disconnected_and_a_consumer_waits() {
    let mut bus = Bus::open(None);
    let (a, operator, slow) = (bus.host(0), bus.operator(), bus.operator());
    bus.send(operator, "SUB _INBOX_operator.1 1\r\n");
    follow(&mut bus, operator);
    bus.send(slow, "SUB other 1\r\n");
    let text = "x".repeat(PAYLOAD_MOST);
    for _ in 0..10 {
        bus.publish(a, "$KV.trawl.state.a", "", &text);
        bus.publish(operator, "other", "", &text);
    }
    // The consumer has skipped replaced messages, and continues with the newest.
    assert!(bus.received(operator).len() < 2 * PAYLOAD_MOST);
    assert!(bus.received(operator).len() > PAYLOAD_MOST);
    let (bytes, is_over) = bus.hub.take(slow);
    assert!(is_over && bytes.len() < 100);
}

#[test]
fn subscription_ends_after_its_messages() {
    let mut bus = Bus::open(None);
    let operator = bus.operator();
    bus.send(operator, "SUB x.> 1\r\nUNSUB 1 2\r\n");
    for text in ["1", "2", "3"] {
        bus.publish(operator, "x.y.z", "", text);
    }
    let received = bus.received(operator);
    assert!(received.ends_with("2\r\n") && !received.contains("3\r\n3"), "{received}");
    assert!(bus.hub.subscriptions.is_empty());
}

#[test]
fn states_outlive_the_bus() {
    let directory = std::env::temp_dir().join(format!("trawl-hub-{}", std::process::id()));
    std::fs::create_dir(&directory).expect("a directory");
    let mut bus = Bus::open(Some(directory.clone()));
    let (operator, host) = (bus.operator(), bus.host(0));
    bus.send(operator, "PING\r\n");
    let desired = bus.desired("a");
    bus.publish(operator, &desired, "", "kept");
    assert!(bus.received(operator).is_empty(), "the change is not saved yet");
    bus.hub.save_desired().expect("it is written");
    assert_eq!(bus.received(operator), "PONG\r\n");
    bus.publish(host, "$KV.trawl.state.a", "", "known");
    bus.publish(host, "trawl.log.a", "", "logged");
    bus.hub.save_of_hosts().expect("it is written");
    let bus = Bus::open(Some(directory.clone()));
    for (stream, (subject, text)) in bus.hub.streams.iter().zip([
        (desired.as_str(), "kept"),
        ("$KV.trawl.state.a", "known"),
        ("trawl.log.a", "logged"),
    ]) {
        let (_, entry) = stream.last_of(subject).expect("a message");
        assert_eq!(entry.payload, text.as_bytes());
    }
    std::fs::remove_dir_all(&directory).expect("a directory");
    // A bus that cannot keep a change acknowledges none.
    let mut bus = Bus::open(Some(directory));
    let operator = bus.operator();
    let desired = bus.desired("a");
    bus.publish(operator, &desired, "", "lost");
    assert!(bus.hub.save_desired().is_err() && bus.hub.take(operator) == (Vec::new(), true));
}
