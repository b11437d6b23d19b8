//! The keys of words in comments, and the fields that Wireshark shows for them with trawl's post-dissector. The writers
//! of comments take their keys from here; the post-dissector and docs/pcapng.md are generated from these tables.

/// Type of a field's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    Text,
    Number16,
    Number32,
    Number64,
    /// True or false.
    Flag,
}

/// A field of the post-dissector.
#[derive(Debug, PartialEq, Eq)]
pub struct Field {
    /// Name in filters.
    pub name: &'static str,
    pub kind: FieldType,
    /// Name in the list of a packet's fields.
    pub title: &'static str,
    pub about: &'static str,
}

/// A kind of comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comment {
    /// Of a packet that the kernel dropped; a step of a followed packet that ends with the drop is of both kinds.
    Drop,
    /// Of a step of a followed packet.
    Step,
    /// Of a packet whose process is known.
    Process,
    /// Of a packet whose socket is known.
    Socket,
    /// Of a packet that stands for several segments.
    Segments,
    /// Of an interface at whose XDP program packets were seen.
    Program,
    /// Of an interface of a pod.
    Pod,
    /// Of a process's block.
    Cgroup,
    /// Of a section, or in a block of names after a step of the clock.
    Clock,
    /// In a block of names.
    Translation,
}

impl Comment {
    pub const ALL: [Self; 10] = [
        Self::Drop,
        Self::Step,
        Self::Process,
        Self::Socket,
        Self::Segments,
        Self::Program,
        Self::Pod,
        Self::Cgroup,
        Self::Clock,
        Self::Translation,
    ];

    /// Returns the keys with which comments of the kind begin.
    pub fn begins(self) -> &'static [&'static Key] {
        match self {
            Self::Drop => &[&REASON],
            Self::Step => &[&STEP],
            Self::Process => &[&PROCESS],
            Self::Socket => &[&SOCKET, &OWNER],
            Self::Segments => &[&SEGMENTS],
            Self::Program => &[&XDP_PROGRAM],
            Self::Pod => &[&INTERFACE_POD],
            Self::Cgroup => &[&CONTAINER, &PROCESS_POD_KEY, &PROCESS_PATH, &INNER_PID],
            Self::Clock => &[&MONOTONIC_OFFSET],
            Self::Translation => &[&TRANSLATION_BEGUN, &TRANSLATION_ENDED],
        }
    }

    /// Returns the block with the comment.
    pub fn block(self) -> &'static str {
        match self {
            Self::Drop | Self::Step | Self::Process | Self::Socket | Self::Segments => "packet",
            Self::Program | Self::Pod => "interface",
            Self::Cgroup => "process",
            Self::Clock => "section, names",
            Self::Translation => "names",
        }
    }
}

/// Division of a word's value among the fields of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The value is the field's.
    Whole,
    /// `NAME[NUMBER]`: two fields.
    NameAndNumber,
    /// `NAME:NUMBER`: two fields.
    NameAndPort,
    /// `FUNCTION+OFFSET`: the whole value, and the function.
    Location,
    /// `FAMILY,TABLE,CHAIN,HANDLE` without the handle for a policy: a sentence, and the four parts.
    Rule,
    /// Parts with a comma between them: the field has several values.
    List,
    /// `src`, `dst` or both: a field for each, which is true.
    Ends,
    /// `cgroup:NUMBER`: the number.
    Cgroup,
}

/// A key of words.
#[derive(Debug, PartialEq, Eq)]
pub struct Key {
    /// Text before the `=`.
    pub word: &'static str,
    pub form: Form,
    /// The kinds of comments with the key, each with the fields of the value. The list of fields is empty if Wireshark
    /// does not pass the comment to dissectors.
    pub fields: &'static [(Comment, &'static [&'static Field])],
    pub about: &'static str,
}

/// A comment that is a sentence and has no keys.
#[derive(Debug, PartialEq, Eq)]
pub struct Phrase {
    /// The text with which it begins.
    pub begin: &'static str,
    /// The field of the rest of the sentence.
    pub field: &'static Field,
    /// True if the rest is a list, with a comma and a blank between the values.
    pub is_list: bool,
    /// Fields of numbers in the rest, each after this text; after no text: at the beginning.
    pub numbers: &'static [(&'static str, &'static Field)],
    pub about: &'static str,
}

/// Defines values of one type, and the list of them all.
macro_rules! table {
    ($all:ident: $type:ident { $($name:ident = $value:expr;)+ }) => {
        $(pub const $name: $type = $value;)+

        pub const $all: &[&$type] = &[$(&$name),+];
    };
}

const fn field(name: &'static str, kind: FieldType, title: &'static str, about: &'static str) -> Field {
    Field { name, kind, title, about }
}

use FieldType::{Flag, Number16, Number32, Number64, Text};

table! {
    FIELDS: Field {
        PACKET = field("trawl.packet", Number64, "Packet id", "Number of the packet, the same in all its records");
        PACKET_SHORT = field("trawl.packet.short", Text, "Packet id in short", "CPU that saw the packet first, and its number there");
        INTERFACE_NAME = field("trawl.interface", Text, "Interface", "Interface without the end of the program");
        HOOK = field("trawl.hook", Text, "Hook", "Point in the kernel at which the packet was seen");
        VERDICT = field("trawl.verdict", Text, "Verdict", "Verdict of the XDP or tc program");
        VERDICT_KIND = field("trawl.verdict.kind", Text, "Verdict of", "Kind of the program: xdp or tc");
        PROGRAM_NAME = field("trawl.program", Text, "Program", "XDP program at which the packet was seen");
        PROGRAM_ID = field("trawl.program.id", Number32, "Program id", "Number of the XDP program");
        PROGRAM_TAG = field("trawl.program.tag", Text, "Program tag", "The kernel's tag of the XDP program");
        PROGRAM_PLAIN_TAG = field("trawl.program.plain_tag", Text, "Program tag of the file", "Tag of the XDP program without the hooks that trawl inserted");
        POD = field("trawl.pod", Text, "Pod", "Kubernetes pod of the interface");
        POD_LABELS = field("trawl.pod.labels", Text, "Pod labels", "Labels of the pod");
        DROP_REASON = field("trawl.drop.reason", Text, "Drop reason", "The kernel's reason for the drop");
        DROP_FIX = field("trawl.drop.fix", Text, "Fix", "Cause, and the command that shows or fixes it, as in trawl why");
        DROP_LOCATION = field("trawl.drop.location", Text, "Drop location", "Function that dropped the packet, and the offset in it");
        DROP_FUNCTION = field("trawl.drop.function", Text, "Drop function", "Function that dropped the packet");
        DROP_NAMESPACE = field("trawl.drop.namespace", Text, "Drop namespace", "Network namespace of the drop: name or number");
        DROP_NO_LOSS = field("trawl.drop.no_loss", Text, "No loss", "Reason why the drop is no loss: no (unwanted), copied or done");
        DROP_RULE = field("trawl.drop.rule", Text, "Rule", "Rule or policy of nftables that dropped the packet");
        DROP_RULE_FAMILY = field("trawl.drop.rule.family", Text, "Rule family", "Family of the rule's table");
        DROP_RULE_TABLE = field("trawl.drop.rule.table", Text, "Rule table", "Table of the rule");
        DROP_RULE_CHAIN = field("trawl.drop.rule.chain", Text, "Rule chain", "Chain of the rule");
        DROP_RULE_HANDLE = field("trawl.drop.rule.handle", Number64, "Rule handle", "Handle of the rule; absent for a policy");
        DROP_CGROUP = field("trawl.drop.cgroup", Number64, "Dropping cgroup", "Number of the cgroup whose programs dropped the packet");
        DROP_STACK = field("trawl.drop.stack", Text, "Stack", "Functions that led to the drop, the innermost first");
        STEP_NAME = field("trawl.step", Text, "Step", "Point on the path of a followed packet");
        STEP_NUMBER = field("trawl.step.number", Number32, "Step number", "Number of the step on the packet's path");
        STEP_SIDE = field("trawl.step.side", Text, "Side", "End of the step's timed section: first or last");
        STEP_FOUND = field("trawl.step.found", Text, "Found by", "Evidence that the record belongs to the packet: new, buffer, memory or content");
        STEP_LOCATION = field("trawl.step.location", Text, "Step location", "Function at the step, and the offset in it");
        STEP_NAMESPACE = field("trawl.step.namespace", Text, "Step namespace", "Network namespace of the step: name or number");
        STEP_TRACKING = field("trawl.step.tracking", Text, "Connection tracking", "State of the packet's connection");
        STEP_READER = field("trawl.step.reader", Text, "Reader", "Process that read the packet");
        STEP_READER_PID = field("trawl.step.reader.pid", Number32, "Reader's number", "Number of the process that read the packet");
        NAT_SOURCE = field("trawl.nat.source", Flag, "Source translated", "The source address of the connection is translated");
        NAT_DESTINATION = field("trawl.nat.destination", Flag, "Destination translated", "The destination address of the connection is translated");
        PROCESS_NAME = field("trawl.process.name", Text, "Process", "Name of the packet's process");
        PROCESS_PID = field("trawl.process.pid", Number32, "Process number", "Number of the packet's process");
        PROCESS_OWNER = field("trawl.process.owner", Text, "Process known by", "Reason why another process may use the socket: listener, existing, shared or sender");
        PROCESS_UID = field("trawl.process.uid", Number32, "User number", "Number of the process's user");
        PROCESS_CONTAINER = field("trawl.process.container", Text, "Container", "Container of the process");
        PROCESS_POD = field("trawl.process.pod", Text, "Pod of the process", "Number of the process's Kubernetes pod");
        SOCKET_COOKIE = field("trawl.socket.cookie", Number64, "Socket cookie", "Number of the socket, unique on its host");
        SOCKET_CGROUP = field("trawl.socket.cgroup", Text, "Socket cgroup", "Cgroup of the socket: path, or number of a removed one");
        SOCKET_PROTOCOL = field("trawl.socket.protocol", Text, "Socket protocol", "Protocol of the socket");
        SOCKET_PORT = field("trawl.socket.port", Number16, "Socket port", "Local port of the socket");
        SOCKET_ADDRESS = field("trawl.socket.address", Text, "Socket address", "Local address of the socket");
        SOCKET_BUFFER = field("trawl.socket.receive_buffer", Number32, "Receive buffer", "Size of the receive buffer that was full, in bytes");
        SEGMENT_COUNT = field("trawl.segments", Number32, "Segments", "Number of segments that the packet stands for");
        REDIRECT_TARGET = field("trawl.redirect", Text, "Redirected to", "Target of XDP_REDIRECT");
        REDIRECT_INTERFACE = field("trawl.redirect.interface", Number32, "Target interface", "Number of the interface to which the packet was redirected");
        REDIRECT_CPU = field("trawl.redirect.cpu", Number32, "Target CPU", "CPU to which the packet was redirected");
        REDIRECT_MAP = field("trawl.redirect.map", Number32, "Map", "Number of the map with the target");
        REDIRECT_KEY = field("trawl.redirect.key", Number32, "Map key", "Key of the target in the map");
        SEEN_AT = field("trawl.seen_at", Text, "Seen at", "Interface and hook of a record, of a packet with several (--once)");
        TRIGGER_TEXT = field("trawl.trigger", Text, "Trigger", "The packet triggered the recording: number, cause and time");
        TRIGGER_NUMBER = field("trawl.trigger.number", Number32, "Trigger number", "Number of the trigger");
        SLOW_TEXT = field("trawl.slow", Text, "Slow", "Reasons why the connection is slow, as in trawl slow");
        CHANGE_TEXT = field("trawl.difference", Text, "Difference", "Difference between two programs at the packet, as in trawl xdp test");
    }
}

use Comment as Of;
use Form::{Cgroup, Ends, List, Location, NameAndNumber, NameAndPort, Rule, Whole};

table! {
    KEYS: Key {
        REASON = Key { word: "drop", form: Whole, about: "reason of the drop", fields: &[(Of::Drop, &[&DROP_REASON]), (Of::Step, &[])] };
        STEP = Key { word: "step", form: Whole, about: "point on the path", fields: &[(Of::Step, &[&STEP_NAME])] };
        AT = Key {
            word: "at", form: Location, about: "function of the drop or of the step",
            fields: &[(Of::Drop, &[&DROP_LOCATION, &DROP_FUNCTION]), (Of::Step, &[&STEP_LOCATION])],
        };
        SIDE = Key { word: "side", form: Whole, about: "end of the timed section", fields: &[(Of::Step, &[&STEP_SIDE])] };
        FOUND = Key { word: "found", form: Whole, about: "evidence", fields: &[(Of::Step, &[&STEP_FOUND])] };
        NUMBER = Key { word: "number", form: Whole, about: "number of the step", fields: &[(Of::Step, &[&STEP_NUMBER])] };
        TRACKING = Key { word: "ct", form: Whole, about: "state in connection tracking", fields: &[(Of::Step, &[&STEP_TRACKING])] };
        TRANSLATED = Key {
            word: "nat", form: Ends, about: "translated addresses of the connection",
            fields: &[(Of::Step, &[&NAT_SOURCE, &NAT_DESTINATION])],
        };
        READER = Key {
            word: "by", form: NameAndNumber, about: "process that read the packet",
            fields: &[(Of::Step, &[&STEP_READER, &STEP_READER_PID])],
        };
        NETNS = Key {
            word: "netns", form: Whole, about: "network namespace",
            fields: &[(Of::Drop, &[&DROP_NAMESPACE]), (Of::Step, &[&STEP_NAMESPACE])],
        };
        SEGMENTS = Key {
            word: "segs", form: Whole, about: "number of segments",
            fields: &[(Of::Drop, &[&SEGMENT_COUNT]), (Of::Step, &[&SEGMENT_COUNT]), (Of::Segments, &[&SEGMENT_COUNT])],
        };
        SOCK = Key {
            word: "sock", form: NameAndPort, about: "protocol and local port of the socket",
            fields: &[(Of::Drop, &[&SOCKET_PROTOCOL, &SOCKET_PORT]), (Of::Step, &[&SOCKET_PROTOCOL, &SOCKET_PORT])],
        };
        ADDRESS = Key {
            word: "addr", form: Whole, about: "local address of the socket",
            fields: &[(Of::Drop, &[&SOCKET_ADDRESS]), (Of::Step, &[&SOCKET_ADDRESS])],
        };
        PID = Key {
            word: "pid", form: Whole, about: "number of the process that has the socket open",
            fields: &[(Of::Drop, &[&PROCESS_PID]), (Of::Step, &[&PROCESS_PID])],
        };
        COMMAND = Key {
            word: "comm", form: Whole, about: "name of the process that has the socket open",
            fields: &[(Of::Drop, &[&PROCESS_NAME]), (Of::Step, &[&PROCESS_NAME])],
        };
        PROCESS = Key {
            word: "process", form: NameAndNumber, about: "process",
            fields: &[
                (Of::Drop, &[&PROCESS_NAME, &PROCESS_PID]),
                (Of::Step, &[&PROCESS_NAME, &PROCESS_PID]),
                (Of::Process, &[&PROCESS_NAME, &PROCESS_PID]),
            ],
        };
        SOCKET = Key {
            word: "socket", form: Whole, about: "cookie of the socket",
            fields: &[(Of::Drop, &[&SOCKET_COOKIE]), (Of::Step, &[&SOCKET_COOKIE]), (Of::Socket, &[&SOCKET_COOKIE])],
        };
        SOCKET_PATH = Key {
            word: "cgroup", form: Whole, about: "cgroup of the socket",
            fields: &[(Of::Drop, &[&SOCKET_CGROUP]), (Of::Step, &[&SOCKET_CGROUP]), (Of::Socket, &[&SOCKET_CGROUP])],
        };
        OWNER = Key {
            word: "owner", form: Whole, about: "reason why another process may use the socket",
            fields: &[(Of::Drop, &[&PROCESS_OWNER]), (Of::Step, &[&PROCESS_OWNER]), (Of::Socket, &[&PROCESS_OWNER])],
        };
        RECEIVE_BUFFER = Key {
            word: "rcvbuf", form: Whole, about: "size of the full receive buffer",
            fields: &[(Of::Drop, &[&SOCKET_BUFFER]), (Of::Step, &[&SOCKET_BUFFER])],
        };
        NO_LOSS = Key {
            word: "loss", form: Whole, about: "reason why the drop is no loss; absent for a loss",
            fields: &[(Of::Drop, &[&DROP_NO_LOSS]), (Of::Step, &[])],
        };
        DROPPER = Key {
            word: "by", form: Cgroup, about: "cgroup whose programs dropped the packet",
            fields: &[(Of::Drop, &[&DROP_CGROUP]), (Of::Step, &[])],
        };
        RULE = Key {
            word: "rule", form: Rule, about: "rule of nftables",
            fields: &[
                (Of::Drop, &[&DROP_RULE, &DROP_RULE_FAMILY, &DROP_RULE_TABLE, &DROP_RULE_CHAIN, &DROP_RULE_HANDLE]),
                (Of::Step, &[]),
            ],
        };
        STACK = Key { word: "stack", form: List, about: "functions that led to the drop", fields: &[(Of::Drop, &[&DROP_STACK]), (Of::Step, &[])] };
        USER = Key { word: "uid", form: Whole, about: "number of the process's user", fields: &[(Of::Process, &[&PROCESS_UID])] };
        CONTAINER = Key {
            word: "container", form: Whole, about: "container of the process",
            fields: &[(Of::Process, &[&PROCESS_CONTAINER]), (Of::Cgroup, &[])],
        };
        PROCESS_POD_KEY = Key {
            word: "pod", form: Whole, about: "number of the process's pod",
            fields: &[(Of::Process, &[&PROCESS_POD]), (Of::Cgroup, &[])],
        };
        PROCESS_PATH = Key { word: "cgroup", form: Whole, about: "cgroup of the process", fields: &[(Of::Cgroup, &[])] };
        INNER_PID = Key {
            word: "inner_pid", form: Whole, about: "number of the process in its own namespace", fields: &[(Of::Cgroup, &[])],
        };
        XDP_PROGRAM = Key { word: "xdp_program", form: Whole, about: "name of the XDP program", fields: &[(Of::Program, &[&PROGRAM_NAME])] };
        XDP_ID = Key { word: "xdp_id", form: Whole, about: "number of the XDP program", fields: &[(Of::Program, &[&PROGRAM_ID])] };
        XDP_TAG = Key { word: "xdp_tag", form: Whole, about: "tag of the XDP program", fields: &[(Of::Program, &[&PROGRAM_TAG])] };
        XDP_PLAIN_TAG = Key {
            word: "xdp_plain_tag", form: Whole, about: "tag of the XDP program without trawl's hooks",
            fields: &[(Of::Program, &[&PROGRAM_PLAIN_TAG])],
        };
        INTERFACE_POD = Key { word: "pod", form: Whole, about: "pod of the interface", fields: &[(Of::Pod, &[&POD])] };
        LABELS = Key { word: "labels", form: Whole, about: "labels of the pod", fields: &[(Of::Pod, &[&POD_LABELS])] };
        MONOTONIC_OFFSET = Key {
            word: "monotonic-offset", form: Whole, about: "nanoseconds from the monotonic clock to the time stamps", fields: &[(Of::Clock, &[])],
        };
        TRANSLATION_BEGUN = Key {
            word: "nat", form: Whole, about: "addresses of a connection before and after their translation, which begins",
            fields: &[(Of::Translation, &[])],
        };
        TRANSLATION_ENDED = Key {
            word: "nat-end", form: Whole, about: "the same of a translation that ends", fields: &[(Of::Translation, &[])],
        };
    }
}

table! {
    PHRASES: Phrase {
        REDIRECTED = Phrase {
            begin: "redirect to ",
            field: &REDIRECT_TARGET,
            is_list: false,
            numbers: &[("interface ", &REDIRECT_INTERFACE), ("CPU ", &REDIRECT_CPU), ("map ", &REDIRECT_MAP), ("key ", &REDIRECT_KEY)],
            about: "target of XDP_REDIRECT",
        };
        SEEN = Phrase { begin: "seen at ", field: &SEEN_AT, is_list: true, numbers: &[], about: "the records of a packet (`--once`)" };
        TRIGGER = Phrase {
            begin: "trigger ", field: &TRIGGER_TEXT, is_list: false, numbers: &[("", &TRIGGER_NUMBER)],
            about: "event that began the recording",
        };
        WITHIN_TRIGGER = Phrase {
            begin: "within trigger ", field: &TRIGGER_TEXT, is_list: false, numbers: &[("", &TRIGGER_NUMBER)],
            about: "further event during the recording",
        };
        SLOW = Phrase {
            begin: "slow: ", field: &SLOW_TEXT, is_list: false, numbers: &[],
            about: "verdict of `trawl slow`, at the first packet of the connection",
        };
        CHANGED = Phrase {
            begin: "difference: ", field: &CHANGE_TEXT, is_list: false, numbers: &[],
            about: "difference between two programs (`trawl xdp test --save`)",
        };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_field_has_one_name() {
        let names: BTreeSet<&str> = FIELDS.iter().map(|field| field.name).collect();
        assert_eq!(names.len(), FIELDS.len());
        for field in FIELDS {
            assert!(
                field.name.starts_with("trawl.") && !field.title.is_empty() && !field.about.is_empty(),
                "{field:?}"
            );
        }
    }

    /// A word of one kind of comment may have two forms, and no more.
    #[test]
    fn each_key_of_a_comment_is_read_in_one_way() {
        for comment in Comment::ALL {
            let of = |key: &&&Key| key.fields.iter().any(|(one, _)| *one == comment);
            let forms: BTreeSet<(&str, String)> =
                KEYS.iter().filter(of).map(|key| (key.word, format!("{:?}", key.form))).collect();
            assert_eq!(forms.len(), KEYS.iter().filter(of).count(), "{comment:?}");
        }
    }

    /// The kernel side writes these comments.
    #[test]
    fn kernel_side_writes_the_same_words() {
        let redirect = include_str!("../../../../../bpf/tap/redirect.h");
        let texts = redirect.matches(&format!("\"{}", REDIRECTED.begin)).count();
        assert_eq!(texts, redirect.matches("BPF_SNPRINTF(").count());
        let record = include_str!("../../../../../bpf/lib/record.h");
        let letters = |text: &str| {
            let letters: Vec<String> = text.chars().take(4).map(|one| format!("'{one}'")).collect();
            format!("LETTERS({})", letters.join(", "))
        };
        for key in [&OWNER, &SEGMENTS] {
            assert!(record.contains(&letters(key.word)), "{key:?}");
        }
    }
}
