//! The comment of a step of a followed packet.

use super::{DropNote, Note, ProcessNote, Word, keys, put, words};

word_enum! {
    /// A point on the path of a packet.
    Step {
        Xdp = "xdp",
        /// Receive offload.
        Gro = "gro",
        Backlog = "backlog",
        /// The hook for all received packets.
        Received = "received",
        TcIngress = "tc_ingress",
        Prerouting = "prerouting",
        Input = "input",
        Forward = "forward",
        Output = "output",
        Postrouting = "postrouting",
        /// Another hook of netfilter.
        Netfilter = "netfilter",
        /// Passed to a device for sending.
        Queued = "queued",
        TcEgress = "tc_egress",
        QdiscEnqueue = "qdisc_enqueue",
        QdiscDequeue = "qdisc_dequeue",
        Transmitted = "transmitted",
        Ipsec = "ipsec",
        Socket = "socket",
        Read = "read",
        Consumed = "consumed",
        Dropped = "dropped",
        Unknown = "unknown",
        /// Between two records: the result of routing.
        Routed = "routed",
        /// Between two records: steps that were not recorded.
        Gap = "gap",
    }
}

word_enum! {
    /// The end of a timed section that a record marks.
    Side {
        First = "first",
        Last = "last",
    }
}

word_enum! {
    /// Evidence that a record belongs to the followed packet.
    Found {
        New = "new",
        Buffer = "buffer",
        Memory = "memory",
        Content = "content",
    }
}

word_enum! {
    /// State in connection tracking.
    Tracking {
        Established = "established",
        Related = "related",
        New = "new",
        EstablishedReply = "established,reply",
        RelatedReply = "related,reply",
        Unknown = "unknown",
        Untracked = "untracked",
    }
}

/// The addresses of a connection that are translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Translated {
    pub source: bool,
    pub destination: bool,
}

/// A step of a followed packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowStep<'a> {
    pub step: Step,
    pub side: Option<Side>,
    pub found: Option<Found>,
    /// Number among the packet's steps; `None` if it was not counted.
    pub number: Option<u32>,
    /// `None` before the packet is tracked.
    pub tracking: Option<Tracking>,
    pub translated: Translated,
    /// The process that read the packet.
    pub reader: Option<ProcessNote<'a>>,
    pub facts: DropNote<'a>,
}

const STEP: &str = "step=";

impl<'a> Note<'a> for FollowStep<'a> {
    fn write(&self, out: &mut String) {
        let Self { step, side, found, number, tracking, translated, reader, facts } = self;
        put(out, &keys::STEP, Some(step));
        put(out, &keys::SIDE, *side);
        facts.write_end(out);
        put(out, &keys::FOUND, *found);
        put(out, &keys::NUMBER, *number);
        put(out, &keys::TRACKING, *tracking);
        let translated = match translated {
            Translated { source: true, destination: true } => Some("src,dst"),
            Translated { source: true, .. } => Some("src"),
            Translated { destination: true, .. } => Some("dst"),
            _ => None,
        };
        put(out, &keys::TRANSLATED, translated);
        put(out, &keys::READER, reader.map(|ProcessNote { name, id }| format!("{}[{id}]", Word(name))));
        facts.write_facts(out);
    }

    fn parse(text: &'a str) -> Option<Self> {
        let rest = text.strip_prefix(STEP)?;
        let (step, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let mut note = Self {
            step: Step::of_word(step).unwrap_or(Step::Unknown),
            side: None,
            found: None,
            number: None,
            tracking: None,
            translated: Translated::default(),
            reader: None,
            facts: DropNote::default(),
        };
        for (key, value) in words(rest) {
            match key {
                "side" => note.side = Side::of_word(value),
                "found" => note.found = Found::of_word(value),
                "number" => note.number = value.parse().ok(),
                "ct" => note.tracking = Tracking::of_word(value),
                "nat" => {
                    let has = |kind| value.split(',').any(|one| one == kind);
                    note.translated = Translated { source: has("src"), destination: has("dst") };
                }
                "by" if value.ends_with(']') => note.reader = ProcessNote::named(value),
                _ => note.facts.read(key, value),
            }
        }
        Some(note)
    }
}
