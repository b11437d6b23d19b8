//! Wireshark's post-dissector, which shows the data that trawl records about packets as fields.

use std::fmt::Write as _;

use trawl_explain::why::advice;
use trawl_packet::pcapng::note::keys::{Comment, FIELDS, FieldType, Form, KEYS, Key, PHRASES, Phrase};
use trawl_packet::verdict::VerdictKind;

const TEMPLATE: &str = include_str!("dissector.lua");

/// A remark on a packet in Wireshark's list of expert information.
#[derive(Debug)]
pub struct Expert {
    /// Name in the Lua.
    name: &'static str,
    pub field: &'static str,
    title: &'static str,
    severity: &'static str,
    pub about: &'static str,
}

pub const EXPERTS: [Expert; 4] = [
    Expert {
        name: "dropped",
        field: "trawl.expert.dropped",
        title: "Dropped",
        severity: "WARN",
        about: "The kernel or a program dropped the packet (warning)",
    },
    Expert {
        name: "freed",
        field: "trawl.expert.freed",
        title: "Freed without a loss",
        severity: "CHAT",
        about: "The kernel freed the packet as dropped, which is no loss",
    },
    Expert {
        name: "slow",
        field: "trawl.expert.slow",
        title: "Slow connection",
        severity: "WARN",
        about: "The packet is the first one of a slow connection (warning)",
    },
    Expert {
        name: "trigger",
        field: "trawl.expert.trigger",
        title: "Trigger",
        severity: "NOTE",
        about: "The packet triggered the recording",
    },
];

/// Returns the post-dissector's Lua.
pub fn lua() -> String {
    let mut text = TEMPLATE.to_owned();
    for (mark, rows) in [
        ("--FIELDS\n", fields()),
        ("--KEYS\n", keys()),
        ("--KINDS\n", kinds()),
        ("--PHRASES\n", phrases()),
        ("--VERDICTS\n", verdicts()),
        ("--ADVICE\n", advice()),
        ("--EXPERTS\n", experts()),
    ] {
        text = text.replace(mark, &rows);
    }
    text
}

/// Returns the type's name.
pub fn type_name(kind: FieldType) -> &'static str {
    match kind {
        FieldType::Text => "text",
        FieldType::Number16 => "number16",
        FieldType::Number32 => "number32",
        FieldType::Number64 => "number64",
        FieldType::Flag => "flag",
    }
}

/// Returns a text as a string of Lua.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn fields() -> String {
    let row = |out: &mut String, (name, kind, title, about): (&str, FieldType, &str, &str)| {
        // Writing to a String cannot fail.
        let _ =
            writeln!(out, "    {{ {}, \"{}\", {}, {} }},", quoted(name), type_name(kind), quoted(title), quoted(about));
    };
    let mut out = String::new();
    FIELDS.iter().for_each(|field| row(&mut out, (field.name, field.kind, field.title, field.about)));
    out
}

/// The kinds of comments of packets and of interfaces.
fn shown() -> impl Iterator<Item = Comment> {
    let has_fields = |comment: &Comment| {
        let is_shown = |key: &&Key| key.fields.iter().any(|(of, fields)| of == comment && !fields.is_empty());
        KEYS.iter().any(is_shown)
    };
    Comment::ALL.into_iter().filter(has_fields)
}

fn name(comment: Comment) -> String {
    format!("{comment:?}").to_lowercase()
}

fn form(form: Form) -> &'static str {
    match form {
        Form::Whole => "whole",
        Form::NameAndNumber => "name_and_number",
        Form::NameAndPort => "name_and_port",
        Form::Location => "location",
        Form::Rule => "rule",
        Form::List => "list",
        Form::Ends => "ends",
        Form::Cgroup => "cgroup",
    }
}

fn keys() -> String {
    let mut out = String::new();
    for comment in shown() {
        let _ = writeln!(out, "    {} = {{", name(comment));
        let rows: Vec<(&str, String)> = KEYS
            .iter()
            .filter_map(|key| {
                let (_, fields) = key.fields.iter().find(|(of, fields)| *of == comment && !fields.is_empty())?;
                let names: Vec<String> = fields.iter().map(|field| quoted(field.name)).collect();
                Some((key.word, format!("{{ \"{}\", {} }}", form(key.form), names.join(", "))))
            })
            .collect();
        for (number, (word, row)) in rows.iter().enumerate() {
            // Two forms of one word are in one row.
            if rows[..number].iter().any(|(earlier, _)| earlier == word) {
                continue;
            }
            let others = rows[number + 1..].iter().filter(|(later, _)| later == word).map(|(_, row)| row.as_str());
            let forms: Vec<&str> = std::iter::once(row.as_str()).chain(others).collect();
            let _ = writeln!(out, "        {word} = {{ {} }},", forms.join(", "));
        }
        out.push_str("    },\n");
    }
    out
}

fn kinds() -> String {
    let of_packets = shown().filter(|comment| comment.block() == "packet");
    let rows = of_packets.flat_map(|comment| comment.begins().iter().map(move |key| (key.word, comment)));
    rows.map(|(word, comment)| format!("    {word} = \"{}\",\n", name(comment))).collect()
}

fn phrases() -> String {
    let row = |phrase: &&Phrase| {
        let numbers = phrase.numbers.iter();
        let numbers: Vec<String> =
            numbers.map(|(before, field)| format!("{{ {}, {} }}", quoted(before), quoted(field.name))).collect();
        let (begin, field) = (quoted(phrase.begin), quoted(phrase.field.name));
        format!("    {{ {begin}, {field}, {}, {{ {} }} }},\n", phrase.is_list, numbers.join(", "))
    };
    PHRASES.iter().map(row).collect()
}

fn verdicts() -> String {
    let mut out = String::new();
    for (kind, name) in [(VerdictKind::Xdp, "xdp"), (VerdictKind::Tc, "tc")] {
        let _ = writeln!(out, "    {name} = {{");
        for (text, action) in kind.names() {
            // Wireshark reads the number with a sign.
            let _ = writeln!(out, "        [\"{}\"] = {},", action.cast_signed(), quoted(text));
        }
        // UNSPEC, which is -1, without the extension of the sign.
        let narrow = u64::from(u32::MAX);
        if let Some(text) = kind.name(narrow) {
            let _ = writeln!(out, "        [\"{narrow}\"] = {},", quoted(text));
        }
        out.push_str("    },\n");
    }
    out
}

fn experts() -> String {
    let row = |Expert { name, field, title, severity, .. }: &Expert| {
        format!(
            "    {name} = ProtoExpert.new({}, {}, expert.group.PROTOCOL, expert.severity.{severity}),\n",
            quoted(field),
            quoted(title)
        )
    };
    EXPERTS.iter().map(row).collect()
}

fn advice() -> String {
    advice::rows().map(|(subject, advice)| format!("    {{ {}, {} }},\n", quoted(subject), quoted(advice))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packaged_dissector_is_the_generated_one() {
        let packaged = include_str!("../../../../packaging/wireshark/trawl.lua");
        assert!(packaged == lua(), "run: trawl extcap fields --lua > packaging/wireshark/trawl.lua");
    }

    /// The Lua names fields as texts.
    #[test]
    fn dissector_adds_known_fields_only() {
        let mut rest = TEMPLATE;
        while let Some((_, after)) = rest.split_once("\"trawl.") {
            let (name, more) = after.split_once('"').expect("the end of a text");
            rest = more;
            let name = format!("trawl.{name}");
            let is_field = FIELDS.iter().any(|field| field.name == name);
            assert!(is_field || name.ends_with(['=', '.', ' ']), "{name}");
        }
    }

    /// Returns the reasons and functions that the rows of the table are about.
    fn subjects() -> Vec<(String, String)> {
        let mut found = Vec::new();
        for (subject, _) in advice::rows() {
            let (reason, functions) = subject.split_once('@').unwrap_or((subject, "f"));
            let reasons = match reason {
                "" => vec!["NOT_SPECIFIED".to_owned(), "OTHERHOST".to_owned(), "UNKNOWN".to_owned()],
                reason => vec![reason.replace('*', "SUFFIX")],
            };
            for reason in reasons {
                found.extend(functions.split(',').map(|function| (reason.clone(), function.to_owned())));
            }
        }
        found
    }

    /// The Lua chooses the same advice for each reason and function as `trawl why`.
    #[test]
    fn fix_is_the_advice_of_why() {
        use trawl_packet::pcapng::{Interface, write};

        if std::process::Command::new("tshark").arg("--version").output().is_err() {
            eprintln!("SKIPPED: tshark is not installed");
            return;
        }
        let mut bytes = Vec::new();
        write::section_header(&mut bytes, &write::SectionHeader::default());
        let interface = Interface { name: Some("eth0.5".to_owned()), ..Interface::default() };
        write::interface_description(&mut bytes, &interface);
        let subjects = subjects();
        for (reason, function) in &subjects {
            let comment = format!("drop={reason} at={function}+0x1 netns=4026531840");
            let packet = write::EnhancedPacket { captured: &[2; 60], comment: Some(&comment), ..Default::default() };
            write::enhanced_packet(&mut bytes, &packet);
        }
        let temporary = |name: &str| std::env::temp_dir().join(format!("trawl-fix-{}-{name}", std::process::id()));
        let (file, script) = (temporary("drops.pcapng"), temporary("trawl.lua"));
        std::fs::write(&file, bytes).expect("a file");
        std::fs::write(&script, lua()).expect("a file");
        let shown = std::process::Command::new("tshark")
            .arg("-X")
            .arg(format!("lua_script:{}", script.display()))
            .args(["-T", "fields", "-e", "trawl.drop.fix", "-r"])
            .arg(&file)
            .output()
            .expect("tshark runs");
        for own in [file, script] {
            std::fs::remove_file(own).expect("it is there");
        }
        let shown = String::from_utf8(shown.stdout).expect("text");
        let expected: Vec<String> = subjects
            .iter()
            .map(|(reason, function)| {
                let advice = advice::row(reason, function).unwrap_or_default();
                let interface = if advice.contains(".INTERFACE.") { "eth0/5" } else { "eth0.5" };
                advice.replace("PREFIX", "").replace("INTERFACE", interface).replace("DESTINATION", "ADDRESS")
            })
            .collect();
        assert!(expected.len() > 100 && expected.iter().filter(|advice| advice.is_empty()).count() < 50);
        assert_eq!(shown.lines().collect::<Vec<_>>(), expected);
    }
}
