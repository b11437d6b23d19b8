//! Each comment is parsed as the value that was written; comments of older files are written unchanged.

use std::borrow::Cow;
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};

use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

use super::keys::Comment;
use super::*;
use crate::freed::Freed;

/// Returns a name without white space and separators.
fn name() -> impl Strategy<Value = String> {
    "[^\\s,]{1,9}"
}

fn kept(text: String) -> &'static str {
    text.leak()
}

prop_compose! {
    fn process()(name in name(), id: u32) -> ProcessNote<'static> {
        ProcessNote { name: kept(name), id }
    }
}

prop_compose! {
    fn socket()(
        cookie: u64, path in of("/[a-z@. /-]{0,9}[a-z]"), owner in of(select(Owner::ALL)),
    ) -> SocketNote<'static> {
        SocketNote { cookie: Some(cookie), cgroup: path.map(Cow::from), owner }
    }
}

prop_compose! {
    fn rule()(names in [name(), name(), name()], handle: Option<u64>) -> Rule<'static> {
        let [family, table, chain] = names.map(Cow::from);
        Rule { family, table, chain, handle }
    }
}

prop_compose! {
    fn ends()(
        reason in name(), at in name(), netns in of(name()), segments: Option<u32>,
        socket in of((name(), any::<u16>())), address: Option<IpAddr>,
    ) -> DropNote<'static> {
        DropNote {
            reason: kept(reason),
            at: kept(at),
            netns: netns.map(kept),
            segments,
            socket: socket.map(|(protocol, port)| LocalSocket { protocol: kept(protocol), port }),
            address,
            ..DropNote::default()
        }
    }
}

prop_compose! {
    fn dropped()(
        note in ends(), pid: Option<u32>, command in of(name()), owner in of(process()), receive_buffer: Option<u32>,
        no_loss in select(vec![Freed::Lost, Freed::Unwanted, Freed::Copied, Freed::Done]), rule in of(rule()),
        cgroup: Option<u64>, stack in prop::collection::vec(name(), 0..4),
    ) -> DropNote<'static> {
        DropNote {
            pid,
            command: command.map(kept),
            owner: owner.map(OwnerNote::Process),
            receive_buffer,
            no_loss,
            rule,
            cgroup,
            stack: stack.into_iter().map(kept).collect(),
            ..note
        }
    }
}

prop_compose! {
    fn step()(
        facts in dropped(), step in select(Step::ALL), side in of(select(Side::ALL)), found in of(select(Found::ALL)),
        number: Option<u32>, tracking in of(select(Tracking::ALL)), source: bool, destination: bool,
        reader in of(process()),
    ) -> FollowStep<'static> {
        let translated = Translated { source, destination };
        FollowStep { step, side, found, number, tracking, translated, reader, facts }
    }
}

prop_compose! {
    fn container()(
        container in of(name()), pod in of(name()), path in of("/[a-z@. /=-]{0,9}"), inner_pid: Option<u32>,
    ) -> CgroupNote<'static> {
        CgroupNote { container: container.map(kept), pod: pod.map(kept), cgroup: path.map(kept), inner_pid }
    }
}

prop_compose! {
    fn news()(protocol: u8, original: [SocketAddr; 2], reply: [SocketAddr; 2], time_ns: u64, ended: bool)
        -> TranslationNews
    {
        // Text has no flow label and no scope.
        let plain = |ends: [SocketAddr; 2]| ends.map(|end| SocketAddr::new(end.ip(), end.port()));
        let translation = Translation { protocol, original: plain(original), reply: plain(reply) };
        TranslationNews { translation, time_ns, ended }
    }
}

prop_compose! {
    fn program()(name in name(), id: u32, tag in name(), plain_tag in of(name())) -> ProgramNote<'static> {
        ProgramNote { name: kept(name), id, tag: kept(tag), plain_tag: plain_tag.map(kept) }
    }
}

/// Writes a note, and parses it; comments live as long as the test.
fn again<N: Note<'static> + Clone + Debug + PartialEq>(note: &N) -> Option<N> {
    N::parse(kept(note.text()))
}

proptest! {
    #[test]
    fn notes_are_read_back(
        dropped in dropped(), step in step(), process in process(), socket in socket(), container in container(),
        news in news(), labels in of(name()), program in program(), monotonic_offset: u64,
        segments: u16,
    ) {
        let clock = ClockNote { monotonic_offset };
        prop_assert_eq!(again(&clock), Some(clock));
        prop_assert_eq!(again(&SegmentsNote(segments)), Some(SegmentsNote(segments)));
        prop_assert_eq!(again(&program), Some(program));
        prop_assert_eq!(again(&dropped), Some(dropped.clone()));
        prop_assert_eq!(again(&step), Some(step));
        prop_assert_eq!(again(&process), Some(process));
        prop_assert_eq!(again(&socket), Some(socket));
        prop_assert_eq!(again(&container), (container != CgroupNote::default()).then_some(container));
        prop_assert_eq!(again(&news), Some(news));
        let facts = ProcessFacts {
            process: ProcessNote { name: kept(format!("{} {}", process.name, process.name)), ..process },
            user: dropped.pid,
            container: container.container.filter(|name| !name.ends_with(']')),
            pod: container.pod.filter(|name| !name.ends_with(']')),
        };
        prop_assert_eq!(again(&facts), Some(facts));
        let pod = PodNote { name: process.name, labels: labels.map(kept) };
        prop_assert_eq!(again(&pod), Some(pod));
    }

    #[test]
    fn any_text_is_parsed_without_a_panic(text in "(drop=|step=|socket=|nat=|monotonic-offset=|xdp_program=)?[a-z0-9=,:\\[\\]_ /]{0,60}") {
        if let Some(dropped) = DropNote::parse(&text).filter(|note| !note.reason.is_empty()) {
            let written = dropped.text();
            prop_assert_eq!(DropNote::parse(&written), Some(dropped));
        }
        let _ = (FollowStep::parse(&text), OwnerNote::parse(&text), CgroupNote::parse(&text), PodNote::parse(&text));
        let _ = (TranslationNews::parse(&text), ClockNote::parse(&text), ProgramNote::parse(&text));
    }
}

/// Parses a comment, and writes it.
fn rewritten<'a, N: Note<'a>>(text: &'a str) -> Option<String> {
    N::parse(text).map(|note| note.text())
}

#[test]
fn comments_of_files_are_written_as_they_were() {
    for text in [
        "drop=7 at=0xffffffff81000000",
        "drop=SOCKET_RCVBUFF at=__udp_enqueue+0x1 netns=pb segs=3 sock=udp:53 addr=10.9.2.2 pid=4711 comm=dnsd rcvbuf=212992 stack=a+0x1,b+0x2",
        "drop=SOCKET_RCVBUFF at=x+0x1 netns=4026531840 sock=tcp:443 addr=fd00::1 process=a_b[9] rcvbuf=4096 loss=no",
        "drop=NETFILTER_DROP at=nft_do_chain+0x3e8 netns=pb rule=inet,f,in,4 stack=nft_do_chain+0x3e8",
        "drop=NETFILTER_DROP at=x+0x1 rule=ip,filter,INPUT",
        "drop=SOCKET_FILTER at=x+0x1 socket=5_cgroup=/a_b_owner=shared by=cgroup:77",
    ] {
        assert_eq!(rewritten::<DropNote>(text).as_deref(), Some(text));
    }
    for text in [
        "step=input side=last found=buffer number=7 ct=established,reply nat=src,dst netns=pb",
        "step=dropped drop=NO_SOCKET at=__udp4_lib_rcv+0x1 found=memory number=9 netns=1 segs=2 loss=copied",
        "step=read at=x+0x1 found=new number=3 ct=untracked by=dns_d[7] sock=udp:53 addr=10.9.2.2 pid=8 comm=dnsd",
    ] {
        assert_eq!(rewritten::<FollowStep>(text).as_deref(), Some(text));
    }
    for text in
        ["process=curl[7]", "process=a [b][9] uid=0", "process=a[1] uid=2[9] uid=3 container=0123456789ab pod=8a6e"]
    {
        assert_eq!(rewritten::<ProcessFacts>(text).as_deref(), Some(text));
    }
    for text in ["process=curl[7]", "process=a [b][9]", "socket=77", "socket=77 cgroup=/a b owner=listener"] {
        assert_eq!(rewritten::<OwnerNote>(text).as_deref(), Some(text));
    }
    let text = "container=0123456789ab pod=8a6e cgroup=/x/y z inner_pid=3";
    assert_eq!(rewritten::<CgroupNote>(text).as_deref(), Some(text));
    let text = "pod=default/web-0 labels=app=web,tier=db";
    assert_eq!(rewritten::<PodNote>(text).as_deref(), Some(text));
    let text = "monotonic-offset=18446744073709551615";
    assert_eq!(rewritten::<ClockNote>(text).as_deref(), Some(text));
    for text in [
        "xdp_program=filter xdp_id=7 xdp_tag=0011223344556677",
        "xdp_program=filter xdp_id=7 xdp_tag=0011223344556677 xdp_plain_tag=8899aabbccddeeff",
    ] {
        assert_eq!(rewritten::<ProgramNote>(text).as_deref(), Some(text));
    }
    let text = "nat-end=17 [fd00::1]:7>[fd00::2]:8 [fd00::3]:8>[fd00::1]:7 5";
    assert_eq!(rewritten::<TranslationNews>(text).as_deref(), Some(text));
}

/// Returns the keys of a comment's words.
fn keys_of(text: &str) -> Vec<&str> {
    words(text).map(|(key, _)| key).collect()
}

/// Each word of a comment with all values has a row for its kind of comment.
#[test]
fn each_written_key_has_a_row() {
    let process = ProcessNote { name: "curl", id: 7 };
    let socket = SocketNote { cookie: Some(5), cgroup: Some(Cow::from("/a")), owner: Some(Owner::Shared) };
    let rule = Rule { family: "inet".into(), table: "f".into(), chain: "in".into(), handle: Some(4) };
    let dropped = DropNote {
        reason: "NO_SOCKET",
        at: "x+0x1",
        netns: Some("pb"),
        segments: Some(3),
        socket: Some(LocalSocket { protocol: "udp", port: 53 }),
        address: Some(IpAddr::from([10, 9, 2, 2])),
        pid: Some(8),
        command: Some("dnsd"),
        owner: Some(OwnerNote::Process(process)),
        receive_buffer: Some(4096),
        no_loss: Freed::Copied,
        rule: Some(rule),
        cgroup: Some(77),
        stack: vec!["a+0x1", "b+0x2"],
    };
    let step = FollowStep {
        step: Step::Dropped,
        side: Some(Side::First),
        found: Some(Found::Memory),
        number: Some(7),
        tracking: Some(Tracking::New),
        translated: Translated { source: true, destination: true },
        reader: Some(process),
        facts: dropped.clone(),
    };
    let facts = ProcessFacts { process, user: Some(0), container: Some("0123456789ab"), pod: Some("8a6e") };
    let cgroup = CgroupNote { container: Some("c"), pod: Some("p"), cgroup: Some("/x"), inner_pid: Some(1) };
    let program = ProgramNote { name: "f", id: 7, tag: "00", plain_tag: Some("11") };
    let pod = PodNote { name: "default/web-0", labels: Some("app:web") };
    let ends = ["10.0.0.1:1", "10.0.0.2:2"].map(|end| end.parse().expect("an address"));
    let translation = Translation { protocol: 17, original: ends, reply: ends };
    let news = |ended| TranslationNews { translation, time_ns: 5, ended }.text();
    let mut found = std::collections::BTreeSet::new();
    for (comment, text) in [
        (Comment::Drop, dropped.text()),
        (Comment::Step, step.text()),
        (Comment::Process, facts.text()),
        (Comment::Socket, socket.text()),
        (Comment::Segments, SegmentsNote(3).text()),
        (Comment::Cgroup, cgroup.text()),
        (Comment::Program, program.text()),
        (Comment::Pod, pod.text()),
        (Comment::Clock, ClockNote { monotonic_offset: 17 }.text()),
        (Comment::Translation, news(false)),
        (Comment::Translation, news(true)),
    ] {
        assert!(comment.begins().iter().any(|key| text.starts_with(&format!("{}=", key.word))), "{text}");
        for word in keys_of(&text) {
            let rows =
                keys::KEYS.iter().filter(|key| key.word == word && key.fields.iter().any(|(of, _)| *of == comment));
            assert!(rows.clone().count() > 0, "{comment:?} has no row for {word}");
            found.extend(rows.map(|key| (key.word, key.about)));
        }
    }
    // Conversely, each row is written, except those that other comments contain as one word.
    let embedded = [(Comment::Drop, &socket), (Comment::Step, &socket)];
    for (comment, socket) in embedded {
        let note = DropNote { owner: Some(OwnerNote::Socket(socket.clone())), ..dropped.clone() };
        let text = match comment {
            Comment::Drop => note.text(),
            _ => FollowStep { facts: note, ..step.clone() }.text(),
        };
        assert!(text.contains(" socket=5_cgroup=/a_owner=shared"), "{text}");
    }
    for key in keys::KEYS {
        assert!(found.contains(&(key.word, key.about)), "no comment has {key:?}");
    }
}

#[test]
fn white_space_in_a_name_does_not_end_its_word() {
    let owner = OwnerNote::Process(ProcessNote { name: "a b", id: 9 });
    let note = DropNote { reason: "7", command: Some("dns d"), owner: Some(owner), ..DropNote::default() };
    assert_eq!(note.text(), "drop=7 comm=dns_d process=a_b[9]");
}

#[test]
fn comment_of_the_kernel_side_has_blanks_after_it() {
    let owner = |text| SocketNote::parse(text).and_then(|note| note.owner);
    assert_eq!(owner("owner=shared  "), Some(Owner::Shared));
    assert_eq!(owner("owner=listener"), Some(Owner::Listener));
    assert_eq!(owner("socket=7 cgroup=/x owner=listener owner=shared"), Some(Owner::Shared));
}

#[test]
fn drops_are_displayed_for_people() {
    for (comment, text) in [
        (
            "drop=SOCKET_RCVBUFF at=__udp_enqueue+0x1 netns=pb segs=3 sock=udp:53 addr=10.9.2.2 pid=4711 comm=dnsd",
            "SOCKET_RCVBUFF at __udp_enqueue+0x1 in pb, 3 segments, socket udp:53 of dnsd[4711]",
        ),
        (
            "drop=NETFILTER_DROP at=x+0x1 netns=pb rule=inet,f,in,4",
            "NETFILTER_DROP at x+0x1 in pb, rule 4 of inet f in",
        ),
        ("drop=NETFILTER_DROP rule=ip,filter,INPUT", "NETFILTER_DROP, policy of ip filter INPUT"),
        ("drop=7 later=word", "7"),
    ] {
        let note = DropNote::parse(comment).expect("a drop");
        assert_eq!(note.to_string(), text);
    }
    assert_eq!(DropNote::parse("redirect to interface 3"), None);
    assert_eq!(DropNote::parse("drop=7 at=f+0x1").map(|note| note.function()), Some("f"));
}

#[test]
fn tag_of_the_file_is_the_one_without_hooks() {
    let tag = |text| ProgramNote::parse(text).map(|note| note.file_tag());
    assert_eq!(tag("xdp_program=f xdp_id=7 xdp_tag=00"), Some("00"));
    assert_eq!(tag("xdp_program=f xdp_id=7 xdp_tag=00 xdp_plain_tag=11"), Some("11"));
    assert_eq!(tag("xdp_program=f xdp_tag=00"), None);
}
