//! Wording that several outputs share, and the escape of text in XML and HTML.

use std::fmt::Write as _;

use crate::report::{
    Difference, Example, Field, Fuzzing, Group, LeftOut, MapDifference, Method, Recorded, Report, Share, SourceLine,
    Timing,
};

/// Maximum number of bytes of a packet that are shown: the headers of nearly every packet.
const SHOWN_BYTES: usize = 256;
/// Maximum number of fields that are named.
const SHOWN_FIELDS: usize = 3;

/// Returns the programs and the number of packets: `filter of new.o, against old.o: 12 packets`.
pub fn heading(report: &Report) -> String {
    let against = report.against.as_ref().map_or(String::new(), |other| {
        let is_renamed = other.name != report.program.name;
        let name = if is_renamed { format!("{} of ", other.name) } else { String::new() };
        format!(", against {name}{}", other.source)
    });
    let Report { program, packets, .. } = report;
    format!("{} of {}{against}: {}", program.name, program.source, count(*packets, "packet"))
}

/// Returns the sentence about a comparison whose differences, if any, are all allowed.
pub fn agreement(report: &Report) -> Option<&'static str> {
    let is_compared = report.against.is_some() || report.recorded.is_some_and(|recorded| recorded.packets > 0);
    let all_are_allowed = report.maps.is_empty() && report.groups.iter().all(|group| group.allowed.is_some());
    let sentence = if report.groups.is_empty() { "no difference" } else { "every difference is allowed" };
    (is_compared && all_are_allowed).then_some(sentence)
}

/// Returns the difference of a group: `DROP becomes PASS`, `TX, bytes 30 to 31 and length differ`.
pub fn difference(group: &Group) -> String {
    let verdicts = if group.before == group.after {
        group.before.clone()
    } else {
        format!("{} becomes {}", group.before, group.after)
    };
    let parts: Vec<String> = group.differences.iter().filter_map(|one| part(*one, &group.fields)).collect();
    let verb = match (parts.as_slice(), group.fields.as_slice()) {
        ([one], _) if !one.starts_with("byte") => "differs",
        ([_], [Field { length: 1, .. }]) => "differs",
        _ => "differ",
    };
    match parts.split_last() {
        None => verdicts,
        Some((last, [])) => format!("{verdicts}, {last} {verb}"),
        Some((last, others)) => format!("{verdicts}, {} and {last} {verb}", others.join(", ")),
    }
}

fn part(difference: Difference, fields: &[Field]) -> Option<String> {
    match difference {
        Difference::Verdict => None,
        Difference::Bytes => Some(bytes(fields)),
        Difference::Length => Some("length".to_owned()),
        Difference::Metadata => Some("metadata".to_owned()),
        Difference::Context => Some("mark or priority".to_owned()),
        Difference::Target => Some("redirect target".to_owned()),
    }
}

fn bytes(fields: &[Field]) -> String {
    let shown = fields.iter().take(SHOWN_FIELDS).map(|field| match field.length {
        0 | 1 => field.offset.to_string(),
        length => format!("{} to {}", field.offset, field.offset + length - 1),
    });
    let shown: Vec<String> = shown.collect();
    let more = if fields.len() > SHOWN_FIELDS { " …" } else { "" };
    match fields {
        [] => "bytes".to_owned(),
        [Field { length: 1, offset }] => format!("byte {offset}"),
        _ => format!("bytes {}{more}", shown.join(", ")),
    }
}

/// Returns the lines of a group at which the programs part, each with the program's side.
pub fn lines(group: &Group) -> Vec<(&'static str, &SourceLine)> {
    let sides = [("new", &group.line_after), ("old", &group.line_before)];
    sides.into_iter().filter_map(|(side, line)| line.as_ref().map(|line| (side, line))).collect()
}

/// Returns size and bytes of the packet that differs. Bytes that are left out show as an ellipsis.
pub fn example(example: &Example) -> String {
    let last = example.packets.last().map_or(&[][..], Vec::as_slice);
    let size = count(last.len() as u64, "byte");
    let shown = hex(&last[..last.len().min(SHOWN_BYTES)]);
    let more = if last.len() > SHOWN_BYTES { "…" } else { "" };
    match example.packets.len() {
        0 | 1 => format!("smallest packet, {size}: {shown}{more}"),
        packets => format!("shortest sequence, {packets} packets, the last of {size}: {shown}{more}"),
    }
}

/// Returns the sentence about an example that does not show the difference on its own.
pub fn doubt(example: &Example) -> Option<&'static str> {
    (!example.is_confirmed).then_some("the example alone did not show the difference again")
}

/// Returns the difference of a map: `map ports: 2 entries differ, for example key 0035: 01 becomes 00`.
pub fn map(map: &MapDifference) -> String {
    let entries = match map.entries {
        1 => "1 entry differs, key".to_owned(),
        entries => format!("{entries} entries differ, for example key"),
    };
    let values = match (&map.before, &map.after) {
        (Some(before), Some(after)) => format!("{before} becomes {after}"),
        (None, Some(after)) => format!("only the new program has it, {after}"),
        (Some(before), None) => format!("only the old program has it, {before}"),
        (None, None) => "unknown values".to_owned(),
    };
    let fuzzed = if map.is_fuzzed { ", after fuzzing" } else { "" };
    format!("map {}{fuzzed}: {entries} {}: {values}", map.name, map.key)
}

pub fn recorded(recorded: Recorded) -> String {
    format!("recorded verdicts: {} of {} reproduced", recorded.reproduced, recorded.packets)
}

/// Returns the average times: `time: 105.2 ns a packet, the other program 94.1 ns (+11.8 %, noise 1.2 ns)`.
pub fn timing(timing: &Timing) -> String {
    let Timing { ns, against_ns, noise_ns, packets, not_timed, .. } = timing;
    if *packets == 0 {
        return format!("time: no packet shows its path from the maps' first state, so none of {not_timed} was timed");
    }
    let against = match against_ns {
        Some(against) => {
            let share = if *against > 0.0 { (ns - against) * 100.0 / against } else { 0.0 };
            format!(", the other program {against:.1} ns ({share:+.1} %, noise {noise_ns:.1} ns)")
        }
        None => format!(" (noise {noise_ns:.1} ns)"),
    };
    let missing = if *not_timed > 0 { format!(", without {}", count(*not_timed, "packet")) } else { String::new() };
    format!("time: {ns:.1} ns a packet{against}{missing}")
}

/// Returns the sentences about fuzzing: its runs, then errors that it met.
pub fn fuzzing(fuzzing: &Fuzzing) -> Vec<String> {
    let Fuzzing { seconds, runs, new_blocks, paths, corpus, differing, unconfirmed, errors, .. } = fuzzing;
    let rate = if *seconds > 0.0 { *runs as f64 / seconds } else { 0.0 };
    let mut sentences = vec![format!(
        "fuzzing: {} in {seconds:.1} s ({rate:.0} a second), {}, {}, a corpus of {}",
        count(*runs, "run"),
        count(*new_blocks, "new block"),
        count(*paths, "path"),
        count(*corpus, "packet")
    )];
    if *differing > 0 {
        sentences.push(format!("fuzzing: {} with a difference", count(*differing, "run")));
    }
    if *unconfirmed > 0 {
        sentences.push(format!(
            "note: {} of fuzzing with a difference not shown: packets alone did not show it again",
            count(*unconfirmed, "run")
        ));
    }
    if let Some(one) = &fuzzing.error_example {
        let doubt = doubt(one).map_or(String::new(), |doubt| format!(" ({doubt})"));
        sentences.push(format!(
            "fuzzing: {} with ABORTED or an unknown verdict{doubt}: {}",
            count(*errors, "run"),
            example(one)
        ));
    }
    sentences
}

pub fn method(method: Method) -> &'static str {
    match method {
        Method::Single => "single runs",
        Method::Repeated => "repeated",
    }
}

pub fn left_out(file: &str, left_out: &LeftOut) -> String {
    format!("{} of {file} not run: {}", count(left_out.packets, "packet"), left_out.why)
}

/// Returns a share: `120 of 160 lines`.
pub fn share(share: Share, nouns: &str) -> String {
    format!("{} of {} {nouns}", share.reached, share.total)
}

/// Returns a share in whole percent, rounded down: only all of the parts are 100 %.
pub fn percent(share: Share) -> String {
    format!("{:.0} %", share.percent().floor())
}

/// Formats a number with a noun, given in the singular: `1 packet`, `2 packets`.
pub fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Escapes text for XML and HTML, in elements and in quoted attributes. Characters that XML forbids, and those that
/// change the direction of text, have the form that JSON uses: `\u001b`.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(letter),
            _ if is_invisible(letter) => {
                let _ = write!(escaped, "\\u{:04x}", u32::from(letter));
            }
            _ => escaped.push(letter),
        }
    }
    escaped
}

fn is_invisible(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn group(before: &str, after: &str, differences: &[Difference], fields: &[(usize, usize)]) -> Group {
        let fields = fields.iter().map(|(offset, length)| Field { offset: *offset, length: *length }).collect();
        let differences = differences.to_vec();
        Group { before: before.into(), after: after.into(), differences, fields, ..sample::group() }
    }

    #[test]
    fn difference_names_verdicts_bytes_and_other_properties() {
        use Difference::{Bytes, Length, Metadata, Target, Verdict};
        let text =
            |before, after, differences: &[_], fields: &[_]| difference(&group(before, after, differences, fields));
        assert_eq!(text("DROP", "PASS", &[Verdict], &[]), "DROP becomes PASS");
        assert_eq!(text("TX", "TX", &[Bytes], &[(30, 2)]), "TX, bytes 30 to 31 differ");
        assert_eq!(text("TX", "TX", &[Bytes], &[(30, 1)]), "TX, byte 30 differs");
        assert_eq!(text("TX", "TX", &[Bytes], &[]), "TX, bytes differ");
        let many = [(0, 12), (14, 1), (20, 2), (30, 1)];
        assert_eq!(text("TX", "TX", &[Bytes], &many), "TX, bytes 0 to 11, 14, 20 to 21 … differ");
        assert_eq!(text("PASS", "PASS", &[Metadata], &[]), "PASS, metadata differs");
        let all = [Verdict, Bytes, Length, Target];
        assert_eq!(
            text("TX", "REDIRECT", &all, &[(5, 1)]),
            "TX becomes REDIRECT, byte 5, length and redirect target differ"
        );
    }

    #[test]
    fn sequence_shows_its_last_packet() {
        let one = Example { packets: vec![vec![0xff; 14], vec![1, 2]], ..sample::group().example };
        assert_eq!(example(&one), "shortest sequence, 2 packets, the last of 2 bytes: 0102");
        let long = Example { packets: vec![vec![0; 300]], ..one };
        assert_eq!(example(&long), format!("smallest packet, 300 bytes: {}…", "00".repeat(256)));
    }

    #[test]
    fn map_states_what_became_of_its_entry() {
        let both = MapDifference {
            name: "ports".into(),
            is_fuzzed: false,
            entries: 2,
            key: "0035".into(),
            before: Some("01".into()),
            after: Some("00".into()),
        };
        assert_eq!(map(&both), "map ports: 2 entries differ, for example key 0035: 01 becomes 00");
        let new = MapDifference { entries: 1, before: None, is_fuzzed: true, ..both };
        assert_eq!(map(&new), "map ports, after fuzzing: 1 entry differs, key 0035: only the new program has it, 00");
    }

    #[test]
    fn nearly_all_is_less_than_all() {
        assert_eq!(percent(Share { reached: 999, total: 1000 }), "99 %");
        assert_eq!(percent(Share { reached: 3, total: 3 }), "100 %");
        assert_eq!(percent(Share::default()), "100 %");
    }

    #[test]
    fn agreement_needs_a_comparison() {
        let mut report = Report::default();
        assert_eq!(agreement(&report), None);
        report.recorded = Some(Recorded { packets: 3, reproduced: 3 });
        assert_eq!(agreement(&report), Some("no difference"));
        report.groups = vec![Group { allowed: Some("tx>tx".into()), ..sample::group() }];
        assert_eq!(agreement(&report), Some("every difference is allowed"));
        report.groups.push(sample::group());
        assert_eq!(agreement(&report), None);
    }

    #[test]
    fn markup_and_forbidden_characters_are_escaped() {
        assert_eq!(escape("a<b & \"c'>\t\n"), "a&lt;b &amp; &quot;c&#39;&gt;\t\n");
        assert_eq!(escape("\0\u{1b}\r\u{7f}\u{85}\u{202e}\u{ffff}ü"), r"\u0000\u001b\u000d\u007f\u0085\u202e\uffffü");
    }
}
